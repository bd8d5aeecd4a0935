package decode

import (
	"fmt"
	"strings"
	"testing"

	"bulkhead/internal/transcript"

	"pgregory.net/rapid"
)

// The scheduler's behaviour as readable files. Every command is an event;
// "decide" prints what is to be done.
func TestSchedulerTranscripts(t *testing.T) {
	transcript.RunDir(t, "testdata/sched", func(t *testing.T) func(*transcript.Cmd) string {
		var s *Scheduler
		return func(c *transcript.Cmd) (out string) {
			defer func() {
				if v := recover(); v != nil {
					out = fmt.Sprint(v)
				}
			}()
			ids := func() (ids []SeqID) {
				for i := range c.Words {
					var id SeqID
					if _, err := fmt.Sscanf(c.Word(i), "%d", &id); err != nil {
						c.Fatalf("%v", err)
					}
					ids = append(ids, id)
				}
				return ids
			}
			switch c.Name {
			case "scheduler": // scheduler batch=N
				s = NewScheduler(c.Int("batch", 2))
			case "ready": // ready ID... max=N eog=BOOL
				for _, id := range ids() {
					s.Ready(id, c.Int("max", 100), c.Str("eog", "") == "true")
				}
			case "sampled": // sampled ID... eog=BOOL
				for _, id := range ids() {
					if !s.Sampled(id, c.Str("eog", "") == "true") {
						out += fmt.Sprintf("%d: dropped\n", id)
					}
				}
			case "finish", "cancel", "fault": // ID...
				f := map[string]func(SeqID) bool{"finish": s.Finish, "cancel": s.Cancel, "fault": s.Fault}[c.Name]
				for _, id := range ids() {
					if !f(id) {
						out += fmt.Sprintf("%d: ended before\n", id)
					}
				}
			case "done": // the step in flight is done
				s.StepDone()
			case "decide":
				return s.Decide().String()
			case "step": // decide, sample every row, done
				d := s.Decide()
				for _, id := range d.Rows {
					s.Sampled(id, false)
				}
				if len(d.Rows) > 0 {
					s.StepDone()
				}
				return d.String()
			default:
				c.Fatalf("unknown command")
			}
			return out
		}
	})
}

// String is one line per part that is there.
func (d Decision) String() string {
	var b strings.Builder
	for _, e := range d.Ended {
		fmt.Fprintf(&b, "end %d: %v after %d\n", e.Seq, e.Reason, e.Tokens)
	}
	if len(d.Release) > 0 {
		fmt.Fprintf(&b, "release %v\n", d.Release)
	}
	if len(d.Rows) > 0 {
		fmt.Fprintf(&b, "run %v\n", d.Rows)
	}
	if b.Len() == 0 {
		return "nothing"
	}
	return b.String()
}

// Random events hold the scheduler to its promises:
//
//   - a step has at most MaxBatch rows, none twice, none of an ended sequence,
//     and there is a step whenever a sequence waits;
//   - a sequence ends exactly once, with the tokens that were emitted, never
//     more than it may generate, and for the reason that came first;
//   - its pages are released exactly once, after its end, and never between
//     the begin and the end of a step that it is in;
//   - a sequence that waits behind k others is in one of the next
//     k/MaxBatch + 1 steps.
func TestSchedulerModel(t *testing.T) {
	ended := map[EndReason]int{}
	rapid.Check(t, func(t *rapid.T) {
		m := &schedModel{
			t: t, batch: rapid.IntRange(1, 5).Draw(t, "batch"), seqs: map[SeqID]*modelSeq{}, ended: ended,
		}
		m.s = NewScheduler(m.batch)
		for range 300 {
			m.event(rapid.SampledFrom([]string{"decide", "answer", "decide", "ready", "answer", "cancel", "finish", "fault"}).Draw(t, "event"))
		}
		for _, q := range m.seqs { // drain
			m.endBy(q.id, m.s.Cancel(q.id), EndCancel)
		}
		m.event("answer")
		m.event("decide")
		if m.s.Running() != 0 || m.s.InFlight() {
			t.Fatalf("%d sequences run after the drain", m.s.Running())
		}
		for id, q := range m.seqs {
			if q.ends != 1 || q.releases != 1 {
				t.Fatalf("sequence %d ended %d times and was released %d times", id, q.ends, q.releases)
			}
		}
		if len(m.s.seqs) != 0 {
			t.Fatalf("%d sequences leaked", len(m.s.seqs))
		}
	})
	for r := EndEOG; r <= EndFault; r++ {
		if ended[r] == 0 {
			t.Errorf("no sequence ended by %v", r)
		}
	}
}

type modelSeq struct {
	id             SeqID
	maxNew, tokens int
	why            EndReason // 0: runs
	ends, releases int
	within         int // steps that may begin before it must be in one
}

type schedModel struct {
	t     *rapid.T
	s     *Scheduler
	batch int
	seqs  map[SeqID]*modelSeq
	next  SeqID
	rows  []SeqID // in flight
	ended map[EndReason]int
}

func (m *schedModel) event(name string) {
	switch name {
	case "ready":
		m.next++
		q := &modelSeq{id: m.next, maxNew: rapid.IntRange(1, 20).Draw(m.t, "max"), tokens: 1}
		eog := rapid.IntRange(0, 15).Draw(m.t, "eog") == 9
		m.wait(q)
		m.seqs[q.id] = q
		m.s.Ready(q.id, q.maxNew, eog)
		m.token(q, eog)
	case "cancel", "finish", "fault":
		if m.next == 0 {
			return
		}
		id := SeqID(rapid.Uint64Range(1, uint64(m.next)).Draw(m.t, "seq"))
		switch name {
		case "cancel":
			m.endBy(id, m.s.Cancel(id), EndCancel)
		case "finish":
			m.endBy(id, m.s.Finish(id), EndStop)
		case "fault":
			m.endBy(id, m.s.Fault(id), EndFault)
		}
	case "answer":
		if len(m.rows) == 0 {
			return
		}
		for _, id := range m.rows {
			q := m.seqs[id]
			eog := rapid.IntRange(0, 31).Draw(m.t, "eog") == 20
			if m.s.Sampled(id, eog) != (q.why == 0) {
				m.t.Fatalf("sequence %d: a token was emitted after its end, or dropped before", id)
			}
			if q.why == 0 {
				q.tokens++
				m.token(q, eog)
			}
		}
		m.s.StepDone()
		for _, id := range m.rows {
			if q := m.seqs[id]; q.why == 0 {
				m.wait(q)
			}
		}
		m.rows = nil
	case "decide":
		m.decide(m.s.Decide())
	}
}

// wait notes how many steps q may have to wait from now on.
func (m *schedModel) wait(q *modelSeq) {
	q.within = len(m.s.waiting)/m.batch + 1
}

// token ends q as its last token says.
func (m *schedModel) token(q *modelSeq, eog bool) {
	if eog {
		q.why = EndEOG
	} else if q.tokens == q.maxNew {
		q.why = EndLength
	}
}

func (m *schedModel) endBy(id SeqID, did bool, why EndReason) {
	q := m.seqs[id]
	if did != (q.why == 0) {
		m.t.Fatalf("sequence %d: %v took effect %v, but it ended by %v", id, why, did, q.why)
	}
	if did {
		q.why = why
	}
}

func (m *schedModel) decide(d Decision) {
	for _, e := range d.Ended {
		q := m.seqs[e.Seq]
		if q.ends++; e.Reason != q.why || e.Tokens != q.tokens || e.Tokens > q.maxNew {
			m.t.Fatalf("%+v, want %v after %d of %d", e, q.why, q.tokens, q.maxNew)
		}
		m.ended[e.Reason]++
	}
	for _, id := range d.Release {
		q := m.seqs[id]
		if q.releases++; q.ends != 1 {
			m.t.Fatalf("sequence %d is released and not ended", id)
		}
		for _, row := range m.rows {
			if row == id {
				m.t.Fatalf("sequence %d is released under its step", id)
			}
		}
	}
	if len(d.Rows) > 0 && m.rows != nil {
		m.t.Fatal("two steps in flight")
	}
	if m.rows != nil {
		return
	}
	live := 0
	for _, q := range m.seqs {
		if q.why == 0 {
			live++
		}
	}
	if len(d.Rows) != min(live, m.batch) {
		m.t.Fatalf("%d rows for %d sequences and a batch of %d", len(d.Rows), live, m.batch)
	}
	in := map[SeqID]bool{}
	for _, id := range d.Rows {
		if in[id] || m.seqs[id].why != 0 {
			m.t.Fatalf("sequence %d is twice in a step, or ended", id)
		}
		in[id] = true
	}
	if len(d.Rows) == 0 {
		return
	}
	m.rows = d.Rows
	for id, q := range m.seqs {
		if q.why == 0 && !in[id] {
			if q.within--; q.within <= 0 {
				m.t.Fatalf("sequence %d waits beyond its bound", id)
			}
		}
	}
}
