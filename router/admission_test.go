package router

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/tenant"
)

func kindOf(err error) kind {
	if err == nil {
		return ""
	}
	return asAPIError(err).kind
}

// TestBudget: prompt + max_new against the limit, at its border and one over, with both numbers
// in the message; bounds of tenant and server apply where the client named none.
func TestBudget(t *testing.T) {
	for _, tc := range []struct {
		limit, prompt, asked, tenantMax, serverMax int
		want                                       int
		kind                                       kind
		msg                                        string
	}{
		{limit: 100, prompt: 90, asked: 10, want: 10},
		{limit: 100, prompt: 90, asked: 11, kind: kindContextLength, msg: "This model's maximum context length is 100 tokens. However, you requested 101 tokens (90 in the messages, 11 in the completion). Please reduce the length of the messages or completion."},
		{limit: 100, prompt: 101, asked: 1, kind: kindContextLength, msg: "This model's maximum context length is 100 tokens. However, your messages resulted in 101 tokens. Please reduce the length of the messages."},
		{limit: 100, prompt: 101, kind: kindContextLength, msg: "resulted in 101 tokens"},
		{limit: 100, prompt: 100, kind: kindContextLength, msg: "you requested 101 tokens"},
		{limit: 100, prompt: 99, want: 1},
		{limit: 100, prompt: 40, want: 60},
		{limit: 100, prompt: 40, tenantMax: 20, serverMax: 30, want: 20},
		{limit: 100, prompt: 40, tenantMax: 30, serverMax: 20, want: 20},
		{limit: 100, prompt: 40, asked: 20, tenantMax: 20, serverMax: 5, want: 20},
		{limit: 100, prompt: 40, asked: 21, tenantMax: 20, kind: kindMalformed, msg: "'max_tokens' is 21, more than this key's limit of 20"},
	} {
		g := &generation{chat: true, maxNew: tc.asked, maxNewParam: "max_tokens"}
		got, err := budget(tc.limit, tc.prompt, g, tc.tenantMax, tc.serverMax)
		if got != tc.want || kindOf(err) != tc.kind || err != nil && !strings.Contains(err.Error(), tc.msg) {
			t.Errorf("%+v: got %d, %v", tc, got, err)
		}
	}
	if _, err := budget(100, 95, &generation{minTokens: 6}, 0, 0); asAPIError(err).param != "min_tokens" {
		t.Errorf("min_tokens over what fits: %v", err)
	}
}

// TestTenantLimits: concurrency and both rates, with the time to wait; one tenant's use is not another's.
func TestTenantLimits(t *testing.T) {
	a := newAdmission()
	reg := tenant.NewRegistry()
	one := must(reg.Add("one", testKey, tenant.Limits{MaxConcurrent: 3, RequestsPerMinute: 6, TokensPerMinute: 600}))
	two := must(reg.Add("two", otherKey, tenant.Limits{}))
	now := time.Unix(1000, 0)
	for range 2 {
		if err := a.enter(one, now); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.grow(one, 2, now); kindOf(err) != kindRateLimit {
		t.Errorf("4 sequences of 3: %v", err)
	}
	if err := a.grow(one, 1, now); err != nil {
		t.Errorf("3 sequences of 3: %v", err)
	}
	if err := a.enter(one, now); kindOf(err) != kindRateLimit {
		t.Errorf("a fourth: %v", err)
	}
	for range 100 {
		if err := a.enter(two, now); err != nil {
			t.Fatalf("a tenant without limits: %v", err)
		}
	}
	a.leave(one, 3, now)
	for range 4 { // 6 requests in a minute
		if err := a.enter(one, now); err != nil {
			t.Fatal(err)
		}
		a.leave(one, 1, now)
	}
	err := a.enter(one, now)
	var e *apiError
	if !errors.As(err, &e) || e.kind != kindRateLimit || e.retry != 10*time.Second {
		t.Errorf("a seventh request: %v, retry after %v", err, e)
	}
	now = now.Add(10 * time.Second)
	if err := a.enter(one, now); err != nil {
		t.Errorf("ten seconds later: %v", err)
	}
	if err := a.charge(one, 601, now); kindOf(err) != kindQuota {
		t.Errorf("a prompt that never fits: %v", err)
	}
	if err := a.charge(one, 500, now); err != nil {
		t.Error(err)
	}
	a.generated(one, 200, now) // 100 overdrawn
	err = a.charge(one, 100, now)
	if !errors.As(err, &e) || e.retry != 20*time.Second {
		t.Errorf("overdrawn by 100 at 10 a second, asking 100: %v", err)
	}
	h := http.Header{}
	a.headers(one, h, now)
	want := map[string]string{
		"x-ratelimit-limit-requests": "6", "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m0s",
		"x-ratelimit-limit-tokens": "600", "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m10s",
	}
	for k, v := range want {
		if h.Get(k) != v {
			t.Errorf("%s: %q, want %q", k, h.Get(k), v)
		}
	}
}

// TestQueueFairness: tenants take turns, their own requests keep their order, a full queue says so.
func TestQueueFairness(t *testing.T) {
	q := newQueue(6, time.Minute)
	now := time.Unix(0, 0)
	names := map[*ticket]string{}
	push := func(tenant, name string) error {
		tk := &ticket{tenant: tenant, since: now, deadline: now.Add(time.Minute), granted: make(chan grant, 1)}
		names[tk] = name
		return q.push(tk)
	}
	for _, n := range []string{"a1", "a2", "a3"} {
		if err := push("a", n); err != nil {
			t.Fatal(err)
		}
	}
	if err := push("a", "a4"); kindOf(err) != kindOverloaded {
		t.Errorf("one tenant filled more than half of the queue: %v", err)
	}
	for _, n := range []string{"b1", "c1", "c2"} {
		if err := push(n[:1], n); err != nil {
			t.Fatal(err)
		}
	}
	if err := push("d", "d1"); kindOf(err) != kindOverloaded {
		t.Errorf("a seventh of six: %v", err)
	}
	var got []string
	for {
		tk := q.next(now, func(*ticket) bool { return true })
		if tk == nil {
			break
		}
		got = append(got, names[tk])
	}
	if want := []string{"a1", "b1", "c1", "a2", "c2", "a3"}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	if q.waiting != 0 || len(q.turns) != 0 || len(q.tenants) != 0 {
		t.Errorf("left behind: %+v", q)
	}
}

// TestQueueStarving: small requests pass a large one that does not fit, but not for ever.
func TestQueueStarving(t *testing.T) {
	q := newQueue(100, 10*time.Second)
	start := time.Unix(0, 0)
	large := &ticket{tenant: "large", need: need{prompt: 1000}, since: start, deadline: start.Add(time.Minute)}
	small := func(at time.Time) *ticket {
		return &ticket{tenant: "small", need: need{prompt: 1}, since: at, deadline: at.Add(time.Minute)}
	}
	_ = q.push(large)
	room := 100
	fits := func(tk *ticket) bool { return tk.need.prompt <= room }
	_ = q.push(small(start))
	if got := q.next(start.Add(time.Second), fits); got == nil || got.tenant != "small" {
		t.Fatalf("got %v, want the small one", got)
	}
	_ = q.push(small(start))
	if got := q.next(start.Add(11*time.Second), fits); got != nil {
		t.Fatalf("got %v while the large one starves", got)
	}
	room = 1000
	if got := q.next(start.Add(12*time.Second), fits); got != large {
		t.Fatalf("got %v, want the large one", got)
	}
	if got := q.next(start.Add(12*time.Second), fits); got == nil {
		t.Fatal("the small one never came")
	}
}

// TestQueueDeadline: what waits too long is taken out, and only that.
func TestQueueDeadline(t *testing.T) {
	q := newQueue(10, time.Minute)
	now := time.Unix(0, 0)
	early, late := &ticket{tenant: "a", deadline: now.Add(time.Second)}, &ticket{tenant: "a", deadline: now.Add(3 * time.Second)}
	_ = q.push(early)
	_ = q.push(late)
	if got := q.expire(now.Add(2 * time.Second)); len(got) != 1 || got[0] != early {
		t.Errorf("expired %v", got)
	}
	if q.remove(early) || !q.remove(late) {
		t.Error("the queue holds what expired, or lost what did not")
	}
}
