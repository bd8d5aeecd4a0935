package sim

import "bulkhead/kernels"

// bigOneIn: one of so many schedules is big. The others are as small as still has room for
// every class of fault: they cost a third, and find more in a second (BenchmarkFound).
const bigOneIn = 32

// size is what a schedule is made of.
type size struct{ decodes, prefills, routers, requests int }

// size draws it.
func (w *world) size() size {
	r := w.rng
	if w.big {
		return size{1 + r.IntN(2), 1 + r.IntN(2), 1 + r.IntN(2), 1 + r.IntN(4)}
	}
	return size{decodes: 1, prefills: 1 + r.IntN(4)/3, routers: 1, requests: 1 + r.IntN(8)*3/8}
}

func (w *world) decodeCapacity() int {
	if w.big {
		return kernels.BlockTokens * (5 + w.rng.IntN(6))
	}
	return kernels.BlockTokens * (3 + w.rng.IntN(3))
}

func (w *world) prefillCapacity() int {
	if w.big {
		return kernels.BlockTokens * (4 + w.rng.IntN(5))
	}
	return kernels.BlockTokens * (2 + w.rng.IntN(3))
}

// promptLen is in tokens.
func (w *world) promptLen() int {
	r := w.rng
	if w.big {
		switch r.IntN(8) {
		case 0:
			return kernels.BlockTokens * (1 + r.IntN(3))
		case 1:
			return 150 + r.IntN(500) // over most limits
		}
		return 1 + r.IntN(200)
	}
	switch r.IntN(8) {
	case 0:
		return kernels.BlockTokens * (1 + r.IntN(2))
	case 1:
		return kernels.BlockTokens + r.IntN(4*kernels.BlockTokens)
	case 2:
		return kernels.BlockTokens + 1 + r.IntN(kernels.BlockTokens)
	case 3, 4, 5:
		return kernels.BlockTokens + 1 + r.IntN(16)
	}
	return 1 + r.IntN(kernels.BlockTokens)
}

func (w *world) maxNew() int {
	if w.big {
		return 1 + w.rng.IntN(6)
	}
	return 1 + w.rng.IntN(3)
}
