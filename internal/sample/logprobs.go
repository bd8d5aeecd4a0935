package sample

import "math"

// logNorm is the logarithm of the sum of e^logit, computed around the largest
// logit in order of ids.
func logNorm(logits []float32, max float32) float64 {
	var sum float64
	for _, l := range logits {
		sum += expNeg(float64(l) - float64(max))
	}
	return float64(max) + math.Log(sum)
}

// logprob is a token's log probability. A token that the model gives no
// probability at all has the lowest float, since JSON knows no infinity.
func logprob(logit float32, norm float64) float32 {
	return float32(max(float64(logit)-norm, -math.MaxFloat32))
}

// top returns the n most probable tokens, best first, lower id first among
// equals; fewer where the model gives fewer any probability.
func top(logits []float32, n int, norm float64) []TopToken {
	if n == 0 {
		return nil
	}
	best := make([]TopToken, 0, n+1)
	least := float32(math.Inf(-1)) // a token must beat it to enter
	for i, l := range logits {
		if !(l > least) {
			continue
		}
		at := len(best)
		for at > 0 && best[at-1].Logprob < l {
			at--
		}
		best = append(best, TopToken{})
		copy(best[at+1:], best[at:])
		best[at] = TopToken{int32(i), l} // the logit until the end
		if len(best) > n {
			best = best[:n]
		}
		if len(best) == n {
			least = best[n-1].Logprob
		}
	}
	for i := range best {
		best[i].Logprob = logprob(best[i].Logprob, norm)
	}
	return best
}
