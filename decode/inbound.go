package decode

import (
	"errors"
	"fmt"

	"bulkhead/internal/mutant"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// Violations of the protocol by the sender. Each ends the attempt.
var (
	// ErrNotOpen: a frame or manifest before the opening message.
	ErrNotOpen = errors.New("decode: message before the opening one")
	// ErrOpenTwice: a second opening message that differs from the first.
	ErrOpenTwice = errors.New("decode: second, different opening message")
	// ErrOpen: the opening message is not that of the granted attempt.
	ErrOpen = errors.New("decode: opening message does not match the grant")
	// ErrHeader: a frame's header differs from the one this node expects.
	ErrHeader = errors.New("decode: frame header does not match the grant")
	// ErrFrameTwice: another frame where one is already held.
	ErrFrameTwice = errors.New("decode: second, different frame for the same place")
	// ErrEarly: a manifest while frames are missing.
	ErrEarly = errors.New("decode: manifest before all frames")
	// ErrDone: anything after the manifest.
	ErrDone = errors.New("decode: message after the manifest")
)

// inbound is the receive side of one attempt as a pure state machine: messages
// in, verdicts out. It holds no key and moves no bytes; the receiver asks it
// before it does anything with a message, and tells it what was done.
//
// What it expects comes from the router's job (grant) and from this node's own
// engine (plan), never from the sender.
type inbound struct {
	grant  *transfer.Grant
	plan   seal.Plan
	layout transfer.Hash

	opened       transfer.Hash // hash of the opening message; zero: none yet
	prefillEpoch uint64
	links        [][32]byte // per frame: SHA-256 of header and tag; zero: not held
	held         int
	done         bool // manifest accepted
}

func newInbound(g *transfer.Grant, plan seal.Plan, layout transfer.Hash) *inbound {
	return &inbound{grant: g, plan: plan, layout: layout, links: make([][32]byte, plan.Frames())}
}

// open judges the opening message, whose signature by the granted prefill node
// the caller has verified. It returns true the first time.
func (in *inbound) open(o transfer.Open, tokenHash, digest transfer.Hash) (first bool, err error) {
	if in.opened == digest {
		return false, nil // redelivered
	}
	switch {
	case in.opened != (transfer.Hash{}) && !mutant.Off(mutant.OpenOnce):
		return false, ErrOpenTwice
	case tokenHash != in.grant.Hash && !mutant.Off(mutant.OpenGrant):
		return false, fmt.Errorf("%w: another token", ErrOpen)
	case o.Prefill != in.grant.Claims.Prefill && !mutant.Off(mutant.OpenPrefill):
		return false, fmt.Errorf("%w: prefill node %q, granted %q", ErrOpen, o.Prefill, in.grant.Claims.Prefill)
	case o.Layout != in.layout && !mutant.Off(mutant.OpenLayout):
		return false, fmt.Errorf("%w: another KV layout", ErrOpen)
	case o.Frames != in.plan.Frames() && !mutant.Off(mutant.DecodeCount) && !mutant.Off(mutant.OpenFrames):
		return false, fmt.Errorf("%w: %d frames, expected %d", ErrOpen, o.Frames, in.plan.Frames())
	}
	in.opened, in.prefillEpoch = digest, o.PrefillEpoch
	return true, nil
}

// frame judges a frame by its header and link before it is opened: the header
// must be, member for member, the one that this node builds for that place.
// It returns false for a repeat of a frame that is held.
func (in *inbound) frame(h seal.Header, link [32]byte) (want bool, err error) {
	switch {
	case in.opened == (transfer.Hash{}) && !mutant.Off(mutant.FrameOpened):
		return false, ErrNotOpen
	case int64(h.Seq) >= int64(len(in.links)) && !mutant.Off(mutant.FrameIndex):
		return false, fmt.Errorf("%w: frame %d of %d", ErrHeader, h.Seq, len(in.links))
	}
	expect := in.grant.Header(in.plan, int(h.Seq), in.prefillEpoch)
	if mutant.Off(mutant.DecodeCount) { // the sender's word on how much there is
		expect.Blocks, expect.TokenEnd, expect.PayloadLen = h.Blocks, h.TokenEnd, h.PayloadLen
	}
	if mutant.Off(mutant.AttemptBinding) { // any attempt's frame at this request
		expect.TokenHash, expect.Attempt, expect.PrefillEpoch, expect.Prefill = h.TokenHash, h.Attempt, h.PrefillEpoch, h.Prefill
		expect.PromptDigest, expect.PrefixDigest = h.PromptDigest, h.PrefixDigest
	}
	if mutant.Enabled {
		believe(&expect, h)
	}
	if h != expect {
		return false, fmt.Errorf("%w: frame %d: %s", ErrHeader, h.Seq, differing(h, expect))
	}
	switch held := in.links[h.Seq]; {
	case held == link && !mutant.Off(mutant.FrameRepeat):
		return false, nil
	case held != [32]byte{} && !mutant.Off(mutant.FrameTwice):
		return false, fmt.Errorf("%w: frame %d", ErrFrameTwice, h.Seq)
	}
	if in.done && !mutant.Off(mutant.FrameDone) {
		return false, ErrDone
	}
	return true, nil
}

// hold notes that a frame was opened and lies in its page.
func (in *inbound) hold(seq uint32, link [32]byte) {
	if in.links[seq] != ([32]byte{}) {
		panic("decode: internal error: a frame was held twice")
	}
	in.links[seq] = link
	in.held++
}

// manifest judges the manifest, whose signature the caller has verified. Only
// when it returns nil may the attempt be committed.
func (in *inbound) manifest(m seal.Manifest) error {
	switch {
	case in.opened == (transfer.Hash{}) && !mutant.Off(mutant.ManifestOpened):
		return ErrNotOpen
	case in.done && !mutant.Off(mutant.ManifestOnce):
		return ErrDone
	case mutant.Off(mutant.DecodeCount):
		// The leak of 2026: what is complete is taken from the sender's word.
		in.done = true
		return nil
	case in.held < len(in.links) && !mutant.Off(mutant.ManifestEarly):
		return fmt.Errorf("%w: %d of %d held", ErrEarly, in.held, len(in.links))
	}
	chain := seal.NewChain()
	for i, l := range in.links {
		if err := chain.AddLink(uint32(i), l); err != nil {
			return err
		}
	}
	if err := m.Check(in.grant.Hash, in.plan, chain); err != nil {
		if !(errors.Is(err, seal.ErrChain) && mutant.Off(mutant.ManifestChain)) {
			return err
		}
	}
	in.done = true
	return nil
}

// differing names the first member in which two headers differ.
func differing(got, want seal.Header) string {
	switch {
	case got.TokenHash != want.TokenHash:
		return "token hash"
	case got.Request != want.Request:
		return "request"
	case got.Child != want.Child:
		return fmt.Sprintf("child %d, expected %d", got.Child, want.Child)
	case got.Attempt != want.Attempt:
		return fmt.Sprintf("attempt %d, expected %d", got.Attempt, want.Attempt)
	case got.Prefill != want.Prefill:
		return fmt.Sprintf("prefill node %q, expected %q", got.Prefill, want.Prefill)
	case got.PrefillEpoch != want.PrefillEpoch:
		return fmt.Sprintf("prefill epoch %016x, expected %016x", got.PrefillEpoch, want.PrefillEpoch)
	case got.Decode != want.Decode:
		return fmt.Sprintf("decode node %q, expected %q", got.Decode, want.Decode)
	case got.DecodeEpoch != want.DecodeEpoch:
		return fmt.Sprintf("decode epoch %016x, expected %016x", got.DecodeEpoch, want.DecodeEpoch)
	case got.Model != want.Model:
		return "model fingerprint"
	case got.Block != want.Block, got.Blocks != want.Blocks:
		return fmt.Sprintf("block %d of %d, expected %d of %d", got.Block, got.Blocks, want.Block, want.Blocks)
	case got.TokenStart != want.TokenStart, got.TokenEnd != want.TokenEnd:
		return fmt.Sprintf("tokens [%d, %d), expected [%d, %d)", got.TokenStart, got.TokenEnd, want.TokenStart, want.TokenEnd)
	case got.LayerStart != want.LayerStart, got.LayerEnd != want.LayerEnd:
		return fmt.Sprintf("layers [%d, %d), expected [%d, %d)", got.LayerStart, got.LayerEnd, want.LayerStart, want.LayerEnd)
	case got.PayloadLen != want.PayloadLen:
		return fmt.Sprintf("%d bytes, expected %d", got.PayloadLen, want.PayloadLen)
	case got.PromptDigest != want.PromptDigest:
		return "prompt digest"
	case got.PrefixDigest != want.PrefixDigest:
		return "prefix digest"
	}
	return "another member"
}
