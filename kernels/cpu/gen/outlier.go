package main

// The fields of cpu.outlierArgs, behind those that it shares with cpu.gemmArgs.
const (
	argOrder, argRuns, argCount = 48, 56, 64
	argOutBlocks, argOutGroups  = 72, 80
)

// The fields of cpu.outlier, which begins as a cpu.qrecord.
const (
	outRow   = 48
	outShift = 6 // log2 of its size
)

// outliers writes the loops over groups, runs of one block, and outliers of a run.
// load loads the weights at SI, R8 and R10; add adds the product with the record at
// R9 to the row at (DI)(R15*1). R13 is the first piece of the group, R12 the runs, CX
// how many are left, R11 the order, BX the outliers left of a run, R14 the groups left.
func outliers(w *writer, f format, name string, load, add func()) {
	w.text(name, "(a *outlierArgs)", 8)
	w.p("MOVQ a+0(FP), AX")
	w.p("MOVQ %d(AX), DI", argY)
	w.p("MOVQ %d(AX), DX", argLdy)
	w.p("MOVQ %d(AX), R14", argOutGroups)
	w.p("XORQ R13, R13")
	w.label("group")
	w.p("MOVQ %d(AX), R11", argOrder)
	w.p("MOVQ %d(AX), R12", argRuns)
	w.p("MOVQ %d(AX), CX", argCount)
	w.label("run")
	w.p("MOVLQSX (R12), BX")
	w.p("ADDQ R13, BX")
	w.p("IMUL3Q $%d, BX, SI", 64*f.lines())
	w.p("ADDQ %d(AX), SI", argW)
	w.p("IMUL3Q $%d, BX, R8", scaleBytes)
	w.p("ADDQ %d(AX), R8", argD)
	if f.minimumBytes() > 0 {
		if f.super {
			w.p("SHRQ $%d, BX", superShift)
		}
		w.p("IMUL3Q $%d, BX, R10", f.minimumBytes())
		w.p("ADDQ %d(AX), R10", argM)
	}
	load()
	w.p("MOVLQSX 4(R12), BX")
	w.label("outlier")
	w.p("MOVLQSX (R11), R9")
	w.p("SHLQ $%d, R9", outShift)
	w.p("ADDQ %d(AX), R9", argX)
	w.p("MOVLQSX %d(R9), R15", outRow)
	w.p("IMULQ DX, R15")
	add()
	w.p("ADDQ $4, R11")
	w.p("DECQ BX")
	w.p("JNZ outlier")
	w.p("ADDQ $8, R12")
	w.p("DECQ CX")
	w.p("JNZ run")
	w.p("ADDQ %d(AX), R13", argOutBlocks)
	w.p("ADDQ $64, DI")
	w.p("DECQ R14")
	w.p("JNZ group")
	w.p("VZEROUPPER")
	w.p("RET")
}

func outliers512(w *writer, f format) {
	outliers(w, f, "outliers512"+f.name, func() {
		if f.nibbles {
			w.p("MOVL $0x0f0f0f0f, R9")
			w.p("VPBROADCASTD R9, Z31")
		}
		weights512(w, f)
	}, func() {
		w.p("VMOVUPS (DI)(R15*1), Z0")
		tokensQuantised512(w, f, 0, 1)
		w.p("VMOVUPS Z0, (DI)(R15*1)")
	})
}

// outliersAVX2 is the same in halves of 8 rows; the weights are loaded with each outlier.
func outliersAVX2(w *writer, f format) {
	outliers(w, f, "outliers"+f.family2()+f.name, func() { constants2(w, f, "R9") }, func() {
		for h := range 2 {
			w.p("VMOVUPS %d(DI)(R15*1), Y0", 32*h)
			block2(w, f, 1, h)
			w.p("VMOVUPS Y0, %d(DI)(R15*1)", 32*h)
		}
	})
}
