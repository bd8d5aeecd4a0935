package router

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"bulkhead/internal/mutant"
	"bulkhead/internal/tenant"
)

// admission counts what each tenant has in work and how fast it asks, against
// the limits of the tenants file. It is pure state: callers hand in the time, and lock.
type admission struct {
	tenants map[string]*usage // by tenant id
}

// usage is one tenant's account.
type usage struct {
	inWork   int    // sequences; a request counts one until its n is known
	requests bucket // per minute
	tokens   bucket // per minute, prompt and generated
}

// bucket is a token bucket that may be overdrawn: what a generation will cost is
// not known before, so it is charged as it comes and later requests wait.
// A rate of 0 is no limit.
type bucket struct {
	perMinute int
	level     float64
	at        time.Time
}

func (b *bucket) fill(perMinute int, now time.Time) {
	if b.perMinute != perMinute { // new, or the tenants file changed
		*b = bucket{perMinute: perMinute, level: float64(perMinute), at: now}
	}
	if d := now.Sub(b.at); d > 0 {
		b.level = min(float64(b.perMinute), b.level+d.Minutes()*float64(b.perMinute))
		b.at = now
	}
}

// wait is how long until n can be taken; 0 is now.
func (b *bucket) wait(n int) time.Duration {
	if b.perMinute == 0 || b.level >= float64(n) {
		return 0
	}
	return time.Duration((float64(n) - b.level) / float64(b.perMinute) * float64(time.Minute))
}

func (b *bucket) take(n int) { b.level -= float64(n) }

// rateHeaders are the x-ratelimit-* headers of one limit. Durations are in Go's form,
// which OpenAI uses too and clients parse.
func (b *bucket) rateHeaders(h http.Header, what string) {
	if b.perMinute == 0 {
		return
	}
	h.Set("x-ratelimit-limit-"+what, strconv.Itoa(b.perMinute))
	h.Set("x-ratelimit-remaining-"+what, strconv.Itoa(max(0, int(b.level))))
	h.Set("x-ratelimit-reset-"+what, b.wait(b.perMinute).Round(time.Millisecond).String())
}

func newAdmission() *admission { return &admission{tenants: make(map[string]*usage)} }

// of returns t's account as of now.
func (a *admission) of(t *tenant.Tenant, now time.Time) *usage {
	u := a.tenants[t.ID]
	if u == nil {
		u = &usage{}
		a.tenants[t.ID] = u
	}
	u.requests.fill(t.Limits.RequestsPerMinute, now)
	u.tokens.fill(t.Limits.TokensPerMinute, now)
	return u
}

// enter lets one request of t in, before its body is read, so that a tenant's
// bodies are bounded too. What it took is given back by leave(t, 1).
func (a *admission) enter(t *tenant.Tenant, now time.Time) error {
	u := a.of(t, now)
	if err := u.room(t, 1); err != nil {
		return err
	}
	if wait := u.requests.wait(1); wait > 0 {
		return rateLimited(wait, "the limit of %d requests per minute is reached", t.Limits.RequestsPerMinute)
	}
	u.requests.take(1)
	u.inWork++
	return nil
}

// grow takes the slots of n more sequences of a request.
func (a *admission) grow(t *tenant.Tenant, n int, now time.Time) error {
	u := a.of(t, now)
	if err := u.room(t, n); err != nil {
		return err
	}
	u.inWork += n
	return nil
}

func (u *usage) room(t *tenant.Tenant, n int) error {
	most := t.Limits.MaxConcurrent
	if most == 0 || u.inWork+n <= most {
		return nil
	}
	return rateLimited(time.Second, "the limit of %d concurrent sequences is reached", most)
}

// charge takes the tokens of a prompt from t's rate, or says when to come back.
func (a *admission) charge(t *tenant.Tenant, tokens int, now time.Time) error {
	u := a.of(t, now)
	if most := t.Limits.TokensPerMinute; most > 0 && tokens > most {
		return fail(kindQuota, "", "the prompt has %d tokens, more than the limit of %d tokens per minute", tokens, most)
	}
	if wait := u.tokens.wait(tokens); wait > 0 {
		return rateLimited(wait, "the limit of %d tokens per minute is reached", t.Limits.TokensPerMinute)
	}
	u.tokens.take(tokens)
	return nil
}

// generated charges tokens that came out.
func (a *admission) generated(t *tenant.Tenant, tokens int, now time.Time) {
	a.of(t, now).tokens.take(tokens)
}

// leave gives n slots back. Accounts that hold nothing and are full again are dropped.
func (a *admission) leave(t *tenant.Tenant, n int, now time.Time) {
	u := a.of(t, now)
	if u.inWork -= n; u.inWork < 0 {
		panic("router: internal error: more sequences left than came")
	}
	if u.inWork == 0 && u.requests.wait(u.requests.perMinute) == 0 && u.tokens.wait(u.tokens.perMinute) == 0 {
		delete(a.tenants, t.ID)
	}
}

// headers writes the x-ratelimit-* headers of t.
func (a *admission) headers(t *tenant.Tenant, h http.Header, now time.Time) {
	u := a.of(t, now)
	u.requests.rateHeaders(h, "requests")
	u.tokens.rateHeaders(h, "tokens")
}

func rateLimited(wait time.Duration, format string, args ...any) error {
	e := fail(kindRateLimit, "", format, args...)
	e.retry = time.Duration(math.Ceil(wait.Seconds())) * time.Second
	return e
}

// budget decides how many tokens a sequence may generate: what was asked for, or up
// to the limit if nothing was; tenantMax and serverMax (0 = none) bound the
// latter, and an explicit wish over tenantMax is refused. A prompt that leaves no
// room, alone or with what was asked, is over the context limit.
func budget(limit, prompt int, g *generation, tenantMax, serverMax int) (int, error) {
	param := g.promptParam()
	if mutant.Off(mutant.AdmissionLength) {
		return max(g.maxNew, 1), nil
	}
	if prompt > limit {
		return 0, contextError(limit, prompt, param)
	}
	if g.maxNew > 0 {
		if prompt+g.maxNew > limit {
			return 0, contextSumError(limit, prompt, g.maxNew, param)
		}
		if tenantMax > 0 && g.maxNew > tenantMax {
			return 0, fail(kindMalformed, g.maxNewParam, "'%s' is %d, more than this key's limit of %d", g.maxNewParam, g.maxNew, tenantMax)
		}
		return g.maxNew, nil
	}
	if prompt == limit { // not one token fits behind it
		return 0, contextSumError(limit, prompt, 1, param)
	}
	maxNew := limit - prompt
	for _, bound := range []int{tenantMax, serverMax} {
		if bound > 0 {
			maxNew = min(maxNew, bound)
		}
	}
	if g.minTokens > maxNew {
		return 0, fail(kindMalformed, "min_tokens", "'min_tokens' is %d, at most %d tokens can be generated", g.minTokens, maxNew)
	}
	return maxNew, nil
}
