package cpu

import "encoding/binary"

// The block types of GGUF (ggml-quants.c, dequantize_row_*), 32 columns at a
// time. Products of scales are exact in f32, so that d*q and d*q + m round as
// the reference's dequantisation does.

func half(b []byte) float32 { return f16to32(binary.LittleEndian.Uint16(b)) }

func unpackQ8_0(dst *block, src []byte, _ int) {
	dst.d[0] = half(src)
	for i, q := range src[2:34] {
		dst.q[i] = q ^ 0x80 // two's complement + 128
	}
}

func unpackNibbles(dst *block, qs []byte) {
	for i, q := range qs[:16] {
		dst.q[i] = q & 15
		dst.q[16+i] = q >> 4
	}
}

func unpackQ4_0(dst *block, src []byte, _ int) {
	dst.d[0] = half(src)
	unpackNibbles(dst, src[2:18])
}

func unpackQ4_1(dst *block, src []byte, _ int) {
	dst.d[0], dst.m = half(src), half(src[2:])
	unpackNibbles(dst, src[4:20])
}

func unpackQ5_0(dst *block, src []byte, _ int) {
	dst.d[0] = half(src)
	high := binary.LittleEndian.Uint32(src[2:])
	unpackNibbles(dst, src[6:22])
	for i := range dst.q {
		dst.q[i] = (dst.q[i] | uint8(high>>i&1)<<4) - 16 + 128
	}
}

func unpackQ5_1(dst *block, src []byte, _ int) {
	dst.d[0], dst.m = half(src), half(src[2:])
	high := binary.LittleEndian.Uint32(src[4:])
	unpackNibbles(dst, src[8:24])
	for i := range dst.q {
		dst.q[i] |= uint8(high>>i&1) << 4
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
	sc, mn := scaleMin(src[4:16], sub)
	dst.d[0] = half(src) * float32(sc)
	dst.m = -(half(src[2:]) * float32(mn))
	qs := src[16+32*(sub/2):]
	shift := 4 * (sub & 1)
	for i := range dst.q {
		dst.q[i] = qs[i] >> shift & 15
	}
}

func unpackQ5_K(dst *block, src []byte, sub int) {
	sc, mn := scaleMin(src[4:16], sub)
	dst.d[0] = half(src) * float32(sc)
	dst.m = -(half(src[2:]) * float32(mn))
	high, qs := src[16:48], src[48+32*(sub/2):]
	shift := 4 * (sub & 1)
	for i := range dst.q {
		dst.q[i] = qs[i]>>shift&15 | high[i]>>sub&1<<4
	}
}

func unpackQ6_K(dst *block, src []byte, sub int) {
	n, quarter := sub/4, sub%4 // 128 columns, and which 32 of them
	low := src[64*n+32*(quarter&1):]
	high := src[128+32*n:]
	scales := src[192+8*n+2*quarter:]
	d := half(src[208:])
	dst.d[0] = d * float32(int8(scales[0]))
	dst.d[1] = d * float32(int8(scales[1]))
	lowShift, highShift := 4*(quarter/2), 2*quarter
	for i := range dst.q {
		dst.q[i] = (low[i]>>lowShift&15 | high[i]>>highShift&3<<4) - 32 + 128
	}
}
