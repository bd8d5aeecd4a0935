package main

import "fmt"

func attentionAVX2(w *writer) {
	table2(w)
	scores2(w)
	softmax2(w)
	for _, s := range [][2]int{{1, 8}, {1, 2}, {4, 2}} {
		values2(w, s[0], s[1])
	}
}

// scores2: as scores512, for four queries against one group of keys after the
// other.
func scores2(w *writer) {
	w.text("scores2x4", "(score, q *float32, k *uint16, dim, groups int)", 40)
	w.p("MOVQ score+0(FP), DI")
	w.p("MOVQ k+16(FP), SI")
	w.p("MOVQ dim+24(FP), DX")
	w.p("MOVQ groups+32(FP), R11")
	w.label("groups")
	w.p("MOVQ q+8(FP), R9")
	w.p("MOVQ DX, CX")
	for i := range 8 {
		w.p("VXORPS Y%d, Y%d, Y%d", i, i, i)
	}
	w.label("dim")
	w.p("VCVTPH2PS (SI), Y8")
	w.p("VCVTPH2PS 16(SI), Y9")
	for t := range 4 {
		w.p("VBROADCASTSS %d(R9), Y%d", 4*t, 10+t)
		w.p("VFMADD231PS Y%d, Y8, Y%d", 10+t, 2*t)
		w.p("VFMADD231PS Y%d, Y9, Y%d", 10+t, 2*t+1)
	}
	w.p("ADDQ $32, SI")
	w.p("ADDQ $64, R9")
	w.p("DECQ CX")
	w.p("JNZ dim")
	for t := range 4 {
		w.p("VMOVUPS Y%d, %d(DI)", 2*t, 256*t)
		w.p("VMOVUPS Y%d, %d(DI)", 2*t+1, 256*t+32)
	}
	w.p("ADDQ $64, DI")
	w.p("DECQ R11")
	w.p("JNZ groups")
	w.p("VZEROUPPER")
	w.p("RET")
}

// softmax2: as softmax512. Y8 the old maximum, Y9 the new one, Y10 the count,
// Y11 and Y12 the sums.
func softmax2(w *writer) {
	w.text("softmax2", "(score *float32, state *softmax, n int) (rescale float32)", 28)
	w.p("MOVQ score+0(FP), DI")
	w.p("MOVQ state+8(FP), SI")
	w.p("MOVQ n+16(FP), CX")
	w.p("VBROADCASTSS (SI), Y8")
	w.p("VMOVAPS Y8, Y9")
	mask := func(i int) { // Y7: lanes of vector i below n
		w.p("LEAQ %d(CX), BX", -8*i)
		w.p("VMOVD BX, X7")
		w.p("VPBROADCASTD X7, Y7")
		w.p("VPCMPGTD %s, Y7, Y7", constant2(expCount))
	}
	for i := range 8 {
		mask(i)
		w.p("VMOVUPS %d(DI), Y0", 32*i)
		w.p("VMAXPS Y9, Y0, Y0") // a NaN score leaves the maximum
		w.p("VBLENDVPS Y7, Y0, Y9, Y9")
	}
	w.p("VMOVAPS Y9, Y0")
	reduce2(w, "VMAXPS", 9, 0)
	w.p("VBROADCASTSS X9, Y9")
	w.p("VXORPS Y11, Y11, Y11")
	w.p("VXORPS Y12, Y12, Y12")
	for i := range 8 {
		w.p("VMOVUPS %d(DI), Y0", 32*i)
		w.p("VSUBPS Y9, Y0, Y0")
		exp2(w, 0, 1, 2, 3, 4)
		mask(i)
		w.p("VANDPS Y7, Y0, Y0")
		w.p("VMOVUPS Y0, %d(DI)", 32*i)
		w.p("VADDPS Y0, Y%d, Y%d", 11+i%2, 11+i%2)
	}
	reduce2(w, "VADDPS", 11, 12)
	w.p("VSUBPS Y9, Y8, Y8")
	exp2(w, 8, 1, 2, 3, 4)
	w.p("VMOVSS 4(SI), X1")
	w.p("VFMADD213SS X11, X8, X1") // sum*rescale + new
	w.p("VMOVSS X9, (SI)")
	w.p("VMOVSS X1, 4(SI)")
	w.p("VMOVSS X8, rescale+24(FP)")
	w.p("VZEROUPPER")
	w.p("RET")
}

// values2: as values512, for 8*columns dimensions.
func values2(w *writer, queries, columns int) {
	w.text(fmt.Sprintf("values2x%dx%d", queries, columns), "(out *float32, outStride int, p, rescale *float32, v *uint16, vStride, n int)", 56)
	w.p("MOVQ out+0(FP), DI")
	w.p("MOVQ outStride+8(FP), DX")
	w.p("MOVQ p+16(FP), R8")
	w.p("MOVQ rescale+24(FP), R9")
	w.p("MOVQ v+32(FP), SI")
	w.p("MOVQ vStride+40(FP), R10")
	w.p("MOVQ n+48(FP), CX")
	w.p("MOVQ DI, R11")
	for q := range queries {
		w.p("VBROADCASTSS %d(R9), Y15", 4*q)
		for c := range columns {
			w.p("VMULPS %d(R11), Y15, Y%d", 32*c, columns*q+c)
		}
		w.p("ADDQ DX, R11")
	}
	w.label("keys")
	if queries == 1 {
		w.p("VBROADCASTSS (R8), Y15")
		for c := range columns {
			w.p("VCVTPH2PS %d(SI), Y%d", 16*c, 8+c%4)
			w.p("VFMADD231PS Y15, Y%d, Y%d", 8+c%4, c)
		}
	} else {
		for c := range columns {
			w.p("VCVTPH2PS %d(SI), Y%d", 16*c, 8+c)
		}
		for q := range queries {
			w.p("VBROADCASTSS %d(R8), Y%d", 256*q, 12+q)
			for c := range columns {
				w.p("VFMADD231PS Y%d, Y%d, Y%d", 12+q, 8+c, columns*q+c)
			}
		}
	}
	w.p("ADDQ R10, SI")
	w.p("ADDQ $4, R8")
	w.p("DECQ CX")
	w.p("JNZ keys")
	w.p("MOVQ DI, R11")
	for q := range queries {
		for c := range columns {
			w.p("VMOVUPS Y%d, %d(R11)", columns*q+c, 32*c)
		}
		w.p("ADDQ DX, R11")
	}
	w.p("VZEROUPPER")
	w.p("RET")
}
