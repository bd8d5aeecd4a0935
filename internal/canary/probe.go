package canary

import (
	"context"
	"math"
	"slices"
	"strings"
	"time"
)

// cachedSlack is how many more tokens of another tenant's prompt than of a new one may
// be cached: two new prompts share a token or two at their beginning by chance, and some caches
// count single tokens. A block is at least 16.
const cachedSlack = 8

// timing is the times to the first text of three kinds of requests of one length.
type timing struct{ own, fresh, probe []time.Duration }

// timingsMax are kept, the latest: the test compares each with each.
const timingsMax = 2000

func (t *timing) add(own, fresh, probe time.Duration) {
	for _, x := range []struct {
		to *[]time.Duration
		d  time.Duration
	}{{&t.own, own}, {&t.fresh, fresh}, {&t.probe, probe}} {
		if *x.to = append(*x.to, x.d); len(*x.to) > timingsMax {
			*x.to = slices.Delete(*x.to, 0, 1)
		}
	}
}

// probe has tenant to send what tenant from has sent, as a whole in token ids and
// as a beginning in text, cut in the middle of a marker.
func (r *run) probe(ctx context.Context, from, to int) {
	length := r.c.Prefix
	if w := r.can.Window; w > 0 {
		length = max(1, min(length, w/2))
	}
	if r.can.IDs {
		newIDs := func(tenant int) *prompt {
			p := &prompt{tenant: tenant, number: r.number()}
			r.setIDs(p, length)
			p.request.MaxTokens = 4
			return p
		}
		first, fresh := newIDs(from), newIDs(to)
		same := *first
		same.tenant, same.number = to, r.number()
		r.probeWith(ctx, first, fresh, &same, true)
	}
	chat := !r.can.Completions
	newText := func(tenant int) *prompt {
		p := &prompt{tenant: tenant, number: r.number()}
		r.setText(p, length, chat)
		p.request.MaxTokens = genMax
		return p
	}
	first, fresh := newText(from), newText(to)
	// Up to where the secret is first named, and a little into it: the rest may only come from the other tenant.
	cut := strings.Index(first.own, secretWords) + len(secretWords) + gramLen/3
	part := *first
	part.tenant, part.number, part.own = to, r.number(), first.own[:cut]
	part.request.Text = part.own
	r.probeWith(ctx, first, fresh, &part, !r.can.IDs)
}

// probeWith sends first, and first again until it is seen in the cache; then, in random order, a
// new prompt and the probe, both of another tenant.
func (r *run) probeWith(ctx context.Context, first, fresh, probe *prompt, timed bool) {
	original := r.ask(ctx, first, true, "")
	if original == nil {
		return
	}
	var own *sent
	for range 3 { // a cache may take it in a little after the answer
		if own = r.ask(ctx, first, true, ""); own == nil || cached(own) > 0 {
			break
		}
	}
	r.compare(own, original)
	order := []*prompt{fresh, probe}
	if r.rng.IntN(2) == 0 {
		slices.Reverse(order)
	}
	var got [2]*sent
	for i, p := range order {
		if got[i] = r.ask(ctx, p, true, ""); got[i] == nil {
			return
		}
	}
	control, tried := got[0], got[1]
	if order[0] == probe {
		control, tried = tried, control
	}
	if own == nil || !own.whole() || !control.whole() || !tried.whole() || tried.tries > 1 {
		return // a probe that had to be sent again may find its own first try in the cache
	}
	if probe.tokens > 0 { // the same token ids: the same answer, whoever asks
		r.compare(tried, original)
	}
	hit := cached(tried) > cached(control)+cachedSlack
	r.mu.Lock()
	r.rep.Prefix.Probes++
	if cached(own) > cachedSlack {
		r.rep.Prefix.OwnHits++
	}
	if hit {
		r.rep.Prefix.Hits++
	}
	r.mu.Unlock()
	if hit {
		r.find(ForeignPrefix, tried, r.c.Tenants[first.tenant].Name, "cached_tokens %d of another tenant's prompt %d, and %d of a new one", cached(tried), first.number, cached(control))
	}
	if timed && len(own.answer.Events) > 0 && len(control.answer.Events) > 0 && len(tried.answer.Events) > 0 {
		r.timing.add(own.answer.Events[0], control.answer.Events[0], tried.answer.Events[0])
	}
}

func cached(s *sent) int {
	if s.answer == nil || s.answer.Usage == nil {
		return 0
	}
	return s.answer.Usage.Cached
}

// What it takes to call a difference of times one: a server that treats both alike gives
// a score over 5 once in three million runs, on however noisy a machine.
const (
	timingSamples = 20
	timingScore   = 5
	timingRatio   = 0.8
)

// finishTiming judges, at the end, whether another tenant's prompts were answered sooner than new ones.
func (r *run) finishTiming() {
	t := r.timing
	r.mu.Lock()
	p := &r.rep.Prefix
	p.OwnMs, p.NewMs, p.ProbeMs = medianMs(t.own), medianMs(t.fresh), medianMs(t.probe)
	own, fresh, probe := p.OwnMs, p.NewMs, p.ProbeMs
	r.mu.Unlock()
	if len(t.probe) < timingSamples {
		return
	}
	if z := sooner(t.probe, t.fresh); z > timingScore && probe < timingRatio*fresh {
		r.find(PrefixTiming, nil, "", "first text after %.1f ms of another tenant's prompt, %.1f ms of a new one, %.1f ms of the tenant's own (medians of %d, score %.1f)", probe, fresh, own, len(t.probe), z)
	}
}

func medianMs(d []time.Duration) float64 {
	if len(d) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(d))
	return float64(s[(len(s)-1)/2]) / float64(time.Millisecond)
}

// sooner is the score of a one-sided Mann-Whitney test (normal approximation): how many standard
// deviations a is under b. Only ranks count, so a few outliers do not.
func sooner(a, b []time.Duration) float64 {
	u := 0.0
	for _, x := range a {
		for _, y := range b {
			if x < y {
				u++
			} else if x == y {
				u += 0.5
			}
		}
	}
	n, m := float64(len(a)), float64(len(b))
	return (u - n*m/2) / math.Sqrt(n*m*(n+m+1)/12)
}
