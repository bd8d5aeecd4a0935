package kerneltest

import (
	"fmt"
	"math"

	"bulkhead/internal/gguf"
	"bulkhead/kernels"
)

// How far an operation may be from its float64 reference.
const (
	// A float dot product of a few thousand terms, relative to the sum of
	// their magnitudes: f32 rounding of a blockwise sum.
	tolFloatDot = 1e-6
	// Rounding of the f32 scales and sums of a quantised dot product, relative
	// to the largest weight times the sum of |x|; on top of the quantisation.
	tolQuantDot = 1e-5
	// A norm: rounding of the mean, of its root and of two products.
	tolNorm = 2e-6
	// A rotation: rounding of sine, cosine and two products, relative to the
	// length of the pair.
	tolRoPE = 5e-7
	// SiLU: the error of the exponential and of a division.
	tolSiLU = 1e-6
	// SiLU of a very negative gate: the exponential has no subnormal results.
	tolSiLUAbs = 1e-34
	// Attention: rounding of scores, weights and sums, relative to the
	// largest value.
	tolAttention = 1e-5
)

func testShapes(f *fixture) {
	b := f.alloc(3, 5)
	if b.Rows() != 3 || b.Cols() != 5 {
		f.Errorf("buffer is %d x %d, want 3 x 5", b.Rows(), b.Cols())
	}
	for i, v := range f.read(b) {
		if v != 0 {
			f.Errorf("new buffer holds %v at %d", v, i)
		}
	}
	v := f.upload([]float32{1, 2, 3, 4, 5, 6}, 3, 2)
	got := make([]float32, 4)
	f.b.Read(got, v, 1, 2)
	f.equal("rows [1, 3)", got, []float32{3, 4, 5, 6})
	m := f.matrix(gguf.TypeF32, 2, 3, make([]byte, 24))
	if m.Rows() != 2 || m.Cols() != 3 {
		f.Errorf("matrix is %d x %d, want 2 x 3", m.Rows(), m.Cols())
	}
	if n := f.vector([]float32{1, 2}).Len(); n != 2 {
		f.Errorf("vector of %d, want 2", n)
	}
	if i := f.b.Info(); i.Name == "" || i.Tier == "" || i.Version < 1 || i.Threads < 1 {
		f.Errorf("info is incomplete: %+v", i)
	}
}

func testLoadRefuses(f *fixture) {
	for name, load := range map[string]func() error{
		"unknown type":  func() error { _, err := f.b.LoadMatrix(10, 1, 256, make([]byte, 84)); return err },
		"short data":    func() error { _, err := f.b.LoadMatrix(gguf.TypeQ8_0, 2, 32, make([]byte, 67)); return err },
		"long data":     func() error { _, err := f.b.LoadMatrix(gguf.TypeQ8_0, 2, 32, make([]byte, 69)); return err },
		"part of block": func() error { _, err := f.b.LoadMatrix(gguf.TypeQ8_0, 1, 48, make([]byte, 51)); return err },
		"no rows":       func() error { _, err := f.b.LoadMatrix(gguf.TypeF32, 0, 4, nil); return err },
		"negative cols": func() error { _, err := f.b.LoadMatrix(gguf.TypeF32, 1, -4, nil); return err },
		"huge":          func() error { _, err := f.b.LoadMatrix(gguf.TypeF32, math.MaxInt, math.MaxInt, nil); return err },
		"empty vector":  func() error { _, err := f.b.LoadVector(nil); return err },
		"empty buffer":  func() error { _, err := f.b.Alloc(0, 3); return err },
		"huge buffer":   func() error { _, err := f.b.Alloc(math.MaxInt, 2); return err },
		"no pages": func() error {
			_, err := f.b.NewPages(kernels.PageLayout{Layers: 1, KVHeads: 1, HeadDim: 8}, 0)
			return err
		},
		"empty layout": func() error { _, err := f.b.NewPages(kernels.PageLayout{Layers: 1, HeadDim: 8}, 1); return err },
		"too many pages": func() error {
			_, err := f.b.NewPages(kernels.PageLayout{Layers: 1, KVHeads: 1, HeadDim: 8}, math.MaxInt)
			return err
		},
	} {
		if load() == nil {
			f.Errorf("%s: no error", name)
		}
	}
}

// testEmbed demands the bits of gguf.Dequantize.
func testEmbed(f *fixture) {
	for _, t := range weightTypes {
		f.sub(t.String(), func(f *fixture) {
			w := f.weights(t, 35, 512)
			m := f.matrix(t, w.rows, w.cols, w.data)
			ids := []int32{0, 34, 16, 15, 16, 31}
			dst := f.poisoned(len(ids), w.cols)
			f.step(func(o kernels.Ops) { o.Embed(dst, m, ids) })
			got := f.read(dst)
			for i, id := range ids {
				f.equal(fmt.Sprintf("row %d", id), got[i*w.cols:(i+1)*w.cols], w.row(int(id)))
			}
		})
	}
}

// checkProduct compares y = W x with float64.
func (f *fixture) checkProduct(what string, w *weights, x, y, bias []float32) {
	f.Helper()
	for r := range w.rows {
		var dot, magnitude, bound, most float64
		row := w.row(r)
		for at := 0; at < w.cols; at += 32 {
			end := min(at+32, w.cols)
			var amax, sum float64
			for c := at; c < end; c++ {
				p := float64(row[c]) * float64(x[c])
				dot += p
				magnitude += math.Abs(p)
				amax = max(amax, math.Abs(float64(x[c])))
				sum += math.Abs(float64(row[c]))
				most = max(most, math.Abs(float64(row[c])))
			}
			// int8 activations: each is off by half a step of its block.
			bound += amax / 254 * 1.0001 * sum
		}
		tolerance := tolFloatDot * magnitude
		if !isFloat(w.t) {
			var sum float64
			for _, v := range x {
				sum += math.Abs(float64(v))
			}
			tolerance = bound + tolQuantDot*most*sum
		}
		if bias != nil {
			dot += float64(bias[r])
			tolerance += tolFloatDot * math.Abs(float64(bias[r]))
		}
		f.near(what, r, y[r], dot, tolerance+1e-30)
	}
}

func testMatMul(f *fixture) {
	for _, t := range weightTypes {
		f.sub(t.String(), func(f *fixture) {
			shapes := [][3]int{{16, 256, 1}, {37, 512, 5}, {1, 256, 3}, {100, 768, 33}}
			if t.BlockElems() == 32 {
				shapes = append(shapes, [3]int{19, 32, 2}, [3]int{49, 576, 7}, [3]int{17, 1504, 16})
			}
			if isFloat(t) {
				shapes = append(shapes, [3]int{5, 7, 3}, [3]int{33, 100, 9})
			}
			for _, s := range shapes {
				w := f.weights(t, s[0], s[1])
				m := f.matrix(t, w.rows, w.cols, w.data)
				x, bias := f.normal(s[2]*w.cols), f.normal(w.rows)
				// One row more than takes part: it must stay NaN.
				dst := f.poisoned(s[2]+1, w.rows)
				src := f.upload(x, s[2], w.cols)
				f.step(func(o kernels.Ops) {
					o.MatMul([]kernels.Buffer{dst}, src, s[2], []kernels.Matrix{m}, []kernels.Vector{f.vector(bias)})
				})
				got := f.read(dst)
				for r := range s[2] {
					f.checkProduct(fmt.Sprintf("%v row %d", s, r), w, x[r*w.cols:(r+1)*w.cols], got[r*w.rows:(r+1)*w.rows], bias)
				}
				for _, v := range got[s[2]*w.rows:] {
					if v == v {
						f.Fatalf("%v: wrote beyond its rows", s)
					}
				}
			}
		})
	}
}

// testMatMulShared: matrices of several types and sizes share their input, as
// wq, wk and wv do, with a bias for some.
func testMatMulShared(f *fixture) {
	const cols, rows = 256, 18
	x := f.normal(rows * cols)
	src := f.upload(x, rows, cols)
	var ws []*weights
	var ms []kernels.Matrix
	var dst []kernels.Buffer
	var bias []kernels.Vector
	var biasV [][]float32
	for i, t := range weightTypes {
		w := f.weights(t, 5+13*i, cols)
		ws, ms, dst = append(ws, w), append(ms, f.matrix(t, w.rows, cols, w.data)), append(dst, f.poisoned(rows, w.rows))
		if i%2 == 0 {
			bias, biasV = append(bias, nil), append(biasV, nil)
			continue
		}
		v := f.normal(w.rows)
		bias, biasV = append(bias, f.vector(v)), append(biasV, v)
	}
	f.step(func(o kernels.Ops) { o.MatMul(dst, src, rows, ms, bias) })
	for i, w := range ws {
		got := f.read(dst[i])
		for r := range rows {
			f.checkProduct(w.t.String(), w, x[r*cols:(r+1)*cols], got[r*w.rows:(r+1)*w.rows], biasV[i])
		}
	}
}

func testMatMulRows(f *fixture) {
	w := f.weights(gguf.TypeQ8_0, 70, 96)
	m := f.matrix(w.t, w.rows, w.cols, w.data)
	x := f.normal(20 * w.cols)
	src := f.upload(x, 20, w.cols)
	all, some := f.poisoned(20, w.rows), f.poisoned(4, w.rows)
	pick := []int{19, 0, 7}
	f.step(func(o kernels.Ops) {
		o.MatMul([]kernels.Buffer{all}, src, 20, []kernels.Matrix{m}, nil)
		o.MatMulRows(some, src, pick, m)
		o.MatMulRows(some, src, nil, m)
	})
	want, got := f.read(all), f.read(some)
	for i, r := range pick {
		f.equal(fmt.Sprintf("picked row %d", r), got[i*w.rows:(i+1)*w.rows], want[r*w.rows:(r+1)*w.rows])
	}
	for _, v := range got[3*w.rows:] {
		if v == v {
			f.Fatal("wrote beyond the picked rows")
		}
	}
}

// testMatMulExtremes: rows of zeros, subnormals, one outlier, huge values; and
// an infinite or NaN activation must not come out as a plain number.
func testMatMulExtremes(f *fixture) {
	const cols = 256
	rows := map[string][]float32{
		"zeros": make([]float32, cols), "subnormal": f.normal(cols), "tiny": f.normal(cols), "huge": f.normal(cols),
		"outlier": f.normal(cols), "negative zero": make([]float32, cols),
	}
	for i := range cols {
		rows["subnormal"][i] *= 1e-40
		rows["tiny"][i] *= 1e-20
		rows["huge"][i] *= 1e30
		rows["negative zero"][i] = float32(math.Copysign(0, -1))
	}
	rows["outlier"][77] = 1e6
	for _, t := range weightTypes {
		w := f.weights(t, 21, cols)
		m := f.matrix(t, w.rows, cols, w.data)
		for name, x := range rows {
			src, dst := f.upload(x, 1, cols), f.poisoned(1, w.rows)
			f.step(func(o kernels.Ops) { o.MatMul([]kernels.Buffer{dst}, src, 1, []kernels.Matrix{m}, nil) })
			f.checkProduct(t.String()+" "+name, w, x, f.read(dst), nil)
			again := f.poisoned(1, w.rows)
			f.step(func(o kernels.Ops) { o.MatMul([]kernels.Buffer{again}, src, 1, []kernels.Matrix{f.precise(w)}, nil) })
			f.checkProduct(t.String()+" precise "+name, w, x, f.read(again), nil)
		}
		for _, bad := range []float64{math.Inf(1), math.Inf(-1), math.NaN()} {
			x := f.normal(3 * cols)
			x[cols+40] = float32(bad)
			clean := f.normal(3 * cols)
			copy(clean[:cols], x[:cols])
			copy(clean[2*cols:], x[2*cols:])
			dst, dst2 := f.poisoned(3, w.rows), f.poisoned(3, w.rows)
			src, src2 := f.upload(x, 3, cols), f.upload(clean, 3, cols)
			f.step(func(o kernels.Ops) {
				o.MatMul([]kernels.Buffer{dst}, src, 3, []kernels.Matrix{m}, nil)
				o.MatMul([]kernels.Buffer{dst2}, src2, 3, []kernels.Matrix{m}, nil)
			})
			got, want := f.read(dst), f.read(dst2)
			f.equal("row before a bad one", got[:w.rows], want[:w.rows])
			f.equal("row after a bad one", got[2*w.rows:], want[2*w.rows:])
			for r, v := range got[w.rows : 2*w.rows] {
				if !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0) {
					f.Fatalf("%s: an activation of %v gave %v in row %d", t, bad, v, r)
				}
			}
		}
	}
}

func testRMSNorm(f *fixture) {
	const eps = 1e-5
	for _, s := range [][3]int{{1, 576, 1}, {3, 64, 4}, {5, 100, 1}, {2, 7, 3}, {40, 16, 1}, {2, 1031, 1}} {
		rows, n, heads := s[0], s[1], s[2]
		cols := n * heads
		x, w := f.normal(rows*cols), f.normal(n)
		x[0] = 1e4
		src, dst, inPlace := f.upload(x, rows, cols), f.poisoned(rows, cols), f.upload(x, rows, cols)
		wv := f.vector(w)
		f.step(func(o kernels.Ops) {
			o.RMSNorm(dst, src, rows, heads, wv, eps)
			o.RMSNorm(inPlace, inPlace, rows, heads, wv, eps)
		})
		got := f.read(dst)
		f.equal("in place", f.read(inPlace), got)
		for p := 0; p < len(x); p += n {
			var sum float64
			for _, v := range x[p : p+n] {
				sum += float64(v) * float64(v)
			}
			for i := range n {
				want := float64(x[p+i]) / math.Sqrt(sum/float64(n)+eps) * float64(w[i])
				f.near(fmt.Sprint("norm ", s), p+i, got[p+i], want, tolNorm*math.Abs(want)+1e-30)
			}
		}
	}
	zero := f.alloc(1, 32)
	f.step(func(o kernels.Ops) { o.RMSNorm(zero, zero, 1, 1, f.vector(f.normal(32)), eps) })
	for i, v := range f.read(zero) {
		f.near("zeros", i, v, 0, 0)
	}
}

func inverseFrequencies(dims int) []float32 {
	v := make([]float32, dims/2)
	for i := range v {
		v[i] = float32(math.Pow(10000, -2*float64(i)/float64(dims)))
	}
	return v
}

func testRoPE(f *fixture) {
	for _, neox := range []bool{false, true} {
		for _, s := range [][3]int{{64, 64, 3}, {80, 32, 2}, {128, 128, 1}, {96, 96, 2}, {10, 6, 2}, {256, 256, 1}} {
			dim, dims, heads := s[0], s[1], s[2]
			pos := []int32{0, 1, 5, 4095, 131071}
			p := kernels.RoPE{HeadDim: dim, Dims: dims, NeoX: neox, InvFreq: inverseFrequencies(dims), Scale: 1.25}
			x := f.normal(len(pos) * heads * dim)
			b := f.upload(x, len(pos), heads*dim)
			f.step(func(o kernels.Ops) { o.RoPE(b, len(pos), heads, pos, p) })
			got := f.read(b)
			for at := 0; at < len(x); at += dim {
				position := pos[at/dim/heads]
				rotated := make(map[int]bool)
				for i := range dims / 2 {
					u, v := at+2*i, at+2*i+1
					if neox {
						u, v = at+i, at+i+dims/2
					}
					rotated[u], rotated[v] = true, true
					sin, cos := math.Sincos(float64(float32(position) * p.InvFreq[i]))
					a, c := float64(x[u]), float64(x[v])
					tolerance := tolRoPE*math.Hypot(a, c)*float64(p.Scale) + 1e-30
					f.near("rope", u, got[u], (a*cos-c*sin)*float64(p.Scale), tolerance)
					f.near("rope", v, got[v], (a*sin+c*cos)*float64(p.Scale), tolerance)
				}
				for i := at; i < at+dim; i++ {
					if !rotated[i] && !sameBits(got[i], x[i]) {
						f.Fatalf("dimension %d beyond the rotated ones changed", i-at)
					}
				}
			}
		}
	}
}

func testSiLUMul(f *fixture) {
	for _, n := range []int{1, 15, 64, 1536, 100} {
		g, u := f.normal(2*n), f.normal(2*n)
		for i := range g {
			g[i] *= float32([]float64{.01, 1, 10, 60}[i%4])
		}
		g[0] = 0
		gate, up, dst := f.upload(g, 2, n), f.upload(u, 2, n), f.poisoned(2, n)
		f.step(func(o kernels.Ops) {
			o.SiLUMul(dst, gate, up, 2)
			o.SiLUMul(gate, gate, up, 2)
		})
		got := f.read(dst)
		f.equal("in place", f.read(gate), got)
		for i := range g {
			want := float64(g[i]) / (1 + math.Exp(-float64(g[i]))) * float64(u[i])
			f.near("silu", i, got[i], want, tolSiLU*math.Abs(want)+tolSiLUAbs)
		}
	}
	bad := []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 3e38, -3e38, 1}
	one := []float32{1, 1, 1, 1, 1, 1}
	dst := f.upload(bad, 1, 6)
	f.step(func(o kernels.Ops) { o.SiLUMul(dst, dst, f.upload(one, 1, 6), 1) })
	got := f.read(dst)
	if !math.IsNaN(float64(got[0])) || got[1] != float32(math.Inf(1)) || got[3] != 3e38 || got[4] != 0 || math.Abs(float64(got[5])-0.7310586) > 1e-6 {
		f.Errorf("silu of %v is %v", bad, got)
	}
}

func testAdd(f *fixture) {
	for _, n := range []int{1, 17, 576} {
		a, b := f.normal(3*n), f.normal(3*n)
		dst, src := f.upload(a, 3, n), f.upload(b, 3, n)
		f.step(func(o kernels.Ops) { o.Add(dst, src, 2) })
		for i, v := range f.read(dst) {
			want := a[i]
			if i < 2*n {
				want += b[i]
			}
			if !sameBits(v, want) {
				f.Fatalf("add: value %d is %v, want %v", i, v, want)
			}
		}
	}
}
