package canary

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	roundPrompts  = 8 // each alone once, and then Repeat times under load
	saturateEvery = 8 // rounds between those that begin with full pools and requests at the window
)

// round sends one batch of everything.
func (r *run) round(ctx context.Context, n int) {
	var prompts []*prompt
	for i := range roundPrompts {
		prompts = append(prompts, r.newPrompt((n+i)%len(r.c.Tenants)))
	}
	full := n%saturateEvery == 0
	if full && r.can.IDs && r.can.Window > 8 && r.can.Window <= r.c.Boundary {
		for i := range 2 {
			p := &prompt{tenant: (n + i) % len(r.c.Tenants), number: r.number()}
			r.setIDs(p, r.can.Window-8-i)
			p.request.MaxTokens = 8
			prompts = append(prompts, p)
		}
	}

	r.enter("alone")
	alone := make([]*sent, len(prompts))
	for i, p := range prompts {
		if alone[i] = r.ask(ctx, p, false, ""); alone[i] == nil {
			return
		}
	}
	if full {
		r.enter("saturating")
		r.saturate(ctx, n%len(r.c.Tenants))
	}
	r.enter("load")
	r.load(ctx, prompts, alone)
	r.enter("prefixes")
	from := n % len(r.c.Tenants)
	to := (from + 1 + r.rng.IntN(len(r.c.Tenants)-1)) % len(r.c.Tenants)
	r.probe(ctx, from, to)
}

// saturate has one tenant fill the pools with long marked prompts, so that what is read
// afterwards without having been written is likely its data; then others
// ask for what does not fit.
func (r *run) saturate(ctx context.Context, tenant int) {
	long := r.c.Long
	if w := r.can.Window; w > 0 {
		long = min(long, w*3/4)
	}
	var jobs []func()
	for range r.c.Concurrency {
		p := &prompt{tenant: tenant, number: r.number()}
		r.setText(p, long, !r.can.Completions)
		p.request.MaxTokens = 4
		jobs = append(jobs, func() { r.ask(ctx, p, true, "") })
	}
	r.do(jobs)
	if r.can.Window > 0 {
		for i := range 4 {
			p := r.overLength((tenant + 1) % len(r.c.Tenants))
			r.tooLong(ctx, p, i%2 == 0)
		}
	}
}

func (r *run) tooLong(ctx context.Context, p *prompt, stream bool) {
	r.mu.Lock()
	r.rep.Over++
	r.mu.Unlock()
	r.refused(r.ask(ctx, p, stream, "refuse"), OverLength)
}

// load sends, in random order and Concurrency at once: every prompt of the round several times,
// streamed and not; cancels, each with a retry of the same request; over-length and bad requests.
func (r *run) load(ctx context.Context, prompts []*prompt, alone []*sent) {
	var jobs []func()
	for i, p := range prompts {
		for k := range r.c.Repeat {
			jobs = append(jobs, func() { r.compare(r.ask(ctx, p, k%2 == 0, ""), alone[i]) })
		}
		if i%2 == 0 {
			stream, wait := r.rng.IntN(2) == 0, r.rng.Float64()
			jobs = append(jobs, func() {
				r.cancel(ctx, p, stream, time.Duration(wait*float64(alone[i].answerTime())))
				r.compare(r.ask(ctx, p, !stream, ""), alone[i])
			})
		}
	}
	if r.can.Window > 0 {
		for i := range 2 {
			p := r.overLength(r.rng.IntN(len(r.c.Tenants)))
			jobs = append(jobs, func() { r.tooLong(ctx, p, i == 0) })
		}
	}
	if r.can.IDs {
		p := r.badRequest(r.rng.IntN(len(r.c.Tenants)))
		jobs = append(jobs, func() { r.refused(r.ask(ctx, p, false, "refuse"), BadRequest) })
	}
	r.rng.Shuffle(len(jobs), func(i, j int) { jobs[i], jobs[j] = jobs[j], jobs[i] })
	r.do(jobs)
}

// answerTime is how long an answer took.
func (s *sent) answerTime() time.Duration {
	if s.answer == nil {
		return 0
	}
	return s.answer.Total
}

// cancel sends p and goes away: at the first text of a stream, else after wait.
func (r *run) cancel(ctx context.Context, p *prompt, stream bool, wait time.Duration) {
	if !r.take(ctx) {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gone := *p
	if stream {
		gone.request.OnText = cancel
	} else {
		t := time.AfterFunc(wait, cancel)
		defer t.Stop()
	}
	s := &sent{prompt: &gone, stream: stream, must: "cancel"}
	r.send(ctx, s)
	r.count(s, false)
	r.progress()
	if s.answer != nil && s.err == nil {
		r.examine(s) // it was faster
	} else if s.answer != nil {
		r.foreign(s)
	}
}

// do runs jobs, Concurrency at once, to their end.
func (r *run) do(jobs []func()) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(r.c.Concurrency, len(jobs)) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(jobs); i = int(next.Add(1)) - 1 {
				jobs[i]()
			}
		})
	}
	wg.Wait()
}
