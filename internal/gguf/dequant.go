package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Dequantize decodes src, whole blocks of type t, into dst. The layouts and the
// order of operations are those of ggml's dequantize_row_* (ggml-quants.c) and of
// the gguf Python package, with which the results agree bit for bit. It fails, with
// dst untouched, where t is not supported (ErrType) or the two lengths do not
// belong together (ErrValue).
//
// Every product is rounded to float32 before it is added to anything: without the
// explicit conversions the compiler may fuse the two on arm64, even across statements, and two nodes would
// disagree on the last bit of a weight.
func Dequantize(dst []float32, t Type, src []byte) error {
	s, ok := t.shape()
	if !ok {
		return fmt.Errorf("gguf: dequantize: tensor type %s: %w", t, ErrType)
	}
	blocks := len(dst) / s.elems
	if len(dst)%s.elems != 0 || len(src)%s.bytes != 0 || len(src)/s.bytes != blocks {
		return fmt.Errorf("gguf: dequantize %s: %w: %d elements and %d bytes, want whole blocks of %d elements in %d bytes",
			t, ErrValue, len(dst), len(src), s.elems, s.bytes)
	}
	switch t {
	case TypeF32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
		return nil
	case TypeF16:
		for i := range dst {
			dst[i] = f16(src[2*i:])
		}
		return nil
	case TypeBF16:
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
		return nil
	}
	for i := range blocks {
		x := dst[i*s.elems : (i+1)*s.elems]
		b := src[i*s.bytes : (i+1)*s.bytes]
		switch t {
		case TypeQ4_0:
			blockQ4_0(x, b)
		case TypeQ4_1:
			blockQ4_1(x, b)
		case TypeQ5_0:
			blockQ5_0(x, b)
		case TypeQ5_1:
			blockQ5_1(x, b)
		case TypeQ8_0:
			blockQ8_0(x, b)
		case TypeQ4_K:
			blockQ4_K(x, b)
		case TypeQ5_K:
			blockQ5_K(x, b)
		case TypeQ6_K:
			blockQ6_K(x, b)
		default:
			panic("gguf: internal error: supported type " + t.String() + " has no decoder")
		}
	}
	return nil
}

// f16 decodes the IEEE 754 half at the start of b; every half is exact in float32.
func f16(b []byte) float32 {
	h := uint32(binary.LittleEndian.Uint16(b))
	sign, exp, frac := h&0x8000<<16, h>>10&0x1f, h&0x3ff
	switch exp {
	case 0: // zero and subnormals: frac x 2^-24
		return math.Float32frombits(sign | math.Float32bits(float32(frac)*(1.0/(1<<24))))
	case 0x1f: // infinities and NaNs
		return math.Float32frombits(sign | 0xff<<23 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
}

// Q4_0: f16 scale d; 16 bytes of nibbles, low nibbles first: x = d * (q - 8).
func blockQ4_0(x []float32, b []byte) {
	d, qs := f16(b), b[2:18]
	for i, q := range qs {
		x[i] = d * float32(int(q&15)-8)
		x[i+16] = d * float32(int(q>>4)-8)
	}
}

// Q4_1: f16 scale d and minimum m; nibbles as in Q4_0: x = d * q + m.
func blockQ4_1(x []float32, b []byte) {
	d, m, qs := f16(b), f16(b[2:]), b[4:20]
	for i, q := range qs {
		x[i] = float32(d*float32(q&15)) + m
		x[i+16] = float32(d*float32(q>>4)) + m
	}
}

// Q5_0: f16 scale d; u32 of fifth bits, bit i for element i; nibbles: x = d * (q - 16).
func blockQ5_0(x []float32, b []byte) {
	d, qh, qs := f16(b), binary.LittleEndian.Uint32(b[2:]), b[6:22]
	for i, q := range qs {
		lo := uint32(q&15) | qh>>i&1<<4
		hi := uint32(q>>4) | qh>>(i+16)&1<<4
		x[i] = d * float32(int(lo)-16)
		x[i+16] = d * float32(int(hi)-16)
	}
}

// Q5_1: f16 scale d and minimum m; fifth bits and nibbles as in Q5_0: x = d * q + m.
func blockQ5_1(x []float32, b []byte) {
	d, m, qh, qs := f16(b), f16(b[2:]), binary.LittleEndian.Uint32(b[4:]), b[8:24]
	for i, q := range qs {
		lo := uint32(q&15) | qh>>i&1<<4
		hi := uint32(q>>4) | qh>>(i+16)&1<<4
		x[i] = float32(d*float32(lo)) + m
		x[i+16] = float32(d*float32(hi)) + m
	}
}

// Q8_0: f16 scale d; 32 signed bytes: x = d * q.
func blockQ8_0(x []float32, b []byte) {
	d, qs := f16(b), b[2:34]
	for i, q := range qs {
		x[i] = float32(int8(q)) * d
	}
}

// scaleMinK unpacks the j-th (0 to 7) of the eight 6-bit scales and minima that
// Q4_K and Q5_K pack into 12 bytes.
func scaleMinK(j int, s []byte) (scale, min float32) {
	if j < 4 {
		return float32(s[j] & 63), float32(s[j+4] & 63)
	}
	return float32(s[j+4]&15 | s[j-4]>>6<<4), float32(s[j+4]>>4 | s[j]>>6<<4)
}

// Q4_K: f16 d and dmin; 12 bytes of scales (scaleMinK), one for each 32 elements;
// 128 bytes of nibbles, where 32 bytes hold 64 elements, low nibbles first:
// x = (d * scale) * q - (dmin * min).
func blockQ4_K(x []float32, b []byte) {
	d, dmin, scales, qs := f16(b), f16(b[2:]), b[4:16], b[16:144]
	for j := range 8 {
		scale, min := scaleMinK(j, scales)
		ds, ms := float32(d*scale), float32(dmin*min)
		shift := 4 * (j & 1)
		for i, q := range qs[j/2*32 : j/2*32+32] {
			x[32*j+i] = float32(ds*float32(q>>shift&15)) - ms
		}
	}
}

// Q5_K: as Q4_K, with 32 bytes of fifth bits before the nibbles: bit j of byte i
// belongs to element i of the j-th 32 elements.
func blockQ5_K(x []float32, b []byte) {
	d, dmin, scales, qh, qs := f16(b), f16(b[2:]), b[4:16], b[16:48], b[48:176]
	for j := range 8 {
		scale, min := scaleMinK(j, scales)
		ds, ms := float32(d*scale), float32(dmin*min)
		shift := 4 * (j & 1)
		for i, q := range qs[j/2*32 : j/2*32+32] {
			x[32*j+i] = float32(ds*float32(q>>shift&15|qh[i]>>j&1<<4)) - ms
		}
	}
}

// Q6_K: 128 bytes of low nibbles; 64 bytes of high bit pairs; 16 signed scales, one
// for each 16 elements; f16 d: x = (d * scale) * (q - 32). Each half of the block
// (128 elements) has 64 bytes of nibbles and 32 bytes of pairs: its j-th 32 elements
// take nibbles from byte 32*(j&1) on, the low ones for j < 2, and bits 2j of the pairs.
func blockQ6_K(x []float32, b []byte) {
	ql, qh, scales, d := b[:128], b[128:192], b[192:208], f16(b[208:])
	for j := range 8 {
		half, k := j/4, j%4
		low, high := ql[64*half+32*(k&1):][:32], qh[32*half:][:32]
		for i := range 32 {
			q := low[i]>>(4*(k>>1))&15 | high[i]>>(2*k)&3<<4
			ds := d * float32(int8(scales[2*j+i/16]))
			x[32*j+i] = ds * float32(int(q)-32)
		}
	}
}
