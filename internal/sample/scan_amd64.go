package sample

import "golang.org/x/sys/cpu"

// The assembly is written by kernels/cpu/gen: go generate ./kernels/cpu.

// archScans gives the sets of instructions of this architecture, best first.
func archScans() []*scan { return []*scan{&scan512, &scan2} }

// scan512 runs on processors with AVX-512: the tier avx512vnni, and older ones.
var scan512 = scan{
	name: "avx512",
	supported: func() bool {
		return cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL
	},
	most: func(logits []float32) (float32, bool) {
		most, bad := most512(&logits[0], len(logits))
		return most, bad == 0
	},
	weigh: func(weights []uint64, logits []float32, p *weighing) uint64 {
		return weigh512(&weights[0], &logits[0], len(logits), p)
	},
	above: func(logits []float32, weights []uint64, cuts *[scanCuts]float32, sums *[scanCuts]uint64) {
		above512(&logits[0], &weights[0], len(logits), cuts, sums)
	},
	count: func(logits []float32, cuts *[scanCuts]float32, sums *[scanCuts]uint64) {
		count512(&logits[0], len(logits), cuts, sums)
	},
	mask: func(bits []uint16, logits []float32, lo, hi float32) {
		mask512(&bits[0], &logits[0], len(logits), lo, hi)
	},
}

// scan2 runs on processors with AVX2 and FMA.
var scan2 = scan{
	name:      "avx2",
	supported: func() bool { return cpu.X86.HasAVX2 && cpu.X86.HasFMA },
	most: func(logits []float32) (float32, bool) {
		most, bad := most2(&logits[0], len(logits))
		return most, bad == 0
	},
	weigh: func(weights []uint64, logits []float32, p *weighing) uint64 {
		return weigh2(&weights[0], &logits[0], len(logits), p)
	},
	above: func(logits []float32, weights []uint64, cuts *[scanCuts]float32, sums *[scanCuts]uint64) {
		above2(&logits[0], &weights[0], len(logits), cuts, sums)
	},
	count: func(logits []float32, cuts *[scanCuts]float32, sums *[scanCuts]uint64) {
		count2(&logits[0], len(logits), cuts, sums)
	},
	mask: func(bits []uint16, logits []float32, lo, hi float32) {
		mask2(&bits[0], &logits[0], len(logits), lo, hi)
	},
}
