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
	if no := n.shipped(a, err); no != nil {
		ctx, cancel := context.WithTimeout(context.Background(), rejectWait)
		if serr := a.kv.Reject(ctx, *no); serr != nil {
			n.log.Warn("failure not sent to decode", "err", serr)
		}
		cancel()
	}
	n.leave(a)
}

// shipped notes how the shipping ended. It returns what decode is to be told, if
// anything.
func (n *Node) shipped(a *attempt, err error) *transfer.Reject {
	a.reader.Done()
	if err != nil {
		return n.refuseAttempt(a, err)
	}
	a.mu.Lock()
	a.whole = true
	a.mu.Unlock()
	n.stats.shipped(a.plan.Bytes())
	return nil
}

// leave ends the shipper's part in an attempt.
func (n *Node) leave(a *attempt) {
	a.kv.Close()
	a.cancel(context.Canceled)
	n.worker.shipped(a, a.plan.Blocks(), true)
	a.leave()
}

func (n *Node) shipAll(a *attempt) error {
	s := newShipment(n, a)
	if err := a.kv.Connect(a.ctx); err != nil {
		return err
	}
	for {
		m := s.next()
		if m.kind == shipDone {
			return nil
		}
		if err := a.wait(m.ready); err != nil {
			return err
		}
		var err error
		switch m.kind {
		case shipOpen:
			err = a.kv.Open(a.ctx, s.open())
		case shipFrame:
			var frame []byte
			if frame, err = s.frame(); err == nil {
				err = a.kv.Frame(a.ctx, frame)
			}
		case shipManifest:
			// A frame that was not stored for good ends the attempt before anything is signed.
			if err = a.kv.Flush(a.ctx); err == nil {
				var statement []byte
				if statement, err = s.manifest(); err == nil {
					err = a.kv.Manifest(a.ctx, statement)
				}
			}
		}
		if err != nil {
			return err
		}
		s.sent()
	}
}

// sealFrame reads a frame's layers out of the page, under the page's own
// ownership check, and seals them. The frame is a buffer of its own: it
// stays as it is until it is stored, to be sent again as the same bytes.
func (n *Node) sealFrame(a *attempt, i int, f seal.FrameSpec, lies *Lies) ([]byte, error) {
	plain := n.buffer(f.Bytes)
	defer n.recycle(plain)
	if err := n.pages.Export(plain, a.table.Entries()[f.Block], f.Block, f.LayerStart, f.LayerEnd, f.TokenEnd-f.TokenStart); err != nil {
		a.table.Quarantine("export: " + err.Error())
		return nil, &refusal{transfer.ReasonIntegrity, err}
	}
	if lies != nil && lies.Plain != nil {
		lies.Plain(i, plain)
	}
	return a.keys.SealFrame(n.frameBuffer(f.Bytes), a.grant.Header(a.plan, i, n.self.Epoch), plain)
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

// refuseAttempt tells the router that an attempt will not complete, and returns
// what decode is to be told. A cancelled one is ended by its router, which tells both.
func (n *Node) refuseAttempt(a *attempt, err error) *transfer.Reject {
	reason := reasonOf(err)
	n.stats.refused(string(reason))
	n.log.Warn("attempt ended", "request", transfer.ID(a.grant.Claims.Request), "attempt", a.grant.Claims.Attempt,
		"decode", a.grant.Claims.Decode, "reason", reason, "err", err)
	if reason == transfer.ReasonCancelled {
		return nil
	}
	no := &transfer.Reject{TokenHash: a.grant.Hash, Reason: reason, Detail: err.Error()}
	if serr := a.out.Send(transfer.OutputBody{Fail: no}); serr != nil {
		n.log.Warn("failure not sent to the router", "err", serr)
	}
	if reason == transfer.ReasonKVServer {
		return nil // there is no way to decode; its router will tell it
	}
	return no
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
	case errors.Is(err, transfer.ErrKVServer), errors.Is(err, transfer.ErrKVURL):
		return transfer.ReasonKVServer
	case errors.Is(err, context.DeadlineExceeded):
		return transfer.ReasonTimeout
	case errors.Is(err, context.Canceled), errors.Is(err, transfer.ErrWindow):
		return transfer.ReasonCancelled
	}
	return transfer.BusReason(err)
}
