package cpu

import (
	"unsafe"

	"bulkhead/kernels"
)

var attentionGeneric = attentionKernels{scores: scoresGeneric, softmax: softmaxGeneric, values: valuesGeneric}

func scoresGeneric(queries int, score, q *float32, k *uint16, dim, groups int) {
	s := unsafe.Slice(score, queries*kernels.BlockTokens)
	x := unsafe.Slice((*[queryTile]float32)(unsafe.Pointer(q)), dim)
	key := unsafe.Slice((*[keyLanes]uint16)(unsafe.Pointer(k)), groups*dim)
	for g := range groups {
		var sum [queryTile][keyLanes]float32
		for d := range x {
			var wide [keyLanes]float32
			for i, h := range key[g*dim+d] {
				wide[i] = f16to32(h)
			}
			for t := range queries {
				v := x[d][t]
				for i, w := range wide {
					sum[t][i] = fma32(v, w, sum[t][i])
				}
			}
		}
		for t := range queries {
			copy(s[t*kernels.BlockTokens+g*keyLanes:], sum[t][:])
		}
	}
}

func softmaxGeneric(score *float32, state *softmax, n int) (rescale float32) {
	s := (*[kernels.BlockTokens]float32)(unsafe.Pointer(score))
	most := state.most
	for _, v := range s[:n] {
		if v > most {
			most = v
		}
	}
	for i, v := range s[:n] {
		s[i] = expGeneric(v - most)
	}
	clear(s[n:])
	var sum lanes
	for i, v := range s {
		sum[i%keyLanes] += v
	}
	rescale = expGeneric(state.most - most)
	state.most, state.sum = most, fma32(state.sum, rescale, addLanes(&sum))
	return rescale
}

func valuesGeneric(queries int, out, p, rescale *float32, v *uint16, dim, n int) {
	o := unsafe.Slice(out, queries*dim)
	weight := unsafe.Slice(p, (queries-1)*kernels.BlockTokens+n)
	scale := unsafe.Slice(rescale, queries)
	value := unsafe.Slice(v, n*dim)
	for i := range o {
		o[i] *= scale[i/dim]
	}
	for k := range n {
		row := value[k*dim : (k+1)*dim]
		for d, h := range row {
			x := f16to32(h)
			for t := range queries {
				o[t*dim+d] = fma32(weight[t*kernels.BlockTokens+k], x, o[t*dim+d])
			}
		}
	}
}
