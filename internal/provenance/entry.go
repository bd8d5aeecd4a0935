package provenance

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"

	"bulkhead/internal/model"
)

// u128 is a number mod 2^128.
type u128 struct{ hi, lo uint64 }

func (a u128) add(b u128) u128 {
	lo, c := bits.Add64(a.lo, b.lo, 0)
	hi, _ := bits.Add64(a.hi, b.hi, c)
	return u128{hi, lo}
}

func (a u128) sub(b u128) u128 {
	lo, c := bits.Sub64(a.lo, b.lo, 0)
	hi, _ := bits.Sub64(a.hi, b.hi, c)
	return u128{hi, lo}
}

// times multiplies by a 64-bit number.
func (a u128) times(w uint64) u128 {
	hi, lo := bits.Mul64(a.lo, w)
	return u128{hi + a.hi*w, lo}
}

// digit is hexadecimal digit i of the number, the highest first.
func (a u128) digit(i int) int {
	w := a.hi
	if i >= 16 {
		w = a.lo
	}
	return int(w >> (60 - 4*(i%16)) & 15)
}

func (a u128) String() string { return fmt.Sprintf("%016x%016x", a.hi, a.lo) }

// weight is what an entry counts for: odd, so that it can be divided by, and
// different for every layer and position.
func weight(layer, pos int) uint64 {
	const golden = uint64(0x9e3779b97f4a7c15) // odd; Knuth's multiplicative hash
	return golden*(2*(uint64(layer)<<40|uint64(pos))) | 1
}

// prf is AES under one key.
type prf struct {
	block   cipher.Block
	in, out [16]byte
}

func newPRF(parts ...[]byte) *prf {
	h := sha256.New()
	h.Write([]byte("bulkhead provenance 1"))
	var n [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write(p)
	}
	b, err := aes.NewCipher(h.Sum(nil)[:16])
	if err != nil {
		panic("provenance: internal error: " + err.Error()) // only for lengths
	}
	return &prf{block: b}
}

// at is the function's value; a prf belongs to one goroutine.
func (f *prf) at(layer, pos int, token int32) u128 {
	binary.BigEndian.PutUint32(f.in[0:], uint32(layer))
	binary.BigEndian.PutUint32(f.in[4:], uint32(token))
	binary.BigEndian.PutUint64(f.in[8:], uint64(pos))
	f.block.Encrypt(f.out[:], f.in[:])
	return u128{binary.BigEndian.Uint64(f.out[:8]), binary.BigEndian.Uint64(f.out[8:])}
}

// content is G: what of an entry any reader of the text knows.
func content(fingerprint [32]byte) *prf { return newPRF([]byte("content"), fingerprint[:]) }

// pad is P of one source in one incarnation.
func pad(fingerprint [32]byte, s model.Source, incarnation uint64, shared bool) *prf {
	if shared { // a block that any request of the tenant may read
		return newPRF([]byte("shared"), fingerprint[:], []byte(s.Tenant))
	}
	var n [12]byte
	binary.BigEndian.PutUint16(n[0:], s.Child)
	binary.BigEndian.PutUint16(n[2:], s.Attempt)
	binary.BigEndian.PutUint64(n[4:], incarnation)
	return newPRF([]byte("pad"), fingerprint[:], []byte(s.Tenant), s.Request[:], n[:])
}

// pads are the two P of a sequence: of its prompt, and of what decode added.
type pads struct {
	prompt     int
	head, tail *prf
}

func newPads(fingerprint [32]byte, s model.Source, shared bool) pads {
	head := pad(fingerprint, s, s.Prefill, shared)
	if s.Decode == 0 {
		return pads{s.Prompt, head, head}
	}
	return pads{s.Prompt, head, pad(fingerprint, s, s.Decode, false)}
}

// run is the values at positions [pos, pos+len(dst)). The input of the function is a
// counter in the position, so this is AES in counter mode, which is several
// times as fast as one block after the other where there are many. scratch has room
// for as many blocks.
func (p pads) run(dst []u128, layer, pos int, scratch []byte) {
	const few = 64 // a stream costs as much to begin as some tens of blocks
	if len(dst) < few {
		for i := range dst {
			dst[i] = p.at(layer, pos+i)
		}
		return
	}
	for len(dst) > 0 {
		f, n := p.tail, len(dst)
		if pos < p.prompt {
			f, n = p.head, min(n, p.prompt-pos)
		}
		buf := scratch[:n*aes.BlockSize]
		clear(buf)
		binary.BigEndian.PutUint32(f.in[0:], uint32(layer))
		binary.BigEndian.PutUint32(f.in[4:], 0)
		binary.BigEndian.PutUint64(f.in[8:], uint64(pos))
		cipher.NewCTR(f.block, f.in[:]).XORKeyStream(buf, buf)
		for i := range dst[:n] {
			dst[i] = u128{binary.BigEndian.Uint64(buf[16*i:]), binary.BigEndian.Uint64(buf[16*i+8:])}
		}
		dst, pos = dst[n:], pos+n
	}
}

func (p pads) at(layer, pos int) u128 {
	if pos < p.prompt {
		return p.head.at(layer, pos, 0)
	}
	return p.tail.at(layer, pos, 0)
}
