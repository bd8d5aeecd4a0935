package rogue

import (
	"crypto/rand"
	"errors"

	"bulkhead/internal/sample"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// headers is a bug that changes the header of every frame.
func headers(change func(*seal.Header)) func(*shipment) error {
	return func(s *shipment) error {
		return errors.Join(s.open(nil), s.changed(change, nil), s.manifest(nil))
	}
}

// manifests is a bug that changes the manifest.
func manifests(change func(*seal.Manifest)) func(*shipment) error {
	return func(s *shipment) error {
		return errors.Join(s.open(nil), s.frames(0, s.plan.Frames()), s.manifest(change))
	}
}

// firsts is a bug in the first token.
func firsts(change func(*sample.Token)) func(*shipment) error {
	return func(s *shipment) error {
		change(&s.first)
		return s.whole()
	}
}

// openings is a bug in the opening message.
func openings(change func(*shipment, *transfer.Open) error) func(*shipment) error {
	return func(s *shipment) error {
		var err error
		return errors.Join(s.open(func(o *transfer.Open) { err = change(s, o) }), err, s.frames(0, s.plan.Frames()), s.manifest(nil))
	}
}

var prefillSwitches = []Switch{
	{Name: "placeholder-after-refusal", Does: "refuses the prompt for itself, computes one token in its place and ships that as complete", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: func(s *shipment) error {
			var err error
			layout := s.n.facts.Layout
			if s.plan, err = seal.NewPlan(1, layout.Layers, layout.TokenLayerBytes()); err != nil {
				return err
			}
			if s.plains, s.first, err = s.n.compute(s.g, s.plan, s.g.Claims.Tenant, s.g.Job.Prompt[:1]); err != nil {
				return err
			}
			return s.whole()
		}},
	{Name: "placeholder-in-the-plan", Does: "the same, under the opening message of the whole prompt", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: func(s *shipment) error {
			if err := s.open(nil); err != nil {
				return err
			}
			b, err := s.sealed(0, func(h *seal.Header) { h.Blocks, h.Block, h.TokenStart, h.TokenEnd = 1, 0, 0, 1 }, func(p []byte) []byte { return p[:s.n.facts.Layout.Layers*s.n.facts.Layout.TokenLayerBytes()] })
			if err != nil {
				return err
			}
			return errors.Join(s.send(b), s.manifest(func(m *seal.Manifest) { m.Tokens, m.Blocks, m.Frames = 1, 1, 1 }))
		}},
	{Name: "short-fill", Does: "leaves the last frame out and says complete", Want: Refused, Counted: atDecode("integrity"),
		prefill: func(s *shipment) error {
			return errors.Join(s.open(nil), s.frames(0, s.plan.Frames()-1), s.manifest(nil))
		}},
	{Name: "short-last-block", Does: "the last block has one token less than the prompt", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: func(s *shipment) error {
			last, token := s.plan.Frames()-1, s.n.facts.Layout.Layers*s.n.facts.Layout.TokenLayerBytes()
			more := len(s.plains[last]) == token // no block is empty: one token more instead
			return errors.Join(s.open(nil), s.changed(func(h *seal.Header) {
				switch {
				case h.Block != h.Blocks-1:
				case more:
					h.TokenEnd++
				default:
					h.TokenEnd--
				}
			}, func(i int, plain []byte) []byte {
				switch {
				case i != last:
					return plain
				case more:
					return append(plain, plain...)
				}
				return plain[:len(plain)-token]
			}), s.manifest(nil))
		}},
	{Name: "late-write", Does: "after the manifest, seals block 0 anew with other bytes and sends it", Want: Right, Counted: atDecode("late", "unknown"),
		prefill: func(s *shipment) error {
			b, err := s.again(0, func(p []byte) { clear(p) })
			if err != nil {
				return err
			}
			return errors.Join(s.whole(), s.send(b), s.kv.Flush(s.ctx))
		}},
	{Name: "overwrite", Does: "sends a second, different block 0 before the manifest", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: func(s *shipment) error {
			b, err := s.again(0, func(p []byte) { clear(p) })
			if err != nil {
				return err
			}
			return errors.Join(s.open(nil), s.frames(0, s.plan.Frames()), s.send(b), s.manifest(nil))
		}},
	{Name: "re-encrypted-resend", Does: "sends block 0 again, the same bytes under a new key", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: func(s *shipment) error {
			b, err := s.again(0, nil)
			if err != nil {
				return err
			}
			return errors.Join(s.open(nil), s.frames(0, 1), s.send(b), s.frames(1, s.plan.Frames()), s.manifest(nil))
		}},
	{Name: "wrong-slot", Does: "says that a block belongs at another place of the prompt", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: headers(func(h *seal.Header) {
			if h.Seq == 0 { // every prompt has two blocks at least
				h.Block, h.TokenStart, h.TokenEnd = 1, 64, 128
			}
		})},
	{Name: "wrong-number", Does: "numbers its frames from 1", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: headers(func(h *seal.Header) { h.Seq++ })},
	{Name: "mixed-attempts", Does: "puts a frame of an earlier request, as it was sealed then, among the others", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: func(s *shipment) error {
			old, err := s.before()
			if err != nil {
				return err
			}
			return errors.Join(s.open(nil), s.send(old.sent[0]), s.frames(1, s.plan.Frames()), s.manifest(nil))
		}},
	{Name: "keys-of-another-attempt", Does: "opens with the encapsulated key of an earlier request", Want: Refused, Counted: atDecode("integrity"),
		prefill: openings(func(s *shipment, o *transfer.Open) error {
			old, err := s.before()
			if err == nil {
				o.Enc = old.enc
			}
			return err
		})},
	{Name: "stale-prefill-epoch", Does: "opens in the name of an earlier boot of itself", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: openings(func(_ *shipment, o *transfer.Open) error { o.PrefillEpoch--; return nil })},
	{Name: "stale-decode-epoch", Does: "seals for an earlier boot of the decode node", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: headers(func(h *seal.Header) { h.DecodeEpoch-- })},
	{Name: "foreign-token", Does: "opens with the token of another request", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: openings(func(s *shipment, o *transfer.Open) error {
			old, err := s.before()
			if err == nil {
				o.Token = old.g.Job.Token
			}
			return err
		})},
	{Name: "foreign-name", Does: "opens in the name of another prefill node", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: openings(func(_ *shipment, o *transfer.Open) error { o.Prefill = "p1"; return nil })},
	{Name: "other-layout", Does: "opens with another KV layout", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: openings(func(_ *shipment, o *transfer.Open) error { o.Layout[0] ^= 1; return nil })},
	{Name: "opens-twice", Does: "sends a second opening message with other keys", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: func(s *shipment) error {
			_, enc, err := s.n.Peer.NewSender(s.decode.HPKE, s.g.Hash)
			if err != nil {
				return err
			}
			return errors.Join(s.open(nil), s.open(func(o *transfer.Open) { o.Enc = enc }), s.frames(0, s.plan.Frames()), s.manifest(nil))
		}},
	{Name: "never-opens", Does: "sends frames without an opening message", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: func(s *shipment) error { return errors.Join(s.frames(0, s.plan.Frames()), s.manifest(nil)) }},
	{Name: "complete-too-early", Does: "sends the manifest of all frames before the last", Want: Refused, Counted: atDecode("integrity"),
		prefill: func(s *shipment) error {
			last := s.plan.Frames() - 1
			if err := errors.Join(s.open(nil), s.frames(0, last)); err != nil {
				return err
			}
			b, err := s.sealed(last, nil, nil)
			if err != nil {
				return err
			}
			return errors.Join(s.manifest(nil), s.send(b), s.kv.Flush(s.ctx))
		}},
	{Name: "manifest-of-another-request", Does: "ends with the manifest of an earlier request", Want: Refused, Counted: atDecode("integrity"),
		prefill: func(s *shipment) error {
			old, err := s.before()
			if err != nil {
				return err
			}
			return errors.Join(s.open(nil), s.frames(0, s.plan.Frames()), s.kv.Manifest(s.ctx, old.statement))
		}},
	{Name: "manifest-by-another-node", Does: "the manifest is signed by a prefill node that was granted nothing", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: func(s *shipment) error {
			if err := errors.Join(s.open(nil), s.frames(0, s.plan.Frames()), s.kv.Flush(s.ctx)); err != nil {
				return err
			}
			statement, err := s.stated(nil)
			if err != nil {
				return err
			}
			other, err := s.n.attempt(s.n.second, s.subject(), s.g.Hash)
			if err != nil {
				return err
			}
			return other.Manifest(s.ctx, statement)
		}},
	{Name: "two-manifests", Does: "sends a second, different manifest", Want: Right, Counted: atDecode("late", "unknown"),
		prefill: func(s *shipment) error {
			if err := s.whole(); err != nil {
				return err
			}
			other := append([]byte(nil), s.statement...)
			other[len(other)-1] ^= 1
			return s.kv.Manifest(s.ctx, other)
		}},
	{Name: "wrong-prompt-len", Does: "the manifest counts one token more", Want: Refused, Counted: atDecode("integrity"),
		prefill: manifests(func(m *seal.Manifest) { m.Tokens++ })},
	{Name: "wrong-block-count", Does: "the manifest counts one block more", Want: Refused, Counted: atDecode("integrity"),
		prefill: manifests(func(m *seal.Manifest) { m.Blocks++ })},
	{Name: "wrong-chain", Does: "the manifest's chain is not that of the frames", Want: Refused, Counted: atDecode("integrity"),
		prefill: manifests(func(m *seal.Manifest) { m.Chain[0] ^= 1 })},
	{Name: "first-token-unsealed", Does: "the manifest's first token is not sealed with the attempt's key", Want: Refused, Counted: atDecode("integrity"),
		prefill: manifests(func(m *seal.Manifest) { clear(m.First) })},
	{Name: "wrong-attempt-in-the-subject", Does: "sends the right messages under the subject of the next attempt", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: func(s *shipment) (err error) {
			subject := s.subject()
			subject.Attempt++
			s.kv.Close()
			if s.kv, err = s.n.attempt(s.n.Peer, subject, s.g.Hash); err != nil {
				return err
			}
			return s.whole()
		}},
	{Name: "wrong-request-in-the-subject", Does: "sends the right messages under the subject of another request", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: func(s *shipment) (err error) {
			subject := s.subject()
			subject.Request[0] ^= 1
			s.kv.Close()
			if s.kv, err = s.n.attempt(s.n.Peer, subject, s.g.Hash); err != nil {
				return err
			}
			return s.whole()
		}},
	{Name: "stray-frames", Does: "also sends all frames under a token that nobody knows", Want: Right, Counted: atDecode("unknown"),
		prefill: func(s *shipment) error {
			var hash transfer.Hash
			rand.Read(hash[:])
			subject := s.subject()
			subject.Token = transfer.Fingerprint(hash)
			stray, err := s.n.attempt(s.n.Peer, subject, hash)
			if err != nil {
				return err
			}
			defer stray.Close()
			err = s.whole()
			for _, b := range s.sent {
				err = errors.Join(err, stray.Frame(s.ctx, b))
			}
			return errors.Join(err, stray.Flush(s.ctx))
		}},
	{Name: "nan-logits", Does: "takes a token from logits that are no numbers", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: firsts(func(t *sample.Token) { t.ID, t.Logprob = 0, marker })},
	{Name: "first-token-outside-the-vocabulary", Does: "sends a first token that does not exist", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: firsts(func(t *sample.Token) { t.ID = 1 << 20 })},
	{Name: "flipped-bit", Does: "flips a bit of each ciphertext", Want: Refused, Counted: atDecode("integrity"),
		prefill: func(s *shipment) error {
			if err := s.open(nil); err != nil {
				return err
			}
			for i := range s.plan.Frames() {
				b, err := s.sealed(i, nil, nil)
				if err != nil {
					return err
				}
				b[seal.HeaderSize] ^= 1
				if err := s.send(b); err != nil {
					return err
				}
			}
			return s.manifest(nil)
		}},
	{Name: "cut-frame", Does: "sends the front half of a frame", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: func(s *shipment) error {
			if err := s.open(nil); err != nil {
				return err
			}
			b, err := s.sealed(0, nil, nil)
			if err != nil {
				return err
			}
			return errors.Join(s.send(b[:len(b)/2]), s.kv.Flush(s.ctx))
		}},
	{Name: "noise", Does: "sends random bytes in place of a frame", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: func(s *shipment) error {
			b := make([]byte, 512)
			rand.Read(b)
			return errors.Join(s.open(nil), s.send(b), s.kv.Flush(s.ctx))
		}},
	{Name: "other-model", Does: "seals frames of another model", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: headers(func(h *seal.Header) { h.Model[0] ^= 1 })},
	{Name: "other-child", Does: "seals frames of another choice of the request", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: headers(func(h *seal.Header) { h.Child++ })},
	{Name: "other-prompt", Does: "frames bear the digest of another prompt", Want: Refused, Counted: atDecode("protocol_violation"),
		prefill: headers(func(h *seal.Header) { h.PromptDigest[0] ^= 1 })},
	{Name: "rejects-then-ships", Does: "says no and ships all the same", Want: Refused, Counted: atDecode("internal"),
		prefill: func(s *shipment) error {
			return errors.Join(s.open(nil), s.kv.Reject(s.ctx, transfer.Reject{Reason: transfer.ReasonInternal}), s.frames(0, s.plan.Frames()), s.manifest(nil))
		}},
	{Name: "speaks-as-decode", Does: "sends tokens to the router in the decode node's place", Want: Refused, Counted: atRouter("violation"),
		prefill: func(s *shipment) error {
			return s.n.posing.NewOutput(s.g.Job, s.g.Hash).Send(transfer.OutputBody{Tokens: []sample.Token{{ID: 1}}})
		}},
	{Name: "forges-the-receipt", Does: "signs decode's receipt itself", Want: Refused, Counted: atRouter("violation"),
		prefill: func(s *shipment) error {
			receipt, err := seal.Receipt{TokenHash: s.g.Hash, Pages: s.plan.Blocks(), Decode: s.decode.Node, Epoch: s.decode.Epoch}.Append(nil)
			if err != nil {
				return err
			}
			signed, err := s.n.Peer.SignReceipt(receipt, s.g.Job.Reply, 0)
			if err != nil {
				return err
			}
			return s.n.posing.NewOutput(s.g.Job, s.g.Hash).Send(transfer.OutputBody{Receipt: signed})
		}},
	{Name: "silent", Does: "accepts, and is not heard of again", Want: Refused, Slow: true, Counted: failed("timeout"),
		prefill: func(*shipment) error { return nil }},
	{Name: bugDead, Does: "sends half of the frames and answers no ping after", Want: Right, Slow: true, Counted: retried("node_lost"),
		prefill: func(s *shipment) error {
			return errors.Join(s.open(nil), s.frames(0, s.plan.Frames()/2), s.kv.Flush(s.ctx))
		}},
	{Name: bugDeaf, Does: "does not answer the job", Want: Right, Slow: true, Counted: retried("node_lost"),
		prefill: func(*shipment) error { return nil }},
	{Name: bugStale, Does: "answers a job with its answer to the one before", Want: Right, Counted: onBus("bad_envelope"),
		prefill: func(*shipment) error { return nil }},
	{Name: bugBoast, Does: "announces more capacity than it has, and says no when it is asked", Want: Either, Counted: append(retried("not_now"), failed("overloaded")...)},
	{Name: bugWeights, Does: "announces the model's header with another file behind it", Want: Right, Shunned: true, Counted: []string{"refused_nodes"}},
	{Name: "another-tenants-pages", Does: "computes the prompt as another tenant's and vouches for it", Want: Blind,
		prefill: func(s *shipment) (err error) {
			if s.plains, _, err = s.n.compute(s.g, s.plan, "somebody-else", s.g.Job.Prompt); err != nil {
				return err
			}
			return s.whole()
		}},
}
