package sim

import (
	"encoding/binary"
	"math/bits"
)

// digest is the one keyed function behind all stand-ins: 128 bits from two lanes of
// multiply-and-fold. It is no cryptography and need not be: nobody in a schedule computes
// with the secret, so all that is asked of it is that other bytes give another value.
type digest struct{ a, b uint64 }

const (
	oddA = 0x9e3779b97f4a7c15
	oddB = 0xd1342543de82ef95
)

func (d *digest) word(w uint64) {
	hi, lo := bits.Mul64(d.a^w, oddA)
	d.a = hi ^ lo ^ bits.RotateLeft64(d.b, 23)
	hi, lo = bits.Mul64(d.b+w, oddB)
	d.b = hi ^ lo + d.a
}

// pair takes in two words at once, one in each lane: long parts are most of the work.
func (d *digest) pair(v, w uint64) {
	hi, lo := bits.Mul64(d.a^v, oddA)
	hj, lp := bits.Mul64(d.b+w, oddB)
	d.a, d.b = hi^lo^bits.RotateLeft64(d.b, 23), hj^lp+d.a
}

// bytes takes a part in, with its length, so that no two lists of parts are alike.
func (d *digest) bytes(p []byte) {
	d.word(uint64(len(p)))
	for ; len(p) >= 16; p = p[16:] {
		d.pair(binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:]))
	}
	for ; len(p) >= 8; p = p[8:] {
		d.word(binary.LittleEndian.Uint64(p))
	}
	if len(p) > 0 {
		var last [8]byte
		copy(last[:], p)
		d.word(binary.LittleEndian.Uint64(last[:]))
	}
}

func (d *digest) text(s string) {
	d.word(uint64(len(s)))
	for ; len(s) >= 8; s = s[8:] {
		d.word(uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56)
	}
	w := uint64(0)
	for i := range len(s) {
		w |= uint64(s[i]) << (8 * i)
	}
	d.word(w)
}

func (d *digest) sum() (out [32]byte) {
	for i := range 4 {
		d.word(uint64(i) + 1)
		binary.LittleEndian.PutUint64(out[8*i:], d.a^d.b)
	}
	return out
}

// crypt adds the key's stream to src; twice gives src back.
func crypt(key [32]byte, dst, src []byte) {
	d := digest{binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:])}
	n := uint64(0)
	for ; len(src) >= 16; src, dst = src[16:], dst[16:] {
		n++
		d.word(n)
		binary.LittleEndian.PutUint64(dst, binary.LittleEndian.Uint64(src)^d.a)
		binary.LittleEndian.PutUint64(dst[8:], binary.LittleEndian.Uint64(src[8:])^d.b)
	}
	for ; len(src) >= 8; src, dst = src[8:], dst[8:] {
		n++
		d.word(n)
		binary.LittleEndian.PutUint64(dst, binary.LittleEndian.Uint64(src)^d.a)
	}
	d.word(n + 1)
	for i := range src {
		dst[i] = src[i] ^ byte(d.a>>(8*i))
	}
}
