package kerneltest

import (
	"math/rand/v2"

	"bulkhead/kernels"
)

// sequence is one generation in the pool: its table, and K and V rows that are
// a function of (owner, layer, position), so that anyone can make them again.
type sequence struct {
	owner kernels.Owner
	table []kernels.Entry
}

const blockTokens = kernels.BlockTokens

// pool is a KV pool of which every sequence takes the next pages, the later
// block on the lower page, so that page numbers never agree with block numbers.
type pool struct {
	kernels.Pages
	f    *fixture
	next kernels.PageID
}

func (f *fixture) pool(l kernels.PageLayout, count int) *pool {
	f.Helper()
	p, err := f.b.NewPages(l, count)
	if err != nil {
		f.Fatal(err)
	}
	return &pool{Pages: p, f: f, next: kernels.PageID(count)}
}

func (p *pool) sequence(owner kernels.Owner, tokens int) *sequence {
	p.f.Helper()
	s := &sequence{owner: owner}
	for i := range (tokens + blockTokens - 1) / blockTokens {
		p.next--
		if p.next < 0 {
			p.f.Fatal("pool is too small for the test")
		}
		s.claim(p, i, p.next)
	}
	return s
}

// claim makes page id block i of the sequence.
func (s *sequence) claim(p *pool, i int, id kernels.PageID) {
	generation := uint32(7*int(s.owner) + i)
	p.Claim(id, kernels.Tag{Owner: s.owner, Generation: generation, Index: uint32(i)})
	for len(s.table) <= i {
		s.table = append(s.table, kernels.Entry{})
	}
	s.table[i] = kernels.Entry{Page: id, Owner: s.owner, Generation: generation}
}

// rows gives what a sequence appends, or asks, at positions [pos, pos+n):
// kind 0 is K, 1 is V, 2 is Q.
func (s *sequence) rows(kind, layer, pos, n, width int) []float32 {
	v := make([]float32, 0, n*width)
	for t := pos; t < pos+n; t++ {
		rng := rand.New(rand.NewPCG(uint64(s.owner)<<8|uint64(kind), uint64(layer)<<32|uint64(t)))
		for range width {
			v = append(v, float32(rng.NormFloat64()))
		}
	}
	return v
}

// part is the rows of one sequence in a step.
type part struct {
	s      *sequence
	pos, n int
}

// batch is the parts of one step, each at its rows, with a row of NaN between
// two of them that nothing may touch.
type batch struct {
	p       *pool
	heads   int
	spans   []kernels.Span
	k, v, q kernels.Buffer
	dst     kernels.Buffer
	mark    float32 // what dst holds before the step
}

func (p *pool) batch(heads, layer int, parts ...part) *batch {
	p.f.Helper()
	l := p.Layout()
	b := &batch{p: p, heads: heads, mark: nan}
	var k, v, q []float32
	rows := 0
	gap := func() {
		nothing := func(n int) []float32 {
			x := make([]float32, n)
			for i := range x {
				x[i] = nan
			}
			return x
		}
		k = append(k, nothing(l.KVHeads*l.HeadDim)...)
		v = append(v, nothing(l.KVHeads*l.HeadDim)...)
		q = append(q, nothing(heads*l.HeadDim)...)
		rows++
	}
	gap()
	for _, a := range parts {
		b.spans = append(b.spans, kernels.Span{Row: rows, Len: a.n, Pos: a.pos, Table: a.s.table})
		k = append(k, a.s.rows(0, layer, a.pos, a.n, l.KVHeads*l.HeadDim)...)
		v = append(v, a.s.rows(1, layer, a.pos, a.n, l.KVHeads*l.HeadDim)...)
		q = append(q, a.s.rows(2, layer, a.pos, a.n, heads*l.HeadDim)...)
		rows += a.n
		gap()
	}
	b.k = p.f.upload(k, rows, l.KVHeads*l.HeadDim)
	b.v = p.f.upload(v, rows, l.KVHeads*l.HeadDim)
	b.q = p.f.upload(q, rows, heads*l.HeadDim)
	b.dst = p.f.poisoned(rows, heads*l.HeadDim)
	return b
}

func (b *batch) append(o kernels.Ops, layer int) {
	o.AppendKV(b.p.Pages, layer, b.k, b.v, b.spans)
}

func (b *batch) attend(o kernels.Ops, layer int) {
	o.PagedAttention(b.dst, b.q, b.p.Pages, layer, b.spans, b.heads, attentionScale)
}

const attentionScale = 0.25

// fill marks dst with plain numbers instead of NaN, so that NaN shows.
func (b *batch) fill() *batch {
	b.mark = 1
	v := make([]float32, b.dst.Rows()*b.dst.Cols())
	for i := range v {
		v[i] = b.mark
	}
	b.p.f.store(b.dst, v)
	return b
}

// out gives the attention rows of part i, and fails if a gap was written.
func (b *batch) out(i int) []float32 {
	f := b.p.f
	f.Helper()
	all, width := f.read(b.dst), b.dst.Cols()
	used := make([]bool, b.dst.Rows())
	for _, s := range b.spans {
		for r := s.Row; r < s.Row+s.Len; r++ {
			used[r] = true
		}
	}
	for r, u := range used {
		if !u && !sameBits(all[r*width], b.mark) {
			f.Fatalf("row %d of no span was written", r)
		}
	}
	s := b.spans[i]
	return all[s.Row*width : (s.Row+s.Len)*width]
}

// run appends and attends positions [pos, pos+n) of one sequence at a layer.
func (p *pool) run(heads, layer int, parts ...part) *batch {
	p.f.Helper()
	b := p.batch(heads, layer, parts...)
	p.f.step(func(o kernels.Ops) {
		b.append(o, layer)
		b.attend(o, layer)
	})
	return b
}
