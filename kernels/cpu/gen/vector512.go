package main

import "math"

// The constants of package cpu's vector_generic.go, as f32 bits.
var expConstants = []struct {
	register int
	value    float64
}{
	{16, 1.44269504088896341},        // log2(e)
	{17, 12582912},                   // 1.5 * 2^23
	{18, -0.693145751953125},         // -ln 2, high
	{19, -1.42860682030941723212e-6}, // -ln 2, low
	{20, 1.0 / 5040},
	{21, 1.0 / 720},
	{22, 1.0 / 120},
	{23, 1.0 / 24},
	{24, 1.0 / 6},
	{25, 1.0 / 2},
	{26, 1},
	{27, -87.3}, // below: 0
	{28, 88.37}, // above: infinite
	{29, math.Inf(1)},
}

func bits(v float64) uint32 { return math.Float32bits(float32(v)) }

// loadExp512 fills Z16-Z29, by way of BX.
func loadExp512(w *writer) {
	for _, c := range expConstants {
		w.p("MOVL $0x%08x, BX", bits(c.value))
		w.p("VPBROADCASTD BX, Z%d", c.register)
	}
}

// exp512 makes Zx its exponential; Zn, Zr and K6, K7 are lost.
func exp512(w *writer, x, n, r int) {
	w.p("VCMPPS $1, Z27, Z%d, K6", x)  // x < least
	w.p("VCMPPS $14, Z28, Z%d, K7", x) // x > most
	w.p("VMOVAPS Z17, Z%d", n)
	w.p("VFMADD231PS Z16, Z%d, Z%d", x, n)
	w.p("VSUBPS Z17, Z%d, Z%d", n, n)
	w.p("VMOVAPS Z%d, Z%d", x, r)
	w.p("VFMADD231PS Z18, Z%d, Z%d", n, r)
	w.p("VFMADD231PS Z19, Z%d, Z%d", n, r)
	w.p("VMOVAPS Z20, Z%d", x)
	for c := 21; c <= 26; c++ {
		w.p("VFMADD213PS Z%d, Z%d, Z%d", c, r, x)
	}
	w.p("VFMADD213PS Z26, Z%d, Z%d", r, x)
	w.p("VSCALEFPS Z%d, Z%d, Z%d", n, x, x)
	w.p("VMOVAPS Z29, K7, Z%d", x)
	w.p("VPXORD Z%d, Z%d, K6, Z%d", x, x, x)
}

// tailMask sets K1 to the low count%16 lanes, by way of CX.
func tailMask(w *writer, count string) {
	w.p("MOVQ %s, CX", count)
	w.p("ANDQ $15, CX")
	w.p("MOVL $1, BX")
	w.p("SHLL CX, BX")
	w.p("DECL BX")
	w.p("KMOVW BX, K1")
}

// reduce512 folds Zx into lane 0 with op, in halves; Zt is lost.
func reduce512(w *writer, op string, x, t int) {
	w.p("VEXTRACTF64X4 $1, Z%d, Y%d", x, t)
	w.p("%s Y%d, Y%d, Y%d", op, t, x, x)
	w.p("VEXTRACTF128 $1, Y%d, X%d", x, t)
	w.p("%s X%d, X%d, X%d", op, t, x, x)
	w.p("VPSHUFD $0x4e, X%d, X%d", x, t)
	w.p("%s X%d, X%d, X%d", op, t, x, x)
	w.p("VPSHUFD $0xb1, X%d, X%d", x, t)
	w.p("%s X%d, X%d, X%d", op, t, x, x)
}

func vector512(w *writer) {
	quantise512(w)
	rest(w, "rest512", "Z", 64)
	add512(w)
	norm512(w)
	siluMul512(w)
	rope512(w)
	half512(w)
}

func quantise512(w *writer) {
	w.text("quantise512", "(dst *qrecord, stride int, x *float32, blocks int)", 32)
	w.p("MOVQ dst+0(FP), DI")
	w.p("MOVQ stride+8(FP), DX")
	w.p("MOVQ x+16(FP), SI")
	w.p("MOVQ blocks+24(FP), CX")
	w.p("MOVL $0x7fffffff, AX")
	w.p("VPBROADCASTD AX, Z31")
	w.p("MOVL $0x%08x, AX", bits(127))
	w.p("VMOVD AX, X30")
	w.p("MOVL $0x%08x, AX", bits(math.Ldexp(1, -100)))
	w.p("VMOVD AX, X29")
	w.p("MOVL $0x01010101, AX")
	w.p("VPBROADCASTD AX, X28")
	w.label("block")
	w.p("VMOVUPS (SI), Z0")
	w.p("VMOVUPS 64(SI), Z1")
	w.p("VPANDD Z31, Z0, Z2")
	w.p("VPANDD Z31, Z1, Z3")
	w.p("VPMAXUD Z3, Z2, Z2") // bits of |x| order as |x|, NaN on top
	reduce512(w, "VPMAXUD", 2, 3)
	w.p("VPCMPUD $5, X29, X2, K2") // not less
	w.p("VPMAXUD X29, X2, X2")
	w.p("VDIVSS X2, X30, X4")
	w.p("VDIVSS X30, X2, X5")
	w.p("VMOVAPS.Z X5, K2, X5") // the scale, 0 of a block that counts as zero
	w.p("VBROADCASTSS X4, Z4")
	for i := range 2 {
		w.p("VMULPS Z4, Z%d, Z%d", i, i)
		w.p("VCMPPS $7, Z%d, Z%d, K1", i, i) // not NaN
		w.p("VCVTPS2DQ.Z Z%d, K1, Z%d", i, i)
		w.p("VPMOVDB Z%d, X%d", i, 6+i)
		w.p("VMOVDQU X%d, %d(DI)", 6+i, 16*i)
		w.p("VPXORD X%d, X%d, X%d", 8+i, 8+i, 8+i)
		w.p("VPDPBUSD X%d, X28, X%d", 6+i, 8+i)
	}
	w.p("VPHADDD X9, X8, X8")
	w.p("VPHADDD X8, X8, X8")    // sum of q[:16], sum of q[16:], both again
	w.p("VPSHUFD $0xb1, X8, X9") // the other way round
	w.p("VPADDD X8, X9, X10")    // sum of q
	w.p("VCVTDQ2PS X10, X11")
	w.p("VMULSS X5, X11, X11")
	w.p("VMOVSS X5, %d(DI)", recScale)
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

// rest writes the loop that takes what records hold from what they were made of.
func rest(w *writer, name, register string, bytes int) {
	w.text(name, "(dst *float32, src *qrecord, stride int, x *float32, blocks int)", 40)
	w.p("MOVQ dst+0(FP), DI")
	w.p("MOVQ src+8(FP), R8")
	w.p("MOVQ stride+16(FP), DX")
	w.p("MOVQ x+24(FP), SI")
	w.p("MOVQ blocks+32(FP), CX")
	w.label("block")
	w.p("VBROADCASTSS %d(R8), %s0", recScale, register)
	for at := 0; at < 128; at += bytes {
		w.p("VPMOVSXBD %d(R8), %s1", at/4, register)
		w.p("VCVTDQ2PS %[1]s1, %[1]s1", register)
		w.p("VMULPS %[1]s1, %[1]s0, %[1]s1", register)
		w.p("VMOVUPS %d(SI), %s2", at, register)
		w.p("VSUBPS %[1]s1, %[1]s2, %[1]s2", register)
		w.p("VMOVUPS %s2, %d(DI)", register, at)
	}
	w.p("ADDQ $128, SI")
	w.p("ADDQ $128, DI")
	w.p("ADDQ DX, R8")
	w.p("DECQ CX")
	w.p("JNZ block")
	w.p("VZEROUPPER")
	w.p("RET")
}

// elementwise writes a loop over R8 elements, 16 at a time and masked by K1 at
// the end; body gets the mask's operand, "" or "K1, ".
func elementwise(w *writer, label string, body func(load func(from, to string), store func(from, to string)), advance ...string) {
	step := func() {
		for _, r := range advance {
			w.p("ADDQ $64, %s", r)
		}
	}
	w.p("MOVQ R8, DX")
	w.p("SHRQ $4, DX")
	w.p("JZ %sTail", label)
	w.label(label + "Loop")
	body(func(from, to string) { w.p("VMOVUPS %s, %s", from, to) }, func(from, to string) { w.p("VMOVUPS %s, %s", from, to) })
	step()
	w.p("DECQ DX")
	w.p("JNZ %sLoop", label)
	w.label(label + "Tail")
	w.p("TESTQ $15, R8")
	w.p("JZ %sDone", label)
	body(func(from, to string) { w.p("VMOVUPS.Z %s, K1, %s", from, to) }, func(from, to string) { w.p("VMOVUPS %s, K1, %s", from, to) })
	w.label(label + "Done")
}

func add512(w *writer) {
	w.text("add512", "(dst, src *float32, n int)", 24)
	w.p("MOVQ dst+0(FP), DI")
	w.p("MOVQ src+8(FP), SI")
	w.p("MOVQ n+16(FP), R8")
	tailMask(w, "R8")
	elementwise(w, "add", func(load, store func(from, to string)) {
		load("(DI)", "Z0")
		load("(SI)", "Z1")
		w.p("VADDPS Z1, Z0, Z0")
		store("Z0", "(DI)")
	}, "DI", "SI")
	w.p("VZEROUPPER")
	w.p("RET")
}

func norm512(w *writer) {
	w.text("norm512", "(dst, x, w *float32, n int, eps float32)", 36)
	w.p("MOVQ x+8(FP), SI")
	w.p("MOVQ n+24(FP), R8")
	w.p("VXORPS X0, X0, X0")
	tailMask(w, "R8")
	elementwise(w, "square", func(load, _ func(from, to string)) {
		load("(SI)", "Z1")
		w.p("VFMADD231PS Z1, Z1, Z0")
	}, "SI")
	reduce512(w, "VADDPS", 0, 1)
	w.p("VCVTSI2SSQ R8, X1, X1")
	w.p("VDIVSS X1, X0, X0")
	w.p("VADDSS eps+32(FP), X0, X0")
	w.p("VSQRTSS X0, X0, X0")
	w.p("MOVL $0x%08x, AX", bits(1))
	w.p("VMOVD AX, X1")
	w.p("VDIVSS X0, X1, X0")
	w.p("VBROADCASTSS X0, Z0")
	w.p("MOVQ dst+0(FP), DI")
	w.p("MOVQ x+8(FP), SI")
	w.p("MOVQ w+16(FP), R9")
	elementwise(w, "scale", func(load, store func(from, to string)) {
		load("(SI)", "Z1")
		load("(R9)", "Z2")
		w.p("VMULPS Z0, Z1, Z1")
		w.p("VMULPS Z2, Z1, Z1")
		store("Z1", "(DI)")
	}, "DI", "SI", "R9")
	w.p("VZEROUPPER")
	w.p("RET")
}

func siluMul512(w *writer) {
	w.text("siluMul512", "(dst, gate, up *float32, n int)", 32)
	w.p("MOVQ dst+0(FP), DI")
	w.p("MOVQ gate+8(FP), SI")
	w.p("MOVQ up+16(FP), R9")
	w.p("MOVQ n+24(FP), R8")
	loadExp512(w)
	w.p("MOVL $0x80000000, BX")
	w.p("VPBROADCASTD BX, Z30")
	tailMask(w, "R8")
	elementwise(w, "silu", func(load, store func(from, to string)) {
		load("(SI)", "Z0")
		load("(R9)", "Z1")
		w.p("VPXORD Z30, Z0, Z2")
		exp512(w, 2, 3, 4)
		w.p("VADDPS Z26, Z2, Z2")
		w.p("VDIVPS Z2, Z0, Z0")
		w.p("VMULPS Z1, Z0, Z0")
		store("Z0", "(DI)")
	}, "DI", "SI", "R9")
	w.p("VZEROUPPER")
	w.p("RET")
}

func rope512(w *writer) {
	// NeoX: the pairs lie n apart, so do cosines and sines in the table.
	w.text("ropeNeoX512", "(x, table *float32, n int)", 24)
	w.p("MOVQ x+0(FP), DI")
	w.p("MOVQ table+8(FP), SI")
	w.p("MOVQ n+16(FP), R8")
	w.p("LEAQ (DI)(R8*4), R9")
	w.p("LEAQ (SI)(R8*4), R10")
	tailMask(w, "R8")
	elementwise(w, "rope", func(load, store func(from, to string)) {
		load("(DI)", "Z0")
		load("(R9)", "Z1")
		load("(SI)", "Z2")
		load("(R10)", "Z3")
		w.p("VMULPS Z2, Z0, Z4")
		w.p("VMULPS Z3, Z1, Z5")
		w.p("VMULPS Z3, Z0, Z6")
		w.p("VMULPS Z2, Z1, Z7")
		w.p("VSUBPS Z5, Z4, Z4")
		w.p("VADDPS Z7, Z6, Z6")
		store("Z4", "(DI)")
		store("Z6", "(R9)")
	}, "DI", "R9", "SI", "R10")
	w.p("VZEROUPPER")
	w.p("RET")

	// Neighbouring pairs, eight at a time: n is a multiple of 8.
	w.text("ropePairs512", "(x, table *float32, n int)", 24)
	w.p("MOVQ x+0(FP), DI")
	w.p("MOVQ table+8(FP), SI")
	w.p("MOVQ n+16(FP), R8")
	w.p("LEAQ (SI)(R8*4), R10")
	w.p("SHRQ $3, R8")
	w.p("MOVQ $0x80000000, BX") // the sign of even lanes only
	w.p("VPBROADCASTQ BX, Z5")
	w.label("pairs")
	w.p("VMOVUPS (DI), Z0")
	w.p("VPMOVZXDQ (SI), Z1")
	w.p("VMOVSLDUP Z1, Z1")
	w.p("VPMOVZXDQ (R10), Z2")
	w.p("VMOVSLDUP Z2, Z2")
	w.p("VPERMILPS $0xb1, Z0, Z3")
	w.p("VMULPS Z1, Z0, Z0")
	w.p("VMULPS Z2, Z3, Z3")
	w.p("VPXORD Z5, Z3, Z3")
	w.p("VADDPS Z3, Z0, Z0")
	w.p("VMOVUPS Z0, (DI)")
	w.p("ADDQ $64, DI")
	w.p("ADDQ $32, SI")
	w.p("ADDQ $32, R10")
	w.p("DECQ R8")
	w.p("JNZ pairs")
	w.p("VZEROUPPER")
	w.p("RET")
}

func half512(w *writer) {
	w.text("half512", "(dst *uint16, x *float32, n int)", 24)
	w.p("MOVQ dst+0(FP), DI")
	w.p("MOVQ x+8(FP), SI")
	w.p("MOVQ n+16(FP), R8")
	w.p("SHRQ $4, R8")
	w.label("half")
	w.p("VMOVUPS (SI), Z0")
	w.p("VCVTPS2PH $0, Z0, (DI)")
	w.p("ADDQ $64, SI")
	w.p("ADDQ $32, DI")
	w.p("DECQ R8")
	w.p("JNZ half")
	w.p("VZEROUPPER")
	w.p("RET")
}
