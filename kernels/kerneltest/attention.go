package kerneltest

import (
	"fmt"
	"math"
	"sync"

	"bulkhead/internal/gguf"
	"bulkhead/kernels"
)

var nan = float32(math.NaN())

// attentionShapes are KV heads, query heads, head size: no group, groups of 3,
// 4 and 7, and the sizes that models have; one that no vector divides.
var attentionShapes = [][3]int{{3, 9, 64}, {2, 2, 80}, {1, 4, 96}, {2, 8, 128}, {1, 1, 256}, {1, 7, 16}, {2, 4, 6}}

// testAttention compares whole prompts with float64, on K and V as f16 holds
// them.
func testAttention(f *fixture) {
	for _, s := range attentionShapes {
		f.sub(fmt.Sprint(s), func(f *fixture) {
			kvHeads, heads, dim := s[0], s[1], s[2]
			p := f.pool(kernels.PageLayout{Layers: 2, KVHeads: kvHeads, HeadDim: dim}, 9)
			for i, n := range []int{1, 63, 65, 150} {
				q := p.sequence(kernels.Owner(i+1), n)
				b := p.run(heads, 1, part{q, 0, n})
				f.checkAttention(b, q, 1, n)
				p.next += kernels.PageID(len(q.table))
				for _, e := range q.table {
					p.Scrub(e.Page)
				}
			}
		})
	}
}

func (f *fixture) checkAttention(b *batch, s *sequence, layer, n int) {
	f.Helper()
	l := b.p.Layout()
	width, qWidth := l.KVHeads*l.HeadDim, b.heads*l.HeadDim
	halved := func(v []float32) []float64 {
		w := make([]float64, len(v))
		for i, x := range v {
			w[i] = fromHalf(toHalf(float64(x)))
		}
		return w
	}
	k, v := halved(s.rows(0, layer, 0, n, width)), halved(s.rows(1, layer, 0, n, width))
	q, got := s.rows(2, layer, 0, n, qWidth), b.out(0)
	most := 0.0
	for _, x := range v {
		most = max(most, math.Abs(x))
	}
	for t := range n {
		for h := range b.heads {
			kv := h / (b.heads / l.KVHeads) * l.HeadDim
			at := t*qWidth + h*l.HeadDim
			weight, sum := make([]float64, t+1), 0.0
			for j := range weight {
				dot := 0.0
				for d := range l.HeadDim {
					dot += float64(q[at+d]) * k[j*width+kv+d]
				}
				weight[j] = math.Exp(dot * attentionScale)
				sum += weight[j]
			}
			for d := range l.HeadDim {
				want := 0.0
				for j, w := range weight {
					want += w * v[j*width+kv+d]
				}
				f.near(fmt.Sprintf("token %d head %d", t, h), d, got[at+d], want/sum, tolAttention*most)
			}
		}
	}
}

// testAttentionExtremes: scores far beyond the exponential's range, equal
// scores, and values that f16 cannot hold. An infinite value of a later token
// must not reach an earlier row through the block they share.
func testAttentionExtremes(f *fixture) {
	const dim, n = 64, 70
	run := func(q, k, v func(t, d int) float32) []float32 {
		p := f.pool(kernels.PageLayout{Layers: 1, KVHeads: 1, HeadDim: dim}, 2)
		s := p.sequence(1, n)
		b := p.batch(1, 0, part{s, 0, n})
		for _, c := range []struct {
			b  kernels.Buffer
			fn func(t, d int) float32
		}{{b.q, q}, {b.k, k}, {b.v, v}} {
			x := f.read(c.b)
			for t := range n {
				for d := range dim {
					x[(1+t)*dim+d] = c.fn(t, d)
				}
			}
			f.store(c.b, x)
		}
		f.step(func(o kernels.Ops) { b.append(o, 0); b.attend(o, 0) })
		return b.out(0)
	}
	one := func(t, d int) float32 { return 1 }
	zero := func(t, d int) float32 { return 0 }
	number := func(t, d int) float32 { return float32(t) }

	// All scores equal: the mean.
	for i, got := range run(zero, one, number) {
		f.near("mean", i, got, float64(i/dim)/2, tolAttention*n)
	}
	// Rising scores, 16*100 apart: the last token takes all.
	rising := run(func(t, d int) float32 { return 100 }, number, number)
	falling := run(func(t, d int) float32 { return -100 }, number, number)
	for i := range rising {
		f.near("last", i, rising[i], float64(i/dim), 0)
		f.near("first", i, falling[i], 0, 0)
	}
	// Token 40's value overflows f16.
	over := run(zero, one, func(t, d int) float32 {
		if t == 40 {
			return 1e6
		}
		return 1
	})
	for i, got := range over {
		if t := i / dim; t < 40 {
			f.near("before the infinite value", i, got, 1, tolAttention)
		} else if !math.IsInf(float64(got), 1) {
			f.Fatalf("row %d averages an infinite value to %v", t, got)
		}
	}
}

// testBatchInvariance: a row of a matrix product has the same bits alone and
// with any number of others, at any place.
func testBatchInvariance(f *fixture) {
	for _, t := range weightTypes {
		f.sub(t.String(), func(f *fixture) {
			const cols, rows, n = 512, 45, 39
			w := f.weights(t, rows, cols)
			m := f.matrix(t, rows, cols, w.data)
			x := f.normal(n * cols)
			src, alone := f.upload(x, n, cols), make([]float32, 0, n*rows)
			dst := f.poisoned(n, rows)
			for r := range n {
				f.step(func(o kernels.Ops) { o.MatMulRows(dst, src, []int{r}, m) })
				alone = append(alone, f.read(dst)[:rows]...)
			}
			for _, k := range []int{2, 3, 4, 7, 8, 13, 16, 17, 31, 39} {
				f.step(func(o kernels.Ops) { o.MatMul([]kernels.Buffer{dst}, src, k, []kernels.Matrix{m}, nil) })
				f.equal(fmt.Sprintf("%d rows", k), f.read(dst)[:k*rows], alone[:k*rows])
			}
		})
	}
}

// testChunkInvariance: a prompt cut into any chunks gives the same bits.
func testChunkInvariance(f *fixture) {
	for _, s := range attentionShapes {
		f.sub(fmt.Sprint(s), func(f *fixture) {
			const n = 135
			whole := f.chunked(s, n, n)
			for _, size := range []int{1, 16, 29, 64, 100} {
				f.equal(fmt.Sprintf("chunks of %d", size), f.chunked(s, n, size), whole)
			}
		})
	}
}

func (f *fixture) chunked(s [3]int, n, size int) []float32 {
	f.Helper()
	p := f.pool(kernels.PageLayout{Layers: 1, KVHeads: s[0], HeadDim: s[2]}, (n+blockTokens-1)/blockTokens)
	q := p.sequence(5, n)
	var out []float32
	for pos := 0; pos < n; pos += size {
		b := p.run(s[1], 0, part{q, pos, min(size, n-pos)})
		out = append(out, b.out(0)...)
	}
	return out
}

// testSpanInvariance: sequences in one step, in any mix and order, have the
// bits of their solo runs.
func testSpanInvariance(f *fixture) {
	s := [3]int{3, 9, 64}
	p := f.pool(kernels.PageLayout{Layers: 1, KVHeads: s[0], HeadDim: s[2]}, 40)
	solo := make(map[kernels.Owner][]float32)
	for o := kernels.Owner(1); o <= 4; o++ {
		q := p.sequence(o, 130)
		solo[o] = p.run(s[1], 0, part{q, 0, 130}).out(0)
	}
	width := s[1] * s[2]
	var q [5]*sequence
	for o := kernels.Owner(1); o <= 4; o++ {
		q[o] = p.sequence(o, 130)
	}
	for _, parts := range [][]part{
		{{q[3], 0, 100}, {q[1], 0, 1}, {q[2], 0, 64}},
		{{q[1], 1, 1}, {q[2], 64, 1}, {q[4], 0, 17}, {q[3], 100, 30}},
		{{q[4], 17, 113}, {q[1], 2, 0}, {q[2], 65, 65}, {q[1], 2, 128}},
	} {
		b := p.run(s[1], 0, parts...)
		for i, a := range parts {
			f.equal(fmt.Sprintf("sequence %d at %d", a.s.owner, a.pos), b.out(i), solo[a.s.owner][a.pos*width:(a.pos+a.n)*width])
		}
	}
}

// testConcurrentSteps: steps of several goroutines at a time do not mix.
func testConcurrentSteps(f *fixture) {
	const cols, rows, n, callers = 256, 300, 5, 4
	w := f.weights(gguf.TypeQ8_0, rows, cols)
	m := f.matrix(w.t, rows, cols, w.data)
	var src, dst [callers]kernels.Buffer
	var want [callers][]float32
	for i := range callers {
		src[i], dst[i] = f.upload(f.normal(n*cols), n, cols), f.poisoned(n, rows)
		f.step(func(o kernels.Ops) { o.MatMul(dst[i:i+1], src[i], n, []kernels.Matrix{m}, nil) })
		want[i] = f.read(dst[i])
		f.store(dst[i], make([]float32, n*rows))
	}
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for range 20 {
				err := f.b.Step(func(o kernels.Ops) error {
					o.MatMul(dst[i:i+1], src[i], n, []kernels.Matrix{m}, nil)
					return nil
				})
				if err != nil {
					f.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for i := range callers {
		f.equal(fmt.Sprintf("caller %d", i), f.read(dst[i]), want[i])
	}
}
