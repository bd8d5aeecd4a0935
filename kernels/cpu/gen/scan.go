package main

import (
	"fmt"
	"math"
)

// The passes over a vocabulary of package sample, for counts of tokens in sixteens.

// cuts is package sample's scanCuts.
const cuts = 8

// The fields of sample.weighing.
const weighTop, weighInverse, weighSmallest, weighFloor = 0, 8, 16, 24

// weighConstants are those of package sample's weight.go, as f64 bits.
var weighConstants = []float64{
	-29, math.Log2E, 1<<52 + 1<<51 + 40, -math.Ln2, 1 << 52,
	1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
	1.0 / 120, 1.0 / 24, 1.0 / 6, 1.0 / 2, 1, 1,
}

// Places in weighConstants.
const (
	weighLeast = iota
	weighLog2e
	weighMagic
	weighLn2
	weighRound
	weighSeries
)

func scan512(w *writer) {
	most512(w)
	weigh512(w)
	above512(w)
	count512(w)
	mask512(w)
}

func most512(w *writer) {
	w.text("most512", "(logits *float32, n int) (most float32, bad uint32)", 24)
	w.p("MOVQ logits+0(FP), SI")
	w.p("MOVQ n+8(FP), CX")
	w.p("MOVL $0x%08x, AX", math.Float32bits(math.MaxFloat32))
	w.p("VPBROADCASTD AX, Z2")
	w.p("MOVL $0x%08x, AX", math.Float32bits(float32(math.Inf(-1))))
	w.p("VPBROADCASTD AX, Z0")
	w.p("KXNORW K1, K1, K1")
	w.label("tokens")
	w.p("VMOVUPS (SI), Z1")
	w.p("VCMPPS $2, Z2, Z1, K1, K1") // at most the largest float: not NaN either
	w.p("VMAXPS Z1, Z0, Z0")
	w.p("ADDQ $64, SI")
	w.p("SUBQ $16, CX")
	w.p("JNZ tokens")
	reduce512(w, "VMAXPS", 0, 1)
	w.p("VMOVSS X0, most+16(FP)")
	w.p("KNOTW K1, K1")
	w.p("KMOVW K1, AX")
	w.p("MOVL AX, bad+20(FP)")
	w.p("VZEROUPPER")
	w.p("RET")
}

// weigh512: Z0 x and then r, Z1 t, Z2 k, Z3 the weight, Z4 the sum, Z5 zero, Z6 top,
// Z7 inverse, Z8 the least weight, Y9 the floor, Z10 on the constants.
func weigh512(w *writer) {
	at := func(i int) string { return fmt.Sprintf("Z%d", 10+i) }
	w.text("weigh512", "(weights *uint64, logits *float32, n int, p *weighing) (sum uint64)", 40)
	w.p("MOVQ weights+0(FP), DI")
	w.p("MOVQ logits+8(FP), SI")
	w.p("MOVQ n+16(FP), CX")
	w.p("MOVQ p+24(FP), AX")
	w.p("VPXORQ Z4, Z4, Z4")
	w.p("VPXORQ Z5, Z5, Z5")
	w.p("VBROADCASTSD %d(AX), Z6", weighTop)
	w.p("VBROADCASTSD %d(AX), Z7", weighInverse)
	w.p("VPBROADCASTQ %d(AX), Z8", weighSmallest)
	w.p("VBROADCASTSS %d(AX), Y9", weighFloor)
	for i, c := range weighConstants {
		w.p("MOVQ $0x%016x, AX", math.Float64bits(c))
		w.p("VPBROADCASTQ AX, %s", at(i))
	}
	w.label("tokens")
	w.p("VMOVUPS (SI), Y0")
	w.p("VCMPPS $13, Y9, Y0, K1") // not below the floor
	w.p("KORTESTB K1, K1")
	w.p("JZ none")
	w.p("VCVTPS2PD Y0, Z0")
	w.p("VSUBPD Z6, Z0, Z0")
	w.p("VMULPD Z7, Z0, Z0")
	w.p("VCMPPD $13, %s, Z0, K1, K1", at(weighLeast))
	w.p("VMOVAPD %s, Z1", at(weighMagic))
	w.p("VFMADD231PD %s, Z0, Z1", at(weighLog2e))
	w.p("VSUBPD %s, Z1, Z2", at(weighMagic))
	w.p("VFMADD231PD %s, Z2, Z0", at(weighLn2))
	w.p("VMOVAPD %s, Z3", at(weighSeries))
	for i := weighSeries + 1; i < len(weighConstants); i++ {
		w.p("VFMADD213PD %s, Z0, Z3", at(i))
	}
	w.p("VPSLLQ $52, Z1, Z1")
	w.p("VPADDQ Z1, Z3, Z3")
	w.p("VADDPD %s, Z3, Z3", at(weighRound))
	w.p("VPSUBQ.Z %s, Z3, K1, Z3", at(weighRound))
	w.p("VPCMPUQ $5, Z8, Z3, K1")
	w.p("VMOVDQU64.Z Z3, K1, Z3")
	w.p("VPADDQ Z3, Z4, Z4")
	w.p("VMOVDQU64 Z3, (DI)")
	w.p("ADDQ $32, SI")
	w.p("ADDQ $64, DI")
	w.p("SUBQ $8, CX")
	w.p("JNZ tokens")
	w.p("JMP done")
	w.label("none")
	w.p("VMOVDQU64 Z5, (DI)")
	w.p("ADDQ $32, SI")
	w.p("ADDQ $64, DI")
	w.p("SUBQ $8, CX")
	w.p("JNZ tokens")
	w.label("done")
	sum64(w, 4, 5)
	w.p("VMOVQ X4, sum+32(FP)")
	w.p("VZEROUPPER")
	w.p("RET")
}

// sum64 adds the lanes of Zx into its lowest; Zt is lost.
func sum64(w *writer, x, t int) {
	w.p("VEXTRACTI64X4 $1, Z%d, Y%d", x, t)
	w.p("VPADDQ Y%d, Y%d, Y%d", t, x, x)
	sum64x4(w, x, t)
}

func sum64x4(w *writer, x, t int) {
	w.p("VEXTRACTI128 $1, Y%d, X%d", x, t)
	w.p("VPADDQ X%d, X%d, X%d", t, x, x)
	w.p("VPSHUFD $0x4e, X%d, X%d", x, t)
	w.p("VPADDQ X%d, X%d, X%d", t, x, x)
}

// above512: Z0-Z7 sums, Y8-Y15 cuts, Y16 logits, Z17 weights.
func above512(w *writer) {
	w.text("above512", "(logits *float32, weights *uint64, n int, cuts *[scanCuts]float32, sums *[scanCuts]uint64)", 40)
	w.p("MOVQ logits+0(FP), SI")
	w.p("MOVQ weights+8(FP), DI")
	w.p("MOVQ n+16(FP), CX")
	w.p("MOVQ cuts+24(FP), AX")
	for j := range cuts {
		w.p("VPXORQ Z%d, Z%d, Z%d", j, j, j)
		w.p("VBROADCASTSS %d(AX), Y%d", 4*j, 8+j)
	}
	w.label("tokens")
	w.p("VMOVUPS (SI), Y16")
	w.p("VMOVDQU64 (DI), Z17")
	for j := range cuts {
		w.p("VCMPPS $13, Y%d, Y16, K%d", 8+j, 1+j%7)
		w.p("VPADDQ Z17, Z%d, K%d, Z%d", j, 1+j%7, j)
	}
	w.p("ADDQ $32, SI")
	w.p("ADDQ $64, DI")
	w.p("SUBQ $8, CX")
	w.p("JNZ tokens")
	w.p("MOVQ sums+32(FP), AX")
	for j := range cuts {
		sum64(w, j, 8)
		w.p("VMOVQ X%d, %d(AX)", j, 8*j)
	}
	w.p("VZEROUPPER")
	w.p("RET")
}

// count512: Z0-Z7 counts, Z8-Z15 cuts, Z16 logits, Z17 ones.
func count512(w *writer) {
	w.text("count512", "(logits *float32, n int, cuts *[scanCuts]float32, sums *[scanCuts]uint64)", 32)
	w.p("MOVQ logits+0(FP), SI")
	w.p("MOVQ n+8(FP), CX")
	w.p("MOVQ cuts+16(FP), AX")
	w.p("MOVL $1, BX")
	w.p("VPBROADCASTD BX, Z17")
	for j := range cuts {
		w.p("VPXORQ Z%d, Z%d, Z%d", j, j, j)
		w.p("VBROADCASTSS %d(AX), Z%d", 4*j, 8+j)
	}
	w.label("tokens")
	w.p("VMOVUPS (SI), Z16")
	for j := range cuts {
		w.p("VCMPPS $13, Z%d, Z16, K%d", 8+j, 1+j%7)
		w.p("VPADDD Z17, Z%d, K%d, Z%d", j, 1+j%7, j)
	}
	w.p("ADDQ $64, SI")
	w.p("SUBQ $16, CX")
	w.p("JNZ tokens")
	w.p("MOVQ sums+24(FP), AX")
	for j := range cuts {
		reduce512(w, "VPADDD", j, 8)
		w.p("VMOVD X%d, BX", j)
		w.p("MOVQ BX, %d(AX)", 8*j)
	}
	w.p("VZEROUPPER")
	w.p("RET")
}

func mask512(w *writer) {
	w.text("mask512", "(bits *uint16, logits *float32, n int, lo, hi float32)", 32)
	w.p("MOVQ bits+0(FP), DI")
	w.p("MOVQ logits+8(FP), SI")
	w.p("MOVQ n+16(FP), CX")
	w.p("VBROADCASTSS lo+24(FP), Z1")
	w.p("VBROADCASTSS hi+28(FP), Z2")
	w.label("tokens")
	w.p("VMOVUPS (SI), Z0")
	w.p("VCMPPS $13, Z1, Z0, K1")
	w.p("VCMPPS $1, Z2, Z0, K1, K1")
	w.p("KMOVW K1, AX")
	w.p("MOVW AX, (DI)")
	w.p("ADDQ $64, SI")
	w.p("ADDQ $2, DI")
	w.p("SUBQ $16, CX")
	w.p("JNZ tokens")
	w.p("VZEROUPPER")
	w.p("RET")
}

func scanAVX2(w *writer) {
	fmt.Fprintln(w)
	for i, c := range weighConstants {
		for lane := range 4 {
			fmt.Fprintf(w, "DATA weigh2<>+%d(SB)/8, $0x%016x\n", 32*i+8*lane, math.Float64bits(c))
		}
	}
	fmt.Fprintf(w, "GLOBL weigh2<>(SB), RODATA|NOPTR, $%d\n", 32*len(weighConstants))
	most2(w)
	weigh2(w)
	above2(w)
	count2(w)
	mask2(w)
}

func most2(w *writer) {
	w.text("most2", "(logits *float32, n int) (most float32, bad uint32)", 24)
	w.p("MOVQ logits+0(FP), SI")
	w.p("MOVQ n+8(FP), CX")
	broadcast := func(v float64, y int) {
		w.p("MOVL $0x%08x, AX", bits(v))
		w.p("VMOVD AX, X%d", y)
		w.p("VPBROADCASTD X%d, Y%d", y, y)
	}
	broadcast(math.MaxFloat32, 2)
	broadcast(math.Inf(-1), 0)
	w.p("VMOVAPS Y0, Y3")
	w.p("VPCMPEQD Y4, Y4, Y4") // good lanes
	w.label("tokens")
	for h, to := range []int{0, 3} {
		w.p("VMOVUPS %d(SI), Y1", 32*h)
		w.p("VCMPPS $2, Y2, Y1, Y5")
		w.p("VANDPS Y5, Y4, Y4")
		w.p("VMAXPS Y1, Y%d, Y%d", to, to)
	}
	w.p("ADDQ $64, SI")
	w.p("SUBQ $16, CX")
	w.p("JNZ tokens")
	reduce2(w, "VMAXPS", 0, 3)
	w.p("VMOVSS X0, most+16(FP)")
	w.p("VMOVMSKPS Y4, AX")
	w.p("XORL $0xff, AX")
	w.p("MOVL AX, bad+20(FP)")
	w.p("VZEROUPPER")
	w.p("RET")
}

// weigh2 takes four tokens at a time: Y0 x and then r, Y1 the mask, Y2 t, Y3 k, Y4
// the weight, Y5 the sum, Y6 top, Y7 inverse, Y8 the least weight, X9 the floor,
// Y10-Y15 constants.
func weigh2(w *writer) {
	held := map[int]int{weighLog2e: 10, weighMagic: 11, weighLn2: 12, weighRound: 13, weighLeast: 14, weighSeries: 15}
	at := func(i int) string {
		if y, ok := held[i]; ok {
			return fmt.Sprintf("Y%d", y)
		}
		return fmt.Sprintf("weigh2<>+%d(SB)", 32*i)
	}
	w.text("weigh2", "(weights *uint64, logits *float32, n int, p *weighing) (sum uint64)", 40)
	w.p("MOVQ weights+0(FP), DI")
	w.p("MOVQ logits+8(FP), SI")
	w.p("MOVQ n+16(FP), CX")
	w.p("MOVQ p+24(FP), AX")
	w.p("VPXOR Y5, Y5, Y5")
	w.p("VBROADCASTSD %d(AX), Y6", weighTop)
	w.p("VBROADCASTSD %d(AX), Y7", weighInverse)
	w.p("VPBROADCASTQ %d(AX), Y8", weighSmallest)
	w.p("VBROADCASTSS %d(AX), X9", weighFloor)
	for i := weighLeast; i <= weighSeries; i++ {
		w.p("VMOVUPD weigh2<>+%d(SB), Y%d", 32*i, held[i])
	}
	w.label("tokens")
	w.p("VMOVUPS (SI), X0")
	w.p("VCMPPS $13, X9, X0, X1")
	w.p("VMOVMSKPS X1, AX")
	w.p("TESTL AX, AX")
	w.p("JZ none")
	w.p("VPMOVSXDQ X1, Y1")
	w.p("VCVTPS2PD X0, Y0")
	w.p("VSUBPD Y6, Y0, Y0")
	w.p("VMULPD Y7, Y0, Y0")
	w.p("VCMPPD $13, %s, Y0, Y2", at(weighLeast))
	w.p("VPAND Y2, Y1, Y1")
	w.p("VMOVAPD %s, Y2", at(weighMagic))
	w.p("VFMADD231PD %s, Y0, Y2", at(weighLog2e))
	w.p("VSUBPD %s, Y2, Y3", at(weighMagic))
	w.p("VFMADD231PD %s, Y3, Y0", at(weighLn2))
	w.p("VMOVAPD %s, Y4", at(weighSeries))
	for i := weighSeries + 1; i < len(weighConstants); i++ {
		w.p("VFMADD213PD %s, Y0, Y4", at(i))
	}
	w.p("VPSLLQ $52, Y2, Y2")
	w.p("VPADDQ Y2, Y4, Y4")
	w.p("VADDPD %s, Y4, Y4", at(weighRound))
	w.p("VPSUBQ %s, Y4, Y4", at(weighRound))
	w.p("VPAND Y1, Y4, Y4")
	w.p("VPCMPGTQ Y4, Y8, Y1") // the least is more
	w.p("VPANDN Y4, Y1, Y4")
	w.p("VPADDQ Y4, Y5, Y5")
	w.p("VMOVDQU Y4, (DI)")
	w.p("ADDQ $16, SI")
	w.p("ADDQ $32, DI")
	w.p("SUBQ $4, CX")
	w.p("JNZ tokens")
	w.p("JMP done")
	w.label("none")
	w.p("VMOVDQU X1, (DI)") // all zeros
	w.p("VMOVDQU X1, 16(DI)")
	w.p("ADDQ $16, SI")
	w.p("ADDQ $32, DI")
	w.p("SUBQ $4, CX")
	w.p("JNZ tokens")
	w.label("done")
	sum64x4(w, 5, 4)
	w.p("VMOVQ X5, sum+32(FP)")
	w.p("VZEROUPPER")
	w.p("RET")
}

// above2: Y0-Y7 sums, Y8 and Y9 weights in the order in which the masks of eight
// tokens unpack, Y10 logits.
func above2(w *writer) {
	w.text("above2", "(logits *float32, weights *uint64, n int, cuts *[scanCuts]float32, sums *[scanCuts]uint64)", 40)
	w.p("MOVQ logits+0(FP), SI")
	w.p("MOVQ weights+8(FP), DI")
	w.p("MOVQ n+16(FP), CX")
	w.p("MOVQ cuts+24(FP), AX")
	for j := range cuts {
		w.p("VPXOR Y%d, Y%d, Y%d", j, j, j)
	}
	w.label("tokens")
	w.p("VMOVUPS (SI), Y10")
	w.p("VMOVDQU (DI), Y11")
	w.p("VMOVDQU 32(DI), Y12")
	w.p("VPERM2I128 $0x20, Y12, Y11, Y8") // tokens 0, 1, 4, 5
	w.p("VPERM2I128 $0x31, Y12, Y11, Y9") // tokens 2, 3, 6, 7
	for j := range cuts {
		w.p("VBROADCASTSS %d(AX), Y11", 4*j)
		w.p("VCMPPS $13, Y11, Y10, Y11")
		w.p("VPUNPCKLDQ Y11, Y11, Y12")
		w.p("VPUNPCKHDQ Y11, Y11, Y13")
		w.p("VPAND Y8, Y12, Y12")
		w.p("VPAND Y9, Y13, Y13")
		w.p("VPADDQ Y12, Y%d, Y%d", j, j)
		w.p("VPADDQ Y13, Y%d, Y%d", j, j)
	}
	w.p("ADDQ $32, SI")
	w.p("ADDQ $64, DI")
	w.p("SUBQ $8, CX")
	w.p("JNZ tokens")
	w.p("MOVQ sums+32(FP), AX")
	for j := range cuts {
		sum64x4(w, j, 8)
		w.p("VMOVQ X%d, %d(AX)", j, 8*j)
	}
	w.p("VZEROUPPER")
	w.p("RET")
}

func count2(w *writer) {
	w.text("count2", "(logits *float32, n int, cuts *[scanCuts]float32, sums *[scanCuts]uint64)", 32)
	w.p("MOVQ logits+0(FP), SI")
	w.p("MOVQ n+8(FP), CX")
	w.p("MOVQ cuts+16(FP), AX")
	for j := range cuts {
		w.p("VPXOR Y%d, Y%d, Y%d", j, j, j)
	}
	w.label("tokens")
	w.p("VMOVUPS (SI), Y8")
	w.p("VMOVUPS 32(SI), Y9")
	for j := range cuts {
		w.p("VBROADCASTSS %d(AX), Y10", 4*j)
		w.p("VCMPPS $13, Y10, Y8, Y11")
		w.p("VCMPPS $13, Y10, Y9, Y12")
		w.p("VPSUBD Y11, Y%d, Y%d", j, j)
		w.p("VPSUBD Y12, Y%d, Y%d", j, j)
	}
	w.p("ADDQ $64, SI")
	w.p("SUBQ $16, CX")
	w.p("JNZ tokens")
	w.p("MOVQ sums+24(FP), AX")
	w.p("VPXOR Y8, Y8, Y8")
	for j := range cuts {
		reduce2(w, "VPADDD", j, 8)
		w.p("VMOVD X%d, BX", j)
		w.p("MOVQ BX, %d(AX)", 8*j)
		w.p("VPXOR Y8, Y8, Y8")
	}
	w.p("VZEROUPPER")
	w.p("RET")
}

func mask2(w *writer) {
	w.text("mask2", "(bits *uint16, logits *float32, n int, lo, hi float32)", 32)
	w.p("MOVQ bits+0(FP), DI")
	w.p("MOVQ logits+8(FP), SI")
	w.p("MOVQ n+16(FP), CX")
	w.p("VBROADCASTSS lo+24(FP), Y1")
	w.p("VBROADCASTSS hi+28(FP), Y2")
	w.label("tokens")
	for h, to := range []string{"AX", "BX"} {
		w.p("VMOVUPS %d(SI), Y0", 32*h)
		w.p("VCMPPS $13, Y1, Y0, Y3")
		w.p("VCMPPS $1, Y2, Y0, Y4")
		w.p("VANDPS Y4, Y3, Y3")
		w.p("VMOVMSKPS Y3, %s", to)
	}
	w.p("SHLL $8, BX")
	w.p("ORL BX, AX")
	w.p("MOVW AX, (DI)")
	w.p("ADDQ $64, SI")
	w.p("ADDQ $2, DI")
	w.p("SUBQ $16, CX")
	w.p("JNZ tokens")
	w.p("VZEROUPPER")
	w.p("RET")
}
