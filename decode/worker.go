package decode

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"bulkhead/internal/kv"
	"bulkhead/internal/model"
	"bulkhead/internal/sample"
	"bulkhead/kernels"
	"bulkhead/transfer"
)

// worker is the engine loop of a decode node: one goroutine owns the
// scheduler, the runner and every running sequence; others send it events.
type worker struct {
	node   *Node
	runner model.Runner
	sched  *Scheduler
	seqs   map[SeqID]*running
	nextID SeqID

	mu     sync.Mutex
	events []event       // guarded by mu
	wake   chan struct{} // size 1
}

// event is one thing that the loop is told: exactly one member is set.
type event struct {
	start  *running
	cancel *attempt
	reason transfer.Reason // of a cancel
	done   func()          // of a cancel: called when the pages are back
}

// running is a committed sequence.
type running struct {
	id        SeqID
	attempt   *attempt
	first     sample.Token
	sampler   *sample.Sampler
	generated []int32 // the first token included
	writer    *kv.Writer
	fault     error
	reason    transfer.Reason
	onEnd     []func()
}

func newWorker(n *Node, maxBatch int) (*worker, error) {
	runner, err := n.cfg.Engine.NewRunner(maxBatch, maxBatch)
	if err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	return &worker{node: n, runner: runner, sched: NewScheduler(maxBatch), seqs: map[SeqID]*running{}, wake: make(chan struct{}, 1)}, nil
}

// start hands a committed attempt to the loop. The receiver holds its lock.
func (w *worker) start(a *attempt, first sample.Token) {
	w.post(event{start: &running{attempt: a, first: first}})
}

// cancel ends a running attempt. done is called when its pages are free.
func (w *worker) cancel(a *attempt, reason transfer.Reason, done func()) {
	w.post(event{cancel: a, reason: reason, done: done})
}

func (w *worker) post(e event) {
	w.mu.Lock()
	w.events = append(w.events, e)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
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

// take turns events into the scheduler's.
func (w *worker) take() {
	w.mu.Lock()
	events := w.events
	w.events = nil
	w.mu.Unlock()
	for _, e := range events {
		if e.start != nil {
			w.join(e.start)
			continue
		}
		if q := w.find(e.cancel); q != nil {
			q.onEnd = append(q.onEnd, e.done)
			if w.sched.Cancel(q.id) {
				q.reason = e.reason
			}
		} else {
			e.done()
		}
	}
}

func (w *worker) find(a *attempt) *running {
	for _, q := range w.seqs {
		if q.attempt == a {
			return q
		}
	}
	return nil
}

// join puts a committed sequence into the batch and sends its first token.
func (w *worker) join(q *running) {
	w.nextID++
	q.id = w.nextID
	w.seqs[q.id] = q
	job := q.attempt.grant.Job
	q.generated = append(make([]int32, 0, job.Params.MaxNew), q.first.ID)
	w.sched.Ready(q.id, job.Params.MaxNew, q.first.EOG)
	var err error
	if q.sampler, err = sample.New(job.Params, w.node.recv.self.Vocab, job.Prompt); err != nil {
		w.fault(q, transfer.ReasonInternal, err)
		return
	}
	w.emit(q, q.first)
}

// step does what the scheduler decides; it reports whether it computed.
func (w *worker) step() bool {
	d := w.sched.Decide()
	w.reap(d)
	if len(d.Rows) == 0 {
		return false
	}
	started := time.Now()
	rows, seqs := w.rows(d)
	var outs []model.Out
	var err error
	if len(seqs) > 0 {
		outs, err = w.runner.Forward(w.node.pages, seqs)
	}
	for _, q := range rows {
		q.writer.Done()
		q.writer = nil
	}
	sampled := 0
	for i, q := range rows {
		switch {
		case err != nil:
			w.fault(q, transfer.ReasonInternal, err)
		case outs[i].Err != nil:
			w.integrity(q, outs[i].Err)
		default:
			if w.sample(q, outs[i].Logits) {
				sampled++
			}
		}
	}
	w.sched.StepDone()
	w.node.cfg.Metrics.stepped(time.Since(started), sampled)
	return true
}

// rows prepares one row per sequence. A sequence whose pages cannot be written
// any more drops out here.
func (w *worker) rows(d Decision) (rows []*running, seqs []model.Seq) {
	for _, id := range d.Rows {
		q := w.seqs[id]
		var err error
		if q.writer, err = q.attempt.table.BeginWrite(); err != nil {
			w.fault(q, transfer.ReasonInternal, err)
			continue
		}
		rows = append(rows, q)
		last := len(q.generated) - 1
		seqs = append(seqs, model.Seq{
			Tokens: q.generated[last:],
			Pos:    len(q.attempt.grant.Job.Prompt) + last,
			Table:  q.attempt.table.Entries(),
			Logits: true,
			Source: q.attempt.source(w.node.recv.self.Epoch),
		})
	}
	return rows, seqs
}

// sample chooses and sends the next token.
func (w *worker) sample(q *running, logits []float32) bool {
	token, err := q.sampler.Sample(logits, q.generated)
	if err != nil {
		w.fault(q, transfer.ReasonLogits, err)
		return false
	}
	if !w.sched.Sampled(q.id, token.EOG) {
		return false
	}
	q.generated = append(q.generated, token.ID)
	w.emit(q, token)
	return true
}

func (w *worker) emit(q *running, t sample.Token) {
	if err := q.attempt.out.Send(transfer.OutputBody{Tokens: []sample.Token{t}}); err != nil {
		w.fault(q, transfer.BusReason(err), err)
	}
}

// integrity ends a sequence that met a page not its own. Its pages are never
// used again in this process; the router gets an error, never a token.
func (w *worker) integrity(q *running, err error) {
	w.node.log.Error("KV integrity fault", "request", transfer.ID(q.attempt.grant.Claims.Request), "err", err)
	q.attempt.table.Quarantine(err.Error())
	w.fault(q, transfer.ReasonIntegrity, err)
}

func (w *worker) fault(q *running, reason transfer.Reason, err error) {
	if w.sched.Fault(q.id) {
		q.fault, q.reason = err, reason
	}
}

// reap tells the routers what ended and gives the pages back.
func (w *worker) reap(d Decision) {
	for _, e := range d.Ended {
		w.finish(w.seqs[e.Seq], e)
	}
	for _, id := range d.Release {
		q := w.seqs[id]
		delete(w.seqs, id)
		q.attempt.table.Release()
		w.node.recv.forget(q.attempt)
		for _, f := range q.onEnd {
			f()
		}
	}
	if len(d.Release) > 0 {
		w.node.poke() // room again: say so now
	}
}

// finish sends the last message of a sequence.
func (w *worker) finish(q *running, e End) {
	body := transfer.OutputBody{}
	switch e.Reason {
	case EndEOG, EndLength, EndStop:
		reason := "length"
		if e.Reason == EndEOG {
			reason = "stop"
		}
		body.Finish = &transfer.Finish{Reason: reason, Generated: e.Tokens, Prompt: len(q.attempt.grant.Job.Prompt)}
	case EndCancel:
		body.Fail = q.attempt.grant.Reject(q.reason, errors.New("ended while it was running"))
	case EndFault:
		body.Fail = q.attempt.grant.Reject(q.reason, q.fault)
		var fault kernels.Fault
		if errors.As(q.fault, &fault) {
			body.Fail.Limit, body.Fail.Value = 0, int64(fault.Block)
		}
	}
	w.node.cfg.Metrics.ended(e.Reason.String())
	if err := q.attempt.out.Send(body); err != nil {
		w.node.log.Warn("end not sent", "request", transfer.ID(q.attempt.grant.Claims.Request), "err", err)
	}
}
