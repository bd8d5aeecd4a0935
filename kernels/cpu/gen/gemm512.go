package main

import "fmt"

// format mirrors package cpu's format.go.
type format struct {
	name    string
	nibbles bool
	offset  bool // unsigned weights stand for signed ones
	minimum bool
	half    bool // two scales, one for each half of a block
	super   bool // integer scales of a block, times f16 of eight blocks
	vnni    bool // 256-bit kernels only: with VPDPBUSD
}

var formats = []format{
	{name: "U8", offset: true},
	{name: "U8Min", minimum: true},
	{name: "U5K", minimum: true, super: true},
	{name: "U6K", offset: true, half: true, super: true},
	{name: "U4", nibbles: true, offset: true},
	{name: "U4Min", nibbles: true, minimum: true},
	{name: "U4K", nibbles: true, minimum: true, super: true},
}

// lines is the 64-byte lines of weights of a block of a group.
func (f format) lines() int {
	if f.nibbles {
		return 4
	}
	return 8
}

// scaleBytes is the bytes of plane d of a block of a group; minimumBytes those of
// plane m, for a block or, in a super format, for eight.
const scaleBytes = 32

func (f format) minimumBytes() int {
	switch {
	case f.super && f.minimum:
		return 64
	case f.super || f.minimum:
		return 32
	}
	return 0
}

// superShift is log2 of the blocks that share a scale of plane m.
const superShift = 3

// The fields of cpu.gemmArgs.
const (
	argY, argLdy, argW, argD, argM = 0, 8, 16, 24, 32
	argX, argXstride               = 40, 48
	argBlocks, argGroups           = 56, 64
)

// The fields of cpu.qrecord.
const (
	recScale, recSum, recCorr, recCorrHi = 32, 36, 40, 44
	recBytes                             = 48
)

// prefetch says how weights are fetched before they are used: beyond the hardware's
// own prefetching, which stops at page borders. Tiles of few rows wait for memory
// alone and want them near. A tile of eight computes about as long as it reads, and
// the few lines that the first level cache can wait for at a time would hold it back:
// there they go to the second level.
func prefetch(tokens int) (instruction string, ahead int) {
	if tokens < 4 {
		return "PREFETCHT0", 4096
	}
	return "PREFETCHT1", 8192
}

func gemm512(w *writer) {
	for _, f := range formats {
		for _, tokens := range []int{1, 2, 4, 8, 16} {
			gemmQuantised512(w, f, tokens)
		}
	}
	for _, f := range formats {
		outliers512(w, f)
	}
	for _, f := range []string{"F32", "F16", "BF16"} {
		for _, tokens := range []int{1, 2, 4, 8} {
			gemmFloat512(w, f, tokens)
		}
	}
}

// gemmPrologue loads the arguments: DI y, DX ldy, SI w, R8 d, R10 m, R12
// xstride, R11 groups; AX stays at the arguments.
func gemmPrologue(w *writer) {
	w.p("MOVQ a+0(FP), AX")
	w.p("MOVQ %d(AX), DI", argY)
	w.p("MOVQ %d(AX), DX", argLdy)
	w.p("MOVQ %d(AX), SI", argW)
	w.p("MOVQ %d(AX), R8", argD)
	w.p("MOVQ %d(AX), R10", argM)
	w.p("MOVQ %d(AX), R12", argXstride)
	w.p("MOVQ %d(AX), R11", argGroups)
}

// gemmQuantised512: Z0-Z15 sums of the tokens, Z16-Z23 weights of the block,
// Z24 and Z25 scales or scale and minimum, Z31 the nibble mask.
func gemmQuantised512(w *writer, f format, tokens int) {
	w.text(fmt.Sprintf("gemm512%sx%d", f.name, tokens), "(a *gemmArgs)", 8)
	gemmPrologue(w)
	if f.nibbles {
		w.p("MOVL $0x0f0f0f0f, BX")
		w.p("VPBROADCASTD BX, Z31")
	}
	w.label("group")
	w.p("MOVQ %d(AX), R9", argX)
	w.p("MOVQ %d(AX), CX", argBlocks)
	for t := range tokens {
		w.p("VPXORD Z%d, Z%d, Z%d", t, t, t)
	}
	w.label("block")
	weights512(w, f)
	fetch, ahead := prefetch(tokens)
	for j := range f.lines() {
		w.p("%s %d(SI)", fetch, ahead+64*j)
	}
	w.p("%s %d(R8)", fetch, ahead/8)
	if f.minimum && !f.super {
		w.p("%s %d(R10)", fetch, ahead/8)
	}
	// Products of one token are a chain of eight sums that wait for each other:
	// those of a few tokens take turns.
	together := 4
	if f.half {
		together = 2
	}
	for t := 0; t < tokens; t += together {
		tokensQuantised512(w, f, t, min(tokens-t, together))
	}
	w.p("ADDQ $%d, SI", 64*f.lines())
	nextBlock(w, f, "block")
	gemmStore512(w, tokens)
}

// weights512 loads a block: weights at SI, scales at R8, minimums at R10.
func weights512(w *writer, f format) {
	if f.nibbles {
		for j := range 4 {
			w.p("VMOVDQU32 %d(SI), Z%d", 64*j, 20+j)
			w.p("VPANDD Z31, Z%d, Z%d", 20+j, 16+j)
			w.p("VPSRLD $4, Z%d, Z%d", 20+j, 20+j)
			w.p("VPANDD Z31, Z%d, Z%d", 20+j, 20+j)
		}
	} else {
		for j := range 8 {
			w.p("VMOVDQU32 %d(SI), Z%d", 64*j, 16+j)
		}
	}
	switch {
	case f.half:
		w.p("VCVTPH2PS (R10), Z30")
		for i := range 2 {
			w.p("VPMOVSXBD %d(R8), Z%d", 16*i, 24+i)
			w.p("VCVTDQ2PS Z%d, Z%d", 24+i, 24+i)
			w.p("VMULPS Z30, Z%d, Z%d", 24+i, 24+i)
		}
	case f.super:
		for i := range 2 {
			w.p("VCVTPH2PS %d(R10), Z30", 32*i)
			w.p("VPMOVZXBD %d(R8), Z%d", 16*i, 24+i)
			w.p("VCVTDQ2PS Z%d, Z%d", 24+i, 24+i)
			w.p("VMULPS Z30, Z%d, Z%d", 24+i, 24+i)
		}
	default:
		w.p("VCVTPH2PS (R8), Z24")
		if f.minimum {
			w.p("VCVTPH2PS (R10), Z25")
		}
	}
}

// tokensQuantised512 adds one block's products with n tokens from t on to Zt and so on.
func tokensQuantised512(w *writer, f format, t, n int) {
	const product = 30
	sum, high := func(i int) int { return 26 + i }, func(i int) int { return 28 + i }
	at := func(i int) int { return recBytes * (t + i) }
	for i := range n {
		switch {
		case f.half:
			w.p("VPBROADCASTD %d(R9), Z%d", at(i)+recCorrHi, high(i))
			w.p("VPBROADCASTD %d(R9), Z%d", at(i)+recCorr, sum(i))
			w.p("VPSUBD Z%d, Z%d, Z%d", high(i), sum(i), sum(i))
		case f.nibbles && f.offset: // 8, where corr is for an offset of 128
			w.p("VPSRAD.BCST $4, %d(R9), Z%d", at(i)+recCorr, sum(i))
		case f.offset:
			w.p("VPBROADCASTD %d(R9), Z%d", at(i)+recCorr, sum(i))
		default:
			w.p("VPXORD Z%d, Z%d, Z%d", sum(i), sum(i), sum(i))
		}
	}
	for j := range 8 {
		for i := range n {
			to := sum(i)
			if f.half && j >= 4 {
				to = high(i)
			}
			w.p("VPDPBUSD.BCST %d(R9), Z%d, Z%d", at(i)+4*j, 16+j, to)
		}
	}
	for i := range n {
		w.p("VMULPS.BCST %d(R9), Z24, Z%d", at(i)+recScale, product)
		w.p("VCVTDQ2PS Z%d, Z%d", sum(i), sum(i))
		w.p("VFMADD231PS Z%d, Z%d, Z%d", product, sum(i), t+i)
		if f.half {
			w.p("VMULPS.BCST %d(R9), Z25, Z%d", at(i)+recScale, product)
			w.p("VCVTDQ2PS Z%d, Z%d", high(i), high(i))
			w.p("VFMADD231PS Z%d, Z%d, Z%d", product, high(i), t+i)
		}
		if f.minimum {
			w.p("VFMADD231PS.BCST %d(R9), Z25, Z%d", at(i)+recSum, t+i)
		}
	}
}

// nextBlock advances all but the weights, and loops.
func nextBlock(w *writer, f format, label string) {
	w.p("ADDQ $%d, R8", scaleBytes)
	if f.minimum && !f.super {
		w.p("ADDQ $%d, R10", f.minimumBytes())
	}
	w.p("ADDQ R12, R9")
	w.p("DECQ CX")
	if f.super { // blocks come in multiples of eight
		w.p("TESTQ $%d, CX", 1<<superShift-1)
		w.p("JNZ %s", label)
		w.p("ADDQ $%d, R10", f.minimumBytes())
		w.p("TESTQ CX, CX")
	}
	w.p("JNZ %s", label)
}

func gemmStore512(w *writer, tokens int) {
	w.p("MOVQ DI, R13")
	for t := range tokens {
		w.p("VMOVUPS Z%d, (R13)", t)
		if t < tokens-1 {
			w.p("ADDQ DX, R13")
		}
	}
	w.p("ADDQ $64, DI")
	w.p("DECQ R11")
	w.p("JNZ group")
	w.p("VZEROUPPER")
	w.p("RET")
}

// gemmFloat512: Z0-Z7 sums of the tokens, Z8-Z15 those of the block, Z16-Z19
// four columns of weights.
func gemmFloat512(w *writer, f string, tokens int) {
	w.text(fmt.Sprintf("gemm512%sx%d", f, tokens), "(a *gemmArgs)", 8)
	gemmPrologue(w)
	w.label("group")
	w.p("MOVQ %d(AX), R9", argX)
	w.p("MOVQ %d(AX), CX", argBlocks)
	for t := range tokens {
		w.p("VPXORD Z%d, Z%d, Z%d", t, t, t)
	}
	w.label("block")
	for t := range tokens {
		w.p("VPXORD Z%d, Z%d, Z%d", 8+t, 8+t, 8+t)
	}
	w.p("MOVQ R9, R13")
	w.p("MOVQ $8, BX")
	bytes := 32
	if f == "F32" {
		bytes = 64
	}
	w.label("columns")
	fetch, ahead := prefetch(tokens)
	for j := 0; j < 4*bytes; j += 64 {
		w.p("%s %d(SI)", fetch, ahead+j)
	}
	for k := range 4 {
		switch f {
		case "F32":
			w.p("VMOVUPS %d(SI), Z%d", bytes*k, 16+k)
		case "F16":
			w.p("VCVTPH2PS %d(SI), Z%d", bytes*k, 16+k)
		case "BF16":
			w.p("VPMOVZXWD %d(SI), Z%d", bytes*k, 16+k)
			w.p("VPSLLD $16, Z%d, Z%d", 16+k, 16+k)
		}
		for t := range tokens {
			w.p("VFMADD231PS.BCST %d(R13), Z%d, Z%d", 128*t+4*k, 16+k, 8+t)
		}
	}
	w.p("ADDQ $%d, SI", 4*bytes)
	w.p("ADDQ $16, R13")
	w.p("DECQ BX")
	w.p("JNZ columns")
	for t := range tokens {
		w.p("VADDPS Z%d, Z%d, Z%d", 8+t, t, t)
	}
	w.p("ADDQ R12, R9")
	w.p("DECQ CX")
	w.p("JNZ block")
	gemmStore512(w, tokens)
}
