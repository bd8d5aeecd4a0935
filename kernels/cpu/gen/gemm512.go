package main

import "fmt"

// format mirrors package cpu's format.go.
type format struct {
	name        string
	nibbles     bool
	offset      bool // unsigned weights stand for signed ones
	minimum     bool
	half        bool // two scales, one for each half of a block
	floatScales bool // f32 planes, else f16
}

var formats = []format{
	{name: "U8", offset: true},
	{name: "U8Min", minimum: true},
	{name: "U8MinF", minimum: true, floatScales: true},
	{name: "U8Half", offset: true, half: true, floatScales: true},
	{name: "U4", nibbles: true, offset: true},
	{name: "U4Min", nibbles: true, minimum: true},
	{name: "U4MinF", nibbles: true, minimum: true, floatScales: true},
}

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

// prefetchAhead is how far the weights are fetched before they are used: a page
// ahead of the hardware's own prefetching, which stops at page borders.
const prefetchAhead = 4096

func gemm512(w *writer) {
	for _, f := range formats {
		for _, tokens := range []int{1, 2, 4, 8, 16} {
			gemmQuantised512(w, f, tokens)
		}
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
	lines := 8
	if f.nibbles {
		lines = 4
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
	for j := range lines {
		w.p("PREFETCHT0 %d(SI)", prefetchAhead+64*j)
	}
	scaleBytes := 32
	load := "VCVTPH2PS"
	if f.floatScales {
		scaleBytes, load = 64, "VMOVUPS"
	}
	w.p("%s (R8), Z24", load)
	w.p("PREFETCHT0 %d(R8)", prefetchAhead/8)
	switch {
	case f.half:
		w.p("%s 64(R8), Z25", load)
		scaleBytes = 128
	case f.minimum:
		w.p("%s (R10), Z25", load)
		w.p("PREFETCHT0 %d(R10)", prefetchAhead/8)
	}
	for t := range tokens {
		tokenQuantised512(w, f, t)
	}
	w.p("ADDQ $%d, SI", 64*lines)
	w.p("ADDQ $%d, R8", scaleBytes)
	if f.minimum {
		w.p("ADDQ $%d, R10", scaleBytes)
	}
	w.p("ADDQ R12, R9")
	w.p("DECQ CX")
	w.p("JNZ block")
	gemmStore512(w, tokens)
}

// tokenQuantised512 adds one block's product with token t to Zt.
func tokenQuantised512(w *writer, f format, t int) {
	at := recBytes * t
	sum, high, product := 26+2*(t&1), 30, 27+2*(t&1)
	switch {
	case f.half:
		w.p("VPBROADCASTD %d(R9), Z%d", at+recCorrHi, high)
		w.p("VPBROADCASTD %d(R9), Z%d", at+recCorr, sum)
		w.p("VPSUBD Z%d, Z%d, Z%d", high, sum, sum)
	case f.nibbles && f.offset: // 8, where corr is for an offset of 128
		w.p("VPSRAD.BCST $4, %d(R9), Z%d", at+recCorr, sum)
	case f.offset:
		w.p("VPBROADCASTD %d(R9), Z%d", at+recCorr, sum)
	default:
		w.p("VPXORD Z%d, Z%d, Z%d", sum, sum, sum)
	}
	for j := range 8 {
		to := sum
		if f.half && j >= 4 {
			to = high
		}
		w.p("VPDPBUSD.BCST %d(R9), Z%d, Z%d", at+4*j, 16+j, to)
	}
	w.p("VMULPS.BCST %d(R9), Z24, Z%d", at+recScale, product)
	w.p("VCVTDQ2PS Z%d, Z%d", sum, sum)
	w.p("VFMADD231PS Z%d, Z%d, Z%d", product, sum, t)
	if f.half {
		w.p("VMULPS.BCST %d(R9), Z25, Z%d", at+recScale, product)
		w.p("VCVTDQ2PS Z%d, Z%d", high, high)
		w.p("VFMADD231PS Z%d, Z%d, Z%d", product, high, t)
	}
	if f.minimum {
		w.p("VFMADD231PS.BCST %d(R9), Z25, Z%d", at+recSum, t)
	}
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
	for j := 0; j < 4*bytes; j += 64 {
		w.p("PREFETCHT0 %d(SI)", prefetchAhead+j)
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
