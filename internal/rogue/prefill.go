package rogue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/internal/kv"
	"bulkhead/internal/model"
	"bulkhead/internal/sample"
	"bulkhead/kernels"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// prefill is a second implementation of a prefill node: one goroutine per prompt, no queue, no cache.
type prefill struct {
	*peer
	pages kernels.Pages
	pool  *kv.Pool
	dir   *transfer.Directory

	mu      sync.Mutex
	senders map[string]*transfer.KVSender // guarded by mu: by node and boot
	past    *shipment                     // guarded by mu: the last attempt that was shipped
}

func servePrefill(ctx context.Context, p *peer) (stop func(), err error) {
	n := &prefill{peer: p, senders: map[string]*transfer.KVSender{}}
	if n.pages, err = p.engine.NewPages(capacity / kernels.BlockTokens); err != nil {
		return nil, err
	}
	if n.pool, err = kv.NewPool(n.pages, capacity); err != nil {
		return nil, err
	}
	if n.dir, err = p.Peer.WatchPeers(transfer.RoleDecode); err != nil {
		return nil, err
	}
	p.answers()
	_, e1 := p.Peer.ServePing(p.pong)
	_, e2 := p.Peer.ServeCancel(func(_ transfer.Cancel, _ identity.Peer, done func()) { done() })
	_, e3 := p.Peer.ServeJobs(p.key, n.take)
	if err := errors.Join(e1, e2, e3); err != nil {
		return nil, err
	}
	go p.Peer.Heartbeat(ctx, p.wake, func() transfer.Announce { return p.announcement(true) })
	return n.dir.Close, nil
}

// shipment is one attempt, computed and ready to be sent in any way.
type shipment struct {
	n      *prefill
	g      *transfer.Grant
	plan   seal.Plan
	keys   *seal.Sender
	enc    []byte
	decode transfer.Announce
	kv     *transfer.KVAttempt
	out    *transfer.OutputSender
	plains [][]byte // of the frames
	first  sample.Token
	ctx    context.Context

	sent      [][]byte // frames as they were sealed
	chain     *seal.Chain
	statement []byte // of the manifest
}

func (n *prefill) take(_ context.Context, job transfer.Job, from identity.Peer, answer func(*transfer.Accept, *transfer.Reject)) {
	bug := n.meet()
	g, no := n.Peer.VerifyJob(job, from, n.self(), time.Now())
	if no == nil && bug != nil && bug.Name == bugBoast {
		no = noRoom(g)
		n.poke()
	}
	if no == nil {
		if _, _, ok := n.dir.Get(transfer.RoleDecode, g.Claims.Decode); !ok {
			no = g.Reject(transfer.ReasonPeer, nil)
		}
	}
	if no != nil {
		answer(nil, no)
		return
	}
	answer(&transfer.Accept{Pages: (len(job.Prompt) + kernels.BlockTokens - 1) / kernels.BlockTokens}, nil)
	go func() {
		if err := n.work(g, bug); err != nil {
			n.log.Info("attempt ended", "err", err)
		}
	}()
}

// work computes an attempt and ships it, with the bug if there is one.
func (n *prefill) work(g *transfer.Grant, bug *Switch) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	s, err := n.newShipment(ctx, g)
	if err != nil {
		return err
	}
	defer s.kv.Close()
	if bug != nil && bug.prefill != nil {
		return bug.prefill(s)
	}
	err = errors.Join(s.open(nil), s.frames(0, s.plan.Frames()), s.manifest(nil))
	if err == nil {
		n.mu.Lock()
		n.past = s
		n.mu.Unlock()
	}
	return err
}

func (n *prefill) newShipment(ctx context.Context, g *transfer.Grant) (*shipment, error) {
	decode, _, ok := n.dir.Get(transfer.RoleDecode, g.Claims.Decode)
	if !ok {
		return nil, fmt.Errorf("rogue: decode node %q is not known", g.Claims.Decode)
	}
	s := &shipment{n: n, g: g, decode: decode, ctx: ctx, chain: seal.NewChain(), out: n.Peer.NewOutput(g.Job, g.Hash)}
	layout := n.facts.Layout
	var err error
	if s.plan, err = seal.NewPlan(len(g.Job.Prompt), layout.Layers, layout.TokenLayerBytes()); err != nil {
		return nil, err
	}
	if s.plains, s.first, err = n.compute(g, s.plan, g.Claims.Tenant, g.Job.Prompt); err != nil {
		return nil, err
	}
	if s.keys, s.enc, err = n.Peer.NewSender(decode.HPKE, g.Hash); err != nil {
		return nil, err
	}
	s.kv, err = n.attempt(n.Peer, s.subject(), g.Hash)
	return s, err
}

// compute gives the frames' plaintexts and the first token for a prompt, as this tenant's.
func (n *prefill) compute(g *transfer.Grant, plan seal.Plan, tenant string, prompt []int32) (plains [][]byte, first sample.Token, err error) {
	c := g.Claims
	table, err := n.pool.Reserve(kv.Lease{Tenant: tenant, Request: c.Request, Child: c.Child, Attempt: c.Attempt}, len(prompt))
	if err != nil {
		return nil, first, err
	}
	defer table.Release()
	w, err := table.BeginWrite()
	if err != nil {
		return nil, first, err
	}
	defer w.Done()
	run, err := n.engine.NewRunner(len(prompt), 1)
	if err != nil {
		return nil, first, err
	}
	defer run.Close()
	outs, err := run.Forward(n.pages, []model.Seq{{
		Tokens: prompt, Table: table.Entries(), Logits: true,
		Source: model.Source{Tenant: tenant, Request: c.Request, Child: c.Child, Attempt: c.Attempt, Prompt: len(prompt), Prefill: n.Peer.Epoch()},
	}})
	if err == nil {
		err = outs[0].Err
	}
	if err != nil {
		return nil, first, err
	}
	for i := range plan.Frames() {
		f := plan.Frame(i)
		plain := make([]byte, f.Bytes)
		if err := n.pages.Export(plain, table.Entries()[f.Block], f.Block, f.LayerStart, f.LayerEnd, f.TokenEnd-f.TokenStart); err != nil {
			return nil, first, err
		}
		plains = append(plains, plain)
	}
	sampler, err := sample.New(g.Job.Params, n.facts.Vocab, prompt)
	if err != nil {
		return nil, first, err
	}
	first, err = sampler.Sample(outs[0].Logits, nil)
	return plains, first, err
}

func (s *shipment) subject() transfer.KVSubject {
	c := s.g.Claims
	return transfer.KVSubject{Decode: c.Decode, Request: transfer.ID(c.Request), Attempt: c.Attempt, Token: transfer.Fingerprint(s.g.Hash)}
}

// attempt opens a way to a decode node under any subject, signed by any peer.
func (n *prefill) attempt(by *transfer.Peer, subject transfer.KVSubject, hash transfer.Hash) (*transfer.KVAttempt, error) {
	key := by.Name() + subject.Decode
	n.mu.Lock()
	s := n.senders[key]
	if s == nil {
		s = by.NewKVSender(subject.Decode, nil)
		n.senders[key] = s
	}
	n.mu.Unlock()
	return s.Attempt(subject, hash, 0)
}

// open sends the opening message, changed.
func (s *shipment) open(change func(*transfer.Open)) error {
	o := transfer.Open{
		Token: s.g.Job.Token, Prefill: s.n.cfg.Name, PrefillEpoch: s.n.Peer.Epoch(),
		Enc: s.enc, Frames: s.plan.Frames(), Layout: s.n.facts.Layout.Fingerprint(),
	}
	if change != nil {
		change(&o)
	}
	return s.kv.Open(s.ctx, o)
}

// sealed seals frame i with its header and plaintext, changed, and adds it to the chain.
func (s *shipment) sealed(i int, header func(*seal.Header), plain func([]byte) []byte) ([]byte, error) {
	h, p := s.g.Header(s.plan, i, s.n.Peer.Epoch()), append([]byte(nil), s.plains[i]...)
	if header != nil {
		header(&h)
	}
	if plain != nil {
		p = plain(p)
		h.PayloadLen = uint32(len(p))
	}
	b, err := s.keys.SealFrame(nil, h, p)
	if err == nil {
		_ = s.chain.Add(b) // a frame out of order is just what is wanted
	}
	return b, err
}

func (s *shipment) send(frame []byte) error { return s.kv.Frame(s.ctx, frame) }

// frames sends those of [from, to) as they should be.
func (s *shipment) frames(from, to int) error {
	for i := from; i < to; i++ {
		b, err := s.sealed(i, nil, nil)
		if err != nil {
			return err
		}
		s.sent = append(s.sent, b)
		if err := s.send(b); err != nil {
			return err
		}
	}
	return nil
}

// changed sends all frames with every header or plaintext changed.
func (s *shipment) changed(header func(*seal.Header), plain func(int, []byte) []byte) error {
	for i := range s.plan.Frames() {
		var p func([]byte) []byte
		if plain != nil {
			p = func(b []byte) []byte { return plain(i, b) }
		}
		b, err := s.sealed(i, header, p)
		if err != nil {
			return err
		}
		if err := s.send(b); err != nil {
			return err
		}
	}
	return nil
}

// stated is the manifest's bytes, changed.
func (s *shipment) stated(change func(*seal.Manifest)) ([]byte, error) {
	plain, err := transfer.EncodeFirst(s.first)
	if err != nil {
		return nil, err
	}
	sealed, err := s.keys.SealFirst(notANumber(plain))
	if err != nil {
		return nil, err
	}
	m := seal.Manifest{
		TokenHash: s.g.Hash, Blocks: s.plan.Blocks(), Tokens: s.plan.PromptLen, Frames: s.plan.Frames(),
		Chain: s.chain.Sum(), First: sealed,
	}
	if change != nil {
		change(&m)
	}
	return m.Append(nil)
}

// manifest sends it.
func (s *shipment) manifest(change func(*seal.Manifest)) (err error) {
	if s.statement, err = s.stated(change); err != nil {
		return err
	}
	return s.kv.Manifest(s.ctx, s.statement)
}

// whole sends the attempt as it should be.
func (s *shipment) whole() error {
	return errors.Join(s.open(nil), s.frames(0, s.plan.Frames()), s.manifest(nil))
}

// before is the last attempt that was shipped without a bug: another request's.
func (s *shipment) before() (*shipment, error) {
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	if s.n.past == nil {
		return nil, errors.New("rogue: there was no attempt before this one")
	}
	return s.n.past, nil
}

// again seals frame i under fresh keys of the same token: the same header, other bytes.
func (s *shipment) again(i int, plain func([]byte)) ([]byte, error) {
	keys, _, err := s.n.Peer.NewSender(s.decode.HPKE, s.g.Hash)
	if err != nil {
		return nil, err
	}
	p := append([]byte(nil), s.plains[i]...)
	if plain != nil {
		plain(p)
	}
	return keys.SealFrame(nil, s.g.Header(s.plan, i, s.n.Peer.Epoch()), p)
}
