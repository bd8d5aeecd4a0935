package attack

import (
	"errors"

	"bulkhead/internal/identity"
	"bulkhead/internal/mutant"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// manifestRow is an attempt that is honest but for its manifest.
func manifestRow(name, want string, w []mutant.Check, change func(*seal.Manifest)) row {
	return row{name, "prefill", want, w, func(x *rig) error {
		s := x.scene(100)
		s.begin()
		must(s.rest(0, 2))
		return s.end(s.manifest(change))
	}}
}

func manifestRows() []row {
	signedBy := func(n func(x *rig) *identity.Node) func(x *rig) error {
		return func(x *rig) error {
			s := x.scene(100)
			s.begin()
			must(s.rest(0, 2))
			return s.end(signed(n(x), "kv.manifest", s.subject.String(), s.statement(nil)))
		}
	}
	return []row{
		manifestRow("a manifest for another token", "token", walls(mutant.ManifestToken), func(m *seal.Manifest) { m.TokenHash[0] ^= 1 }),
		manifestRow("a manifest for a token more", "101 tokens, expected 100", walls(mutant.ManifestTokens), func(m *seal.Manifest) { m.Tokens++ }),
		manifestRow("a manifest for a block more", "3 blocks, expected 2", walls(mutant.ManifestBlocks), func(m *seal.Manifest) { m.Blocks++ }),
		manifestRow("a manifest for a frame more", "3 frames, expected 2", walls(mutant.ManifestFrames), func(m *seal.Manifest) { m.Frames++ }),
		manifestRow("a manifest over another chain", "chain", walls(mutant.ManifestChain), func(m *seal.Manifest) { m.Chain[0] ^= 1 }),
		manifestRow("a first token that was not sealed", "cannot open", walls(mutant.FirstSeal), func(m *seal.Manifest) {
			p, err := transfer.EncodeFirst(firstToken)
			must(err)
			m.First = append(p, make([]byte, seal.TagSize)...)
		}),
		{"a manifest that does not say complete", "prefill", "status", walls(mutant.ManifestStatus), func(x *rig) error {
			s := x.scene(100)
			s.begin()
			must(s.rest(0, 2))
			b := s.statement(nil)
			b[5] = 2
			return s.end(signed(x.p1, "kv.manifest", s.subject.String(), b))
		}},
		{"a first token outside the vocabulary", "prefill", "outside the vocabulary", walls(mutant.FirstVocabulary), func(x *rig) error {
			s := x.scene(100)
			s.begin()
			must(s.rest(0, 2))
			return s.end(s.manifest(func(m *seal.Manifest) { m.First = s.first(provenanceVocab + 9) }))
		}},
		{"a manifest that another prefill node signed", "prefill", "manifest signed by \"p2\"", walls(mutant.ManifestSigner), signedBy(func(x *rig) *identity.Node { return x.p2 })},
		{"a manifest that a router of the granted name signed", "router", "a router node sent kv.manifest", walls(mutant.EnvelopeRole), signedBy(func(x *rig) *identity.Node { return x.routerP1 })},
		{"a manifest that a node of another cluster signed", "bus", "not signed by a role's key", walls(mutant.IdentityIssuer, mutant.EnvelopeRole), signedBy(func(x *rig) *identity.Node { return x.foreignP1 })},
		{"a manifest with a signature that is not its signer's", "bus", "signature", walls(mutant.EnvelopeSignature), func(x *rig) error {
			s := x.scene(100)
			s.begin()
			must(s.rest(0, 2))
			jwt, err := x.p1.JWT()
			must(err)
			return s.end(envelope{"kv.manifest", jwt, s.statement(nil), make([]byte, 64)}.bytes())
		}},
		{"a manifest before the last frame", "prefill", "1 of 2 held", walls(mutant.ManifestEarly, mutant.ReadyFilled), func(x *rig) error {
			s := x.scene(100)
			s.begin()
			must(s.rest(0, 1)) // the chain is over what came, and zeros
			return s.commit()
		}},
		{"a manifest before the last frame, and pages that are not compared", "prefill", "1 of 2 held", walls(mutant.ManifestEarly, mutant.ReadyPages), func(x *rig) error {
			s := x.scene(100)
			s.begin()
			must(s.rest(0, 1))
			return s.commit()
		}},
		{"the sender's word for what is complete: the placeholder of 2026", "prefill", "1 frames, expected 2", walls(mutant.DecodeCount), func(x *rig) error {
			s := x.scene(100)
			if err := s.send(s.open(x.p1, s.subject.String(), func(o *transfer.Open) { o.Frames = 1 })); err != nil {
				return err
			}
			if err := s.rest(0, 1); err != nil {
				return err
			}
			return s.end(s.manifest(func(m *seal.Manifest) { m.Blocks, m.Tokens, m.Frames = 1, 1, 1 }))
		}},
		{"a manifest before the opening message", "prefill", "before the opening one", walls(mutant.ManifestOpened, mutant.ManifestEarly), func(x *rig) error {
			return x.scene(100).commit()
		}},
		{"a manifest that comes again ends its attempt", "bus", "still alive", walls(mutant.KVLate), func(x *rig) error {
			s := x.scene(100)
			s.begin()
			must(s.rest(0, 2))
			m := s.manifest(nil)
			must(s.end(m))
			_ = s.send(m)
			for x.d.Busy() {
				x.d.Step()
			}
			if s.failed() != "" {
				return nil
			}
			return errors.New("still alive")
		}},
		{"a manifest that comes again is committed again", "bus", "dropped", walls(mutant.KVLate, mutant.ManifestOnce), func(x *rig) error {
			s := x.scene(100)
			s.begin()
			must(s.rest(0, 2))
			m := s.manifest(nil)
			must(s.end(m))
			if err := s.send(m); err != nil {
				return errors.New("dropped: " + err.Error())
			}
			return nil
		}},
		{"a frame into the pages of an attempt that runs", "prefill", "1 of 2 held", walls(mutant.ManifestEarly, mutant.ReadyFilled, mutant.KVLate, mutant.FrameDone), func(x *rig) error {
			s := x.scene(100)
			s.begin()
			must(s.rest(0, 1))
			if err := s.commit(); err != nil {
				return err
			}
			return s.send(s.frame(1))
		}},
		{"a refusal that another prefill node signed", "prefill", "reject signed by \"p2\"", walls(mutant.RejectSigner), func(x *rig) error {
			s := x.scene(100)
			return s.refused(x.p2, s.hash)
		}},
		{"a refusal of another token", "prefill", "the reject's token", walls(mutant.RejectToken), func(x *rig) error {
			s := x.scene(100)
			return s.refused(x.p1, transfer.Hash{1})
		}},
	}
}

// refused sends a refusal; it goes through if its reason is passed on.
func (s *scene) refused(by *identity.Node, token transfer.Hash) error {
	err := s.send(signed(by, "kv.reject", s.subject.String(), pack(members{
		"token_hash", token, "reason", string(transfer.ReasonNoPages), "limit", 1, "value", 2, "detail", "made up",
	})))
	if s.failed() == transfer.ReasonNoPages {
		return nil
	}
	return err
}
