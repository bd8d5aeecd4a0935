package main

// repack512 writes the kernels that lay out one group of 16 rows of a GGUF type
// as package cpu's format says (format.go, unpack.go). A gather takes the same four
// bytes of all 16 rows, which is a line of weights, or nearly.
//
// DI, R8, R10 are the planes, SI the first row, CX counts blocks of the type, Z30
// is where the rows begin, Z24 to Z29 are masks.
func repack512(w *writer) {
	simple512(w, "Q8_0", 34, 8, false)
	simple512(w, "Q4_0", 18, 4, false)
	simple512(w, "Q4_1", 20, 4, true)
	repackQ4K512(w)
	repackQ6K512(w)
}

func repackBegin512(w *writer, name string) {
	w.text("repack512"+name, "(w, d, m, src *byte, rowBytes, blocks int)", 48)
	w.p("MOVQ w+0(FP), DI")
	w.p("MOVQ d+8(FP), R8")
	w.p("MOVQ m+16(FP), R10")
	w.p("MOVQ src+24(FP), SI")
	w.p("MOVQ rowBytes+32(FP), DX")
	w.p("MOVQ blocks+40(FP), CX")
	w.p("MOVQ $0x0706050403020100, AX")
	w.p("VMOVQ AX, X0")
	w.p("MOVQ $0x0f0e0d0c0b0a0908, AX")
	w.p("VPINSRQ $1, AX, X0, X0")
	w.p("VPMOVZXBD X0, Z30")
	w.p("VPBROADCASTD DX, Z31")
	w.p("VPMULLD Z31, Z30, Z30")
}

func repackEnd512(w *writer, bytes int) {
	w.p("ADDQ $%d, SI", bytes)
	w.p("DECQ CX")
	w.p("JNZ block")
	w.p("VZEROUPPER")
	w.p("RET")
}

func constant512(w *writer, value uint32, z int) {
	w.p("MOVL $0x%08x, AX", value)
	w.p("VPBROADCASTD AX, Z%d", z)
}

// gather512 loads four bytes of each row, at a place of its block.
func gather512(w *writer, at, z int) {
	w.p("KXNORW K1, K1, K1")
	w.p("VPGATHERDD %d(SI)(Z30*1), K1, Z%d", at, z)
}

// simple512 is the types whose bytes are moved as they are, but for a sign.
func simple512(w *writer, name string, bytes, lines int, minimum bool) {
	repackBegin512(w, name)
	constant512(w, 0x80808080, 29)
	w.label("block")
	gather512(w, 0, 0)
	w.p("VPMOVDW Z0, (R8)")
	w.p("ADDQ $32, R8")
	if minimum {
		w.p("VPSRLD $16, Z0, Z0")
		w.p("VPMOVDW Z0, (R10)")
		w.p("ADDQ $32, R10")
	}
	for j := range lines {
		gather512(w, bytes-4*lines+4*j, 1+j)
		if lines == 8 {
			w.p("VPXORD Z29, Z%d, Z%d", 1+j, 1+j)
		}
		w.p("VMOVDQU32 Z%d, %d(DI)", 1+j, 64*j)
	}
	w.p("ADDQ $%d, DI", 64*lines)
	repackEnd512(w, bytes)
}

// repackQ4K512: d, minimum, 12 bytes of 6-bit integers, 4 times 32 bytes that are the low
// and the high nibbles of two blocks.
func repackQ4K512(w *writer) {
	repackBegin512(w, "Q4_K")
	constant512(w, 0x0f0f0f0f, 29)
	constant512(w, 0x3f3f3f3f, 28)
	constant512(w, 0x03030303, 27)
	constant512(w, 0x80000000, 26)
	constant512(w, 0xf0f0f0f0, 25)
	w.label("block")
	gather512(w, 0, 0)
	w.p("VPMOVDW Z0, (R10)")
	w.p("VPXORD Z26, Z0, Z0") // the minimum is subtracted
	w.p("VPSRLD $16, Z0, Z0")
	w.p("VPMOVDW Z0, 32(R10)")
	for i := range 3 {
		gather512(w, 4+4*i, i)
	}
	// Z4, Z5 the eight scales, Z6, Z7 the eight minimums (get_scale_min_k4).
	w.p("VPANDD Z28, Z0, Z4")
	w.p("VPANDD Z28, Z1, Z6")
	for i, from := range []int{0, 1} {
		to := 5 + 2*i
		w.p("VPSRLD $6, Z%d, Z3", from)
		w.p("VPANDD Z27, Z3, Z3")
		w.p("VPSLLD $4, Z3, Z3")
		w.p("VPSRLD $%d, Z2, Z%d", 4*i, to)
		w.p("VPANDD Z29, Z%d, Z%d", to, to)
		w.p("VPORD Z3, Z%d, Z%d", to, to)
	}
	for b := range 8 {
		for i, z := range []int{4 + b/4, 6 + b/4} {
			w.p("VPMOVDB Z%d, %d(R8)", z, 32*b+16*i)
			w.p("VPSRLD $8, Z%d, Z%d", z, z)
		}
	}
	for pair := range 4 {
		for j := range 8 {
			gather512(w, 16+32*pair+4*j, j)
		}
		for j := range 4 {
			at := 512*pair + 64*j
			w.p("VPANDD Z29, Z%d, Z8", j)
			w.p("VPANDD Z29, Z%d, Z9", 4+j)
			w.p("VPSLLD $4, Z9, Z9")
			w.p("VPORD Z9, Z8, Z8")
			w.p("VMOVDQU32 Z8, %d(DI)", at)
			w.p("VPSRLD $4, Z%d, Z8", j)
			w.p("VPANDD Z29, Z8, Z8")
			w.p("VPANDD Z25, Z%d, Z9", 4+j)
			w.p("VPORD Z9, Z8, Z8")
			w.p("VMOVDQU32 Z8, %d(DI)", at+256)
		}
	}
	w.p("ADDQ $2048, DI")
	w.p("ADDQ $256, R8")
	w.p("ADDQ $64, R10")
	repackEnd512(w, 144)
}

// repackQ6K512: 128 bytes of low nibbles, 64 of two bits more, 16 scales, d.
func repackQ6K512(w *writer) {
	repackBegin512(w, "Q6_K")
	constant512(w, 0x0f0f0f0f, 29)
	constant512(w, 0x03030303, 28)
	constant512(w, 0x60606060, 27)
	w.label("block")
	gather512(w, 206, 0)
	w.p("VPSRLD $16, Z0, Z0")
	w.p("VPMOVDW Z0, (R10)")
	for i := range 4 {
		gather512(w, 192+4*i, 0)
		for b := range 2 {
			for half := range 2 {
				w.p("VPMOVDB Z0, %d(R8)", 64*i+32*b+16*half)
				w.p("VPSRLD $8, Z0, Z0")
			}
		}
	}
	for n := range 2 {
		for j := range 8 {
			gather512(w, 64*n+4*j, 0)
			gather512(w, 64*n+32+4*j, 1)
			gather512(w, 128+32*n+4*j, 2)
			for quarter := range 4 {
				from := quarter & 1
				if shift := 4 * (quarter / 2); shift > 0 {
					w.p("VPSRLD $%d, Z%d, Z3", shift, from)
					from = 3
				}
				w.p("VPANDD Z29, Z%d, Z3", from)
				w.p("VPSRLD $%d, Z2, Z4", 2*quarter)
				w.p("VPANDD Z28, Z4, Z4")
				w.p("VPSLLD $4, Z4, Z4")
				w.p("VPORD Z4, Z3, Z3")
				w.p("VPADDB Z27, Z3, Z3")
				w.p("VMOVDQU32 Z3, %d(DI)", 512*(4*n+quarter)+64*j)
			}
		}
	}
	w.p("ADDQ $4096, DI")
	w.p("ADDQ $256, R8")
	w.p("ADDQ $32, R10")
	repackEnd512(w, 210)
}
