package kerneltest

import (
	"fmt"
	"math"

	"bulkhead/internal/gguf"
	"bulkhead/kernels"
)

func (f *fixture) precise(w *weights) kernels.Matrix {
	f.Helper()
	m, err := f.b.LoadPrecise(w.t, w.rows, w.cols, w.data)
	if err != nil {
		f.Fatal(err)
	}
	return m
}

// withOutliers makes one block of 32 of each row far larger than the others, and of
// every third row two: another one in each row.
func withOutliers(x []float32, cols int) []float32 {
	blocks := cols / 32
	for r := range len(x) / cols {
		for _, b := range []int{r * 5 % blocks, (r*5 + r%3/2) % blocks} {
			for i := range 32 {
				x[r*cols+32*b+i] *= 20
			}
		}
	}
	return x
}

// testPrecise: a precise matrix keeps 15 bits of the outliers of its input, beside an
// ordinary one in the same MatMul, with bias; and a row's bits are its own, alone or not.
func testPrecise(f *fixture) {
	for _, t := range weightTypes {
		f.sub(t.String(), func(f *fixture) {
			for _, s := range [][2]int{{16, 1}, {37, 2}, {5, 9}, {300, 3}, {33, 16}, {20, 550}} { // matrix rows, batch
				const cols = 256
				w := f.weights(t, s[0], cols)
				ordinary, precise := f.matrix(t, w.rows, cols, w.data), f.precise(w)
				x, biasV := withOutliers(f.normal(s[1]*cols), cols), f.normal(w.rows)
				src, bias := f.upload(x, s[1], cols), f.vector(biasV)
				a, b := f.poisoned(s[1]+1, w.rows), f.poisoned(s[1]+1, w.rows)
				one, picked := f.poisoned(1, w.rows), f.poisoned(1, w.rows)
				last := s[1] - 1
				lastSrc := f.upload(x[last*cols:], 1, cols)
				f.step(func(o kernels.Ops) {
					o.MatMul([]kernels.Buffer{a, b}, src, s[1], []kernels.Matrix{ordinary, precise}, []kernels.Vector{bias, bias})
					o.MatMul([]kernels.Buffer{one}, lastSrc, 1, []kernels.Matrix{precise}, []kernels.Vector{bias})
					o.MatMulRows(picked, src, []int{last}, precise)
				})
				plain, got := f.read(a), f.read(b)
				var off, offPlain float64
				for r := range s[1] {
					for i := range w.rows {
						var want, magnitude float64
						for c, v := range w.row(i) {
							p := float64(v) * float64(x[r*cols+c])
							want += p
							magnitude += math.Abs(p)
						}
						want += float64(biasV[i])
						at := r*w.rows + i
						// 15 bits of the outliers, 8 of the rest, which is a twentieth of the size.
						f.near(fmt.Sprint(s), at, got[at], want, 3e-3*(magnitude+math.Abs(float64(biasV[i])))+1e-30)
						off += math.Abs(float64(got[at]) - want)
						offPlain += math.Abs(float64(plain[at]) - want)
					}
				}
				if !isFloat(t) && off*4 > offPlain {
					f.Fatalf("%v: off by %.3g in all, an ordinary matrix by %.3g", s, off, offPlain)
				}
				f.equal("the last row alone", f.read(one), got[last*w.rows:s[1]*w.rows])
				rest := f.read(picked)
				for i := range rest {
					rest[i] += biasV[i]
				}
				f.equal("the last row picked", rest, got[last*w.rows:s[1]*w.rows])
				for _, v := range got[s[1]*w.rows:] {
					if v == v {
						f.Fatalf("%v: wrote beyond its rows", s)
					}
				}
			}
		})
	}
	for _, bad := range []float64{math.Inf(1), math.NaN()} {
		w := f.weights(gguf.TypeQ8_0, 21, 64)
		x := f.normal(64)
		x[40] = float32(bad)
		src, dst, m := f.upload(x, 1, 64), f.poisoned(1, 21), f.precise(w)
		f.step(func(o kernels.Ops) { o.MatMul([]kernels.Buffer{dst}, src, 1, []kernels.Matrix{m}, nil) })
		for i, v := range f.read(dst) {
			if !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0) {
				f.Fatalf("an activation of %v gave %v in row %d", bad, v, i)
			}
		}
	}
	if _, err := f.b.LoadPrecise(gguf.TypeQ8_0, 2, 32, make([]byte, 67)); err == nil {
		f.Error("short data was taken")
	}
}
