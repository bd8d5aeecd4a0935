package rogue

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"time"

	"bulkhead/internal/tenant"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// claims is a bug in what is signed, within what tenant.Sign agrees to.
func claims(change func(*tenant.Claims)) func(*errand) {
	return func(e *errand) { e.change = change }
}

// body is a bug in the signed bytes.
func body(change func([]byte) []byte) func(*errand) {
	return func(e *errand) {
		e.sign = func(c tenant.Claims) string {
			return resign(c, e.n.node.Private(), e.n.node.Authority().ClusterID(), change)
		}
	}
}

// altered is a bug in the job, after its token was signed.
func altered(change func(*transfer.Job)) func(*errand) {
	return func(e *errand) { e.alter = change }
}

// member is a bug in one member of the claims' JSON.
func member(old, replaced string) func(*errand) {
	return body(func(b []byte) []byte { return bytes.Replace(b, []byte(old), []byte(replaced), 1) })
}

// times moves all times of a token.
func times(by time.Duration) func(*errand) {
	return claims(func(c *tenant.Claims) {
		c.IssuedAt, c.NotBefore, c.Expires = c.IssuedAt.Add(by), c.NotBefore.Add(by), c.Expires.Add(by)
	})
}

// short waits less for an answer that will not come.
func (e *errand) short(ctx context.Context, to transfer.Announce) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return e.give(ctx, to)
}

var routerSwitches = []Switch{
	{Name: "job-sent-twice", Does: "gives decode the same job again", Want: Either, Counted: atDecode("duplicate_attempt"),
		router: func(e *errand) {
			e.submit = func(ctx context.Context) error {
				err := e.give(ctx, e.decode)
				e.give(ctx, e.decode) //nolint:errcheck // it must be refused, and is counted there
				return errors.Join(err, e.give(ctx, e.prefill))
			}
		}},
	{Name: "job-sent-twice-to-prefill", Does: "gives prefill the same job again", Want: Either, Counted: atPrefill("duplicate_attempt"),
		router: func(e *errand) {
			e.submit = func(ctx context.Context) error {
				err := e.both(ctx)
				e.give(ctx, e.prefill) //nolint:errcheck // it must be refused, and is counted there
				return err
			}
		}},
	{Name: "request-id-used-twice", Does: "grants an attempt that is in work to another tenant's prompt", Want: Either, Counted: atDecode("duplicate_attempt"),
		router: func(e *errand) {
			e.submit = func(ctx context.Context) error {
				if err := e.give(ctx, e.decode); err != nil {
					return err
				}
				other, err := e.n.newErrand(append([]int32{1}, e.job.Prompt...), e.job.Params.MaxNew)
				if err != nil {
					return err
				}
				other.change = func(c *tenant.Claims) {
					c.Tenant, c.Request = e.n.cfg.Tenants[1], e.claims.Request
					c.ReplyBinding = tenant.ReplyBinding(transfer.OutSubject{Router: e.n.cfg.Name, Request: transfer.ID(c.Request)}.Scope(), other.job.ReplyKey)
				}
				if err := other.seal(); err != nil {
					return err
				}
				if err := other.give(ctx, e.decode); err == nil {
					return errors.New("rogue: the second was accepted")
				}
				return e.give(ctx, e.prefill)
			}
		}},
	{Name: "job-to-another-node", Does: "gives the node a job that was granted to another", Want: Refused, Counted: atDecode("bad_token"),
		router: claims(func(c *tenant.Claims) { c.Decode = "d9" })},
	{Name: "job-to-another-prefill", Does: "gives prefill a job that was granted to another", Want: Refused, Counted: atPrefill("bad_token"),
		router: claims(func(c *tenant.Claims) { c.Prefill = "p9" })},
	{Name: "over-length", Does: "submits prompt + max_new over every limit, past admission", Want: Refused, Counted: atDecode("context_length_exceeded"),
		router: func(e *errand) { e.job.Params.MaxNew, e.claims.MaxNew = 1<<20, 1<<20 }},
	{Name: "over-length-to-prefill", Does: "submits the same to prefill alone", Want: Refused, Counted: atPrefill("context_length_exceeded"),
		router: func(e *errand) {
			e.job.Params.MaxNew, e.claims.MaxNew = 1<<20, 1<<20
			e.submit = func(ctx context.Context) error { return e.give(ctx, e.prefill) }
		}},
	{Name: "prompt-changed-after-signing", Does: "changes a token of the prompt", Want: Refused, Counted: atDecode("prompt_mismatch"),
		router: altered(func(j *transfer.Job) { j.Prompt[0] ^= 1 })},
	{Name: "prompt-changed-for-prefill", Does: "tells the two nodes different prompts under one token", Want: Refused, Counted: atPrefill("prompt_mismatch"),
		router: func(e *errand) {
			e.submit = func(ctx context.Context) error {
				err := e.give(ctx, e.decode)
				e.job.Prompt = append([]int32(nil), e.job.Prompt...)
				e.job.Prompt[0] ^= 1
				return errors.Join(err, e.give(ctx, e.prefill))
			}
		}},
	{Name: "prompt-cut-after-signing", Does: "swaps the prompt for its first token", Want: Refused, Counted: atDecode("prompt_mismatch"),
		router: altered(func(j *transfer.Job) { j.Prompt = j.Prompt[:1] })},
	{Name: "prompt-outside-the-vocabulary", Does: "sends a prompt token that does not exist", Want: Refused, Counted: atDecode("prompt_mismatch"),
		router: func(e *errand) {
			e.job.Prompt[0] = 1 << 20
			e.claims.PromptDigest = tenant.PromptDigest(e.job.Salt, e.job.Prompt)
		}},
	{Name: "more-than-granted", Does: "asks for more tokens than the token grants", Want: Refused, Counted: atDecode("bad_token"),
		router: altered(func(j *transfer.Job) { j.Params.MaxNew++ })},
	{Name: "token-lives-too-long", Does: "signs a token for ten minutes", Want: Refused, Counted: atDecode("bad_token"),
		router: func(e *errand) {
			exp := func(d time.Duration) string {
				return `"exp":"` + e.claims.IssuedAt.Add(d).UTC().Format("2006-01-02T15:04:05Z") + `"`
			}
			member(exp(time.Minute), exp(10*time.Minute))(e)
		}},
	{Name: "token-expired", Does: "signs a token whose time is over", Want: Refused, Counted: atDecode("bad_token"),
		router: times(-2 * time.Minute)},
	{Name: "token-of-tomorrow", Does: "signs a token whose time has not come", Want: Refused, Counted: atDecode("bad_token"),
		router: times(24 * time.Hour)},
	{Name: "token-by-another-key", Does: "signs with a key that is nobody's", Want: Refused, Counted: atDecode("bad_token"),
		router: func(e *errand) {
			_, key, _ := ed25519.GenerateKey(rand.Reader)
			e.sign = func(c tenant.Claims) string { return resign(c, key, e.n.node.Authority().ClusterID(), nil) }
		}},
	{Name: "token-of-another-cluster", Does: "signs for another cluster", Want: Refused, Counted: atDecode("bad_token"),
		router: func(e *errand) {
			e.sign = func(c tenant.Claims) string { return resign(c, e.n.node.Private(), "another", nil) }
		}},
	{Name: "token-of-another-router", Does: "names another router as the signer", Want: Refused, Counted: atDecode("bad_token"),
		router: claims(func(c *tenant.Claims) { c.Router = "r1" })},
	{Name: "doubled-member", Does: "the claims name the tenant twice", Want: Refused, Counted: atDecode("bad_token"),
		router: member(`{`, `{"ten":"somebody",`)},
	{Name: "unknown-member", Does: "the claims have a member that nobody knows", Want: Refused, Counted: atDecode("bad_token"),
		router: member(`{`, `{"admin":1,`)},
	{Name: "missing-member", Does: "the claims leave the prompt's digest out", Want: Refused, Counted: atDecode("bad_token"),
		router: member(`"dig"`, `"gid"`)},
	{Name: "attempt-zero", Does: "grants attempt 0", Want: Refused, Counted: atDecode("bad_token"),
		router: member(`"att":1`, `"att":0`)},
	{Name: "wrong-blocks", Does: "the claims count a block more than the prompt has", Want: Refused, Counted: atDecode("bad_token"),
		router: member(`"btk":64`, `"btk":65`)},
	{Name: "other-model", Does: "grants for another model", Want: Refused, Counted: atDecode("wrong_model"),
		router: claims(func(c *tenant.Claims) { c.Model[0] ^= 1 })},
	{Name: "stale-epoch", Does: "grants an earlier boot of the decode node", Want: Refused, Counted: atDecode("bad_token"),
		router: claims(func(c *tenant.Claims) { c.DecodeEpoch-- })},
	{Name: "job-to-an-earlier-boot", Does: "sends the job to an earlier boot of the decode node", Want: Refused, Slow: true, Counted: onBus("bad_envelope"),
		router: func(e *errand) {
			e.submit = func(ctx context.Context) error { to := e.decode; to.Epoch--; return e.short(ctx, to) }
		}},
	{Name: "job-sealed-to-another-key", Does: "seals the job to a key that the node does not have", Want: Refused, Slow: true, Counted: onBus("bad_seal"),
		router: func(e *errand) {
			e.submit = func(ctx context.Context) error {
				key, err := seal.NewKey()
				if err != nil {
					return err
				}
				to := e.decode
				to.HPKE = key.Public()
				return e.short(ctx, to)
			}
		}},
	{Name: "other-reply-key", Does: "the token is bound to another reply key", Want: Refused, Counted: atDecode("bad_token"),
		router: altered(func(j *transfer.Job) { j.ReplyKey[0] ^= 1 })},
	{Name: "output-to-another-router", Does: "wants the output sent to another router", Want: Refused, Slow: true, Counted: onBus("bad_message"),
		router: func(e *errand) {
			e.alter = func(j *transfer.Job) {
				out, _ := transfer.ParseOut(j.Reply)
				out.Router = "r1"
				j.Reply = out.String()
			}
			e.submit = func(ctx context.Context) error { return e.short(ctx, e.decode) }
		}},
	{Name: "deadline-passed", Does: "gives a deadline that is over", Want: Refused, Counted: atDecode("timeout"),
		router: altered(func(j *transfer.Job) { j.Deadline = time.Now().Add(-time.Second) })},
	{Name: "wild-parameters", Does: "asks for a temperature below zero", Want: Refused, Counted: atDecode("protocol_violation"),
		router: altered(func(j *transfer.Job) { j.Params.Temperature = -1 })},
	{Name: "two-grants-for-one-attempt", Does: "gives decode one tenant's prompt and prefill another's, under the same request and attempt", Want: Refused, Slow: true, Counted: atDecode("unknown"),
		router: func(e *errand) {
			e.submit = func(ctx context.Context) error {
				other, err := e.n.newErrand(append([]int32{1}, e.job.Prompt...), e.job.Params.MaxNew)
				if err != nil {
					return err
				}
				other.change = func(c *tenant.Claims) {
					c.Tenant, c.Request = e.n.cfg.Tenants[1], e.claims.Request
					c.ReplyBinding = tenant.ReplyBinding(transfer.OutSubject{Router: e.n.cfg.Name, Request: transfer.ID(c.Request)}.Scope(), other.job.ReplyKey)
				}
				if err := other.seal(); err != nil {
					return err
				}
				return errors.Join(e.give(ctx, e.decode), other.give(ctx, e.prefill))
			}
		}},
	{Name: "prefill-alone", Does: "gives prefill a job that decode never heard of", Want: Refused, Slow: true, Counted: atDecode("unknown"),
		router: func(e *errand) {
			e.submit = func(ctx context.Context) error { return e.give(ctx, e.prefill) }
		}},
	{Name: "decode-alone", Does: "has pages held and never asks prefill", Want: Refused, Slow: true, Counted: atDecode("timeout"),
		router: func(e *errand) {
			e.job.Deadline = time.Now().Add(time.Second)
			e.submit = func(ctx context.Context) error { return e.give(ctx, e.decode) }
		}},
	{Name: "cancels-anothers-request", Does: "another router cancels the request at the decode node", Want: Right, Counted: atDecode("foreign_cancel"),
		router: func(e *errand) {
			e.submit = func(ctx context.Context) error {
				c := transfer.Cancel{TokenHash: e.hash, Reason: transfer.ReasonCancelled}
				return errors.Join(e.give(ctx, e.decode), e.n.second.SendCancel(ctx, e.decode.Node, c), e.give(ctx, e.prefill))
			}
		}},
	{Name: "cancels-what-is-unknown", Does: "cancels requests that nobody has", Want: Right,
		router: func(e *errand) {
			e.submit = func(ctx context.Context) error {
				var c transfer.Cancel
				rand.Read(c.TokenHash[:])
				c.Reason = transfer.ReasonCancelled
				return errors.Join(e.n.Peer.SendCancel(ctx, e.decode.Node, c), e.both(ctx))
			}
		}},
}
