package router

import (
	"slices"
	"time"

	"bulkhead/internal/mutant"
	"bulkhead/internal/sample"
	"bulkhead/transfer"
)

// flow is the life of one sequence at the router: its attempts, one after another,
// each with a prefill and a decode node. It is a pure state machine: step takes
// an event and the time and returns what to do; it starts nothing, waits for nothing
// and reads no clock. testdata/flow has its transcripts.
//
//	placing -> reserving -> submitting -> waiting -> streaming -> done
//	   ^___________|____________|____________|   (another attempt, before the first token only)
//
// What it promises: nothing is sent to prefill before decode has said yes; the
// client's status is not committed before a verified receipt and the first output
// behind it; there is at most one retry for a lost node, and none once a token is out; every
// end but a clean finish cancels both nodes; each stage has a deadline.
type flow struct {
	cfg     flowConfig
	prompt  int // tokens
	maxNew  int
	param   string // the field the prompt came in, for errors
	state   flowState
	attempt int
	prefill string
	decode  string

	retries   int      // for lost nodes; at most cfg.Retries
	refusals  int      // for "not now"; at most cfg.Refusals
	avoid     []string // nodes that failed this sequence
	receipt   *receiptFacts
	generated int
	ended     bool // a token that ends the generation came
	committed bool
	stageEnd  time.Time
	firstEnd  time.Time // of the first token, over all attempts
}

// flowConfig bounds the stages.
type flowConfig struct {
	Accept     time.Duration // a node's answer to a job
	FirstToken time.Duration // from the first step to the first token
	Stall      time.Duration // between two messages of tokens
	Retries    int
	Refusals   int
}

type flowState string

const (
	statePlacing    flowState = "placing"    // waits for a pair
	stateReserving  flowState = "reserving"  // waits for decode's yes
	stateSubmitting flowState = "submitting" // waits for prefill's yes
	stateWaiting    flowState = "waiting"    // waits for the receipt and the first token
	stateStreaming  flowState = "streaming"
	stateDone       flowState = "done"
)

// receiptFacts is what a verified receipt says.
type receiptFacts struct {
	hash   transfer.Hash
	cached int           // prompt tokens that prefill found in its cache
	model  transfer.Hash // fingerprint of the model that answers
}

// event is what happened. Attempt says in which attempt; events of earlier ones are
// dropped. 0 is for events of the whole sequence.
type event struct {
	kind    eventKind
	attempt int
	role    transfer.Role // accepted, rejected, unreachable: who
	node    string        // nodeLost
	pair    [2]string     // placed: prefill, decode
	err     *apiError     // noPlace
	reject  transfer.Reject
	receipt *receiptFacts
	tokens  []sample.Token
	finish  transfer.Finish
}

type eventKind string

const (
	evStart       eventKind = "start"
	evPlaced      eventKind = "placed"
	evNoPlace     eventKind = "no-place"
	evAccepted    eventKind = "accepted"
	evRejected    eventKind = "rejected"    // the answer to the job
	evUnreachable eventKind = "unreachable" // no answer to the job
	evReceipt     eventKind = "receipt"     // and it verified
	evTokens      eventKind = "tokens"
	evFinish      eventKind = "finish"
	evFail        eventKind = "fail" // a node gave the attempt up
	evNodeLost    eventKind = "node-lost"
	evViolation   eventKind = "violation" // a gap, a bad signature, a message out of place
	evTick        eventKind = "tick"
	evClientGone  eventKind = "client-gone"
	evSlowReader  eventKind = "slow-reader"
	evStopString  eventKind = "stop-string" // the text is complete, more tokens are not wanted
	evShutdown    eventKind = "shutdown"    // the drain timeout is over
)

// decision is what to do next, in order.
type decision struct {
	kind    decisionKind
	attempt int
	node    string          // submit, cancel
	reason  transfer.Reason // cancel
	receipt *receiptFacts   // commit
	tokens  []sample.Token  // emit
	finish  string          // finish
	err     *apiError       // fail
	full    string          // place: a node that said "not now"
}

type decisionKind string

const (
	doPlace         decisionKind = "place" // ask for a pair for a new attempt
	doSubmitDecode  decisionKind = "submit-decode"
	doSubmitPrefill decisionKind = "submit-prefill"
	doCancel        decisionKind = "cancel"
	doCommit        decisionKind = "commit" // the status may be sent
	doEmit          decisionKind = "emit"
	doFinish        decisionKind = "finish" // the end, good
	doFail          decisionKind = "fail"   // the end, bad
)

// step takes one event. After doFinish or doFail it returns nothing more.
func (f *flow) step(now time.Time, e event) []decision {
	if f.state == stateDone && !mutant.Off(mutant.FlowEnd) || e.attempt != 0 && e.attempt != f.attempt && !mutant.Off(mutant.FlowAttempt) {
		return nil
	}
	switch e.kind {
	case evStart:
		f.firstEnd = now.Add(f.cfg.FirstToken)
		return f.place("")
	case evPlaced:
		return f.placed(now, e.pair)
	case evNoPlace:
		return f.fail(e.err)
	case evAccepted:
		return f.accepted(now, e.role)
	case evRejected, evFail:
		return f.refused(e)
	case evUnreachable:
		return f.lost(now, f.nodeOf(e.role))
	case evNodeLost:
		return f.lost(now, e.node)
	case evReceipt:
		return f.receipted(e)
	case evTokens:
		return f.tokens(now, e.tokens)
	case evFinish:
		return f.finish(e.finish)
	case evViolation:
		return f.violation()
	case evTick:
		return f.tick(now)
	case evClientGone:
		return f.end(transfer.ReasonCancelled, fail(kindClientGone, "", "the client is gone"))
	case evSlowReader:
		return f.end(transfer.ReasonCancelled, fail(kindSlowReader, "", "the client reads too slowly"))
	case evStopString:
		f.state = stateDone
		return append(f.cancelBoth(transfer.ReasonCancelled), decision{kind: doFinish, attempt: f.attempt, finish: "stop"})
	case evShutdown:
		return f.end(transfer.ReasonCancelled, fail(kindDraining, "", "the server is shutting down"))
	}
	panic("router: internal error: event " + string(e.kind))
}

// place begins a new attempt.
func (f *flow) place(full string) []decision {
	f.attempt++
	f.state, f.prefill, f.decode, f.receipt = statePlacing, "", "", nil
	return []decision{{kind: doPlace, attempt: f.attempt, full: full}}
}

func (f *flow) placed(now time.Time, p [2]string) []decision {
	if f.state != statePlacing {
		return nil
	}
	f.prefill, f.decode = p[0], p[1]
	f.state, f.stageEnd = stateReserving, now.Add(f.cfg.Accept)
	return []decision{{kind: doSubmitDecode, attempt: f.attempt, node: f.decode}}
}

func (f *flow) accepted(now time.Time, by transfer.Role) []decision {
	switch {
	case f.state == stateReserving && by == transfer.RoleDecode:
		f.state, f.stageEnd = stateSubmitting, now.Add(f.cfg.Accept)
		return []decision{{kind: doSubmitPrefill, attempt: f.attempt, node: f.prefill}}
	case f.state == stateSubmitting && by == transfer.RolePrefill:
		f.state = stateWaiting
	}
	return nil // prefill's yes may come after the output that it led to
}

// refused is a node's typed no, as the answer to its job or later.
func (f *flow) refused(e event) []decision {
	if f.state == stateStreaming {
		if e.role == transfer.RolePrefill {
			return nil // its part is over; decode verified all of it
		}
		return f.end(transfer.ReasonCancelled, refusal(e.reject, f.param))
	}
	switch e.reject.Reason {
	case transfer.ReasonNoPages, transfer.ReasonBusy, transfer.ReasonDraining, transfer.ReasonPeer:
		// Nothing is lost, and the node's next announcement will say more: wait for that.
		if f.refusals < f.cfg.Refusals {
			f.refusals++
			return append(f.cancelBoth(transfer.ReasonCancelled), f.place(f.nodeOf(e.role))...)
		}
	case transfer.ReasonCancelled, transfer.ReasonNodeLost, transfer.ReasonInternal, transfer.ReasonTimeout:
		if f.retries < f.cfg.Retries {
			return f.retry(f.nodeOf(e.role))
		}
	case transfer.ReasonKVServer:
		// Prefill says it, and it is the decode node that does not serve.
		if f.retries < f.cfg.Retries {
			return f.retry(f.decode)
		}
	}
	return f.end(transfer.ReasonCancelled, refusal(e.reject, f.param))
}

// lost is a node that does not answer, or answers from another boot.
func (f *flow) lost(now time.Time, node string) []decision {
	switch {
	case node == "" || node != f.prefill && node != f.decode:
		return nil
	case node == f.prefill && node != f.decode && f.receipt != nil:
		return nil // decode holds all that prefill had to give
	case f.state != stateStreaming && f.retries < f.cfg.Retries && now.Before(f.firstEnd):
		return f.retry(node)
	}
	return f.end(transfer.ReasonNodeLost, refusal(transfer.Reject{Reason: transfer.ReasonNodeLost}, f.param))
}

// retry begins another attempt, elsewhere. Both nodes are cancelled: a node that is lost to us may
// still be working.
func (f *flow) retry(node string) []decision {
	f.retries++
	f.avoid = append(f.avoid, node)
	return append(f.cancelBoth(transfer.ReasonNodeLost), f.place("")...)
}

func (f *flow) receipted(e event) []decision {
	if (f.receipt != nil || f.state != stateSubmitting && f.state != stateWaiting) && !mutant.Off(mutant.FlowReceiptOnce) {
		return f.violation()
	}
	f.state, f.receipt = stateWaiting, e.receipt
	return nil
}

// begin commits the status with the first output behind a receipt. A decode node that
// dies between the two can thus still be replaced without anybody noticing.
func (f *flow) begin() []decision {
	if f.committed {
		return nil
	}
	f.committed, f.state = true, stateStreaming
	return []decision{{kind: doCommit, attempt: f.attempt, receipt: f.receipt}}
}

func (f *flow) tokens(now time.Time, tokens []sample.Token) []decision {
	if f.receipt == nil && !mutant.Off(mutant.FlowReceipt) || len(tokens) == 0 || f.generated+len(tokens) > f.maxNew && !mutant.Off(mutant.FlowCount) {
		return f.violation()
	}
	for _, t := range tokens {
		if f.ended && !mutant.Off(mutant.FlowCount) {
			return f.violation() // the model went on after its end
		}
		f.ended = t.EOG
	}
	out := f.begin()
	f.generated += len(tokens)
	f.stageEnd = now.Add(f.cfg.Stall)
	return append(out, decision{kind: doEmit, attempt: f.attempt, tokens: tokens})
}

func (f *flow) finish(fin transfer.Finish) []decision {
	// The tokens say themselves which end is due: an answer that was cut short is no answer.
	good := fin.Reason == "stop" && f.ended || fin.Reason == "length" && !f.ended && f.generated == f.maxNew
	if f.receipt == nil && !mutant.Off(mutant.FlowReceipt) || (!good || fin.Generated != f.generated || fin.Prompt != f.prompt) && !mutant.Off(mutant.FlowFinish) {
		return f.violation()
	}
	out := f.begin()
	f.state = stateDone
	return append(out, decision{kind: doFinish, attempt: f.attempt, finish: fin.Reason})
}

// violation ends the request without a retry: a message that breaks the protocol is
// a fault to be looked at, not one to be run around.
func (f *flow) violation() []decision {
	return f.end(transfer.ReasonProtocol, refusal(transfer.Reject{Reason: transfer.ReasonProtocol}, f.param))
}

// tick checks the deadline of the stage.
func (f *flow) tick(now time.Time) []decision {
	late := func(what string) []decision {
		return f.end(transfer.ReasonTimeout, fail(kindTimeout, "", "%s", what))
	}
	switch {
	case f.state == stateStreaming && !now.Before(f.stageEnd):
		return late("no further token came in time")
	case f.state == stateStreaming:
	case !now.Before(f.firstEnd):
		return late("the first token did not come in time")
	case f.state == stateReserving && !now.Before(f.stageEnd):
		return f.lost(now, f.decode)
	case f.state == stateSubmitting && !now.Before(f.stageEnd):
		return f.lost(now, f.prefill)
	}
	return nil
}

// end cancels and fails.
func (f *flow) end(reason transfer.Reason, err *apiError) []decision {
	return append(f.cancelBoth(reason), f.fail(err)...)
}

func (f *flow) fail(err *apiError) []decision {
	f.state = stateDone
	return []decision{{kind: doFail, attempt: f.attempt, err: err}}
}

// cancelBoth cancels the attempt at the nodes that may know of it. To cancel
// what a node never heard of is harmless, so it is not tried to be clever.
func (f *flow) cancelBoth(reason transfer.Reason) []decision {
	var out []decision
	for _, node := range []string{f.decode, f.prefill} {
		if node != "" && !slices.ContainsFunc(out, func(d decision) bool { return d.node == node }) {
			out = append(out, decision{kind: doCancel, attempt: f.attempt, node: node, reason: reason})
		}
	}
	return out
}

func (f *flow) nodeOf(r transfer.Role) string {
	if r == transfer.RolePrefill {
		return f.prefill
	}
	return f.decode
}
