package prefill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"bulkhead/internal/kv"
	"bulkhead/kernels"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// refusal is an end with a reason for the router.
type refusal struct {
	reason transfer.Reason
	err    error
}

func (r *refusal) Error() string { return fmt.Sprintf("%s: %v", r.reason, r.err) }
func (r *refusal) Unwrap() error { return r.err }

// rejectWait bounds how long a dying attempt tries to say so.
const rejectWait = 2 * time.Second

// ship sends one attempt: opening message, every frame in order as its block
// becomes complete, the signed manifest. It returns when the stream has stored
// all of it, or the attempt has ended otherwise.
func (n *Node) ship(a *attempt) {
	err := n.shipAll(a)
	a.reader.Done()
	if err == nil {
		a.mu.Lock()
		a.whole = true
		a.mu.Unlock()
		n.stats.shipped(a.plan.Bytes())
	} else {
		n.refuseAttempt(a, err)
	}
	a.kv.Close()
	a.cancel(context.Canceled)
	n.worker.shipped(a, a.plan.Blocks(), true)
	a.leave()
}

func (n *Node) shipAll(a *attempt) error {
	open := transfer.Open{
		Token: a.grant.Job.Token, Prefill: n.self.Node, PrefillEpoch: n.self.Epoch,
		Enc: a.enc, Frames: a.plan.Frames(), Layout: n.layout,
	}
	if err := a.kv.Open(a.ctx, open); err != nil {
		return err
	}
	chain := seal.NewChain()
	for i := range a.plan.Frames() {
		f := a.plan.Frame(i)
		if err := a.waitBlock(f.Block); err != nil {
			return err
		}
		frame, err := n.sealFrame(a, i, f)
		if err != nil {
			return err
		}
		if err := chain.Add(frame); err != nil {
			return err
		}
		if err := a.kv.Frame(a.ctx, frame); err != nil {
			return err
		}
		if _, hi := a.plan.BlockFrames(f.Block); i == hi-1 {
			n.worker.shipped(a, f.Block+1, false)
		}
	}
	first, err := a.waitFirst()
	if err != nil {
		return err
	}
	// A shared block may have been condemned by another request's fault since.
	if err := a.table.Sound(); err != nil {
		return &refusal{transfer.ReasonIntegrity, err}
	}
	plain, err := transfer.EncodeFirst(first)
	if err != nil {
		return err
	}
	sealed, err := a.keys.SealFirst(plain)
	if err != nil {
		return err
	}
	statement, err := seal.Manifest{
		TokenHash: a.grant.Hash, Blocks: a.plan.Blocks(), Tokens: a.plan.PromptLen,
		Frames: a.plan.Frames(), Cached: a.cached, Chain: chain.Sum(), First: sealed,
	}.Append(nil)
	if err != nil {
		return err
	}
	return a.kv.Manifest(a.ctx, statement)
}

// sealFrame reads a frame's layers out of the page, under the page's own
// ownership check, and seals them. The frame is a buffer of its own: it must
// stay as it is until it is stored, to be sent again as the same bytes.
func (n *Node) sealFrame(a *attempt, i int, f seal.FrameSpec) ([]byte, error) {
	plain := n.buffer(f.Bytes)
	defer n.recycle(plain)
	if err := n.pages.Export(plain, a.table.Entries()[f.Block], f.Block, f.LayerStart, f.LayerEnd, f.TokenEnd-f.TokenStart); err != nil {
		a.table.Quarantine("export: " + err.Error())
		return nil, &refusal{transfer.ReasonIntegrity, err}
	}
	frame := make([]byte, 0, seal.HeaderSize+f.Bytes+seal.TagSize)
	return a.keys.SealFrame(frame, a.grant.Header(a.plan, i, n.self.Epoch), plain)
}

// publishPrefix hands the full blocks of a finished prompt to the tenant's
// prefix cache.
func (n *Node) publishPrefix(a *attempt) {
	err := a.table.MarkReady(a.plan.PromptLen)
	if err == nil {
		err = a.table.Publish()
	}
	if errors.Is(err, kv.ErrIncomplete) {
		a.table.Quarantine("publish: " + err.Error())
	}
	if err != nil {
		n.log.Error("prefix not published", "request", transfer.ID(a.grant.Claims.Request), "err", err)
	}
}

// refuseAttempt tells decode and the router that an attempt will not complete.
// A cancelled one is ended by its router, which needs no telling.
func (n *Node) refuseAttempt(a *attempt, err error) {
	reason := reasonOf(err)
	n.stats.refused(string(reason))
	n.log.Warn("attempt ended", "request", transfer.ID(a.grant.Claims.Request), "attempt", a.grant.Claims.Attempt,
		"decode", a.grant.Claims.Decode, "reason", reason, "err", err)
	if reason == transfer.ReasonCancelled {
		return
	}
	no := transfer.Reject{TokenHash: a.grant.Hash, Reason: reason, Detail: err.Error()}
	ctx, cancel := context.WithTimeout(context.Background(), rejectWait)
	defer cancel()
	if serr := a.out.Send(transfer.OutputBody{Fail: &no}); serr != nil {
		n.log.Warn("failure not sent to the router", "err", serr)
	}
	if serr := a.kv.Reject(ctx, no); serr != nil {
		n.log.Warn("failure not sent to decode", "err", serr)
	}
}

// reasonOf finds the reason that travels for an error.
func reasonOf(err error) transfer.Reason {
	var r *refusal
	var fault kernels.Fault
	switch {
	case errors.As(err, &r):
		return r.reason
	case errors.As(err, &fault):
		return transfer.ReasonIntegrity
	case errors.Is(err, context.DeadlineExceeded):
		return transfer.ReasonTimeout
	case errors.Is(err, context.Canceled), errors.Is(err, transfer.ErrWindow):
		return transfer.ReasonCancelled
	}
	return transfer.ReasonInternal
}
