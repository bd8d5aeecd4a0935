package cpu

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/gguf"
	"bulkhead/kernels"
)

// randomMatrix loads random blocks; what they stand for does not matter here.
func randomMatrix(b *testing.B, be kernels.Backend, t gguf.Type, rows, cols int) kernels.Matrix {
	b.Helper()
	rowBytes, err := t.RowBytes(cols)
	if err != nil {
		b.Fatal(err)
	}
	data := make([]byte, rows*rowBytes)
	rng := rand.NewChaCha8([32]byte{1})
	if _, err := rng.Read(data); err != nil {
		b.Fatal(err)
	}
	for i := range data {
		data[i] &= 0x3f // scales that are finite
	}
	m, err := be.LoadMatrix(t, rows, cols, data)
	if err != nil {
		b.Fatal(err)
	}
	return m
}

func openBench(b *testing.B, tier string) kernels.Backend {
	b.Helper()
	be, err := New(Config{Tier: tier})
	if err != nil {
		b.Skip(err)
	}
	b.Cleanup(func() { be.Close() })
	return be
}

// BenchmarkMatMul is one product of the shapes of SmolLM2-135M (the last is its
// head), for a decode step, a batch of 16 and a prompt of 512.
func BenchmarkMatMul(b *testing.B) {
	for _, tier := range tiers() {
		for _, t := range []gguf.Type{gguf.TypeQ4_1, gguf.TypeQ8_0, gguf.TypeQ6_K} {
			for _, s := range [][2]int{{576, 576}, {192, 576}, {1536, 576}, {576, 1536}, {49152, 576}} {
				for _, n := range []int{1, 16, 512} {
					if (s[0] > 4096 || tier == "generic") && n > 16 {
						continue
					}
					rows, cols := s[0], s[1]
					if cols%t.BlockElems() != 0 {
						cols = (cols + 255) / 256 * 256
					}
					b.Run(fmt.Sprintf("%s/%s/%dx%d/rows=%d", tier, t, rows, cols, n), func(b *testing.B) {
						be := openBench(b, tier)
						m := randomMatrix(b, be, t, rows, cols)
						x, _ := be.Alloc(n, cols)
						for i := range x.(*buffer).v {
							x.(*buffer).v[i] = float32(i%11) - 5
						}
						y, _ := be.Alloc(n, rows)
						b.ResetTimer()
						if err := be.Step(func(o kernels.Ops) error {
							for b.Loop() {
								o.MatMul([]kernels.Buffer{y}, x, n, []kernels.Matrix{m}, nil)
							}
							return nil
						}); err != nil {
							b.Fatal(err)
						}
						b.ReportMetric(2*float64(rows*cols*n)/float64(b.Elapsed().Nanoseconds())*float64(b.N), "GOP/s")
					})
				}
			}
		}
	}
}

// pass is SmolLM2-135M without its weights' meaning: all operations of a
// forward pass over 30 layers and the head, for sequences that stand at pos.
type pass struct {
	be                                 kernels.Backend
	layers                             [30][7]kernels.Matrix
	head                               kernels.Matrix
	norm                               kernels.Vector
	x, h, q, k, v, att, gate, up, down kernels.Buffer
	logits                             kernels.Buffer
	rope                               kernels.RoPE
	pages                              kernels.Pages
	table                              []kernels.Entry
}

func newPass(b *testing.B, t gguf.Type, threads, rows, tokens int) *pass {
	be, err := New(Config{Threads: threads})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { be.Close() })
	p := &pass{be: be}
	for i := range p.layers {
		for j, s := range [][2]int{{576, 576}, {192, 576}, {192, 576}, {576, 576}, {1536, 576}, {1536, 576}, {576, 1536}} {
			p.layers[i][j] = randomMatrix(b, be, t, s[0], s[1])
		}
	}
	p.head = randomMatrix(b, be, gguf.TypeQ8_0, 49152, 576)
	ones := make([]float32, 576)
	for i := range ones {
		ones[i] = 1e-3
	}
	p.norm, _ = be.LoadVector(ones)
	for _, a := range []struct {
		b    *kernels.Buffer
		cols int
	}{{&p.x, 576}, {&p.h, 576}, {&p.q, 576}, {&p.k, 192}, {&p.v, 192}, {&p.att, 576}, {&p.gate, 1536}, {&p.up, 1536}, {&p.down, 576}, {&p.logits, 49152}} {
		n := rows
		if a.b == &p.logits {
			n = 1
		}
		*a.b, _ = be.Alloc(n, a.cols)
	}
	for i := range p.x.(*buffer).v {
		p.x.(*buffer).v[i] = float32(i%7) - 3
	}
	inv := make([]float32, 32)
	for i := range inv {
		inv[i] = 1 / float32(1+i)
	}
	p.rope = kernels.RoPE{HeadDim: 64, Dims: 64, InvFreq: inv, Scale: 1}
	n := (tokens + 63) / 64
	p.pages, err = be.NewPages(kernels.PageLayout{Layers: 30, KVHeads: 3, HeadDim: 64}, n)
	if err != nil {
		b.Fatal(err)
	}
	p.table = make([]kernels.Entry, n)
	p.reset()
	return p
}

// reset frees all pages and claims them again.
func (p *pass) reset() {
	for i := range p.table {
		p.pages.Scrub(kernels.PageID(i))
		p.pages.Claim(kernels.PageID(i), kernels.Tag{Owner: 1, Index: uint32(i)})
		p.table[i] = kernels.Entry{Page: kernels.PageID(i), Owner: 1}
	}
}

func (p *pass) step(b *testing.B, at, n int) {
	pos := make([]int32, n)
	for i := range pos {
		pos[i] = int32(at + i)
	}
	spans := []kernels.Span{{Row: 0, Len: n, Pos: at, Table: p.table}}
	err := p.be.Step(func(o kernels.Ops) error {
		type mats = []kernels.Matrix
		type bufs = []kernels.Buffer
		for l, w := range p.layers {
			o.RMSNorm(p.h, p.x, n, 1, p.norm, 1e-5)
			o.MatMul(bufs{p.q, p.k, p.v}, p.h, n, mats{w[0], w[1], w[2]}, nil)
			o.RoPE(p.q, n, 9, pos, p.rope)
			o.RoPE(p.k, n, 3, pos, p.rope)
			o.AppendKV(p.pages, l, p.k, p.v, spans)
			o.PagedAttention(p.att, p.q, p.pages, l, spans, 9, .125)
			o.MatMul(bufs{p.h}, p.att, n, mats{w[3]}, nil)
			o.Add(p.x, p.h, n)
			o.RMSNorm(p.h, p.x, n, 1, p.norm, 1e-5)
			o.MatMul(bufs{p.gate, p.up}, p.h, n, mats{w[4], w[5]}, nil)
			o.SiLUMul(p.gate, p.gate, p.up, n)
			o.MatMul(bufs{p.down}, p.gate, n, mats{w[6]}, nil)
			o.Add(p.x, p.down, n)
		}
		o.MatMulRows(p.logits, p.x, []int{n - 1}, p.head)
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkPass is whole forward passes: decode behind 512 tokens, and a
// prompt of 512.
func BenchmarkPass(b *testing.B) {
	for _, t := range []gguf.Type{gguf.TypeQ4_1, gguf.TypeQ8_0} {
		for _, threads := range []int{1, 2} {
			b.Run(fmt.Sprintf("decode/%s/threads=%d", t, threads), func(b *testing.B) {
				p := newPass(b, t, threads, 512, 640)
				p.step(b, 0, 512)
				at := 512
				for b.Loop() {
					if at == 640 {
						b.StopTimer()
						p.reset()
						p.step(b, 0, 512)
						at = 512
						b.StartTimer()
					}
					p.step(b, at, 1)
					at++
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tok/s")
			})
			b.Run(fmt.Sprintf("prefill/%s/threads=%d", t, threads), func(b *testing.B) {
				p := newPass(b, t, threads, 512, 512)
				for b.Loop() {
					p.reset()
					p.step(b, 0, 512)
				}
				b.ReportMetric(512*float64(b.N)/b.Elapsed().Seconds(), "tok/s")
			})
		}
	}
}

// BenchmarkForkJoin is a region of one chunk for each thread, and nothing in it.
func BenchmarkForkJoin(b *testing.B) {
	p := newPool(2)
	defer p.close()
	for b.Loop() {
		p.run(2, func(int) {})
	}
}

// BenchmarkOwnerCheck is what the check of a block table costs: all entries of a
// sequence of 2048 tokens at one layer, as attention checks them once for each layer
// of a step.
func BenchmarkOwnerCheck(b *testing.B) {
	p := newPass(b, gguf.TypeQ4_1, 1, 512, 2048)
	for at := 0; at < 2048; at += 512 {
		p.step(b, at, 512)
	}
	span := kernels.Span{Len: 1, Pos: 2047, Table: p.table}
	for b.Loop() {
		if _, err := p.pages.(*pages).readable(7, &span); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/32, "ns/entry")
}

// BenchmarkKernelCalls times single calls of the product kernels, which the
// scheduler cannot interrupt (but for plain Go), with the widest matrix of an 8B model. The longest of
// them may contain time that the system gave to others.
func BenchmarkKernelCalls(b *testing.B) {
	for _, tier := range tiers() {
		for _, t := range []gguf.Type{gguf.TypeQ8_0, gguf.TypeQ4_0, gguf.TypeQ6_K} {
			b.Run(fmt.Sprintf("%s/%s", tier, t), func(b *testing.B) {
				be := openBench(b, tier).(*backend)
				rows, cols, n := 1024, 14336, 64
				if tier == "generic" {
					rows, n = 64, 16
				}
				m := randomMatrix(b, be, t, rows, cols)
				x, _ := be.Alloc(n, cols)
				y, _ := be.Alloc(n, rows)
				var mu sync.Mutex
				var calls []time.Duration
				for f := range be.tier.gemm {
					for i, kernel := range be.tier.gemm[f] {
						if kernel == nil {
							continue
						}
						be.tier.gemm[f][i] = func(a *gemmArgs) {
							began := time.Now()
							kernel(a)
							took := time.Since(began)
							mu.Lock()
							calls = append(calls, took)
							mu.Unlock()
						}
					}
				}
				err := be.Step(func(o kernels.Ops) error {
					for b.Loop() {
						o.MatMul([]kernels.Buffer{y}, x, n, []kernels.Matrix{m}, nil)
					}
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
				slices.Sort(calls)
				b.ReportMetric(float64(calls[len(calls)/10].Nanoseconds())/1e3, "p10-us")
				b.ReportMetric(float64(calls[len(calls)/2].Nanoseconds())/1e3, "median-us")
				b.ReportMetric(float64(calls[len(calls)*99/100].Nanoseconds())/1e3, "p99-us")
				b.ReportMetric(float64(calls[len(calls)-1].Nanoseconds())/1e3, "max-us")
			})
		}
	}
}
