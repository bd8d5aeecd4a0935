package router

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"bulkhead/internal/tenant"
	"bulkhead/transfer"
)

// attempt is one try at a sequence: its own token, salt and reply key, so nothing of
// an earlier attempt fits it.
type attempt struct {
	number int
	pair   pair
	claims [2]reservation
	hash   transfer.Hash
	digest [32]byte // of the prompt, salted: fit for the audit log
	job    transfer.Job
	stops  []func()
}

// newAttempt makes and signs everything that the two nodes are to be told.
func (s *sequence) newAttempt(number int, g grant) (*attempt, error) {
	x, cfg := s.x, &s.x.r.cfg
	a := &attempt{number: number, pair: g.pair, claims: g.claims}
	now := time.Now()
	a.job = transfer.Job{Prompt: s.prompt, Params: s.params, Deadline: s.flow.firstEnd}
	_, _ = rand.Read(a.job.Salt[:]) // never fails: crypto/rand ends the program instead
	_, _ = rand.Read(a.job.ReplyKey[:])
	a.digest = tenant.PromptDigest(a.job.Salt, s.prompt)

	// The reply subject names the token, so the token cannot name all of the subject: it
	// is bound to the part before it, which is this router and this request.
	reply := transfer.OutSubject{Router: cfg.Name, Request: transfer.ID(x.id)}
	token, err := tenant.Sign(tenant.Claims{
		Tenant: x.tenant.ID, Request: x.id, Child: uint16(s.child), Attempt: uint16(number),
		Model: g.pair.decode.Model, PromptLen: len(s.prompt), PromptDigest: a.digest,
		BlockTokens: tenant.BlockTokens, Blocks: tenant.Blocks(len(s.prompt)), MaxNew: s.params.MaxNew,
		Prefill: g.pair.prefill.Node, Decode: g.pair.decode.Node, DecodeEpoch: g.pair.decode.Epoch,
		ReplyBinding: tenant.ReplyBinding(reply.Scope(), a.job.ReplyKey),
		PrefixScope:  cfg.Tenants.PrefixRoot(x.tenant, g.pair.decode.Model),
		IssuedAt:     now, NotBefore: now, Expires: now.Add(min(tenant.MaxLifetime, max(s.flow.firstEnd.Sub(now), time.Second))),
		Router: cfg.Name,
	}, cfg.Key, cfg.ClusterID)
	if err != nil {
		return nil, fmt.Errorf("router: sign the token of attempt %d: %w", number, err)
	}
	a.job.Token = token
	a.hash = tenant.HashToken(token)
	reply.Token = transfer.Fingerprint(a.hash)
	a.job.Reply = reply.String()
	return a, nil
}

// begin hears the attempt's output and watches its nodes; both before anything is sent.
func (s *sequence) begin(a *attempt) error {
	r := s.x.r
	stop, err := r.cluster.ReceiveOutput(a.job.Reply, a.job.ReplyKey, a.hash,
		func(from transfer.Role, body transfer.OutputBody) { s.heard(a, from, body) },
		func(error) { s.post(event{kind: evViolation, attempt: a.number}) })
	if err != nil {
		return fmt.Errorf("router: hear the output of an attempt: %w", err)
	}
	a.stops = append(a.stops, stop)
	for _, n := range []transfer.Announce{a.pair.prefill, a.pair.decode} {
		a.stops = append(a.stops, r.watch.add(n.Node, n.Epoch, func() {
			s.post(event{kind: evNodeLost, attempt: a.number, node: n.Node})
		}))
	}
	return nil
}

// end stops hearing and watching and gives the claims back.
func (s *sequence) end(a *attempt) {
	for _, stop := range a.stops {
		stop()
	}
	s.x.r.desk.release(a.claims)
}

// heard turns a message of a node into an event. It runs on the bus's goroutine.
func (s *sequence) heard(a *attempt, from transfer.Role, body transfer.OutputBody) {
	e := event{attempt: a.number, role: from}
	switch {
	case body.Fail != nil:
		e.kind, e.reject = evFail, *body.Fail
	case from != transfer.RoleDecode: // prefill can only fail
		e.kind = evViolation
	case body.Receipt != nil:
		e.kind, e.receipt = evReceipt, s.checkReceipt(a, body.Receipt)
		if e.receipt == nil {
			e.kind = evViolation
		}
	case body.Finish != nil:
		e.kind, e.finish = evFinish, *body.Finish
	default:
		e.kind, e.tokens = evTokens, body.Tokens
	}
	s.post(e)
}

// checkReceipt returns nil unless the receipt was signed by this attempt's decode node in
// this boot, for this token, over exactly the pages of the prompt.
func (s *sequence) checkReceipt(a *attempt, signed *transfer.SignedReceipt) *receiptFacts {
	d := a.pair.decode
	_, hash, err := s.x.r.cluster.VerifyReceipt(signed, a.job.Reply, a.hash, d.Node, d.Epoch, tenant.Blocks(len(s.prompt)))
	if err == nil && signed.Cached > len(s.prompt) {
		err = fmt.Errorf("router: %d cached tokens of a prompt of %d", signed.Cached, len(s.prompt))
	}
	if err != nil {
		s.x.r.log.Error("receipt refused", "request_id", s.x.idText, "node", d.Node, "err", err)
		return nil
	}
	return &receiptFacts{hash: hash, cached: signed.Cached, model: d.Model}
}

// submit sends the job to one of the two nodes and posts the answer.
func (s *sequence) submit(a *attempt, to transfer.Announce) {
	r := s.x.r
	r.work.Go(func() {
		ctx, cancel := context.WithTimeout(s.x.ctx, r.cfg.AcceptTimeout)
		defer cancel()
		accept, err := r.cluster.SubmitJob(ctx, to, a.job)
		e := event{attempt: a.number, role: to.Role}
		var no *transfer.Rejected
		switch {
		case errors.As(err, &no):
			e.kind, e.reject = evRejected, no.Reject
		case err != nil && s.x.ctx.Err() != nil:
			return // nobody waits any more; both nodes are being cancelled
		case err != nil:
			r.log.Warn("job not answered", "request_id", s.x.idText, "node", to.Node, "err", err)
			e.kind = evUnreachable
		case accept.TokenHash != a.hash:
			e.kind = evViolation
		case to.Role == transfer.RoleDecode && accept.Pages < tenant.Blocks(len(s.prompt)+s.params.MaxNew):
			// Decode must hold room for the whole sequence before anything is computed.
			e.kind = evViolation
		default:
			e.kind = evAccepted
		}
		s.post(e)
	})
}

// cancel ends the attempt at a node. It is tried again, as the node may hold pages for it.
func (s *sequence) cancel(a *attempt, node string, reason transfer.Reason) {
	r := s.x.r
	c := transfer.Cancel{TokenHash: a.hash, Reason: reason}
	r.work.Go(func() {
		for i := range cancelTries {
			if i > 0 {
				time.Sleep(cancelPause)
			}
			ctx, done := context.WithTimeout(context.Background(), r.cfg.AcceptTimeout)
			err := r.cluster.SendCancel(ctx, node, c)
			done()
			if err == nil {
				return
			}
			r.log.Warn("cancel not confirmed", "request_id", s.x.idText, "node", node, "err", err)
		}
	})
}

// A cancel that fails may meet a bus that is just being restarted, or a node that is not
// back on it yet and looks lost: without a pause all tries would be over in a
// millisecond, and the node would keep the pages until the attempt's deadline.
const (
	cancelTries = 4
	cancelPause = time.Second
)
