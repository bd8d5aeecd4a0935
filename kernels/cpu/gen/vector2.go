package main

import (
	"fmt"
	"math"
)

// The constants of the exponential as whole vectors in memory: with 16
// registers there is no room for them.
const (
	expLog2 = iota
	expMagic
	expLnHi
	expLnLo
	expC7
	expC6
	expC5
	expC4
	expC3
	expC2
	expOne
	expLeast
	expMost
	expInf
	expBias
	expCount
)

func constant2(i int) string { return fmt.Sprintf("exp2<>+%d(SB)", 32*i) }

// table2 writes the constants, 0 to 7 and 127 as integers among them.
func table2(w *writer) {
	fmt.Fprintln(w)
	word := func(at int, v uint32) { fmt.Fprintf(w, "DATA exp2<>+%d(SB)/4, $0x%08x\n", at, v) }
	for i, c := range expConstants {
		for lane := range 8 {
			word(32*i+4*lane, bits(c.value))
		}
	}
	for lane := range 8 {
		word(32*expBias+4*lane, 127)
	}
	for lane := range 8 {
		word(32*expCount+4*lane, uint32(lane))
	}
	fmt.Fprintf(w, "GLOBL exp2<>(SB), RODATA|NOPTR, $%d\n", 32*(expCount+1))
}

// exp2 makes Yx its exponential; Yn, Yr, Ylow and Yhigh are lost.
func exp2(w *writer, x, n, r, low, high int) {
	c := constant2
	w.p("VCMPPS $1, %s, Y%d, Y%d", c(expLeast), x, low)
	w.p("VCMPPS $14, %s, Y%d, Y%d", c(expMost), x, high)
	w.p("VMOVUPS %s, Y%d", c(expMagic), n)
	w.p("VFMADD231PS %s, Y%d, Y%d", c(expLog2), x, n)
	w.p("VSUBPS %s, Y%d, Y%d", c(expMagic), n, n)
	w.p("VMOVAPS Y%d, Y%d", x, r)
	w.p("VFMADD231PS %s, Y%d, Y%d", c(expLnHi), n, r)
	w.p("VFMADD231PS %s, Y%d, Y%d", c(expLnLo), n, r)
	w.p("VMOVUPS %s, Y%d", c(expC7), x)
	for i := expC6; i <= expOne; i++ {
		w.p("VFMADD213PS %s, Y%d, Y%d", c(i), r, x)
	}
	w.p("VFMADD213PS %s, Y%d, Y%d", c(expOne), r, x)
	w.p("VCVTPS2DQ Y%d, Y%d", n, n)
	w.p("VPADDD %s, Y%d, Y%d", c(expBias), n, n)
	w.p("VPSLLD $23, Y%d, Y%d", n, n)
	w.p("VMULPS Y%d, Y%d, Y%d", n, x, x)
	w.p("VBLENDVPS Y%d, %s, Y%d, Y%d", high, c(expInf), x, x)
	w.p("VANDNPS Y%d, Y%d, Y%d", x, low, x)
}

// reduce2 folds the 16 lanes of Ya and Yb into lane 0 of Xa; Yb is lost.
func reduce2(w *writer, op string, a, b int) {
	w.p("%s Y%d, Y%d, Y%d", op, b, a, a)
	w.p("VEXTRACTF128 $1, Y%d, X%d", a, b)
	w.p("%s X%d, X%d, X%d", op, b, a, a)
	w.p("VPSHUFD $0x4e, X%d, X%d", a, b)
	w.p("%s X%d, X%d, X%d", op, b, a, a)
	w.p("VPSHUFD $0xb1, X%d, X%d", a, b)
	w.p("%s X%d, X%d, X%d", op, b, a, a)
}

// vectorAVX2 writes the vector operations for lengths in sixteens, n of them.
func vectorAVX2(w *writer) {
	table2(w)
	quantise2(w)
	rest(w, "rest2", "Y", 32)
	loop := func(name string, registers []string, body func(at int)) {
		w.label(name)
		for h := range 2 {
			body(32 * h)
		}
		for _, r := range registers {
			w.p("ADDQ $64, %s", r)
		}
		w.p("DECQ CX")
		w.p("JNZ %s", name)
	}
	done := func() {
		w.p("VZEROUPPER")
		w.p("RET")
	}

	w.text("add2", "(dst, src *float32, n int)", 24)
	w.p("MOVQ dst+0(FP), DI")
	w.p("MOVQ src+8(FP), SI")
	w.p("MOVQ n+16(FP), CX")
	loop("add", []string{"DI", "SI"}, func(at int) {
		w.p("VMOVUPS %d(DI), Y0", at)
		w.p("VADDPS %d(SI), Y0, Y0", at)
		w.p("VMOVUPS Y0, %d(DI)", at)
	})
	done()

	w.text("norm2", "(dst, x, w *float32, n int, eps float32)", 36)
	w.p("MOVQ x+8(FP), SI")
	w.p("MOVQ n+24(FP), CX")
	w.p("VXORPS Y0, Y0, Y0")
	w.p("VXORPS Y1, Y1, Y1")
	loop("square", []string{"SI"}, func(at int) {
		w.p("VMOVUPS %d(SI), Y2", at)
		w.p("VFMADD231PS Y2, Y2, Y%d", at/32)
	})
	reduce2(w, "VADDPS", 0, 1)
	w.p("MOVQ n+24(FP), CX")
	w.p("SHLQ $4, CX")
	w.p("VCVTSI2SSQ CX, X1, X1")
	w.p("VDIVSS X1, X0, X0")
	w.p("VADDSS eps+32(FP), X0, X0")
	w.p("VSQRTSS X0, X0, X0")
	w.p("VMOVSS %s, X1", constant2(expOne))
	w.p("VDIVSS X0, X1, X0")
	w.p("VBROADCASTSS X0, Y0")
	w.p("MOVQ dst+0(FP), DI")
	w.p("MOVQ x+8(FP), SI")
	w.p("MOVQ w+16(FP), R9")
	w.p("MOVQ n+24(FP), CX")
	loop("scale", []string{"DI", "SI", "R9"}, func(at int) {
		w.p("VMULPS %d(SI), Y0, Y1", at)
		w.p("VMULPS %d(R9), Y1, Y1", at)
		w.p("VMOVUPS Y1, %d(DI)", at)
	})
	done()

	w.text("siluMul2", "(dst, gate, up *float32, n int)", 32)
	w.p("MOVQ dst+0(FP), DI")
	w.p("MOVQ gate+8(FP), SI")
	w.p("MOVQ up+16(FP), R9")
	w.p("MOVQ n+24(FP), CX")
	w.p("VPCMPEQD Y8, Y8, Y8")
	w.p("VPSLLD $31, Y8, Y8")
	loop("silu", []string{"DI", "SI", "R9"}, func(at int) {
		w.p("VMOVUPS %d(SI), Y0", at)
		w.p("VXORPS Y8, Y0, Y1")
		exp2(w, 1, 2, 3, 4, 5)
		w.p("VADDPS %s, Y1, Y1", constant2(expOne))
		w.p("VDIVPS Y1, Y0, Y0")
		w.p("VMULPS %d(R9), Y0, Y0", at)
		w.p("VMOVUPS Y0, %d(DI)", at)
	})
	done()

	// n counts eights here.
	w.text("ropeNeoX2", "(x, table *float32, n int)", 24)
	w.p("MOVQ x+0(FP), DI")
	w.p("MOVQ table+8(FP), SI")
	w.p("MOVQ n+16(FP), CX")
	w.p("MOVQ CX, DX")
	w.p("SHLQ $5, DX")
	w.label("rope")
	w.p("VMOVUPS (DI), Y0")
	w.p("VMOVUPS (DI)(DX*1), Y1")
	w.p("VMOVUPS (SI), Y2")
	w.p("VMOVUPS (SI)(DX*1), Y3")
	w.p("VMULPS Y2, Y0, Y4")
	w.p("VMULPS Y3, Y1, Y5")
	w.p("VMULPS Y3, Y0, Y6")
	w.p("VMULPS Y2, Y1, Y7")
	w.p("VSUBPS Y5, Y4, Y4")
	w.p("VADDPS Y7, Y6, Y6")
	w.p("VMOVUPS Y4, (DI)")
	w.p("VMOVUPS Y6, (DI)(DX*1)")
	w.p("ADDQ $32, DI")
	w.p("ADDQ $32, SI")
	w.p("DECQ CX")
	w.p("JNZ rope")
	done()

	// n counts fours of neighbouring pairs.
	w.text("ropePairs2", "(x, table *float32, n int)", 24)
	w.p("MOVQ x+0(FP), DI")
	w.p("MOVQ table+8(FP), SI")
	w.p("MOVQ n+16(FP), CX")
	w.p("MOVQ CX, DX")
	w.p("SHLQ $4, DX")
	w.label("pairs")
	w.p("VMOVUPS (DI), Y0")
	w.p("VPMOVZXDQ (SI), Y1")
	w.p("VMOVSLDUP Y1, Y1")
	w.p("VPMOVZXDQ (SI)(DX*1), Y2")
	w.p("VMOVSLDUP Y2, Y2")
	w.p("VPERMILPS $0xb1, Y0, Y3")
	w.p("VMULPS Y1, Y0, Y0")
	w.p("VMULPS Y2, Y3, Y3")
	w.p("VADDSUBPS Y3, Y0, Y0")
	w.p("VMOVUPS Y0, (DI)")
	w.p("ADDQ $32, DI")
	w.p("ADDQ $16, SI")
	w.p("DECQ CX")
	w.p("JNZ pairs")
	done()

	w.text("half2", "(dst *uint16, x *float32, n int)", 24)
	w.p("MOVQ dst+0(FP), DI")
	w.p("MOVQ x+8(FP), SI")
	w.p("MOVQ n+16(FP), CX")
	w.label("half")
	for h := range 2 {
		w.p("VMOVUPS %d(SI), Y0", 32*h)
		w.p("VCVTPS2PH $0, Y0, %d(DI)", 16*h)
	}
	w.p("ADDQ $64, SI")
	w.p("ADDQ $32, DI")
	w.p("DECQ CX")
	w.p("JNZ half")
	done()
}

func quantise2(w *writer) {
	w.text("quantise2", "(dst *qrecord, stride int, x *float32, blocks int)", 32)
	w.p("MOVQ dst+0(FP), DI")
	w.p("MOVQ stride+8(FP), DX")
	w.p("MOVQ x+16(FP), SI")
	w.p("MOVQ blocks+24(FP), CX")
	w.p("VPCMPEQD Y15, Y15, Y15")
	w.p("VPSRLD $1, Y15, Y15")
	w.p("MOVL $0x%08x, AX", bits(127))
	w.p("VMOVD AX, X14")
	w.p("MOVL $0x%08x, AX", bits(math.Ldexp(1, -100)))
	w.p("VMOVD AX, X13")
	w.label("block")
	for i := range 4 {
		w.p("VMOVUPS %d(SI), Y%d", 32*i, i)
		w.p("VPAND Y15, Y%d, Y%d", i, 4+i)
	}
	w.p("VPMAXUD Y5, Y4, Y4")
	w.p("VPMAXUD Y7, Y6, Y6")
	reduce2(w, "VPMAXUD", 4, 6)
	w.p("VPCMPGTD X4, X13, X12")
	w.p("VPMAXUD X13, X4, X4")
	w.p("VDIVSS X4, X14, X5")
	w.p("VDIVSS X14, X4, X6")
	w.p("VPANDN X6, X12, X6") // the scale, 0 of a block that counts as zero
	w.p("VBROADCASTSS X5, Y5")
	for i := range 4 {
		w.p("VMULPS Y5, Y%d, Y%d", i, i)
		w.p("VCMPPS $7, Y%d, Y%d, Y7", i, i)
		w.p("VCVTPS2DQ Y%d, Y%d", i, i)
		w.p("VPAND Y7, Y%d, Y%d", i, i)
	}
	w.p("VPADDD Y1, Y0, Y8")
	w.p("VPADDD Y3, Y2, Y9")
	for i := range 2 {
		w.p("VEXTRACTI128 $1, Y%d, X10", 8+i)
		w.p("VPADDD X10, X%d, X%d", 8+i, 8+i)
		w.p("VEXTRACTI128 $1, Y%d, X10", 2*i)
		w.p("VEXTRACTI128 $1, Y%d, X11", 2*i+1)
		w.p("VPACKSSDW X10, X%d, X10", 2*i)
		w.p("VPACKSSDW X11, X%d, X11", 2*i+1)
		w.p("VPACKSSWB X11, X10, X10")
		w.p("VMOVDQU X10, %d(DI)", 16*i)
	}
	w.p("VPHADDD X9, X8, X8")
	w.p("VPHADDD X8, X8, X8")    // sum of q[:16], sum of q[16:], both again
	w.p("VPSHUFD $0xb1, X8, X9") // the other way round
	w.p("VPADDD X8, X9, X10")    // sum of q
	w.p("VCVTDQ2PS X10, X11")
	w.p("VMULSS X6, X11, X11")
	w.p("VMOVSS X6, %d(DI)", recScale)
	w.p("VMOVSS X11, %d(DI)", recSum)
	w.p("VMOVD X10, AX")
	w.p("NEGL AX")
	w.p("SHLL $7, AX")
	w.p("MOVL AX, %d(DI)", recCorr)
	w.p("VMOVD X9, AX")
	w.p("NEGL AX")
	w.p("SHLL $7, AX")
	w.p("MOVL AX, %d(DI)", recCorrHi)
	w.p("ADDQ $128, SI")
	w.p("ADDQ DX, DI")
	w.p("DECQ CX")
	w.p("JNZ block")
	w.p("VZEROUPPER")
	w.p("RET")
}
