package router

import (
	"context"
	"crypto/rand"
	"encoding/base32"
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

// idText writes ids as they stand in subjects.
var idText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// newAttempt makes and signs everything that the two nodes are to be told.
func (s *sequence) newAttempt(number int, g grant) (*attempt, error) {
	x, cfg := s.x, &s.x.r.cfg
	a := &attempt{number: number, pair: g.pair, claims: g.claims}
	now := time.Now()
	a.job = transfer.Job{Prompt: s.prompt, Params: s.params, Deadline: s.flow.firstEnd}
	_, _ = rand.Read(a.job.Salt[:]) // never fails: crypto/rand ends the program instead
	_, _ = rand.Read(a.job.ReplyKey[:])
	a.digest = tenant.PromptDigest(a.job.Salt, s.prompt)

	// The reply subject names the token, so the token cannot name the subject: it is
	// bound to the subject's prefix, router and request, and to the reply key.
	prefix := "out." + cfg.Name + "." + idText.EncodeToString(x.id[:])
	token, err := tenant.Sign(tenant.Claims{
		Tenant: x.tenant.ID, Request: x.id, Child: uint16(s.child), Attempt: uint16(number),
		Model: g.pair.decode.Model, PromptLen: len(s.prompt), PromptDigest: a.digest,
		BlockTokens: tenant.BlockTokens, Blocks: tenant.Blocks(len(s.prompt)), MaxNew: s.params.MaxNew,
		Prefill: g.pair.prefill.Node, Decode: g.pair.decode.Node, DecodeEpoch: g.pair.decode.Epoch,
		ReplyBinding: tenant.ReplyBinding(prefix, a.job.ReplyKey),
		PrefixScope:  cfg.Tenants.PrefixRoot(x.tenant, g.pair.decode.Model),
		IssuedAt:     now, NotBefore: now, Expires: now.Add(min(tenant.MaxLifetime, max(s.flow.firstEnd.Sub(now), time.Second))),
		Router: cfg.Name,
	}, cfg.Key, cfg.ClusterID)
	if err != nil {
		return nil, fmt.Errorf("router: sign the token of attempt %d: %w", number, err)
	}
	a.job.Token = token
	a.hash = tenant.HashToken(token)
	a.job.Reply = prefix + "." + tenant.Fingerprint(a.hash)
	return a, nil
}

// begin hears the attempt's output and watches its nodes; both before anything is sent.
func (s *sequence) begin(a *attempt) error {
	r := s.x.r
	stop, err := r.cluster.Receive(Attempt{
		TokenHash: a.hash, Reply: a.job.Reply, ReplyKey: a.job.ReplyKey,
		Prefill: a.pair.prefill, Decode: a.pair.decode,
	}, func(from transfer.Role, body transfer.OutputBody, err error) { s.heard(a, from, body, err) })
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
func (s *sequence) heard(a *attempt, from transfer.Role, body transfer.OutputBody, err error) {
	e := event{attempt: a.number, role: from}
	switch {
	case err != nil:
		e.kind = evViolation
	case body.Fail != nil:
		e.kind, e.reject = evFail, *body.Fail
	case from != transfer.RoleDecode: // prefill can only fail
		e.kind = evViolation
	case body.Receipt != nil:
		e.kind, e.receipt = evReceipt, s.checkReceipt(a, *body.Receipt)
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
func (s *sequence) checkReceipt(a *attempt, signed transfer.SignedReceipt) *receiptFacts {
	r, err := s.x.r.cluster.Receipt(signed.Statement, a.pair.decode)
	switch {
	case err != nil,
		r.TokenHash != a.hash,
		r.Decode != a.pair.decode.Node, r.Epoch != a.pair.decode.Epoch,
		r.Pages != tenant.Blocks(len(s.prompt)),
		signed.Cached < 0 || signed.Cached > len(s.prompt):
		return nil
	}
	return &receiptFacts{hash: r.Hash, cached: signed.Cached}
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

// cancel ends the attempt at a node. It is tried again while the node may hold
// pages for it; a node that is gone holds none.
func (s *sequence) cancel(a *attempt, node string, reason transfer.Reason) {
	r := s.x.r
	c := transfer.Cancel{TokenHash: a.hash, Reason: reason}
	r.work.Go(func() {
		for range cancelTries {
			ctx, done := context.WithTimeout(context.Background(), r.cfg.AcceptTimeout)
			err := r.cluster.SendCancel(ctx, node, c)
			done()
			if err == nil || errors.Is(err, transfer.ErrNodeLost) {
				return
			}
			r.log.Warn("cancel not confirmed", "request_id", s.x.idText, "node", node, "err", err)
		}
	})
}

const cancelTries = 3
