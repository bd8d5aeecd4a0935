package prefill

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"bulkhead/internal/model"
	"bulkhead/internal/sample"
	"bulkhead/transfer"
)

// worker is the engine loop of a prefill node: one goroutine owns the
// scheduler and the runner; others send it events.
type worker struct {
	node     *Node
	runner   model.Runner
	sched    *Scheduler
	attempts map[JobID]*attempt
	logits   map[JobID][]float32 // of prompts whose last row was in the step that is done

	limits SchedulerConfig
	nextID atomic.Uint64

	mu         sync.Mutex
	events     []func()      // guarded by mu: run by the loop, in order
	jobs, rows int64         // guarded by mu: accepted and not ended, and their rows to compute
	wake       chan struct{} // size 1
}

func newWorker(n *Node) (*worker, error) {
	cfg := SchedulerConfig{ChunkRows: n.cfg.Chunk}.withDefaults()
	runner, err := n.cfg.Engine.NewRunner(cfg.ChunkRows, cfg.MaxSeqs)
	if err != nil {
		return nil, fmt.Errorf("prefill: %w", err)
	}
	return &worker{
		node: n, runner: runner, sched: NewScheduler(cfg), limits: cfg,
		attempts: map[JobID]*attempt{}, logits: map[JobID][]float32{}, wake: make(chan struct{}, 1),
	}, nil
}

// post gives the loop something to do between two steps.
func (w *worker) post(f func()) {
	w.mu.Lock()
	w.events = append(w.events, f)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// add queues an attempt, or says ErrBusy. It does not wait for the step in
// flight: a router must hear at once whether its job was taken, however long
// the prompts are that this node is working on.
func (w *worker) add(a *attempt) error {
	rows := int64(len(a.prompt) - a.cached)
	w.mu.Lock()
	var busy error
	switch {
	case w.jobs >= int64(w.limits.MaxJobs):
		busy = &BusyError{What: "jobs", Limit: w.limits.MaxJobs, Value: int(w.jobs) + 1}
	case w.rows > 0 && w.rows+rows > int64(w.limits.MaxTokens):
		busy = &BusyError{What: "tokens", Limit: w.limits.MaxTokens, Value: int(w.rows + rows)}
	default:
		w.jobs++
		w.rows += rows
	}
	w.mu.Unlock()
	if busy != nil {
		return &refusal{transfer.ReasonBusy, busy}
	}
	a.whenEnded(func() {
		w.mu.Lock()
		w.jobs--
		w.rows -= rows
		w.mu.Unlock()
	})
	w.post(func() {
		a.id = JobID(w.nextID.Add(1))
		w.attempts[a.id] = a
		if err := w.sched.Add(Job{ID: a.id, Tenant: a.grant.Claims.Tenant, Tokens: len(a.prompt), Cached: a.cached, Deadline: a.grant.Job.Deadline}); err != nil {
			delete(w.attempts, a.id) // its limits are not below those of add
			a.cancel(&refusal{transfer.ReasonBusy, err})
			a.writer.Done()
			a.leave()
		}
	})
	return nil
}

// cancel takes an attempt out; its rows in flight are the last.
func (w *worker) cancel(a *attempt) { w.post(func() { w.sched.Cancel(a.id) }) }

// shipped says how many blocks of an attempt the stream has taken. With ended
// the shipper is gone, and so is the attempt.
func (w *worker) shipped(a *attempt, blocks int, ended bool) {
	w.post(func() {
		if ended {
			w.sched.Cancel(a.id) // nothing, if all was shipped
			return
		}
		w.sched.Shipped(a.id, blocks)
	})
}

func (w *worker) tick(now time.Time) { w.post(func() { w.sched.Tick(now) }) }

// load is the attempts in work and their prompt tokens.
func (w *worker) load() (running, waiting int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return int(w.jobs), int(w.rows)
}

// run steps until ctx ends.
func (w *worker) run(ctx context.Context) {
	defer w.runner.Close()
	for {
		w.take()
		if w.step() {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
	}
}

// take runs what was posted.
func (w *worker) take() {
	w.mu.Lock()
	events := w.events
	w.events = nil
	w.mu.Unlock()
	for _, f := range events {
		f()
	}
}

// step does what the scheduler decides; it reports whether there may be more.
func (w *worker) step() bool {
	d := w.sched.Decide()
	for _, id := range d.Sample {
		w.sampleFirst(w.attempts[id])
	}
	clear(w.logits)
	for _, e := range d.Ended {
		w.ended(w.attempts[e.Job], e.Reason)
	}
	for _, b := range d.Complete {
		w.attempts[b.Job].computed(b.To, nil)
	}
	for _, id := range d.Release {
		a := w.attempts[id]
		delete(w.attempts, id)
		a.writer.Done()
		a.leave()
	}
	if len(d.Chunks) > 0 {
		w.compute(d.Chunks)
	}
	return len(d.Chunks)+len(d.Sample)+len(d.Ended) > 0 // else nothing new can have come of it
}

// compute runs one step.
func (w *worker) compute(chunks []Chunk) {
	started := time.Now()
	seqs := make([]model.Seq, len(chunks))
	rows := 0
	for i, c := range chunks {
		a := w.attempts[c.Job]
		seqs[i] = model.Seq{Tokens: a.prompt[c.Pos : c.Pos+c.Len], Pos: c.Pos, Table: a.table.Entries(), Logits: c.Last, Source: a.source(w.node.self.Epoch)}
		rows += c.Len
	}
	outs, err := w.runner.Forward(w.node.pages, seqs)
	for i, c := range chunks {
		a := w.attempts[c.Job]
		switch {
		case err != nil:
			w.fault(a, &refusal{transfer.ReasonInternal, err})
		case outs[i].Err != nil:
			w.node.log.Error("KV integrity fault", "request", transfer.ID(a.grant.Claims.Request), "err", outs[i].Err)
			a.table.Quarantine(outs[i].Err.Error())
			w.fault(a, &refusal{transfer.ReasonIntegrity, outs[i].Err})
		case c.Last:
			w.logits[c.Job] = outs[i].Logits
		}
	}
	w.sched.StepDone()
	w.node.stats.stepped(time.Since(started), rows)
}

func (w *worker) fault(a *attempt, cause error) {
	a.cancel(cause)
	w.sched.Fault(a.id)
}

// sampleFirst chooses the first token of a finished prompt, by the same pure
// function that decode goes on with.
func (w *worker) sampleFirst(a *attempt) {
	sampler, err := sample.New(a.grant.Job.Params, w.node.self.Vocab, a.grant.Job.Prompt)
	var first sample.Token
	if err == nil {
		first, err = sampler.Sample(w.logits[a.id], nil)
	}
	if err != nil {
		w.fault(a, &refusal{transfer.ReasonLogits, err})
		return
	}
	a.computed(a.plan.Blocks(), &first)
}

// ended makes sure that the shipper of an attempt that did not complete stops.
func (w *worker) ended(a *attempt, why EndReason) {
	switch why {
	case EndDeadline:
		a.cancel(&refusal{transfer.ReasonTimeout, errors.New("the first token's deadline passed")})
	case EndCancel, EndFault:
		a.cancel(errCancelled) // the first cause stays
	}
}
