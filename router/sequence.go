package router

import (
	"context"
	"sync"
	"time"

	"bulkhead/internal/sample"
	"bulkhead/transfer"
)

// sequence is one generation of a request at work: the driver of a flow. One goroutine
// owns it; everybody else posts events.
type sequence struct {
	x      *exchange
	choice int // index in the answer
	child  int // index in the tokens that are granted
	prompt []int32
	params sample.Params

	flow     flow
	ticket   *ticket // waiting for a pair
	attempt  *attempt
	lastPair [2]string // prefill and decode of the last attempt, for the log

	stopString chan struct{} // closed when the text is complete
	stopOnce   sync.Once

	mail  chan struct{} // holds one value when there are events
	mu    sync.Mutex
	queue []event // guarded by mu
	flood bool    // guarded by mu: more events than an honest node sends
}

// eventsMax bounds what nodes can make the router hold for one sequence: the goroutine that
// takes events never waits for anything, so an honest backlog is short.
const eventsMax = 4096

// stepEvery is how often a sequence looks at its deadlines and at the queue.
const stepEvery = 100 * time.Millisecond

func newSequence(x *exchange, choice int, prompt []int32, params sample.Params) *sequence {
	cfg := &x.r.cfg
	params.Child = uint32(choice)
	return &sequence{
		x: x, choice: choice, child: choice, prompt: prompt, params: params,
		flow: flow{
			cfg: flowConfig{
				Accept: cfg.AcceptTimeout, FirstToken: cfg.FirstTokenTimeout, Stall: cfg.StallTimeout,
				Retries: 1, Refusals: refusalsMax,
			},
			prompt: len(prompt), maxNew: params.MaxNew, param: x.gen.promptParam(),
		},
		stopString: make(chan struct{}),
		mail:       make(chan struct{}, 1),
	}
}

// refusalsMax bounds how often "not now" sends a sequence back to the queue. It happens when
// several routers fill the same node, or it drains, between two of its announcements.
const refusalsMax = 8

// post adds an event; it never waits.
func (s *sequence) post(e event) {
	s.mu.Lock()
	if len(s.queue) < eventsMax {
		s.queue = append(s.queue, e)
	} else {
		s.flood = true
	}
	s.mu.Unlock()
	select {
	case s.mail <- struct{}{}:
	default:
	}
}

// take returns the events there are.
func (s *sequence) take() []event {
	s.mu.Lock()
	defer s.mu.Unlock()
	events := s.queue
	s.queue = nil
	if s.flood {
		events = append(events, event{kind: evViolation})
	}
	return events
}

// stop says that the client has all the text it wanted.
func (s *sequence) stop() { s.stopOnce.Do(func() { close(s.stopString) }) }

// place starts the flow and asks for the first pair, so that "no room" and "no node" are
// known before anything else happens.
func (s *sequence) place() error {
	var err error
	for _, d := range s.flow.step(time.Now(), event{kind: evStart}) {
		if d.kind == doPlace {
			s.ticket, err = s.join()
		}
	}
	return err
}

func (s *sequence) join() (*ticket, error) {
	x := s.x
	return x.r.desk.join(x.tenant.ID, need{
		prompt: len(s.prompt), maxNew: s.params.MaxNew, avoid: s.flow.avoid, tie: x.tie() + uint64(s.choice),
	})
}

// run carries the sequence from its ticket to its end.
func (s *sequence) run(ctx context.Context) {
	tick := time.NewTicker(stepEvery)
	defer tick.Stop()
	var granted <-chan grant
	stopString := s.stopString
	for s.flow.state != stateDone {
		granted = nil
		if s.ticket != nil {
			granted = s.ticket.granted
		}
		select {
		case <-ctx.Done():
			s.step(event{kind: s.whyEnded()})
		case <-stopString:
			stopString = nil
			s.step(event{kind: evStopString})
		case g := <-granted:
			s.granted(g)
		case <-s.mail:
			for _, e := range s.take() {
				s.step(e)
			}
		case <-tick.C:
			s.x.r.desk.dispatch()
			s.step(event{kind: evTick})
		}
	}
	s.leaveAttempt()
}

// whyEnded says why the exchange is over. A text that was complete before is no
// client that left.
func (s *sequence) whyEnded() eventKind {
	select {
	case <-s.stopString:
		return evStopString
	default:
		return s.x.whyEnded()
	}
}

// granted begins the attempt that the desk found a pair for.
func (s *sequence) granted(g grant) {
	s.x.r.metrics.wait.Seconds(time.Since(s.ticket.since))
	s.ticket = nil
	if g.err != nil {
		s.step(event{kind: evNoPlace, attempt: s.flow.attempt, err: asAPIError(g.err)})
		return
	}
	a, err := s.newAttempt(s.flow.attempt, g)
	if err == nil {
		s.attempt = a
		err = s.begin(a)
	}
	if err != nil {
		s.x.r.log.Error("attempt not begun", "request_id", s.x.idText, "err", err)
		if s.attempt == nil {
			s.x.r.desk.release(g.claims)
		}
		if transfer.BusLost(err) {
			err = fail(kindOverloaded, "", "the cluster's bus does not answer at the moment; retry later")
		}
		s.step(event{kind: evNoPlace, attempt: s.flow.attempt, err: asAPIError(err)})
		return
	}
	s.lastPair = [2]string{g.pair.prefill.Node, g.pair.decode.Node}
	s.x.r.audit.admit(s, a)
	s.step(event{kind: evPlaced, attempt: a.number, pair: s.lastPair})
}

// step feeds the flow and does what it decides.
func (s *sequence) step(e event) {
	for _, d := range s.flow.step(time.Now(), e) {
		s.do(e, d)
	}
}

func (s *sequence) do(e event, d decision) {
	r := s.x.r
	switch d.kind {
	case doPlace:
		s.leaveAttempt()
		if d.full != "" {
			r.desk.markFull(d.full)
		}
		r.log.Warn("another attempt", "request_id", s.x.idText, "child", s.child, "attempt", d.attempt, "because", string(e.kind), "reason", string(e.reject.Reason))
		r.metrics.attempts.Inc(attemptCause(d))
		t, err := s.join()
		if err != nil {
			s.step(event{kind: evNoPlace, attempt: d.attempt, err: asAPIError(err)})
			return
		}
		s.ticket = t
	case doSubmitDecode:
		s.submit(s.attempt, s.attempt.pair.decode)
	case doSubmitPrefill:
		s.submit(s.attempt, s.attempt.pair.prefill)
	case doCancel:
		s.cancel(s.attempt, d.node, d.reason)
	case doCommit:
		r.audit.commit(s, s.attempt, d.receipt)
		s.x.out.put(output{choice: s.choice, attempt: d.attempt, receipt: d.receipt})
	case doEmit:
		if !s.x.out.put(output{choice: s.choice, attempt: d.attempt, tokens: d.tokens}) {
			s.step(event{kind: evSlowReader})
		}
	case doFinish:
		r.audit.finish(s, s.attempt, d.finish)
		s.x.out.put(output{choice: s.choice, attempt: d.attempt, finish: d.finish})
	case doFail:
		if d.err.kind == kindIntegrity {
			r.audit.violation(s, s.attempt, string(e.kind))
			r.metrics.violations.Inc(string(e.kind))
		}
		r.audit.finish(s, s.attempt, string(d.err.kind))
		s.x.out.put(output{choice: s.choice, attempt: d.attempt, err: d.err})
	}
}

// attemptCause is the metric label of why an attempt was not the last.
func attemptCause(d decision) string {
	if d.full != "" {
		return "not_now"
	}
	return "node_lost"
}

// leaveAttempt lets go of the current attempt. Its cancellations are already on their way.
func (s *sequence) leaveAttempt() {
	if s.attempt != nil {
		s.end(s.attempt)
		s.attempt = nil
	}
}

// close lets go of everything. Afterwards nothing of the sequence is left anywhere but, for a
// moment, cancellations on their way.
func (s *sequence) close() {
	s.leaveAttempt()
	if s.ticket != nil {
		s.x.r.desk.quit(s.ticket)
		s.ticket = nil
	}
	s.x.r.desk.generated(s.x.tenant, s.flow.generated)
}
