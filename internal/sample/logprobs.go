package sample

import (
	"math"
	"math/bits"
	"slices"
)

// logNorm is the logarithm of the sum of e^logit, over weights of temperature 1:
// what a weight rounds away is below 2^-41 of the largest, which no float32 shows.
// It uses s.weights and s.sums.
func (s *scratch) logNorm(kern *scan, logits []float32, top float32) float64 {
	p := weighing{top: float64(top), inverse: 1, floor: floorOf(top, 1)}
	total := kern.weighAll(s.sums, s.weights, logits, &p)
	return float64(top) + math.Log(float64(total)/weightOne)
}

// logprob is a token's log probability. A token that the model gives no
// probability at all has the lowest float, since JSON knows no infinity.
func logprob(logit float32, norm float64) float32 {
	return float32(max(float64(logit)-norm, -math.MaxFloat32))
}

// top returns the n most probable tokens, best first, lower id first among
// equals; fewer where the model gives fewer any probability. s.most holds the
// largest logit of each block: n of them are a bound that all of the n reach.
func (s *scratch) top(kern *scan, logits []float32, n int, norm float64) []TopToken {
	if n == 0 {
		return nil
	}
	bound := float32(-math.MaxFloat32)
	if n <= len(s.most) {
		most := slices.Clone(s.most)
		slices.Sort(most)
		bound = max(bound, most[len(most)-n])
	}
	kern.maskAll(s.bits, logits, bound, float32(math.Inf(1)))
	best := make([]TopToken, 0, n+1)
	for i, word := range s.bits {
		for ; word != 0; word &= word - 1 {
			id := 16*i + bits.TrailingZeros16(word)
			l := logits[id]
			if len(best) == n && l <= best[n-1].Logprob {
				continue
			}
			at := len(best)
			for at > 0 && best[at-1].Logprob < l {
				at--
			}
			best = slices.Insert(best, at, TopToken{int32(id), l}) // the logit until the end
			best = best[:min(n, len(best))]
		}
	}
	for i := range best {
		best[i].Logprob = logprob(best[i].Logprob, norm)
	}
	return best
}
