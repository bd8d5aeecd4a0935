package router

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"bulkhead/internal/mutant"
	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
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
	return jobSpec{
		router: cfg.Name, tenant: x.tenant.ID, request: x.id, child: s.child, number: number,
		scope:  cfg.Tenants.PrefixRoot(x.tenant, g.pair.decode.Model),
		prompt: s.prompt, params: s.params, grant: g, now: time.Now(), firstEnd: s.flow.firstEnd,
		random: func(b []byte) { _, _ = rand.Read(b) }, // never fails: crypto/rand ends the program instead
		sign:   func(c tenant.Claims) (string, error) { return tenant.Sign(c, cfg.Key, cfg.ClusterID) },
	}.attempt()
}

// jobSpec is all that an attempt follows from.
type jobSpec struct {
	router, tenant string
	request        [16]byte
	child, number  int
	scope          [32]byte // root of the tenant's prefix chain
	prompt         []int32
	params         sample.Params
	grant          grant
	now, firstEnd  time.Time
	random         func([]byte)
	sign           func(tenant.Claims) (string, error)
}

func (s jobSpec) attempt() (*attempt, error) {
	g, now := s.grant, s.now
	a := &attempt{number: s.number, pair: g.pair, claims: g.claims}
	a.job = transfer.Job{Prompt: s.prompt, Params: s.params, Deadline: s.firstEnd}
	s.random(a.job.Salt[:])
	s.random(a.job.ReplyKey[:])
	a.digest = tenant.PromptDigest(a.job.Salt, s.prompt)

	// The reply subject names the token, so the token cannot name all of the subject: it
	// is bound to the part before it, which is this router and this request.
	reply := transfer.OutSubject{Router: s.router, Request: transfer.ID(s.request)}
	token, err := s.sign(tenant.Claims{
		Tenant: s.tenant, Request: s.request, Child: uint16(s.child), Attempt: uint16(s.number),
		Model: g.pair.decode.Model, PromptLen: len(s.prompt), PromptDigest: a.digest,
		BlockTokens: tenant.BlockTokens, Blocks: tenant.Blocks(len(s.prompt)), MaxNew: s.params.MaxNew,
		Prefill: g.pair.prefill.Node, Decode: g.pair.decode.Node, DecodeEpoch: g.pair.decode.Epoch,
		ReplyBinding: tenant.ReplyBinding(reply.Scope(), a.job.ReplyKey),
		PrefixScope:  s.scope,
		IssuedAt:     now, NotBefore: now, Expires: now.Add(min(tenant.MaxLifetime, max(s.firstEnd.Sub(now), time.Second))),
		Router: s.router,
	})
	if err != nil {
		return nil, fmt.Errorf("router: sign the token of attempt %d: %w", s.number, err)
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
	s.post(a.output(from, body, func(signed *transfer.SignedReceipt) *receiptFacts {
		facts, err := a.checkReceipt(s.x.r.cluster.VerifyReceipt, signed)
		if err != nil {
			s.x.r.log.Error("receipt refused", "request_id", s.x.idText, "node", a.pair.decode.Node, "err", err)
		}
		return facts
	}))
}

// output is the event of a node's message; check returns nil for a bad receipt.
func (a *attempt) output(from transfer.Role, body transfer.OutputBody, check func(*transfer.SignedReceipt) *receiptFacts) event {
	e := event{attempt: a.number, role: from}
	switch {
	case body.Fail != nil:
		e.kind, e.reject = evFail, *body.Fail
	case from != transfer.RoleDecode && !mutant.Off(mutant.FlowRole): // prefill can only fail
		e.kind = evViolation
	case body.Receipt != nil:
		e.kind, e.receipt = evReceipt, check(body.Receipt)
		if e.receipt == nil {
			e.kind = evViolation
		}
	case body.Finish != nil:
		e.kind, e.finish = evFinish, *body.Finish
	case slices.ContainsFunc(body.Tokens, func(t sample.Token) bool { return t.ID < 0 || int(t.ID) >= a.pair.decode.Vocab }):
		e.kind = evViolation
	default:
		e.kind, e.tokens = evTokens, body.Tokens
	}
	return e
}

// verifyReceipt is Cluster.VerifyReceipt.
type verifyReceipt = func(s *transfer.SignedReceipt, reply string, token transfer.Hash, decode string, epoch uint64, pages int) (seal.Receipt, transfer.Hash, error)

// checkReceipt refuses a receipt that was not signed by this attempt's decode node in
// this boot, for this token, over exactly the pages of the prompt.
func (a *attempt) checkReceipt(verify verifyReceipt, signed *transfer.SignedReceipt) (*receiptFacts, error) {
	d, prompt := a.pair.decode, len(a.job.Prompt)
	_, hash, err := verify(signed, a.job.Reply, a.hash, d.Node, d.Epoch, tenant.Blocks(prompt))
	if err == nil && signed.Cached > prompt && !mutant.Off(mutant.ReceiptCached) {
		err = fmt.Errorf("router: %d cached tokens of a prompt of %d", signed.Cached, prompt)
	}
	if err != nil {
		return nil, err
	}
	return &receiptFacts{hash: hash, cached: signed.Cached, model: d.Model}, nil
}

// submit sends the job to one of the two nodes and posts the answer.
func (s *sequence) submit(a *attempt, to transfer.Announce) {
	r := s.x.r
	r.work.Go(func() {
		ctx, cancel := context.WithTimeout(s.x.ctx, r.cfg.AcceptTimeout)
		defer cancel()
		accept, err := r.cluster.SubmitJob(ctx, to, a.job)
		e := a.answer(to.Role, accept, err)
		if e.kind == evUnreachable {
			if s.x.ctx.Err() != nil {
				return // nobody waits any more; both nodes are being cancelled
			}
			r.log.Warn("job not answered", "request_id", s.x.idText, "node", to.Node, "err", err)
		}
		s.post(e)
	})
}

// answer is the event of a node's answer to the job, or of its absence.
func (a *attempt) answer(role transfer.Role, accept transfer.Accept, err error) event {
	e := event{attempt: a.number, role: role}
	var no *transfer.Rejected
	switch {
	case errors.As(err, &no):
		e.kind, e.reject = evRejected, no.Reject
	case err != nil:
		e.kind = evUnreachable
	case accept.TokenHash != a.hash && !mutant.Off(mutant.AcceptToken):
		e.kind = evViolation
	case role == transfer.RoleDecode && accept.Pages < tenant.Blocks(len(a.job.Prompt)+a.job.Params.MaxNew) && !mutant.Off(mutant.AcceptPages):
		// Decode must hold room for the whole sequence before anything is computed.
		e.kind = evViolation
	default:
		e.kind = evAccepted
	}
	return e
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
