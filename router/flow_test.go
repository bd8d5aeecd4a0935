package router

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"bulkhead/internal/sample"
	"bulkhead/internal/transcript"
	"bulkhead/transfer"
)

// TestFlow: a sequence's life is to be read in testdata/flow: each command is an event, its
// output the decisions and, in brackets, the state.
func TestFlow(t *testing.T) {
	transcript.RunDir(t, "testdata/flow", func(t *testing.T) func(*transcript.Cmd) string {
		s := &flowScript{now: time.Unix(0, 0)}
		return s.run
	})
}

type flowScript struct {
	f   *flow
	now time.Time
}

func (s *flowScript) run(c *transcript.Cmd) string {
	if c.Name == "new" {
		s.f = newTestFlow(c.Int("prompt", 100), c.Int("max", 10))
		return ""
	}
	e := event{attempt: c.Int("attempt", s.f.attempt)}
	reject := func() {
		e.role = transfer.Role(c.Word(0))
		e.reject = transfer.Reject{Reason: transfer.Reason(c.Str("reason", "internal")), Limit: int64(c.Int("limit", 0)), Value: int64(c.Int("value", 0))}
	}
	switch e.kind = eventKind(c.Name); e.kind {
	case evStart, evReceipt, evViolation, evClientGone, evSlowReader, evStopString, evShutdown:
		e.receipt = &receiptFacts{}
	case evPlaced:
		e.pair = [2]string{c.Word(0), c.Word(1)}
	case evNoPlace:
		e.err = fail(kind(c.Word(0)), "", "no")
	case evAccepted, evUnreachable:
		e.role = transfer.Role(c.Word(0))
	case evRejected, evFail:
		reject()
	case evNodeLost:
		e.node = c.Word(0)
	case evTokens:
		e.tokens = make([]sample.Token, c.Int("n", 1))
		if n := len(e.tokens); n > 0 {
			e.tokens[n-1].EOG = c.Int("eog", 0) == 1
		}
	case evFinish:
		e.finish = transfer.Finish{Reason: c.Word(0), Generated: c.Int("generated", 0), Prompt: c.Int("prompt", 100)}
	case "wait":
		d, err := time.ParseDuration(c.Word(0))
		if err != nil {
			c.Fatalf("%v", err)
		}
		s.now, e.kind = s.now.Add(d), evTick
	default:
		c.Fatalf("unknown event %s", c.Name)
	}
	var out []string
	for _, d := range s.f.step(s.now, e) {
		out = append(out, d.String())
	}
	return strings.Join(append(out, "("+string(s.f.state)+")"), "\n")
}

func newTestFlow(prompt, maxNew int) *flow {
	return &flow{
		cfg:    flowConfig{Accept: 3 * time.Second, FirstToken: 110 * time.Second, Stall: 30 * time.Second, Retries: 1, Refusals: 2},
		prompt: prompt, maxNew: maxNew, param: "messages",
	}
}

// String shows a decision in transcripts.
func (d decision) String() string {
	s := fmt.Sprintf("%s attempt=%d", d.kind, d.attempt)
	for _, w := range []struct{ key, value string }{
		{"node", d.node}, {"reason", string(d.reason)}, {"full", d.full}, {"finish", d.finish},
	} {
		if w.value != "" {
			s += " " + w.key + "=" + w.value
		}
	}
	if d.kind == doEmit {
		s += fmt.Sprintf(" n=%d", len(d.tokens))
	}
	if d.err != nil {
		s += fmt.Sprintf(" status=%d kind=%s", d.err.row().status, d.err.kind)
	}
	return s
}

// TestFlowInvariants: whatever events come in whatever order, the promises of type flow hold.
func TestFlowInvariants(t *testing.T) {
	kinds := []eventKind{evPlaced, evNoPlace, evAccepted, evRejected, evUnreachable, evReceipt, evTokens, evFinish, evFail, evNodeLost, evViolation, evTick, evClientGone, evSlowReader, evStopString, evShutdown}
	reasons := []transfer.Reason{transfer.ReasonNoPages, transfer.ReasonBusy, transfer.ReasonDraining, transfer.ReasonInternal, transfer.ReasonIntegrity, transfer.ReasonContextLength, transfer.ReasonToken}
	rapid.Check(t, func(t *rapid.T) {
		f := newTestFlow(100, 6)
		now := time.Unix(0, 0)
		var yes, receipts, cancelled map[int]bool
		yes, receipts, cancelled = map[int]bool{}, map[int]bool{}, map[int]bool{}
		placedAt := map[int][2]string{}
		ends, commits, emitted, attemptAtFirst := 0, 0, 0, 0
		check := func(e event, ds []decision) {
			for _, d := range ds {
				if ends > 0 {
					t.Fatalf("%v after the end", d)
				}
				switch d.kind {
				case doPlace:
					if emitted > 0 {
						t.Fatal("another attempt after a token")
					}
				case doSubmitPrefill:
					if !yes[d.attempt] {
						t.Fatal("prefill was told before decode said yes")
					}
				case doCommit:
					if commits++; commits > 1 || !receipts[d.attempt] {
						t.Fatalf("commit %d, receipt %v", commits, receipts[d.attempt])
					}
				case doEmit:
					if commits != 1 {
						t.Fatal("tokens before the commit")
					}
					if emitted == 0 {
						attemptAtFirst = d.attempt
					}
					if d.attempt != attemptAtFirst {
						t.Fatal("tokens of two attempts")
					}
					if emitted += len(d.tokens); emitted > 6 {
						t.Fatal("more tokens than asked for")
					}
				case doCancel:
					cancelled[d.attempt] = true
				case doFinish, doFail:
					ends++
					p := placedAt[d.attempt]
					clean := d.kind == doFinish && e.kind == evFinish
					if p[0] != "" && !clean && e.kind != evNoPlace && !cancelled[d.attempt] {
						t.Fatalf("ended by %s without cancelling %v", e.kind, p)
					}
					if d.kind == doFinish && commits != 1 && e.kind != evStopString {
						t.Fatal("finished without a commit")
					}
				}
			}
		}
		check(event{}, f.step(now, event{kind: evStart}))
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			e := event{kind: rapid.SampledFrom(kinds).Draw(t, "kind"), attempt: f.attempt}
			if rapid.IntRange(0, 9).Draw(t, "stale") == 0 {
				e.attempt--
			}
			e.role = rapid.SampledFrom([]transfer.Role{transfer.RolePrefill, transfer.RoleDecode}).Draw(t, "role")
			e.pair = rapid.SampledFrom([][2]string{{"p0", "d0"}, {"p1", "d1"}}).Draw(t, "pair")
			e.node = rapid.SampledFrom([]string{"p0", "d0", "p1", "d1"}).Draw(t, "node")
			e.reject.Reason = rapid.SampledFrom(reasons).Draw(t, "reason")
			e.err, e.receipt = fail(kindOverloaded, "", "no"), &receiptFacts{}
			e.tokens = make([]sample.Token, rapid.IntRange(0, 3).Draw(t, "n"))
			e.finish = transfer.Finish{Reason: "stop", Generated: f.generated, Prompt: 100}
			before := f.state
			current := e.attempt == 0 || e.attempt == f.attempt
			if current && e.kind == evPlaced && before == statePlacing {
				placedAt[f.attempt] = e.pair
			}
			if current && e.kind == evAccepted && e.role == transfer.RoleDecode && before == stateReserving {
				yes[f.attempt] = true
			}
			if current && e.kind == evReceipt {
				receipts[f.attempt] = true
			}
			now = now.Add(time.Duration(rapid.IntRange(0, 4000).Draw(t, "ms")) * time.Millisecond)
			check(e, f.step(now, e))
		}
		if f.attempt > 1+1+2 {
			t.Fatalf("%d attempts", f.attempt)
		}
	})
}

// TestPrefillHasNoVoice: whatever else holds, output of the prefill node other than a failure is
// a violation: it never becomes a token or an end.
func TestPrefillHasNoVoice(t *testing.T) {
	for _, body := range []transfer.OutputBody{
		{Tokens: text("x")}, {Finish: &transfer.Finish{Reason: "stop"}}, {Receipt: &transfer.SignedReceipt{}},
	} {
		s := &sequence{mail: make(chan struct{}, 1)}
		s.heard(&attempt{number: 1}, transfer.RolePrefill, body)
		if got := s.take(); len(got) != 1 || got[0].kind != evViolation {
			t.Errorf("%+v became %+v", body, got)
		}
	}
}

// TestFlood: a node cannot make the router hold more than eventsMax events; beyond it, the attempt ends.
func TestFlood(t *testing.T) {
	s := &sequence{mail: make(chan struct{}, 1)}
	for range eventsMax + 10 {
		s.post(event{kind: evTokens})
	}
	got := s.take()
	if len(got) != eventsMax+1 || got[eventsMax].kind != evViolation {
		t.Errorf("%d events, the last %s", len(got), got[len(got)-1].kind)
	}
}

// TestFlowKVServer: a prefill node that does not reach the decode node's KV server leads to
// another decode node, once; prefill is not avoided for it.
func TestFlowKVServer(t *testing.T) {
	f := newTestFlow(100, 10)
	now := time.Unix(0, 0)
	f.step(now, event{kind: evStart})
	for attempt, decode := range []string{"d1", "d2"} {
		f.step(now, event{kind: evPlaced, attempt: attempt + 1, pair: [2]string{"p1", decode}})
		f.step(now, event{kind: evAccepted, attempt: attempt + 1, role: transfer.RoleDecode})
		f.step(now, event{kind: evAccepted, attempt: attempt + 1, role: transfer.RolePrefill})
		f.step(now, event{kind: evFail, attempt: attempt + 1, role: transfer.RolePrefill, reject: transfer.Reject{Reason: transfer.ReasonKVServer}})
		if !slices.Equal(f.avoid, []string{"d1"}) {
			t.Errorf("after attempt %d: avoids %v", attempt+1, f.avoid)
		}
	}
	if f.state != stateDone {
		t.Errorf("state %s after both", f.state)
	}
}
