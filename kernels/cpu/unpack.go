package cpu

import "encoding/binary"

// The block types of GGUF (ggml-quants.c, dequantize_row_*), 32 columns at a
// time, eight bytes at a time.

const (
	ones   = 0x0101010101010101 // each byte 1
	nibble = 15 * ones
)

func word(b []byte) uint64   { return binary.LittleEndian.Uint64(b) }
func halfAt(b []byte) uint16 { return binary.LittleEndian.Uint16(b) }

func unpackQ8_0(dst *block, src []byte, _ int) {
	src = src[:34]
	dst.d = halfAt(src)
	for i := range dst.q {
		dst.q[i] = word(src[2+8*i:]) ^ 0x80*ones // two's complement + 128
	}
}

func unpackNibbles(dst *block, qs []byte) {
	a, b := word(qs), word(qs[8:])
	dst.q = [4]uint64{a & nibble, b & nibble, a >> 4 & nibble, b >> 4 & nibble}
}

func unpackQ4_0(dst *block, src []byte, _ int) {
	dst.d = halfAt(src)
	unpackNibbles(dst, src[2:18])
}

func unpackQ4_1(dst *block, src []byte, _ int) {
	dst.d, dst.m = halfAt(src), halfAt(src[2:])
	unpackNibbles(dst, src[4:20])
}

// fifthBits gives eight bytes of 16 or 0, for eight bits from the lowest on.
func fifthBits(b uint8) uint64 {
	x := uint64(b) * ones & 0x8040201008040201 // byte i keeps bit i
	return (x + 0x7f*ones) & (0x80 * ones) >> 3
}

func unpackQ5_0(dst *block, src []byte, _ int) {
	dst.d = halfAt(src)
	unpackNibbles(dst, src[6:22])
	for i := range dst.q {
		dst.q[i] = (dst.q[i] | fifthBits(src[2+i])) + (128-16)*ones
	}
}

func unpackQ5_1(dst *block, src []byte, _ int) {
	dst.d, dst.m = halfAt(src), halfAt(src[2:])
	unpackNibbles(dst, src[8:24])
	for i := range dst.q {
		dst.q[i] |= fifthBits(src[4+i])
	}
}

// scaleMin takes the 6-bit scale and minimum of sub-block j out of 12 bytes
// (get_scale_min_k4).
func scaleMin(s []byte, j int) (scale, minimum uint8) {
	if j < 4 {
		return s[j] & 63, s[j+4] & 63
	}
	return s[j+4]&15 | s[j-4]>>6<<4, s[j+4]>>4 | s[j]>>6<<4
}

func unpackQ4_K(dst *block, src []byte, sub int) {
	dst.d, dst.m = halfAt(src), halfAt(src[2:])^0x8000 // the minimum is subtracted
	dst.k[0], dst.k[1] = scaleMin(src[4:16], sub)
	qs := src[16+32*(sub/2):][:32]
	shift := 4 * (sub & 1)
	for i := range dst.q {
		dst.q[i] = word(qs[8*i:]) >> shift & nibble
	}
}

func unpackQ5_K(dst *block, src []byte, sub int) {
	dst.d, dst.m = halfAt(src), halfAt(src[2:])^0x8000
	dst.k[0], dst.k[1] = scaleMin(src[4:16], sub)
	high, qs := src[16:48], src[48+32*(sub/2):][:32]
	shift := 4 * (sub & 1)
	for i := range dst.q {
		dst.q[i] = word(qs[8*i:])>>shift&nibble | word(high[8*i:])>>sub&ones<<4
	}
}

func unpackQ6_K(dst *block, src []byte, sub int) {
	n, quarter := sub/4, sub%4 // 128 columns, and which 32 of them
	low := src[64*n+32*(quarter&1):][:32]
	high := src[128+32*n:][:32]
	scales := src[192+8*n+2*quarter:]
	dst.d = halfAt(src[208:])
	dst.k = [2]uint8{scales[0], scales[1]}
	lowShift, highShift := 4*(quarter/2), 2*quarter
	for i := range dst.q {
		dst.q[i] = (word(low[8*i:])>>lowShift&nibble | word(high[8*i:])>>highShift&(3*ones)<<4) + (128-32)*ones
	}
}
