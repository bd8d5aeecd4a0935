package transfer

import (
	"errors"
	"fmt"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/internal/mutant"
	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
	"bulkhead/transfer/seal"
)

// Grant is a job whose token was verified and compared with everything that
// this node knows by itself. Only [Peer.VerifyJob] makes one.
type Grant struct {
	Job    Job
	Claims tenant.Claims
	Hash   Hash       // of the token: the attempt's name
	Prefix [][32]byte // per block, the digest that its frames bear
}

// Self is what a node knows of itself when it verifies a job.
type Self struct {
	Role  Role
	Node  string
	Epoch uint64
	Model Hash
	Vocab int
}

// VerifyJob checks a job in the order of DESIGN.md section 4: the token's
// signature (by the very router that signed the message), times, audience,
// epoch and model, then length and digest recomputed from the token ids, then
// the node's own limit. The answer to a bad job is a typed Reject.
func (p *Peer) VerifyJob(job Job, from identity.Peer, self Self, now time.Time) (*Grant, *Reject) {
	hash := p.TokenHash(job.Token)
	no := func(r Reason, limit, value int, detail string) (*Grant, *Reject) {
		return nil, &Reject{TokenHash: hash, Reason: r, Limit: int64(limit), Value: int64(value), Detail: detail}
	}
	if Role(from.Role) != RoleRouter && !mutant.Off(mutant.JobRouter) {
		return no(ReasonToken, 0, 0, "job from a node that is no router")
	}
	claims, err := p.suite.VerifyToken(job.Token, from, now)
	if err != nil {
		return no(ReasonToken, 0, 0, err.Error())
	}
	reply, err := ParseOut(job.Reply)
	if err != nil || (reply.Router != from.Name || reply.Request != ID(claims.Request) || reply.Token != Fingerprint(hash)) && !mutant.Off(mutant.GrantReply) {
		return no(ReasonToken, 0, 0, "reply subject is not this attempt's")
	}
	err = claims.Check(tenant.Expect{
		Role: string(self.Role), Node: self.Node, Epoch: self.Epoch,
		Model:        self.Model,
		PromptLen:    len(job.Prompt),
		PromptDigest: tenant.PromptDigest(job.Salt, job.Prompt),
		MaxNew:       job.Params.MaxNew,
		ReplyBinding: tenant.ReplyBindingOf(reply.Scope(), string(self.Role), job.ReplyKey, job.ReplyOther),
	})
	switch {
	case errors.Is(err, tenant.ErrModel):
		return no(ReasonModel, 0, 0, err.Error())
	case errors.Is(err, tenant.ErrPromptLen), errors.Is(err, tenant.ErrPromptDigest):
		return no(ReasonPrompt, claims.PromptLen, len(job.Prompt), err.Error())
	case err != nil:
		return no(ReasonToken, 0, 0, err.Error())
	}
	if err := job.Params.Validate(self.Vocab); err != nil && !mutant.Off(mutant.JobParameters) {
		return no(ReasonProtocol, 0, 0, err.Error())
	}
	for i, id := range job.Prompt {
		if (id < 0 || int(id) >= self.Vocab) && !mutant.Off(mutant.JobVocabulary) {
			return no(ReasonPrompt, self.Vocab, int(id), fmt.Sprintf("token id at %d is outside the vocabulary", i))
		}
	}
	if !now.Before(job.Deadline) && !mutant.Off(mutant.JobDeadline) {
		return no(ReasonTimeout, 0, 0, "the job's deadline has passed")
	}
	return &Grant{Job: job, Claims: claims, Hash: hash, Prefix: tenant.PrefixDigests(job.Salt, job.Prompt)}, nil
}

// CheckLength is a node's own wall: prompt + max_new against its limit, which
// it never takes from the router. It is apart from VerifyJob so that a test
// can show each wall to hold alone.
func (g *Grant) CheckLength(window int) *Reject {
	if n := len(g.Job.Prompt) + g.Claims.MaxNew; n > window {
		return &Reject{TokenHash: g.Hash, Reason: ReasonContextLength, Limit: int64(window), Value: int64(n), Detail: "prompt + max_new is over this node's limit"}
	}
	return nil
}

// Reject is this node's no to the attempt. err, if not nil, is said as the
// detail: it names limits and values, never a prompt.
func (g *Grant) Reject(reason Reason, err error) *Reject {
	no := &Reject{TokenHash: g.Hash, Reason: reason}
	if err != nil {
		no.Detail = err.Error()
	}
	return no
}

// Header is frame i of the attempt as both sides must have it: prefill seals
// under it, and decode refuses any other.
func (g *Grant) Header(plan seal.Plan, i int, prefillEpoch uint64) seal.Header {
	h := seal.Header{
		TokenHash: g.Hash,
		Request:   g.Claims.Request, Child: g.Claims.Child, Attempt: g.Claims.Attempt,
		Prefill: g.Claims.Prefill, PrefillEpoch: prefillEpoch,
		Decode: g.Claims.Decode, DecodeEpoch: g.Claims.DecodeEpoch,
		Model:        g.Claims.Model,
		PromptDigest: g.Claims.PromptDigest,
	}
	plan.Fill(&h, i)
	h.PrefixDigest = g.Prefix[h.Block]
	return h
}

// firsts is the plaintext of the manifest's sealed first token.
var firsts = newCodec[sample.Token]("first", seal.MaxFirst, validToken)

// EncodeFirst gives the plaintext of the manifest's sealed first token.
func EncodeFirst(t sample.Token) ([]byte, error) { return firsts.encode(&t) }

// DecodeFirst reads it back, as strictly as any message.
func DecodeFirst(b []byte) (sample.Token, error) { return firsts.decode(b) }
