package main

import "fmt"

func attention512(w *writer) {
	for _, queries := range []int{1, 4, 8, 16} {
		scores512(w, queries)
	}
	softmax512(w)
	for _, queries := range []int{1, 4} {
		for _, columns := range []int{4, 1} {
			values512(w, queries, columns)
		}
	}
	values512x16(w)
}

// scores512: score[query][key] = sum over d of q[d][query] * k[d][key], for the
// 64 keys of a page; keys come 16 beside each other. As many groups of keys run
// at a time as 16 registers of sums hold.
func scores512(w *writer, queries int) {
	w.text(fmt.Sprintf("scores512x%d", queries), "(score, q *float32, k *uint16, dim, groups int)", 40)
	// Groups are taken one, two or four at a time: a sum is a chain over d, and
	// few queries alone would wait for it.
	at := min(4, 16/queries)
	w.p("MOVQ score+0(FP), DI")
	w.p("MOVQ k+16(FP), SI")
	w.p("MOVQ dim+24(FP), DX")
	w.p("MOVQ groups+32(FP), R11")
	w.p("MOVQ DX, R12")
	w.p("SHLQ $5, R12") // bytes of a group of keys
	if at == 4 {
		w.p("LEAQ (R12)(R12*2), R13")
	}
	w.label("groups")
	w.p("MOVQ q+8(FP), R9")
	w.p("MOVQ DX, CX")
	for i := range queries * at {
		w.p("VPXORD Z%d, Z%d, Z%d", i, i, i)
	}
	w.label("dim")
	for g := range at {
		w.p("VCVTPH2PS %s, Z%d", []string{"(SI)", "(SI)(R12*1)", "(SI)(R12*2)", "(SI)(R13*1)"}[g], 16+g)
	}
	for t := range queries {
		if at == 1 {
			w.p("VFMADD231PS.BCST %d(R9), Z16, Z%d", 4*t, t)
			continue
		}
		w.p("VBROADCASTSS %d(R9), Z%d", 4*t, 20+t%8)
		for g := range at {
			w.p("VFMADD231PS Z%d, Z%d, Z%d", 20+t%8, 16+g, at*t+g)
		}
	}
	w.p("ADDQ $32, SI")
	w.p("ADDQ $64, R9")
	w.p("DECQ CX")
	w.p("JNZ dim")
	for t := range queries {
		for g := range at {
			w.p("VMOVUPS Z%d, %d(DI)", at*t+g, 256*t+64*g)
		}
	}
	if at < 4 {
		w.p("ADDQ $%d, DI", 64*at)
		if at == 2 {
			w.p("ADDQ R12, SI")
		}
		w.p("SUBQ $%d, R11", at)
		w.p("JG groups")
	}
	w.p("VZEROUPPER")
	w.p("RET")
}

// softmax512 takes n scores of a page into the state {most, sum}, leaves their
// exponentials (0 beyond n), and gives what older results are scaled by.
func softmax512(w *writer) {
	w.text("softmax512", "(score *float32, state *softmax, n int) (rescale float32)", 28)
	w.p("MOVQ score+0(FP), DI")
	w.p("MOVQ state+8(FP), SI")
	w.p("MOVQ n+16(FP), CX")
	loadExp512(w)
	w.p("MOVQ $-1, AX") // n low bits of 64: n is 1 to 64
	w.p("NEGQ CX")
	w.p("ADDQ $64, CX")
	w.p("SHRQ CX, AX")
	for i := range 4 {
		w.p("KMOVW AX, K%d", 1+i)
		w.p("SHRQ $16, AX")
	}
	w.p("VBROADCASTSS (SI), Z4")
	w.p("VMOVAPS Z4, Z5")
	for i := range 4 {
		w.p("VMOVUPS.Z %d(DI), K%d, Z%d", 64*i, 1+i, i)
		w.p("VMAXPS Z5, Z%d, K%d, Z5", i, 1+i) // a NaN score leaves the maximum
	}
	reduce512(w, "VMAXPS", 5, 6)
	w.p("VBROADCASTSS X5, Z5")
	for i := range 4 {
		w.p("VSUBPS Z5, Z%d, Z%d", i, i)
		exp512(w, i, 6, 7)
		w.p("VMOVAPS.Z Z%d, K%d, Z%d", i, 1+i, i)
		w.p("VMOVUPS Z%d, %d(DI)", i, 64*i)
	}
	for i := 1; i < 4; i++ {
		w.p("VADDPS Z%d, Z0, Z0", i)
	}
	reduce512(w, "VADDPS", 0, 1)
	w.p("VSUBPS Z5, Z4, Z4")
	exp512(w, 4, 6, 7)
	w.p("VMOVSS 4(SI), X1")
	w.p("VFMADD213SS X0, X4, X1") // sum*rescale + new
	w.p("VMOVSS X5, (SI)")
	w.p("VMOVSS X1, 4(SI)")
	w.p("VMOVSS X4, rescale+24(FP)")
	w.p("VZEROUPPER")
	w.p("RET")
}

// values512: out[query] = out[query]*rescale[query] + sum over n keys of
// p[query][key] * v[key], 16*columns dimensions.
func values512(w *writer, queries, columns int) {
	w.text(fmt.Sprintf("values512x%dx%d", queries, columns), "(out *float32, outStride int, p, rescale *float32, v *uint16, vStride, n int)", 56)
	w.p("MOVQ out+0(FP), DI")
	w.p("MOVQ outStride+8(FP), DX")
	w.p("MOVQ p+16(FP), R8")
	w.p("MOVQ rescale+24(FP), R9")
	w.p("MOVQ v+32(FP), SI")
	w.p("MOVQ vStride+40(FP), R10")
	w.p("MOVQ n+48(FP), CX")
	w.p("MOVQ DI, R11")
	for q := range queries {
		w.p("VBROADCASTSS %d(R9), Z20", 4*q)
		for c := range columns {
			w.p("VMULPS %d(R11), Z20, Z%d", 64*c, columns*q+c)
		}
		w.p("ADDQ DX, R11")
	}
	w.label("keys")
	for c := range columns {
		w.p("VCVTPH2PS %d(SI), Z%d", 32*c, 16+c)
	}
	for q := range queries {
		w.p("VBROADCASTSS %d(R8), Z%d", 256*q, 20+q)
		for c := range columns {
			w.p("VFMADD231PS Z%d, Z%d, Z%d", 20+q, 16+c, columns*q+c)
		}
	}
	w.p("ADDQ R10, SI")
	w.p("ADDQ $4, R8")
	w.p("DECQ CX")
	w.p("JNZ keys")
	w.p("MOVQ DI, R11")
	for q := range queries {
		for c := range columns {
			w.p("VMOVUPS Z%d, %d(R11)", columns*q+c, 64*c)
		}
		w.p("ADDQ DX, R11")
	}
	w.p("VZEROUPPER")
	w.p("RET")
}

// values512x16 is values512 for a whole tile, 16 dimensions: converting a value
// costs as much as two multiplications, and here sixteen share it.
func values512x16(w *writer) {
	const queries = 16
	w.text("values512x16", "(out *float32, outStride int, p, rescale *float32, v *uint16, vStride, n int)", 56)
	w.p("MOVQ out+0(FP), DI")
	w.p("MOVQ outStride+8(FP), DX")
	w.p("MOVQ p+16(FP), R8")
	w.p("MOVQ rescale+24(FP), R9")
	w.p("MOVQ v+32(FP), SI")
	w.p("MOVQ vStride+40(FP), R10")
	w.p("MOVQ n+48(FP), CX")
	w.p("MOVQ DI, R11")
	for q := range queries {
		w.p("VBROADCASTSS %d(R9), Z%d", 4*q, q)
		w.p("VMULPS (R11), Z%d, Z%d", q, q)
		w.p("ADDQ DX, R11")
	}
	w.label("keys")
	w.p("VCVTPH2PS (SI), Z16")
	for q := range queries {
		w.p("VFMADD231PS.BCST %d(R8), Z16, Z%d", 256*q, q)
	}
	w.p("ADDQ R10, SI")
	w.p("ADDQ $4, R8")
	w.p("DECQ CX")
	w.p("JNZ keys")
	w.p("MOVQ DI, R11")
	for q := range queries {
		w.p("VMOVUPS Z%d, (R11)", q)
		w.p("ADDQ DX, R11")
	}
	w.p("VZEROUPPER")
	w.p("RET")
}
