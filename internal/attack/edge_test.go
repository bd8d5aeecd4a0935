package attack

import (
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/internal/mutant"
	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
	"bulkhead/router"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// edge is the honest router r1 among nodes that the row plays.
type edge struct {
	x    *rig
	m    *router.Manual
	g    *router.Generation
	asks []asked
}

type asked struct {
	q    *transfer.Question
	done func([]byte, error)
}

// edge boots r1 and lets p1 and d1 announce themselves.
func (x *rig) edge(prefill, decode func(*transfer.Announce)) *edge {
	e := &edge{x: x}
	dir, err := x.peer(x.r1).WatchPeers(transfer.RolePrefill, transfer.RoleDecode)
	must(err)
	e.m = router.NewManual(router.ManualConfig{
		Peer: x.peer(x.r1), Directory: dir, Metadata: x.engine.Facts().Metadata,
		Ask: func(q *transfer.Question, done func([]byte, error)) { e.asks = append(e.asks, asked{q, done}) },
		Sign: func(c tenant.Claims) (string, error) {
			return tenant.Sign(c, x.r1.Private(), x.cluster)
		},
		Scope:  func(string, transfer.Hash) [32]byte { return [32]byte{} },
		Random: func(b []byte) { _, _ = rand.Read(b) },
		Accept: 3 * time.Second, FirstToken: 20 * time.Second, Stall: 10 * time.Second, Queue: 6 * time.Second,
	})
	e.announce(prefill, decode)
	return e
}

func (e *edge) announce(prefill, decode func(*transfer.Announce)) {
	e.x.say(e.x.p1, e.x.prefillKey.Public(), prefill)
	e.x.say(e.x.d1, e.x.decodeKey.Public(), decode)
}

func (e *edge) start(prompt, maxNew int) {
	e.g = e.m.Start(router.Request{Tenant: "tenant-a", ID: [16]byte{9}, Prompt: make([]int32, prompt), MaxNew: maxNew})
}

// jobs are the questions to nodes of a role.
func (e *edge) jobs(role transfer.Role) (out []asked) {
	for _, a := range e.asks {
		if strings.HasPrefix(a.q.Subject, "job."+string(role)+".") {
			out = append(out, a)
		}
	}
	return out
}

// through is nil if a job went to a node of the role, else why not.
func (e *edge) through(role transfer.Role) error {
	if len(e.jobs(role)) > 0 {
		return nil
	}
	return e.err()
}

func (e *edge) err() error {
	if e.g.Err == nil {
		return errors.New("not yet")
	}
	return e.g.Err
}

func (e *edge) attempt() router.Attempt { return e.g.Attempts()[len(e.g.Attempts())-1] }

// accept answers a job in a node's name.
func (e *edge) accept(a asked, by *identity.Node, token transfer.Hash, pages int) {
	a.done(signed(by, "accept", answerTo(a.q.Data), accepted(token, pages)), nil)
}

// waiting brings a request to where its receipt is awaited.
func (e *edge) waiting() {
	e.start(100, 4)
	e.accept(e.jobs(transfer.RoleDecode)[0], e.x.d1, e.attempt().Hash, 2)
	e.accept(e.jobs(transfer.RolePrefill)[0], e.x.p1, e.attempt().Hash, 2)
}

func (e *edge) receipt(cached int) transfer.OutputBody {
	a := e.attempt()
	b, err := seal.Receipt{TokenHash: a.Hash, Pages: 2, Decode: "d1", Epoch: e.x.d1.Epoch}.Append(nil)
	must(err)
	s, err := e.x.peer(e.x.d1).SignReceipt(b, a.Job.Reply, cached)
	must(err)
	return transfer.OutputBody{Receipt: s}
}

func (e *edge) output() *transfer.OutputSender {
	return e.x.peer(e.x.d1).NewOutput(as("decode", e.attempt().Job), e.attempt().Hash)
}

func tokens(n int) transfer.OutputBody {
	return transfer.OutputBody{Tokens: slices.Repeat([]sample.Token{{ID: 260}}, n)}
}

// relayed is d1's output for a request that waits for it; through says what must
// not be.
func relayed(through func(e *edge) bool, bodies ...func(e *edge) transfer.OutputBody) func(x *rig) error {
	return func(x *rig) error {
		e := x.edge(nil, nil)
		e.waiting()
		out := e.output()
		for _, b := range bodies {
			must(out.Send(b(e)))
		}
		if through(e) {
			return nil
		}
		return e.err()
	}
}

func fixed(b transfer.OutputBody) func(*edge) transfer.OutputBody {
	return func(*edge) transfer.OutputBody { return b }
}

func routerRows() []row {
	receipt := func(e *edge) transfer.OutputBody { return e.receipt(0) }
	placed := func(prefill, decode func(*transfer.Announce)) func(x *rig) error {
		return func(x *rig) error {
			e := x.edge(prefill, decode)
			e.start(100, 4)
			return e.through(transfer.RoleDecode)
		}
	}
	return []row{
		{"a request over the pair's limit leaves the router", "client", "maximum context length", walls(mutant.AdmissionLength), func(x *rig) error {
			e := x.edge(nil, nil)
			e.start(window-3, 4)
			return e.through(transfer.RoleDecode)
		}},
		{"a pair of two models", "prefill", "no node is ready", walls(mutant.PairModel), placed(func(a *transfer.Announce) { a.Model[0] ^= 1 }, nil)},
		{"a pair of two layouts", "prefill", "no node is ready", walls(mutant.PairModel), placed(func(a *transfer.Announce) { a.Layout[0] ^= 1 }, nil)},
		{"a pair that serves another model than the router's", "decode", "no node is ready", walls(mutant.BoardMetadata), func(x *rig) error {
			other := func(a *transfer.Announce) { a.Metadata[0] ^= 1 }
			return placed(other, other)(x)
		}},
		{"a pair of two model files", "decode", "no node is ready", walls(mutant.BoardFile), placed(func(a *transfer.Announce) { a.File[0] = 1 }, func(a *transfer.Announce) { a.File[0] = 2 })},
		{"decode accepts with too few pages", "decode", "integrity check", walls(mutant.AcceptPages), func(x *rig) error {
			e := x.edge(nil, nil)
			e.start(100, 50)
			e.accept(e.jobs(transfer.RoleDecode)[0], x.d1, e.attempt().Hash, 2)
			return e.through(transfer.RolePrefill)
		}},
		{"decode accepts another attempt", "decode", "lost", walls(mutant.AnswerToken, mutant.AcceptToken), func(x *rig) error {
			e := x.edge(nil, nil)
			e.start(100, 4)
			e.accept(e.jobs(transfer.RoleDecode)[0], x.d1, transfer.Hash{1}, 2)
			return e.through(transfer.RolePrefill)
		}},
		{"an earlier attempt's answer in a later one", "decode", "not yet", walls(mutant.FlowAttempt), func(x *rig) error {
			e := x.edge(nil, nil)
			x.say(x.d2, x.decodeKey.Public(), nil)
			e.start(100, 4)
			first, of := e.jobs(transfer.RoleDecode)[0], e.attempt()
			x.later(3100 * time.Millisecond)
			e.announce(nil, nil)
			x.say(x.d2, x.decodeKey.Public(), nil)
			e.g.Tick()
			if len(e.jobs(transfer.RoleDecode)) != 2 {
				panic(rigError("no second attempt"))
			}
			by := x.d1
			if of.Decode == "d2" {
				by = x.d2
			}
			e.accept(first, by, of.Hash, 2)
			return e.through(transfer.RolePrefill)
		}},
		{"a request ends twice", "client", "gone", walls(mutant.FlowEnd), func(x *rig) error {
			e := x.edge(nil, nil)
			e.start(100, 4)
			e.g.Cancel()
			e.g.Cancel()
			if e.g.Ends > 1 {
				return nil
			}
			return e.err()
		}},
		{"a receipt with more cached tokens than the prompt has", "decode", "integrity check", walls(mutant.ReceiptCached), relayed(
			func(e *edge) bool { return !e.g.Done() }, func(e *edge) transfer.OutputBody { return e.receipt(101) })},
		{"a second receipt", "decode", "integrity check", walls(mutant.FlowReceiptOnce), relayed(
			func(e *edge) bool { return !e.g.Done() }, receipt, receipt)},
		{"tokens without a receipt", "decode", "integrity check", walls(mutant.FlowReceipt), relayed(
			func(e *edge) bool { return len(e.g.Tokens) > 0 }, fixed(tokens(1)))},
		{"more tokens than were asked for", "decode", "integrity check", walls(mutant.FlowCount), relayed(
			func(e *edge) bool { return len(e.g.Tokens) > 4 }, receipt, fixed(tokens(5)))},
		{"a finish that counts other tokens than came", "decode", "integrity check", walls(mutant.FlowFinish), relayed(
			func(e *edge) bool { return e.g.Finish != "" }, receipt, fixed(tokens(1)), fixed(transfer.OutputBody{Finish: &transfer.Finish{Reason: "length", Generated: 3, Prompt: 100}}))},
		{"a finish that counts another prompt", "decode", "integrity check", walls(mutant.FlowFinish), relayed(
			func(e *edge) bool { return e.g.Finish != "" }, receipt, fixed(tokens(4)), fixed(transfer.OutputBody{Finish: &transfer.Finish{Reason: "length", Generated: 4, Prompt: 1}}))},
		{"tokens of the prefill node behind decode's receipt", "prefill", "integrity check", walls(mutant.OutputRole, mutant.FlowRole), func(x *rig) error {
			e := x.edge(nil, nil)
			e.waiting()
			must(e.output().Send(e.receipt(0)))
			r := x.reply() // for the bytes of a body
			plain := r.plainBody(someTokens)
			a := e.attempt()
			payload, err := seal.NewStream(as("prefill", a.Job).ReplyKey, "prefill", a.Hash).Seal(0, plain)
			must(err)
			x.net.deliver(a.Job.Reply, output(a.Hash, "prefill", 0, payload), nil)
			if len(e.g.Tokens) > 0 {
				return nil
			}
			return e.err()
		}},
	}
}
