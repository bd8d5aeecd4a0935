package kerneltest

import (
	"fmt"
	"testing"

	"bulkhead/kernels"
)

// Same demands that two backends give the same bits for every operation.
func Same(t *testing.T, openA, openB func() kernels.Backend) {
	a, b := newFixture(t, openA()), newFixture(t, openB())
	compare := func(what string, fn func(f *fixture) []float32) {
		t.Run(what, func(t *testing.T) {
			fa := &fixture{T: t, b: a.b, rng: newFixtureRand()}
			fb := &fixture{T: t, b: b.b, rng: newFixtureRand()}
			fa.equal(what, fn(fb), fn(fa))
		})
	}
	for _, typ := range weightTypes {
		for _, rows := range []int{1, 2, 5, 8, 16, 31, 45} {
			compare(fmt.Sprintf("MatMul/%s/%d", typ, rows), func(f *fixture) []float32 {
				w := f.weights(typ, 200, 1280)
				x := f.normal(rows * w.cols)
				for i := range x {
					x[i] *= []float32{1, 1e-20, 1e20, 0, 1e-32}[i/500%5]
				}
				src, dst := f.upload(x, rows, w.cols), f.poisoned(rows, w.rows)
				m := f.matrix(typ, w.rows, w.cols, w.data)
				f.step(func(o kernels.Ops) { o.MatMul([]kernels.Buffer{dst}, src, rows, []kernels.Matrix{m}, nil) })
				return f.read(dst)
			})
		}
	}
	for _, typ := range weightTypes {
		for _, rows := range []int{1, 3, 9, 31} {
			compare(fmt.Sprintf("Precise/%s/%d", typ, rows), func(f *fixture) []float32 {
				w := f.weights(typ, 200, 1280)
				src, dst, m := f.upload(withOutliers(f.normal(rows*w.cols), w.cols), rows, w.cols), f.poisoned(rows, w.rows), f.precise(w)
				f.step(func(o kernels.Ops) { o.MatMul([]kernels.Buffer{dst}, src, rows, []kernels.Matrix{m}, nil) })
				return f.read(dst)
			})
		}
	}
	for _, n := range []int{1, 15, 16, 33, 64, 100, 576, 1536, 4099} {
		compare(fmt.Sprintf("RMSNorm/%d", n), func(f *fixture) []float32 {
			x, w := f.upload(f.normal(3*n), 3, n), f.vector(f.normal(n))
			f.step(func(o kernels.Ops) { o.RMSNorm(x, x, 3, 1, w, 1e-6) })
			return f.read(x)
		})
		compare(fmt.Sprintf("SiLUMul/%d", n), func(f *fixture) []float32 {
			g := f.normal(3 * n)
			for i := range g {
				g[i] *= []float32{1, 10, 50, 100, 1e-3, 1e30, nan}[i%7]
			}
			x, u := f.upload(g, 3, n), f.upload(f.normal(3*n), 3, n)
			f.step(func(o kernels.Ops) { o.SiLUMul(x, x, u, 3) })
			return f.read(x)
		})
		compare(fmt.Sprintf("Add/%d", n), func(f *fixture) []float32 {
			x, u := f.upload(f.normal(3*n), 3, n), f.upload(f.normal(3*n), 3, n)
			f.step(func(o kernels.Ops) { o.Add(x, u, 3) })
			return f.read(x)
		})
	}
	for _, neox := range []bool{false, true} {
		for _, dims := range []int{6, 32, 64, 80, 128} {
			compare(fmt.Sprintf("RoPE/%v/%d", neox, dims), func(f *fixture) []float32 {
				pos := []int32{0, 3, 77, 10000}
				x := f.upload(f.normal(4*3*128), 4, 3*128)
				p := kernels.RoPE{HeadDim: 128, Dims: dims, NeoX: neox, InvFreq: inverseFrequencies(dims), Scale: 1}
				f.step(func(o kernels.Ops) { o.RoPE(x, 4, 3, pos, p) })
				return f.read(x)
			})
		}
	}
	for _, s := range attentionShapes {
		compare(fmt.Sprint("Attention/", s), func(f *fixture) []float32 { return f.chunked(s, 140, 100) })
	}
}
