package cpu

import (
	"math"

	"bulkhead/kernels"
)

// attendGeneric computes softmax page by page in ascending order, rescaling
// what it has when a page brings a new maximum (Milakov and Gimelshein, "Online
// normalizer calculation for softmax", 2018). Pages begin at fixed positions,
// so a query's result does not depend on the rows beside it.
func attendGeneric(a *attention) {
	dim := a.p.layout.HeadDim
	q := make([]float32, 2*dim)
	q, out := q[:dim], q[dim:]
	for i := a.lo; i < a.hi; i++ {
		token, column := a.row(i)
		for d, v := range a.q.row(a.span.Row + token)[column : column+dim] {
			q[d] = v * a.scale
		}
		clear(out)
		state := softmax{most: float32(math.Inf(-1))}
		pos := a.span.Pos + token
		for block := 0; block*kernels.BlockTokens <= pos; block++ {
			n := min(kernels.BlockTokens, pos+1-block*kernels.BlockTokens)
			a.attendPage(&state, out, q, a.span.Table[block].Page, n)
		}
		inverse := 1 / state.sum
		to := a.dst.row(a.span.Row + token)[column : column+dim]
		for d, v := range out {
			to[d] = v * inverse
		}
	}
}

// softmax is what a query knows of the pages so far: the largest score, and the
// sum of e^(score - most).
type softmax struct{ most, sum float32 }

func (a *attention) attendPage(s *softmax, out, q []float32, id kernels.PageID, n int) {
	dim := a.p.layout.HeadDim
	keys, values := a.p.keys(id, a.layer), a.p.values(id, a.layer)
	var score [kernels.BlockTokens]float32
	most := s.most
	for k := range n {
		at := a.p.keyAt(a.head, k)
		dot := float32(0)
		for d, v := range q {
			dot = fma32(v, f16to32(keys[at+d*keyLanes]), dot)
		}
		score[k] = dot
		if dot > most {
			most = dot
		}
	}
	for k := range n {
		score[k] = expGeneric(score[k] - most)
	}
	var sum lanes
	for k, v := range score {
		sum[k%keyLanes] += v
	}
	rescale := expGeneric(s.most - most)
	s.most, s.sum = most, fma32(s.sum, rescale, addLanes(&sum))
	for d := range out {
		out[d] *= rescale
	}
	for k := range n {
		v := values[a.p.valueAt(a.head, k):][:dim]
		for d := range out {
			out[d] = fma32(score[k], f16to32(v[d]), out[d])
		}
	}
}
