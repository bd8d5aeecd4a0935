package main

import "fmt"

// gemmAVX2 writes the kernels of AVX2 for 1, 2 and 4 tokens. A register holds 8
// rows, so that a group passes twice; the second time it comes from the cache.
func gemmAVX2(w *writer) {
	for _, f := range formats {
		quantised2(w, f)
	}
	for _, f := range []string{"F32", "F16", "BF16"} {
		for _, tokens := range []int{1, 2, 4} {
			gemmFloat2(w, f, tokens)
		}
	}
}

// gemmAVXVNNI writes those of quantised formats once more, with VPDPBUSD.
func gemmAVXVNNI(w *writer) {
	for _, f := range formats {
		f.vnni = true
		quantised2(w, f)
	}
}

func quantised2(w *writer, f format) {
	for _, tokens := range []int{1, 2, 4} {
		gemmQuantised2(w, f, tokens)
	}
	outliersAVX2(w, f)
}

// family2 is the middle of a kernel's name.
func (f format) family2() string {
	if f.vnni {
		return "2VNNI"
	}
	return "2"
}

// dot2 is VPDPBUSD with 256 bits and Go's order of operands, in the encoding of
// AVX-VNNI (VEX.256.66.0F38.W0 50 /r), which Go's assembler does not have: it
// would write that of AVX-512. signed and unsigned are groups of four bytes.
func dot2(w *writer, signed, unsigned, to int) {
	rex := 0xe2 // inverted R, X, B, and the opcode map
	if to >= 8 {
		rex &^= 0x80
	}
	if signed >= 8 {
		rex &^= 0x20
	}
	w.p("BYTE $0xc4; BYTE $0x%02x; BYTE $0x%02x; BYTE $0x50; BYTE $0x%02x // VPDPBUSD Y%d, Y%d, Y%d",
		rex, (^unsigned&15)<<3|5, 0xc0|to&7<<3|signed&7, signed, unsigned, to)
}

// gemmQuantised2: Y0-Y3 sums of the tokens, Y4-Y7 sums of the block, Y8 weights
// and Y9 their magnitudes, Y10 and Y14 free, Y11 scale, Y12 minimum, Y13 the
// nibble mask or the sign bits, Y15 ones.
func gemmQuantised2(w *writer, f format, tokens int) {
	w.text(fmt.Sprintf("gemm%s%sx%d", f.family2(), f.name, tokens), "(a *gemmArgs)", 8)
	gemmPrologue(w)
	constants2(w, f, "BX")
	w.label("group")
	for h := range 2 {
		w.p("MOVQ %d(AX), R9", argX)
		w.p("MOVQ %d(AX), CX", argBlocks)
		for t := range tokens {
			w.p("VXORPS Y%d, Y%d, Y%d", t, t, t)
		}
		w.label(fmt.Sprintf("block%d", h))
		if h == 0 {
			fetch, ahead := prefetch(tokens)
			for j := range f.lines() {
				w.p("%s %d(SI)", fetch, ahead+64*j)
			}
		}
		block2(w, f, tokens, h)
		w.p("ADDQ $%d, SI", 64*f.lines())
		nextBlock(w, f, fmt.Sprintf("block%d", h))
		store2(w, tokens, h)
		if h == 0 { // back to where the group began
			w.p("MOVQ %d(AX), BX", argBlocks)
			w.p("IMUL3Q $%d, BX, R13", 64*f.lines())
			w.p("SUBQ R13, SI")
			w.p("IMUL3Q $%d, BX, R13", scaleBytes)
			w.p("SUBQ R13, R8")
			if n := f.minimumBytes(); n > 0 {
				if f.super {
					n >>= superShift
				}
				w.p("IMUL3Q $%d, BX, R13", n)
				w.p("SUBQ R13, R10")
			}
		}
	}
	w.p("ADDQ $64, DI")
	w.p("DECQ R11")
	w.p("JNZ group")
	w.p("VZEROUPPER")
	w.p("RET")
}

// constants2 sets Y13 and Y15, by way of a general register.
func constants2(w *writer, f format, by string) {
	broadcast := func(value uint32, y int) {
		w.p("MOVL $0x%08x, %s", value, by)
		w.p("VMOVD %s, X%d", by, y)
		w.p("VPBROADCASTD X%d, Y%d", y, y)
	}
	broadcast(0x00010001, 15)
	if f.nibbles {
		broadcast(0x0f0f0f0f, 13)
	} else {
		broadcast(0x80808080, 13)
	}
}

// block2 adds the products of one block, rows 8h to 8h+7 of the group.
func block2(w *writer, f format, tokens, h int) {
	parts := [][]int{{0, 1, 2, 3, 4, 5, 6, 7}}
	if f.half {
		parts = [][]int{{0, 1, 2, 3}, {4, 5, 6, 7}}
	}
	for i, columns := range parts {
		start2(w, f, tokens, i)
		switch {
		case f.vnni:
			dots2(w, f, tokens, h, columns)
		case f.nibbles:
			nibbles2(w, tokens, h)
		default:
			bytes2(w, f, tokens, h, columns)
		}
		finish2(w, f, tokens, h, i)
	}
}

// start2 sets the block's sums so that the weights' offset cancels; without
// VPDPBUSD only nibbles have one, and bytes are made signed.
func start2(w *writer, f format, tokens, part int) {
	for t := range tokens {
		corr, high := recBytes*t+recCorr, recBytes*t+recCorrHi
		switch {
		case f.nibbles && f.offset:
			w.p("VPBROADCASTD %d(R9), Y%d", corr, 4+t)
			w.p("VPSRAD $4, Y%d, Y%d", 4+t, 4+t)
		case f.vnni && f.half && part == 0:
			w.p("VPBROADCASTD %d(R9), Y%d", corr, 4+t)
			w.p("VPBROADCASTD %d(R9), Y10", high)
			w.p("VPSUBD Y10, Y%d, Y%d", 4+t, 4+t)
		case f.vnni && f.half:
			w.p("VPBROADCASTD %d(R9), Y%d", high, 4+t)
		case f.vnni && f.offset:
			w.p("VPBROADCASTD %d(R9), Y%d", corr, 4+t)
		default:
			w.p("VPXOR Y%d, Y%d, Y%d", 4+t, 4+t, 4+t)
		}
	}
}

// bytes2 multiplies magnitudes with activations that took the weights' signs:
// 128*127*2 is the most that a pair comes to, which 16 bits hold, while
// unsigned weights as they are would overflow.
func bytes2(w *writer, f format, tokens, h int, columns []int) {
	for _, j := range columns {
		w.p("VMOVDQU %d(SI), Y8", 64*j+32*h)
		magnitude := 8
		if f.offset {
			magnitude = 9
			w.p("VPXOR Y13, Y8, Y8")
			w.p("VPABSB Y8, Y9")
		}
		for t := range tokens {
			w.p("VPBROADCASTD %d(R9), Y10", recBytes*t+4*j)
			if f.offset {
				w.p("VPSIGNB Y8, Y10, Y10")
			}
			w.p("VPMADDUBSW Y10, Y%d, Y10", magnitude)
			w.p("VPMADDWD Y15, Y10, Y10")
			w.p("VPADDD Y10, Y%d, Y%d", 4+t, 4+t)
		}
	}
}

// nibbles2 leaves the sums of four columns low and high, 4*15*127 at most, in
// 16 bits before it widens them.
func nibbles2(w *writer, tokens, h int) {
	for j := range 4 {
		w.p("VMOVDQU %d(SI), Y8", 64*j+32*h)
		w.p("VPSRLW $4, Y8, Y9")
		w.p("VPAND Y13, Y8, Y8")
		w.p("VPAND Y13, Y9, Y9")
		for t := range tokens {
			w.p("VPBROADCASTD %d(R9), Y10", recBytes*t+4*j)
			w.p("VPMADDUBSW Y10, Y8, Y10")
			w.p("VPBROADCASTD %d(R9), Y14", recBytes*t+16+4*j)
			w.p("VPMADDUBSW Y14, Y9, Y14")
			w.p("VPADDW Y14, Y10, Y10")
			w.p("VPMADDWD Y15, Y10, Y10")
			w.p("VPADDD Y10, Y%d, Y%d", 4+t, 4+t)
		}
	}
}

// dots2 is bytes2 and nibbles2 with VPDPBUSD.
func dots2(w *writer, f format, tokens, h int, columns []int) {
	dot := func(j, weights int) {
		for t := range tokens {
			w.p("VPBROADCASTD %d(R9), Y10", recBytes*t+4*j)
			dot2(w, 10, weights, 4+t)
		}
	}
	if !f.nibbles {
		for _, j := range columns {
			w.p("VMOVDQU %d(SI), Y8", 64*j+32*h)
			dot(j, 8)
		}
		return
	}
	for j := range 4 {
		w.p("VMOVDQU %d(SI), Y8", 64*j+32*h)
		w.p("VPSRLW $4, Y8, Y9")
		w.p("VPAND Y13, Y8, Y8")
		w.p("VPAND Y13, Y9, Y9")
		dot(j, 8)
		dot(4+j, 9)
	}
}

func finish2(w *writer, f format, tokens, h, part int) {
	// integer loads one of the block's integers, times a scale of eight blocks.
	integer := func(load string, at, scale, to int) {
		w.p("%s %d(R8), Y%d", load, 16*at+8*h, to)
		w.p("VCVTDQ2PS Y%d, Y%d", to, to)
		w.p("VCVTPH2PS %d(R10), Y10", 32*scale+16*h)
		w.p("VMULPS Y10, Y%d, Y%d", to, to)
	}
	switch {
	case f.half:
		integer("VPMOVSXBD", part, 0, 11)
	case f.super:
		integer("VPMOVZXBD", 0, 0, 11)
		integer("VPMOVZXBD", 1, 1, 12)
	default:
		w.p("VCVTPH2PS %d(R8), Y11", scaleBytes/2*h)
		if f.minimum {
			w.p("VCVTPH2PS %d(R10), Y12", scaleBytes/2*h)
		}
	}
	for t := range tokens {
		w.p("VBROADCASTSS %d(R9), Y10", recBytes*t+recScale)
		w.p("VMULPS Y10, Y11, Y10")
		w.p("VCVTDQ2PS Y%d, Y%d", 4+t, 4+t)
		w.p("VFMADD231PS Y10, Y%d, Y%d", 4+t, t)
		if f.minimum {
			w.p("VBROADCASTSS %d(R9), Y10", recBytes*t+recSum)
			w.p("VFMADD231PS Y10, Y12, Y%d", t)
		}
	}
}

func store2(w *writer, tokens, h int) {
	w.p("MOVQ DI, R13")
	for t := range tokens {
		w.p("VMOVUPS Y%d, %d(R13)", t, 32*h)
		if t < tokens-1 {
			w.p("ADDQ DX, R13")
		}
	}
}

// gemmFloat2: Y0-Y3 sums of the tokens, Y4-Y7 those of the block, Y8-Y11 four
// columns of weights, Y12 an activation.
func gemmFloat2(w *writer, f string, tokens int) {
	w.text(fmt.Sprintf("gemm2%sx%d", f, tokens), "(a *gemmArgs)", 8)
	gemmPrologue(w)
	bytes := 32
	if f == "F32" {
		bytes = 64
	}
	w.label("group")
	for h := range 2 {
		w.p("MOVQ %d(AX), R9", argX)
		w.p("MOVQ %d(AX), CX", argBlocks)
		for t := range tokens {
			w.p("VXORPS Y%d, Y%d, Y%d", t, t, t)
		}
		w.label(fmt.Sprintf("block%d", h))
		for t := range tokens {
			w.p("VXORPS Y%d, Y%d, Y%d", 4+t, 4+t, 4+t)
		}
		w.p("MOVQ R9, R13")
		w.p("MOVQ $8, BX")
		w.label(fmt.Sprintf("columns%d", h))
		if h == 0 {
			fetch, ahead := prefetch(tokens)
			for j := 0; j < 4*bytes; j += 64 {
				w.p("%s %d(SI)", fetch, ahead+j)
			}
		}
		for k := range 4 {
			at := bytes*k + bytes/2*h
			switch f {
			case "F32":
				w.p("VMOVUPS %d(SI), Y%d", at, 8+k)
			case "F16":
				w.p("VCVTPH2PS %d(SI), Y%d", at, 8+k)
			case "BF16":
				w.p("VPMOVZXWD %d(SI), Y%d", at, 8+k)
				w.p("VPSLLD $16, Y%d, Y%d", 8+k, 8+k)
			}
			for t := range tokens {
				w.p("VBROADCASTSS %d(R13), Y12", 128*t+4*k)
				w.p("VFMADD231PS Y12, Y%d, Y%d", 8+k, 4+t)
			}
		}
		w.p("ADDQ $%d, SI", 4*bytes)
		w.p("ADDQ $16, R13")
		w.p("DECQ BX")
		w.p("JNZ columns%d", h)
		for t := range tokens {
			w.p("VADDPS Y%d, Y%d, Y%d", 4+t, t, t)
		}
		w.p("ADDQ R12, R9")
		w.p("DECQ CX")
		w.p("JNZ block%d", h)
		store2(w, tokens, h)
		if h == 0 {
			w.p("MOVQ %d(AX), BX", argBlocks)
			w.p("IMUL3Q $%d, BX, R13", 32*bytes)
			w.p("SUBQ R13, SI")
		}
	}
	w.p("ADDQ $64, DI")
	w.p("DECQ R11")
	w.p("JNZ group")
	w.p("VZEROUPPER")
	w.p("RET")
}
