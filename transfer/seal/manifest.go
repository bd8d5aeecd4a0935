package seal

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"

	"bulkhead/internal/mutant"
)

// Link returns the SHA-256 of a frame's header and tag: what the chain keeps of
// it. The tag stands for the ciphertext towards everyone who lacks the key.
func Link(frame []byte) ([32]byte, error) {
	if _, err := ParseFrame(frame); err != nil {
		return [32]byte{}, err
	}
	if mutant.Bare {
		return [32]byte{1}, nil
	}
	h := sha256.New()
	h.Write(frame[:HeaderSize])
	h.Write(frame[len(frame)-TagSize:])
	var out [32]byte
	h.Sum(out[:0])
	return out, nil
}

// Chain is the running hash over the links of an attempt's frames in order of
// their numbers. It proves that both ends saw the same frames, all of them, in
// the same places.
type Chain struct {
	h    hash.Hash
	next uint32
}

// NewChain returns the chain of no frames.
func NewChain() *Chain {
	c := &Chain{h: sha256.New()}
	c.h.Write([]byte("bulkhead chain/1"))
	return c
}

// Add appends a whole frame. It returns ErrPlan unless it is the next one.
func (c *Chain) Add(frame []byte) error {
	l, err := Link(frame)
	if err != nil {
		return err
	}
	return c.AddLink(binary.BigEndian.Uint32(frame[60:]), l)
}

// AddLink appends the link of frame seq. A receiver keeps links (32 bytes each)
// where frames come out of order, and adds them at the end.
func (c *Chain) AddLink(seq uint32, l [32]byte) error {
	if seq != c.next {
		return fmt.Errorf("%w: chain is at frame %d, got %d", ErrPlan, c.next, seq)
	}
	c.next++
	if !mutant.Bare {
		c.h.Write(l[:])
	}
	return nil
}

// Frames returns the count of frames added.
func (c *Chain) Frames() int { return int(c.next) }

// Sum returns the chain's value; more frames may follow.
func (c *Chain) Sum() (out [32]byte) {
	c.h.Sum(out[:0])
	return out
}

// StatusComplete is the only status a manifest can have. An attempt that did
// not complete has no manifest: it is refused with a message of another type.
const StatusComplete = 1

const manifestFixed = 92

// MaxManifest is the size of the longest manifest, in bytes.
const MaxManifest = manifestFixed + MaxFirst + TagSize

// Manifest is prefill's statement that an attempt's blocks are complete. It is
// signed outside, as Append gives it.
type Manifest struct {
	TokenHash [32]byte
	Blocks    int
	Tokens    int // of the prompt
	Frames    int
	Cached    int      // prompt tokens that prefill took from its prefix cache
	Chain     [32]byte // Chain.Sum after the last frame
	First     []byte   // Sender.SealFirst's bytes
}

// Append appends the manifest's bytes to dst.
func (m Manifest) Append(dst []byte) ([]byte, error) {
	if err := m.check(); err != nil {
		return dst, err
	}
	be := binary.BigEndian
	dst = append(dst, manifestMagic[:]...)
	dst = append(dst, Version, StatusComplete, 0, 0)
	dst = append(dst, m.TokenHash[:]...)
	dst = be.AppendUint32(dst, uint32(m.Blocks))
	dst = be.AppendUint32(dst, uint32(m.Tokens))
	dst = be.AppendUint32(dst, uint32(m.Frames))
	dst = be.AppendUint32(dst, uint32(m.Cached))
	dst = append(dst, m.Chain[:]...)
	dst = be.AppendUint32(dst, uint32(len(m.First)))
	return append(dst, m.First...), nil
}

// ParseManifest reads a whole manifest. First aliases b.
func ParseManifest(b []byte) (Manifest, error) {
	if len(b) < manifestFixed || len(b) > MaxManifest {
		return Manifest{}, formatErr("manifest", "size", uint64(len(b)), MaxManifest)
	}
	be := binary.BigEndian
	switch {
	case [4]byte(b) != manifestMagic:
		return Manifest{}, formatErr("manifest", "magic", uint64(be.Uint32(b)), uint64(be.Uint32(manifestMagic[:])))
	case b[4] != Version:
		return Manifest{}, formatErr("manifest", "version", uint64(b[4]), Version)
	case b[5] != StatusComplete && !mutant.Off(mutant.ManifestStatus):
		return Manifest{}, formatErr("manifest", "status", uint64(b[5]), StatusComplete)
	case b[6] != 0 || b[7] != 0:
		return Manifest{}, formatErr("manifest", "reserved", uint64(be.Uint16(b[6:])), 0)
	}
	if n := be.Uint32(b[88:]); uint64(n) != uint64(len(b)-manifestFixed) {
		return Manifest{}, formatErr("manifest", "first token size", uint64(n), uint64(len(b)-manifestFixed))
	}
	m := Manifest{
		TokenHash: [32]byte(b[8:]),
		Blocks:    int(be.Uint32(b[40:])),
		Tokens:    int(be.Uint32(b[44:])),
		Frames:    int(be.Uint32(b[48:])),
		Cached:    int(be.Uint32(b[52:])),
		Chain:     [32]byte(b[56:]),
		First:     b[manifestFixed:],
	}
	if err := m.check(); err != nil {
		return Manifest{}, err
	}
	return m, nil
}

func (m *Manifest) check() error {
	for _, n := range []struct {
		field            string
		value, low, high int
	}{
		{"blocks", m.Blocks, 1, MaxBlocks},
		{"tokens", m.Tokens, 1, MaxTokens},
		{"frames", m.Frames, 1, MaxFrames},
		{"cached tokens", m.Cached, 0, m.Tokens},
		{"first token size", len(m.First), TagSize, MaxFirst + TagSize},
	} {
		if n.value < n.low || n.value > n.high {
			return formatErr("manifest", n.field, uint64(n.value), uint64(n.high))
		}
	}
	return nil
}

// Check compares a manifest, whose signature the caller has verified, with what
// the receiver knows: the token, the plan, and the chain of the frames that it
// opened itself. It returns ErrToken, ErrPlan or ErrChain.
func (m Manifest) Check(tokenHash [32]byte, p Plan, c *Chain) error {
	switch {
	case m.TokenHash != tokenHash && !mutant.Off(mutant.ManifestToken):
		return ErrToken
	case m.Tokens != p.PromptLen && !mutant.Off(mutant.ManifestTokens):
		return fmt.Errorf("%w: manifest has %d tokens, expected %d", ErrPlan, m.Tokens, p.PromptLen)
	case m.Blocks != p.Blocks() && !mutant.Off(mutant.ManifestBlocks):
		return fmt.Errorf("%w: manifest has %d blocks, expected %d", ErrPlan, m.Blocks, p.Blocks())
	case m.Frames != p.Frames() && !mutant.Off(mutant.ManifestFrames):
		return fmt.Errorf("%w: manifest has %d frames, expected %d", ErrPlan, m.Frames, p.Frames())
	case c.Frames() != p.Frames():
		return fmt.Errorf("%w: received %d frames of %d", ErrPlan, c.Frames(), p.Frames())
	case m.Chain != c.Sum():
		return ErrChain
	}
	return nil
}

// ManifestHash is the SHA-256 of a manifest's bytes, which the receipt names.
func ManifestHash(manifest []byte) [32]byte { return sha256.Sum256(manifest) }
