package rogue

import (
	"context"
	"errors"
	"sync"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/internal/provenance"
	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// decode is what the outside sees of a decode node. It has no pages: it believes every
// manifest, and says what the oracle says.
type decode struct {
	*peer

	mu       sync.Mutex
	ready    bool                // guarded by mu: the KV stream is there
	attempts map[transfer.ID]job // guarded by mu
	past     *answer             // guarded by mu: the last one given without a bug
}

type job struct {
	g   *transfer.Grant
	bug *Switch
}

func serveDecode(ctx context.Context, p *peer) (stop func(), err error) {
	n := &decode{peer: p, attempts: map[transfer.ID]job{}}
	p.answers()
	_, e1 := p.Peer.ServePing(p.pong)
	_, e2 := p.Peer.ServeCancel(func(c transfer.Cancel, _ identity.Peer, done func()) {
		n.forget(transfer.Fingerprint(c.TokenHash))
		done()
	})
	stop, e3 := p.Peer.ConsumeKV(n.hear, func(ok bool) {
		n.mu.Lock()
		n.ready = ok
		n.mu.Unlock()
		p.poke()
	})
	_, e4 := p.Peer.ServeJobs(p.key, n.take)
	if err := errors.Join(e1, e2, e3, e4); err != nil {
		return nil, err
	}
	go p.Peer.Heartbeat(ctx, p.wake, func() transfer.Announce {
		n.mu.Lock()
		defer n.mu.Unlock()
		return p.announcement(n.ready)
	})
	return stop, nil
}

func (n *decode) take(_ context.Context, tj transfer.Job, from identity.Peer, answer func(*transfer.Accept, *transfer.Reject)) {
	bug := n.meet()
	g, no := n.Peer.VerifyJob(tj, from, n.self(), time.Now())
	if no == nil && bug != nil && bug.Name == bugBoast {
		no = noRoom(g)
		n.poke()
	}
	if no != nil {
		answer(nil, no)
		return
	}
	n.mu.Lock()
	n.attempts[transfer.Fingerprint(g.Hash)] = job{g, bug}
	n.mu.Unlock()
	pages := tenant.Blocks(len(tj.Prompt) + g.Claims.MaxNew)
	if bug != nil && bug.Name == bugFew {
		pages = tenant.Blocks(len(tj.Prompt)) - 1
	}
	answer(&transfer.Accept{Pages: pages}, nil)
	if bug != nil && bug.Name == bugCredit {
		go n.lend(g)
	}
}

// lend sends credits under a wrong code for as long as the attempt may be in work at prefill.
func (n *decode) lend(g *transfer.Grant) {
	for range 200 {
		c := transfer.Credit{TokenHash: g.Hash, Limit: 1 << 40, MAC: make([]byte, 32)}
		if err := n.Peer.SendCredit(g.Claims.Prefill, c); err != nil {
			n.log.Info("credit not sent", "err", err)
		}
		n.mu.Lock()
		_, waits := n.attempts[transfer.Fingerprint(g.Hash)]
		n.mu.Unlock()
		if !waits {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (n *decode) forget(token transfer.ID) (j job, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	j, ok = n.attempts[token]
	delete(n.attempts, token)
	return j, ok
}

// hear takes every message out of the stream, and a manifest for the word to begin.
func (n *decode) hear(m transfer.KVMsg) {
	m.Ack()
	msg, err := n.Peer.ParseKVMessage(m)
	if err != nil || msg.Kind != transfer.KVManifest {
		return
	}
	statement, _, err := n.Peer.VerifyManifest(msg)
	if err != nil {
		return
	}
	j, ok := n.forget(msg.Subject.Token)
	if !ok {
		return
	}
	a := &answer{n: n, g: j.g, statement: append([]byte(nil), statement...), out: n.Peer.NewOutput(j.g.Job, j.g.Hash)}
	for _, id := range n.engine.NewOracle().Expected(j.g.Job.Prompt, j.g.Claims.MaxNew) {
		a.tokens = append(a.tokens, sample.Token{ID: id, EOG: id == provenance.EOG})
	}
	go func() {
		if err := a.give(j.bug); err != nil {
			n.log.Info("answer not given", "err", err)
		}
	}()
}

// answer is what is to be said of one attempt.
type answer struct {
	n         *decode
	g         *transfer.Grant
	statement []byte // of the manifest
	out       *transfer.OutputSender
	tokens    []sample.Token
}

func (a *answer) give(bug *Switch) error {
	if bug != nil && bug.decode != nil {
		return bug.decode(a)
	}
	a.n.mu.Lock()
	a.n.past = a
	a.n.mu.Unlock()
	return a.whole()
}

func (a *answer) whole() error {
	return errors.Join(a.receipt(nil), a.say(a.tokens...), a.finish(nil))
}

func (a *answer) send(b transfer.OutputBody) error { return a.out.Send(b) }

// receipt signs and sends the receipt, changed.
func (a *answer) receipt(change func(*seal.Receipt)) error {
	signed, err := a.signed(a.n.Peer, change)
	if err != nil {
		return err
	}
	return a.send(transfer.OutputBody{Receipt: signed})
}

func (a *answer) signed(by *transfer.Peer, change func(*seal.Receipt)) (*transfer.SignedReceipt, error) {
	r := seal.Receipt{
		TokenHash: a.g.Hash, ManifestHash: seal.ManifestHash(a.statement),
		Pages: tenant.Blocks(len(a.g.Job.Prompt)), Decode: a.n.cfg.Name, Epoch: a.n.Peer.Epoch(),
	}
	if change != nil {
		change(&r)
	}
	b, err := r.Append(nil)
	if err != nil {
		return nil, err
	}
	return by.SignReceipt(b, a.g.Job.Reply, 0)
}

// say sends tokens, each in a message of its own.
func (a *answer) say(tokens ...sample.Token) error {
	for _, t := range tokens {
		if err := a.send(transfer.OutputBody{Tokens: []sample.Token{t}}); err != nil {
			return err
		}
	}
	return nil
}

// finish ends the answer, changed.
func (a *answer) finish(change func(*transfer.Finish)) error {
	f := transfer.Finish{Reason: "length", Generated: len(a.tokens), Prompt: len(a.g.Job.Prompt)}
	if a.tokens[len(a.tokens)-1].EOG {
		f.Reason = "stop"
	}
	if change != nil {
		change(&f)
	}
	return a.send(transfer.OutputBody{Finish: &f})
}

// before is the last answer that was given without a bug: to another request.
func (a *answer) before() (*answer, error) {
	a.n.mu.Lock()
	defer a.n.mu.Unlock()
	if a.n.past == nil {
		return nil, errors.New("rogue: there was no answer before this one")
	}
	return a.n.past, nil
}
