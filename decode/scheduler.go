package decode

import (
	"fmt"
	"slices"
)

// Scheduler decides which sequences take part in each decode step. It is a
// pure state machine: events in (Ready, Sampled, Finish, Cancel, Fault,
// StepDone), decisions out (Decide). It knows no clock, no page and no socket,
// and belongs to one goroutine.
//
//	         Ready                 Decide                       Sampled: eog or length
//	(commit) ─────► waiting ──────────────────► in the step ───────────────────────► ended
//	                   ▲                            │    │ Finish, Cancel, Fault        ▲
//	                   └──────── StepDone ──────────┘    └──────────────────────────────┘
//
// Batching is continuous: a sequence joins at the step after its commit and
// leaves in the step that ends it. All its pages were reserved before, so
// there is nothing to preempt. When more sequences run than a step has rows,
// they take turns: one that waits behind k others is in one of the next
// k/MaxBatch + 1 steps, whoever joins meanwhile.
//
// A sequence ends exactly once. Its pages are named for release once, too, and
// never while a step that may touch them is in flight.
//
// Misuse of the order of events is the caller's own contradiction and panics.
type Scheduler struct {
	maxBatch int
	seqs     map[SeqID]*sequence
	waiting  []*sequence // in turn
	step     []*sequence // in flight, in row order; nil between steps
	ended    []End       // not yet reported
	release  []SeqID     // may be released now
}

// SeqID names a sequence within one decode node; never used twice.
type SeqID uint64

// EndReason says why a sequence ended.
type EndReason uint8

const (
	EndEOG    EndReason = iota + 1 // the model ended it
	EndLength                      // max new tokens were generated
	EndStop                        // the caller found a stop condition in the text
	EndCancel                      // the router or the deadline
	EndFault                       // a page that was not its own, or an engine failure
)

func (r EndReason) String() string {
	switch r {
	case EndEOG:
		return "eog"
	case EndLength:
		return "length"
	case EndStop:
		return "stop"
	case EndCancel:
		return "cancel"
	case EndFault:
		return "fault"
	}
	return fmt.Sprintf("EndReason(%d)", uint8(r))
}

// End is one sequence that ended, and after how many tokens, the first
// included.
type End struct {
	Seq    SeqID
	Reason EndReason
	Tokens int
}

// Decision is what the caller must do now. Order matters: report Ended, release
// the pages of Release, then begin the step of Rows.
type Decision struct {
	Ended   []End   // since the last decision
	Release []SeqID // no step touches their pages any more
	Rows    []SeqID // the step to begin now, one row each; empty: none
}

// sequence is one that has not ended, or that ended inside the step in flight.
type sequence struct {
	id       SeqID
	tokens   int // generated so far
	maxNew   int
	answered bool // sampled or ended in the step in flight
	ended    bool
}

// NewScheduler makes a scheduler for steps of at most maxBatch rows.
func NewScheduler(maxBatch int) *Scheduler {
	if maxBatch < 1 {
		panic(fmt.Sprintf("decode: internal error: batch of %d rows", maxBatch))
	}
	return &Scheduler{maxBatch: maxBatch, seqs: make(map[SeqID]*sequence)}
}

// Ready adds a committed sequence: its blocks are mapped, and its first token
// was sampled by prefill and counts. eog says whether that token already ends
// it; so does maxNew == 1.
func (s *Scheduler) Ready(id SeqID, maxNew int, eog bool) {
	if s.seqs[id] != nil {
		s.bug("sequence %d is ready twice", id)
	}
	if maxNew < 1 {
		s.bug("sequence %d may generate %d tokens", id, maxNew)
	}
	q := &sequence{id: id, tokens: 1, maxNew: maxNew}
	s.seqs[id] = q
	s.waiting = append(s.waiting, q)
	s.endIfDone(q, eog)
}

// Sampled says which token the step in flight gave to id, by whether it ends
// the sequence. It reports whether the token belongs to the output: not if the
// sequence ended meanwhile.
func (s *Scheduler) Sampled(id SeqID, eog bool) (emit bool) {
	q := s.inStep(id)
	if q == nil {
		s.bug("sequence %d is sampled and not in the step", id)
	}
	if q.ended {
		return false
	}
	if q.answered {
		s.bug("sequence %d is sampled twice in a step", id)
	}
	q.answered = true
	q.tokens++
	s.endIfDone(q, eog)
	return true
}

// Finish ends a sequence whose text met a stop condition. Like Cancel and
// Fault it may come at any time, does nothing for a sequence that has ended,
// and reports whether it ended it.
func (s *Scheduler) Finish(id SeqID) bool { return s.end(s.seqs[id], EndStop) }

// Cancel ends a sequence for its client. If a step is in flight its pages are
// released when that step is done, at once otherwise.
func (s *Scheduler) Cancel(id SeqID) bool { return s.end(s.seqs[id], EndCancel) }

// Fault ends a sequence that met a page not its own, or whose step failed.
func (s *Scheduler) Fault(id SeqID) bool { return s.end(s.seqs[id], EndFault) }

// StepDone ends the step in flight. Every row must have been answered.
func (s *Scheduler) StepDone() {
	if s.step == nil {
		s.bug("no step is in flight")
	}
	for _, q := range s.step {
		switch {
		case q.ended:
			s.forget(q)
		case !q.answered:
			s.bug("sequence %d has no answer from its step", q.id)
		default:
			q.answered = false
			s.waiting = append(s.waiting, q)
		}
	}
	s.step = nil
}

// Decide takes what is to be done now. It begins a step, if there is one to
// begin and none in flight; the caller must run it and answer for every row.
func (s *Scheduler) Decide() Decision {
	d := Decision{Ended: s.ended, Release: s.release}
	s.ended, s.release = nil, nil
	if s.step != nil || len(s.waiting) == 0 {
		return d
	}
	n := min(s.maxBatch, len(s.waiting))
	s.step = slices.Clone(s.waiting[:n])
	s.waiting = slices.Delete(s.waiting, 0, n)
	for _, q := range s.step {
		d.Rows = append(d.Rows, q.id)
	}
	return d
}

// Running is the count of sequences that have not ended.
func (s *Scheduler) Running() int {
	n := len(s.waiting)
	for _, q := range s.step {
		if !q.ended {
			n++
		}
	}
	return n
}

// InFlight reports whether a step was begun and is not done.
func (s *Scheduler) InFlight() bool { return s.step != nil }

// endIfDone ends q if its last token was its last. The model's own end goes
// before the limit: the answer is whole.
func (s *Scheduler) endIfDone(q *sequence, eog bool) {
	switch {
	case eog:
		s.end(q, EndEOG)
	case q.tokens >= q.maxNew:
		s.end(q, EndLength)
	}
}

// end ends q now; its pages follow when no step holds them.
func (s *Scheduler) end(q *sequence, why EndReason) bool {
	if q == nil || q.ended {
		return false
	}
	q.ended = true
	s.ended = append(s.ended, End{q.id, why, q.tokens})
	if i := slices.Index(s.waiting, q); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
		s.forget(q)
	}
	return true
}

// forget gives the pages of an ended sequence back.
func (s *Scheduler) forget(q *sequence) {
	delete(s.seqs, q.id)
	s.release = append(s.release, q.id)
}

// inStep finds a row of the step in flight.
func (s *Scheduler) inStep(id SeqID) *sequence {
	q := s.seqs[id]
	if q == nil || !slices.Contains(s.step, q) {
		return nil
	}
	return q
}

func (s *Scheduler) bug(format string, args ...any) {
	panic("decode: internal error: " + fmt.Sprintf(format, args...))
}
