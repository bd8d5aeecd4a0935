package router

import (
	"log/slog"
	"slices"
	"time"

	"bulkhead/internal/mutant"
	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
	"bulkhead/transfer"
)

// Manual is a router's part in the protocol without HTTP, goroutines and clock:
// admission, desk, flow, tokens, receipts and output are the router's own, what
// run, submit, cancel and watch do happens when its caller says so. It is how the
// simulator runs the product. The Peer's bus must deliver on the caller's goroutine.
type Manual struct {
	cfg     ManualConfig
	desk    *desk
	cancels []*cancelling
}

// ManualConfig makes a Manual. All must be set.
type ManualConfig struct {
	Peer      *transfer.Peer
	Directory *transfer.Directory
	Metadata  transfer.Hash
	// Ask sends a question and calls done with the answer, if there is one:
	// nobody waits for ever, so an answer that never comes needs no word.
	// transfer.ErrNodeLost says that nobody listens.
	Ask    func(q *transfer.Question, done func(reply []byte, err error))
	Sign   func(tenant.Claims) (string, error)
	Scope  func(tenant string, model transfer.Hash) [32]byte
	Random func([]byte)

	Accept, FirstToken, Stall, Queue time.Duration
}

// cancelling is a cancellation that is not yet confirmed.
type cancelling struct {
	node  string
	c     transfer.Cancel
	tries int
	next  time.Time
	done  bool
}

// NewManual makes one.
func NewManual(cfg ManualConfig) *Manual {
	m := &Manual{cfg: cfg}
	m.desk = newDesk(Config{Metadata: cfg.Metadata, QueueMax: 64, QueueTimeout: cfg.Queue, Log: slog.New(slog.DiscardHandler)}, cfg.Directory.List)
	m.desk.now = cfg.Peer.Now
	return m
}

// Request is what a client asks for.
type Request struct {
	Tenant string
	ID     [16]byte
	Child  int // of the request's sequences
	Prompt []int32
	MaxNew int
	EOG    []int32
}

// Generation is one sequence at work: the driver of a flow.
type Generation struct {
	m       *Manual
	req     Request
	params  sample.Params
	flow    flow
	ticket  *ticket
	attempt *attempt
	seen    []Attempt

	// What the client gets.
	Receipt bool           // the status was committed, behind a verified receipt
	Tokens  []sample.Token // emitted
	Finish  string         // "stop" or "length"; "" while it runs or after an error
	Err     error          // how it failed
	Ends    int            // terminal events: never more than one
}

// Attempt is one try at a request.
type Attempt struct {
	Number            int
	Prefill, Decode   string
	PrefillEpoch      uint64
	DecodeEpoch       uint64
	Hash              transfer.Hash
	Job               transfer.Job
	PrefillA, DecodeA transfer.Announce
}

// Start admits a request and asks for its first pair. A request that is refused
// at once is a Generation that has ended.
func (m *Manual) Start(req Request) *Generation {
	g := &Generation{m: m, req: req, params: sample.Params{EOG: req.EOG, Child: uint32(req.Child)}}
	best, ok := m.desk.best()
	if !ok {
		g.fail(fail(kindOverloaded, "", "no node is ready"))
		return g
	}
	n, err := budget(best.limit(), len(req.Prompt), &generation{maxNew: req.MaxNew}, 0, 0)
	if err != nil {
		g.fail(err)
		return g
	}
	g.params.MaxNew = n
	g.flow = flow{
		cfg:    flowConfig{Accept: m.cfg.Accept, FirstToken: m.cfg.FirstToken, Stall: m.cfg.Stall, Retries: 1, Refusals: refusalsMax},
		prompt: len(req.Prompt), maxNew: n, param: "prompt",
	}
	g.step(event{kind: evStart})
	return g
}

func (g *Generation) fail(err error) { g.Err, g.Ends, g.flow.state = err, g.Ends+1, stateDone }

// Done reports whether the generation has ended.
func (g *Generation) Done() bool { return g.flow.state == stateDone }

// Attempts lists the tries so far.
func (g *Generation) Attempts() []Attempt { return g.seen }

// State is the flow's, for transcripts.
func (g *Generation) State() string { return string(g.flow.state) }

// Tick serves the queue and looks at deadlines.
func (g *Generation) Tick() {
	if g.Done() {
		return
	}
	g.m.desk.dispatch()
	g.poll()
	g.step(event{kind: evTick})
}

// Cancel is the client going away.
func (g *Generation) Cancel() { g.step(event{kind: evClientGone}) }

// Lost says that the watch found a boot of a node gone.
func (g *Generation) Lost(node string, epoch uint64) {
	if a := g.attempt; a != nil && (a.pair.prefill.Node == node && a.pair.prefill.Epoch == epoch || a.pair.decode.Node == node && a.pair.decode.Epoch == epoch) {
		g.step(event{kind: evNodeLost, attempt: a.number, node: node})
	}
}

func (g *Generation) step(e event) {
	if g.Done() && !mutant.Off(mutant.FlowEnd) {
		return
	}
	for _, d := range g.flow.step(g.m.cfg.Peer.Now(), e) {
		g.do(d)
	}
	if g.Done() {
		g.leave()
		if g.ticket != nil {
			g.m.desk.quit(g.ticket)
			g.ticket = nil
		}
	}
}

func (g *Generation) do(d decision) {
	switch d.kind {
	case doPlace:
		g.leave()
		if d.full != "" {
			g.m.desk.markFull(d.full)
		}
		t, err := g.m.desk.join(g.req.Tenant, need{prompt: len(g.req.Prompt), maxNew: g.params.MaxNew, avoid: g.flow.avoid, tie: uint64(g.req.ID[0])})
		if err != nil {
			g.step(event{kind: evNoPlace, attempt: d.attempt, err: asAPIError(err)})
			return
		}
		g.ticket = t
		g.poll()
	case doSubmitDecode:
		g.submit(g.attempt.pair.decode)
	case doSubmitPrefill:
		g.submit(g.attempt.pair.prefill)
	case doCancel:
		g.m.cancel(d.node, transfer.Cancel{TokenHash: g.attempt.hash, Reason: d.reason})
	case doCommit:
		g.Receipt = d.receipt != nil
	case doEmit:
		g.Tokens = append(g.Tokens, d.tokens...)
	case doFinish:
		g.Finish = d.finish
		g.Ends++
	case doFail:
		g.Err = d.err
		g.Ends++
	}
}

// poll takes the grant that the desk may have for the ticket.
func (g *Generation) poll() {
	if g.ticket == nil {
		return
	}
	var gr grant
	select {
	case gr = <-g.ticket.granted:
	default:
		return
	}
	g.ticket = nil
	if gr.err != nil {
		g.step(event{kind: evNoPlace, attempt: g.flow.attempt, err: asAPIError(gr.err)})
		return
	}
	cfg := &g.m.cfg
	a, err := jobSpec{
		router: cfg.Peer.Name(), tenant: g.req.Tenant, request: g.req.ID, child: g.req.Child, number: g.flow.attempt,
		scope:  cfg.Scope(g.req.Tenant, gr.pair.decode.Model),
		prompt: g.req.Prompt, params: g.params, grant: gr, now: cfg.Peer.Now(), firstEnd: g.flow.firstEnd,
		random: cfg.Random, sign: cfg.Sign,
	}.attempt()
	var stop func()
	if err == nil {
		stop, err = cfg.Peer.ReceiveOutput(a.job.Reply, a.job.ReplyKey, a.hash,
			func(from transfer.Role, body transfer.OutputBody) {
				g.step(a.output(from, body, func(s *transfer.SignedReceipt) *receiptFacts {
					facts, _ := a.checkReceipt(cfg.Peer.VerifyReceipt, s) // nil with an error
					return facts
				}))
			},
			func(error) { g.step(event{kind: evViolation, attempt: a.number}) })
	}
	if err != nil {
		g.m.desk.release(gr.claims)
		g.step(event{kind: evNoPlace, attempt: g.flow.attempt, err: asAPIError(err)})
		return
	}
	a.stops = append(a.stops, stop)
	g.attempt = a
	g.seen = append(g.seen, Attempt{
		Number: a.number, Prefill: gr.pair.prefill.Node, Decode: gr.pair.decode.Node,
		PrefillEpoch: gr.pair.prefill.Epoch, DecodeEpoch: gr.pair.decode.Epoch, Hash: a.hash, Job: a.job,
		PrefillA: gr.pair.prefill, DecodeA: gr.pair.decode,
	})
	g.step(event{kind: evPlaced, attempt: a.number, pair: [2]string{gr.pair.prefill.Node, gr.pair.decode.Node}})
}

func (g *Generation) submit(to transfer.Announce) {
	a := g.attempt
	q, err := g.m.cfg.Peer.NewJobQuestion(to, a.job)
	if err != nil {
		g.step(a.answer(to.Role, transfer.Accept{}, err))
		return
	}
	g.m.cfg.Ask(q.Question, func(reply []byte, err error) {
		var accept transfer.Accept
		if err == nil {
			accept, err = q.Answer(reply)
		}
		g.step(a.answer(to.Role, accept, err))
	})
}

func (g *Generation) leave() {
	if g.attempt == nil {
		return
	}
	for _, stop := range g.attempt.stops {
		stop()
	}
	g.m.desk.release(g.attempt.claims)
	g.attempt = nil
}

// cancel ends an attempt at a node; it is tried again until it is confirmed, or
// was tried cancelTries times.
func (m *Manual) cancel(node string, c transfer.Cancel) {
	k := &cancelling{node: node, c: c}
	m.cancels = append(m.cancels, k)
	m.try(k)
}

func (m *Manual) try(k *cancelling) {
	k.tries++
	k.next = m.cfg.Peer.Now().Add(m.cfg.Accept)
	q, err := m.cfg.Peer.NewCancelQuestion(k.node, k.c)
	if err != nil {
		k.done = true
		return
	}
	m.cfg.Ask(q.Question, func(reply []byte, err error) {
		if err == nil {
			err = q.Confirmed(reply)
		}
		k.done = k.done || err == nil
	})
}

// Tick tries again what was not confirmed.
func (m *Manual) Tick() {
	now := m.cfg.Peer.Now()
	live := m.cancels[:0]
	for _, k := range m.cancels {
		if !k.done && !now.Before(k.next) && k.tries < cancelTries {
			m.try(k)
		}
		if !k.done && (k.tries < cancelTries || now.Before(k.next)) {
			live = append(live, k)
		}
	}
	clear(m.cancels[len(live):])
	m.cancels = live
}

// Idle says that no cancellation is on its way.
func (m *Manual) Idle() bool {
	return !slices.ContainsFunc(m.cancels, func(k *cancelling) bool { return !k.done })
}
