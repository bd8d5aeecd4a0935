package prefill

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"bulkhead/internal/identity"
	"bulkhead/internal/kv"
	"bulkhead/internal/mutant"
	"bulkhead/internal/tenant"
	"bulkhead/kernels"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// errCancelled is the cause of an attempt that its router ended.
var errCancelled = fmt.Errorf("cancelled by the router: %w", context.Canceled)

// take accepts a router's job or says no. An accepted job is queued, and its
// opening message is on its way.
func (n *Node) take(tj transfer.Job, from identity.Peer) (*transfer.Accept, *transfer.Reject) {
	now := n.cfg.Peer.Now()
	g, no := n.cfg.Peer.VerifyJob(tj, from, n.self, now)
	if no != nil {
		return nil, no
	}
	prompt := tj.Prompt
	if no := g.CheckLength(n.window); no != nil {
		if !mutant.Off(mutant.PrefillCapacity) {
			return nil, no
		}
		prompt = prompt[:1] // the placeholder of 2026, in a test build
	}
	if n.draining.Load() {
		return nil, g.Reject(transfer.ReasonDraining, nil)
	}
	decode, _, ok := n.dir.Get(transfer.RoleDecode, g.Claims.Decode)
	switch {
	case !ok:
		return nil, g.Reject(transfer.ReasonPeer, fmt.Errorf("decode node %q is not known here", g.Claims.Decode))
	case decode.Epoch != g.Claims.DecodeEpoch && !mutant.Off(mutant.PrefillBoot):
		return nil, g.Reject(transfer.ReasonPeer, fmt.Errorf("decode node %q is in boot %016x, granted %016x", g.Claims.Decode, decode.Epoch, g.Claims.DecodeEpoch))
	case (decode.Layout != n.layout || decode.Model != n.self.Model) && !mutant.Off(mutant.PrefillModel):
		return nil, g.Reject(transfer.ReasonModel, fmt.Errorf("decode node %q has another model or KV layout", g.Claims.Decode))
	}
	layout := n.pages.Layout()
	plan, err := seal.NewPlan(len(prompt), layout.Layers, layout.TokenLayerBytes())
	if err != nil {
		return nil, g.Reject(transfer.ReasonProtocol, err)
	}
	if err := n.once.Use(g.Hash, g.Claims.Expires, now); err != nil && !mutant.Off(mutant.PrefillOnce) {
		return nil, g.Reject(transfer.ReasonDuplicate, err)
	}
	a, err := n.newAttempt(g, prompt, plan, decode)
	if err != nil {
		return nil, refused(g, err)
	}
	if err := n.worker.add(a); err != nil { // queue full
		n.drop(a)
		return nil, refused(g, err)
	}
	n.begin(a)
	return &transfer.Accept{TokenHash: g.Hash, Pages: len(a.table.Entries())}, nil
}

// newAttempt reserves the pages and makes the attempt's fresh keys.
func (n *Node) newAttempt(g *transfer.Grant, prompt []int32, plan seal.Plan, decode transfer.Announce) (*attempt, error) {
	lease := kv.Lease{Tenant: g.Claims.Tenant, Request: g.Claims.Request, Child: g.Claims.Child, Attempt: g.Claims.Attempt}
	table, cached, err := n.hold(lease, g, prompt)
	if err != nil {
		return nil, err
	}
	a := &attempt{
		grant: g, prompt: prompt, plan: plan, cached: cached, table: table, decode: decode,
		out: n.cfg.Peer.NewOutput(g.Job, g.Hash), moved: make(chan struct{}),
		blocks: cached / kernels.BlockTokens, pending: 2,
	}
	a.publish = func() {
		if !n.private {
			n.publishPrefix(a)
		}
	}
	ctx, stop := context.WithDeadline(context.Background(), g.Job.Deadline)
	ctx, end := context.WithCancelCause(ctx)
	a.ctx, a.cancel = ctx, func(cause error) { end(cause); stop() }
	fail := func(err error) (*attempt, error) {
		a.cancel(err)
		table.Release()
		return nil, err
	}
	if a.keys, a.enc, err = n.cfg.Peer.NewSender(decode.HPKE, g.Hash); err != nil {
		return fail(err)
	}
	if a.writer, err = table.BeginWrite(); err != nil {
		return fail(err)
	}
	if a.reader, err = table.BeginWrite(); err != nil {
		a.writer.Done()
		return fail(err)
	}
	subject := transfer.KVSubject{Decode: decode.Node, Request: transfer.ID(g.Claims.Request), Attempt: g.Claims.Attempt, Token: transfer.Fingerprint(g.Hash)}
	if a.kv, err = n.openKV(decode, subject, g.Hash); err != nil {
		a.writer.Done()
		a.reader.Done()
		return fail(err)
	}
	a.kv.Recycle(n.recycleFrame)
	n.stats.cached.Add(float64(cached))
	n.mu.Lock()
	overtaken := n.gone.Has(transfer.CancelledBy(g.Hash, g.Claims.Router))
	if !overtaken {
		n.jobs[g.Hash] = a
	}
	n.mu.Unlock()
	if overtaken {
		n.drop(a)
		return nil, errCancelled
	}
	a.whenEnded(func() {
		n.mu.Lock()
		delete(n.jobs, g.Hash)
		n.mu.Unlock()
	})
	return a, nil
}

// hold reserves the pages of a prompt, with the tenant's cached blocks if the
// engine's blocks may be shared.
func (n *Node) hold(lease kv.Lease, g *transfer.Grant, prompt []int32) (*kv.Table, int, error) {
	if n.private {
		table, err := n.pool.Reserve(lease, len(prompt))
		return table, 0, err
	}
	return n.pool.ReserveWithPrefix(lease, g.Claims.PrefixScope, prompt, len(prompt))
}

// drop takes back a job that nobody has begun with.
func (n *Node) drop(a *attempt) {
	a.cancel(errCancelled)
	a.kv.Close()
	a.writer.Done()
	a.reader.Done()
	a.leave()
	a.leave()
}

// openKV begins an attempt's KV on the way to one boot of one decode node; all attempts share its window,
// and its connection where the decode node has a KV server of its own.
func (n *Node) openKV(decode transfer.Announce, subject transfer.KVSubject, token transfer.Hash) (*transfer.KVAttempt, error) {
	key := senderKey(decode)
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.senders[key]
	if s != nil && s.Spent() {
		n.retire(s) // its attempts have failed, or will
		s = nil
	}
	if s == nil {
		var err error
		if s, err = n.cfg.Peer.NewKVSenderTo(decode, nil); errors.Is(err, transfer.ErrKVServer) && n.retireIdle() {
			s, err = n.cfg.Peer.NewKVSenderTo(decode, nil)
		}
		if err != nil {
			delete(n.senders, key)
			return nil, err
		}
		n.senders[key] = s
	}
	return s.Attempt(subject, token, 0)
}

// retire closes a sender; what is left of it may take a moment.
func (n *Node) retire(s *transfer.KVSender) {
	done := s.Close()
	n.closing.Go(func() { <-done })
}

// retireIdle makes room for a connection where one is not in use, and reports whether it did. Caller
// holds mu.
func (n *Node) retireIdle() bool {
	for key, s := range n.senders {
		if s.Linked() && s.Idle() {
			delete(n.senders, key)
			n.retire(s)
			return true
		}
	}
	return false
}

// closeSenders is for the end of serving.
func (n *Node) closeSenders() {
	n.mu.Lock()
	for key, s := range n.senders {
		n.retire(s)
		delete(n.senders, key)
	}
	n.mu.Unlock()
	n.closing.Wait()
}

// boot is one life of a decode node.
type boot struct {
	node  string
	epoch uint64
}

func senderKey(a transfer.Announce) boot { return boot{a.Node, a.Epoch} }

// forgetSenders drops the senders of decode nodes that are gone, once no attempt uses them.
func (n *Node) forgetSenders() {
	all := n.dir.List(transfer.RoleDecode)
	n.mu.Lock()
	defer n.mu.Unlock()
	for key, s := range n.senders {
		if slices.ContainsFunc(all, func(a transfer.Announce) bool { return senderKey(a) == key }) {
			continue
		}
		if s.Idle() {
			n.retire(s)
			delete(n.senders, key)
		}
	}
}

// cancel ends an attempt for its router.
func (n *Node) cancel(c transfer.Cancel, from identity.Peer, done func()) {
	n.mu.Lock()
	a := n.jobs[c.TokenHash]
	if a == nil {
		// Its job may be behind it: messages of different subjects overtake each other, and
		// nobody would cancel it again. Where there is no room to remember, the deadline ends it.
		now := n.cfg.Peer.Now()
		_ = n.gone.Use(transfer.CancelledBy(c.TokenHash, from.Name), now.Add(tenant.MaxLifetime), now)
	}
	n.mu.Unlock()
	if a != nil && a.grant.Claims.Router != from.Name && !mutant.Off(mutant.PrefillCancel) {
		n.stats.refused("foreign_cancel")
		a = nil
	}
	if a == nil {
		done()
		return
	}
	a.whenEnded(done)
	n.end(a, errCancelled)
}

// end stops both parties of a job; its pages go when they have let go.
func (n *Node) end(a *attempt, cause error) {
	a.cancel(cause)
	n.worker.cancel(a)
}

func (n *Node) endAll(cause error) {
	n.mu.Lock()
	all := make([]*attempt, 0, len(n.jobs))
	for _, a := range n.jobs {
		all = append(all, a)
	}
	n.mu.Unlock()
	for _, a := range all {
		n.end(a, cause)
	}
}

// credit lets an attempt publish more, if the decode node it was granted to
// says so under the attempt's own key.
func (n *Node) credit(c transfer.Credit, from identity.Peer) {
	n.mu.Lock()
	a := n.jobs[c.TokenHash]
	n.mu.Unlock()
	if a == nil {
		return // it is over
	}
	if from.Name != a.grant.Claims.Decode && !mutant.Off(mutant.PrefillCredit) || a.keys.CheckCredit(c.Limit, c.MAC) != nil {
		n.stats.refused("bad_credit")
		return
	}
	a.kv.Credit(c.Limit)
}

// refused maps an error of intake to its Reject.
func refused(g *transfer.Grant, err error) *transfer.Reject {
	var long *kv.TooLongError
	var pages *kv.NoPagesError
	switch {
	case errors.As(err, &long):
		return &transfer.Reject{TokenHash: g.Hash, Reason: transfer.ReasonContextLength, Limit: int64(long.Limit), Value: int64(long.Value), Detail: err.Error()}
	case errors.As(err, &pages):
		return &transfer.Reject{TokenHash: g.Hash, Reason: transfer.ReasonNoPages, Limit: int64(pages.Free), Value: int64(pages.Need), Detail: err.Error()}
	}
	return g.Reject(reasonOf(err), err)
}
