package attack

import (
	"errors"

	"bulkhead/internal/mutant"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// headerRow is a frame under a header that the prefill node changed, and signed for
// in the manifest: it must not be believed.
func headerRow(what, want string, w []mutant.Check, change func(*seal.Header)) row {
	return row{"a frame with another " + what, "prefill", want, w, func(x *rig) error {
		s := x.scene(200)
		s.begin()
		if err := s.send(s.changed(0, change)); err != nil {
			return err
		}
		return s.finish(1)
	}}
}

// openRow is an opening message, and an attempt that is honest but for it.
func openRow(name, who, want string, w []mutant.Check, open func(x *rig, s *scene) []byte) row {
	return row{name, who, want, w, func(x *rig) error {
		s := x.scene(100)
		if err := s.send(open(x, s)); err != nil {
			return err
		}
		return s.finish(0)
	}}
}

func frameRows() []row {
	return []row{
		openRow("an opening message of another prefill node", "prefill", "signed by \"p2\"", walls(mutant.OpenSigner, mutant.OpenPrefill), func(x *rig, s *scene) []byte {
			return s.open(x.p2, s.subject.String(), func(o *transfer.Open) { o.Prefill = "p2" })
		}),
		openRow("an opening message of another prefill node in the granted one's name", "prefill", "opened a stream as p1", walls(mutant.OpenName, mutant.OpenSigner), func(x *rig, s *scene) []byte {
			return s.open(x.p2, s.subject.String(), nil)
		}),
		openRow("an opening message in another prefill node's name", "prefill", "opened a stream as p9", walls(mutant.OpenName, mutant.OpenPrefill), func(x *rig, s *scene) []byte {
			return s.open(x.p1, s.subject.String(), func(o *transfer.Open) { o.Prefill = "p9" })
		}),
		openRow("an opening message with another token", "prefill", "not its subject's", walls(mutant.OpenToken, mutant.OpenGrant), func(x *rig, s *scene) []byte {
			return s.open(x.p1, s.subject.String(), func(o *transfer.Open) { o.Token += "x" })
		}),
		openRow("an opening message for another KV layout", "prefill", "another KV layout", walls(mutant.OpenLayout), func(x *rig, s *scene) []byte {
			return s.open(x.p1, s.subject.String(), func(o *transfer.Open) { o.Layout[0] ^= 1 })
		}),
		openRow("an opening message for a frame less", "prefill", "1 frames, expected 2", walls(mutant.OpenFrames), func(x *rig, s *scene) []byte {
			return s.open(x.p1, s.subject.String(), func(o *transfer.Open) { o.Frames-- })
		}),
		{"a second, different opening message", "prefill", "second, different opening", walls(mutant.OpenOnce), func(x *rig) error {
			s := x.scene(100)
			s.begin()
			return s.send(s.open(x.p1, s.subject.String(), func(o *transfer.Open) { o.PrefillEpoch++ }))
		}},
		{"a frame before the opening message", "prefill", "before the opening one", walls(mutant.FrameOpened, mutant.HeaderPrefillEpoch), func(x *rig) error {
			s := x.scene(100)
			return s.send(s.frame(0))
		}},
		{"a frame beyond the last", "prefill", "frame 9 of 2", walls(mutant.FrameIndex), func(x *rig) error {
			s := x.scene(100)
			s.begin()
			return s.send(s.patched(1, 60, be32(9)))
		}},

		headerRow("token", "token hash", walls(mutant.HeaderToken, mutant.FrameToken), func(h *seal.Header) { h.TokenHash[0] ^= 1 }),
		headerRow("request", "request", walls(mutant.HeaderRequest), func(h *seal.Header) { h.Request[0] ^= 1 }),
		headerRow("child", "child 3, expected 0", walls(mutant.HeaderChild), func(h *seal.Header) { h.Child = 3 }),
		headerRow("attempt", "attempt 2, expected 1", walls(mutant.HeaderAttempt), func(h *seal.Header) { h.Attempt = 2 }),
		headerRow("prefill node", "prefill node \"p2\"", walls(mutant.HeaderPrefill), func(h *seal.Header) { h.Prefill = "p2" }),
		headerRow("boot of the prefill node", "prefill epoch", walls(mutant.HeaderPrefillEpoch), func(h *seal.Header) { h.PrefillEpoch++ }),
		headerRow("decode node", "decode node \"d2\"", walls(mutant.HeaderDecode), func(h *seal.Header) { h.Decode = "d2" }),
		headerRow("boot of the decode node", "decode epoch", walls(mutant.HeaderDecodeEpoch), func(h *seal.Header) { h.DecodeEpoch++ }),
		headerRow("model", "model fingerprint", walls(mutant.HeaderModel), func(h *seal.Header) { h.Model[0] ^= 1 }),
		headerRow("count of blocks", "block 0 of 5", walls(mutant.HeaderBlocks), func(h *seal.Header) { h.Blocks = 5 }),
		headerRow("digest of the prompt", "prompt digest", walls(mutant.HeaderPrompt), func(h *seal.Header) { h.PromptDigest[0] ^= 1 }),
		headerRow("digest of the prefix", "prefix digest", walls(mutant.HeaderPrefix), func(h *seal.Header) { h.PrefixDigest[0] ^= 1 }),
		{"two frames in each other's places", "prefill", "block 1 of 4, expected 0", walls(mutant.HeaderBlock, mutant.HeaderTokens, mutant.HeaderPrefix), func(x *rig) error {
			s := x.scene(200)
			s.begin()
			for i := range 2 {
				other := s.header(1 - i)
				if err := s.send(s.changed(i, func(h *seal.Header) {
					h.Block, h.TokenStart, h.TokenEnd, h.PrefixDigest = other.Block, other.TokenStart, other.TokenEnd, other.PrefixDigest
				})); err != nil {
					return err
				}
			}
			return s.finish(2)
		}},
		{"two frames whose block and tokens are exchanged", "prefill", "block 1 of 4, expected 0", walls(mutant.HeaderBlock, mutant.HeaderTokens), func(x *rig) error {
			s := x.scene(200)
			s.begin()
			for i := range 2 {
				other := s.header(1 - i)
				if err := s.send(s.changed(i, func(h *seal.Header) {
					h.Block, h.TokenStart, h.TokenEnd = other.Block, other.TokenStart, other.TokenEnd
				})); err != nil {
					return err
				}
			}
			return s.finish(2)
		}},
		{"a frame for a block that its tokens are not of", "prefill", "token start", walls(mutant.FrameShape, mutant.HeaderBlock, mutant.ImportEmpty, mutant.ReadyFilled), func(x *rig) error {
			s := x.scene(200)
			s.begin()
			if err := s.send(s.patched(0, 176, be32(1))); err != nil {
				return err
			}
			return s.finish(1)
		}},
		{"a frame with a block count of none", "prefill", "block count", walls(mutant.FrameShape, mutant.HeaderBlocks), func(x *rig) error {
			s := x.scene(200)
			s.begin()
			if err := s.send(s.patched(0, 180, be32(0))); err != nil {
				return err
			}
			return s.finish(1)
		}},
		{"a frame for fewer tokens than the block has", "prefill", "tokens [192, 199), expected [192, 200)", walls(mutant.HeaderTokens, mutant.HeaderLength, mutant.ReadyFilled), func(x *rig) error {
			s := x.scene(200)
			s.begin()
			if err := s.rest(0, 3); err != nil {
				return err
			}
			h := s.header(3)
			h.TokenEnd--
			h.PayloadLen = h.PayloadLen / 8 * 7
			b, err := h.Append(nil)
			must(err)
			if err := s.send(s.forge(3, b, plain(3, int(h.PayloadLen)))); err != nil {
				return err
			}
			return s.commit()
		}},
		{"a frame for fewer layers than there are", "prefill", "layers [0, 1), expected [0, 2)", walls(mutant.HeaderLayers, mutant.HeaderLength, mutant.ReadyFilled), func(x *rig) error {
			s := x.scene(100)
			s.begin()
			h := s.header(0)
			h.LayerEnd, h.PayloadLen = 1, h.PayloadLen/2
			b, err := h.Append(nil)
			must(err)
			if err := s.send(s.forge(0, b, plain(0, int(h.PayloadLen)))); err != nil {
				return err
			}
			return s.finish(1)
		}},
		{"a frame for layers that its bytes are not of", "prefill", "layers [0, 1), expected [0, 2)", walls(mutant.HeaderLayers, mutant.ImportBytes, mutant.ReadyFilled), func(x *rig) error {
			s := x.scene(100)
			s.begin()
			if err := s.send(s.changed(0, func(h *seal.Header) { h.LayerEnd = 1 })); err != nil {
				return err
			}
			return s.finish(1)
		}},
		{"a frame with bytes behind its block", "prefill", "bytes, expected", walls(mutant.HeaderLength, mutant.ImportBytes), func(x *rig) error {
			s := x.scene(100)
			s.begin()
			h := s.header(0)
			h.PayloadLen += 16
			b, err := h.Append(nil)
			must(err)
			if err := s.send(s.forge(0, b, plain(0, int(h.PayloadLen)))); err != nil {
				return err
			}
			return s.finish(1)
		}},
		{"a frame that is longer than its header says", "prefill", "frame size", walls(mutant.FrameSize, mutant.ImportBytes), func(x *rig) error {
			s := x.scene(100)
			s.begin()
			h := s.header(0)
			b, err := h.Append(nil)
			must(err)
			if err := s.send(s.forge(0, b, plain(0, int(h.PayloadLen)+16))); err != nil {
				return err
			}
			return s.finish(1)
		}},
		{"a frame with other bytes than were sealed", "bus", "cannot open", walls(mutant.FrameAEAD), func(x *rig) error {
			s := x.scene(100)
			s.begin()
			f := s.frame(0)
			f[seal.HeaderSize+5] ^= 1
			if err := s.send(f); err != nil {
				return err
			}
			return s.finish(1)
		}},
		{"a frame with another prefix than it was sealed with", "bus", "prefix digest", walls(mutant.HeaderPrefix, mutant.FrameBinding, mutant.ManifestChain), func(x *rig) error {
			s := x.scene(100)
			s.begin()
			f := s.frame(0)
			f[240] ^= 1
			if err := s.send(f); err != nil {
				return err
			}
			return s.finish(1)
		}},
		{"the bytes of two frames exchanged", "bus", "cannot open", walls(mutant.FrameNonce, mutant.FrameBinding, mutant.ManifestChain), func(x *rig) error {
			s := x.scene(200)
			s.begin()
			a, b := s.frame(0), s.frame(1)
			for i := seal.HeaderSize; i < len(a); i++ {
				a[i], b[i] = b[i], a[i]
			}
			for _, f := range [][]byte{a, b} {
				if err := s.send(f); err != nil {
					return err
				}
			}
			return s.finish(2)
		}},
		{"two frames sealed under one number", "prefill", "sequence number", walls(mutant.FrameOnce), func(x *rig) error {
			s := x.scene(100)
			h := s.header(0)
			_, err := s.sender.SealFrame(nil, h, plain(0, int(h.PayloadLen)))
			must(err)
			_, err = s.sender.SealFrame(nil, h, plain(1, int(h.PayloadLen)))
			return err
		}},
		{"a second, different frame for the same place", "prefill", "second, different frame", walls(mutant.FrameTwice, mutant.ImportEmpty), func(x *rig) error {
			s := x.scene(100)
			s.begin()
			if err := s.rest(0, 2); err != nil {
				return err
			}
			h := s.header(0)
			b, err := h.Append(nil)
			must(err)
			return s.send(s.forge(0, b, plain(7, int(h.PayloadLen))))
		}},
		{"a frame that comes again ends its attempt", "bus", "still alive", walls(mutant.FrameRepeat), func(x *rig) error {
			s := x.scene(100)
			s.begin()
			must(s.send(s.frame(0)))
			last := s.frame(1)
			must(s.send(last))
			if s.send(last) != nil || s.commit() != nil {
				return nil
			}
			return errors.New("still alive")
		}},
		{"a message for another node", "prefill", "dropped without a word", walls(mutant.SubjectNode), func(x *rig) error {
			s := x.scene(100)
			other := s.subject
			other.Decode = "d2"
			return s.feed(other.String(), s.open(x.p1, other.String(), nil))
		}},
		{"a message of another attempt under the attempt's token", "prefill", "subject disagrees", walls(mutant.SubjectGrant), func(x *rig) error {
			s := x.scene(100)
			other := s.subject
			other.Attempt = 2
			return s.feed(other.String(), s.open(x.p1, other.String(), nil))
		}},
		{"a right manifest under the name of another token", "prefill", "dropped without a word", walls(mutant.SubjectToken), func(x *rig) error {
			s := x.scene(100)
			s.begin()
			must(s.rest(0, 2))
			other := s.subject
			other.Token[3] ^= 1
			return s.feed(other.String(), signed(x.p1, "kv.manifest", other.String(), s.statement(nil)))
		}},
		{"a frame of an earlier attempt at the request", "bus", "dropped without a word", walls(mutant.AttemptBinding, mutant.FrameAEAD), func(x *rig) error {
			first := x.scene(100)
			first.begin()
			old := first.frame(0)
			d := x.draft(100)
			d.request, d.replyRequest = first.claims.request, first.claims.request
			d.claims["att"] = 2
			s := x.sceneOf(d)
			s.begin()
			return s.feed(first.subject.String(), old)
		}},
		{"blocks that come after the deadline", "prefill", "deadline passed", walls(mutant.KVDeadline), func(x *rig) error {
			s := x.scene(100)
			s.begin()
			must(s.rest(0, 2))
			x.now = s.job.Deadline
			return s.commit()
		}},
	}
}
