package cpu

import (
	"math"
	"sync"

	"bulkhead/kernels"
)

// attentionKernels are the inner loops of attendTiled.
type attentionKernels struct {
	// scores: score[query][64] of queries 1, 4, 8 or 16 against the first
	// groups groups of 16 keys. q is [dim][queryTile].
	scores func(queries int, score, q *float32, k *uint16, dim, groups int)
	// softmax takes n scores into state, leaves their weights (0 beyond n) and
	// gives what the results so far are multiplied by.
	softmax func(score *float32, state *softmax, n int) (rescale float32)
	// values: out[query][dim] = out*rescale + weights times the first n values,
	// for 1, 4 or queryTile queries. Rows of out are dim apart, those of p 64.
	values func(queries int, out, p, rescale *float32, v *uint16, dim, n int)
}

const rowsMax = queryTile + 3

// attentionScratch is what one piece of work needs. Rows beyond the tile let
// the last queries run as four; what lands there is never read.
type attentionScratch struct {
	q       []float32 // [dim][queryTile]
	out     []float32 // [rowsMax][dim]
	score   [rowsMax * kernels.BlockTokens]float32
	rescale [rowsMax]float32
	state   [queryTile]softmax
}

var attentionScratches = sync.Pool{New: func() any { return new(attentionScratch) }}

// softmax is what a query knows of the pages so far: the largest score, and the
// sum of e^(score - most).
type softmax struct{ most, sum float32 }

// attendTiled computes softmax page by page in ascending order, rescaling what
// it has when a page brings a new maximum (Milakov and Gimelshein, "Online
// normalizer calculation for softmax", 2018). Pages begin at fixed positions,
// and each query of the tile sees the same operations in the same order as it
// would alone, so its result does not depend on the rows beside it.
func attendTiled(a *attention, kern *attentionKernels) {
	dim, n := a.p.layout.HeadDim, a.hi-a.lo
	if dim%keyLanes != 0 {
		kern = &attentionGeneric
	}
	s := attentionScratches.Get().(*attentionScratch)
	defer attentionScratches.Put(s)
	s.begin(a)
	position := func(i int) int { return a.span.Pos + (a.lo+i)/a.group }
	size := n // of the tile, as scores knows it
	switch {
	case n > 8:
		size = 16
	case n > 4:
		size = 8
	case n > 1:
		size = 4
	}
	first := 0 // queries before it are done
	for block := 0; block*kernels.BlockTokens <= position(n-1); block++ {
		for position(first) < block*kernels.BlockTokens {
			first++
		}
		slots := func(i int) int { return min(kernels.BlockTokens, position(i)+1-block*kernels.BlockTokens) }
		page := a.span.Table[block].Page
		k := &a.p.keys(page, a.layer)[a.p.keyAt(a.head, 0)]
		v := &a.p.values(page, a.layer)[a.p.valueAt(a.head, 0)]
		kern.scores(size, &s.score[0], &s.q[0], k, dim, (slots(n-1)+keyLanes-1)/keyLanes)
		for i := first; i < n; i++ {
			s.rescale[i] = kern.softmax(&s.score[i*kernels.BlockTokens], &s.state[i], slots(i))
		}
		for i := first; i < n; {
			// Four queries, or all, that see the same slots share the reading of the
			// values; at the diagonal they do not, and a slot that a query must
			// not see must not even be multiplied by 0.
			together := 1
			if n == queryTile && i == 0 && slots(0) == slots(n-1) {
				together = n
			} else if last := min(i+3, n-1); last > i && slots(i) == slots(last) {
				together = 4
			}
			kern.values(together, &s.out[i*dim], &s.score[i*kernels.BlockTokens], &s.rescale[i], v, dim, slots(i))
			i += together
		}
	}
	for i := range n {
		token, column := a.row(a.lo + i)
		inverse := 1 / s.state[i].sum
		to := a.dst.row(a.span.Row + token)[column : column+dim]
		for d, v := range s.out[i*dim:][:dim] {
			to[d] = v * inverse
		}
	}
}

// begin packs the scaled queries and clears the results.
func (s *attentionScratch) begin(a *attention) {
	dim := a.p.layout.HeadDim
	s.q, s.out = grow(s.q, dim*queryTile), grow(s.out, rowsMax*dim)
	if a.hi-a.lo < queryTile {
		clear(s.q)
	}
	for i := range a.hi - a.lo {
		token, column := a.row(a.lo + i)
		for d, v := range a.q.row(a.span.Row + token)[column : column+dim] {
			s.q[d*queryTile+i] = v * a.scale
		}
		clear(s.out[i*dim:][:dim])
		s.state[i] = softmax{most: float32(math.Inf(-1))}
	}
}
