package sample

import "math"

// cand is a token that may be drawn.
type cand struct {
	id     int32
	logit  float32
	weight uint64 // weightOne · e^((logit-max)/temperature), rounded
}

// weightOne is the weight of the best token. Weights are integers so that their
// sums do not depend on the order of summing: a vectorised or blocked sum gives the
// same token. 2^40 keeps the sum of 2^23 tokens inside 63 bits, and lets a token fall
// out only below 2^-41 of the best one's probability.
const (
	weightBits = 40
	weightOne  = 1 << weightBits
)

// before says whether c ranks above d: larger logit, then lower id. No two
// candidates rank equal, so every cut has one answer.
func (c cand) before(d cand) bool {
	return c.logit > d.logit || (c.logit == d.logit && c.id < d.id)
}

// weigh appends the tokens with a weight above zero, by ascending id.
func weigh(dst []cand, logits []float32, max, temperature float32) []cand {
	const least = -(weightBits + 1) * math.Ln2 // below it a weight rounds to zero
	top, inverse := float64(max), 1/float64(temperature)
	for i, l := range logits {
		x := float64((float64(l) - top) * inverse)
		if x < least {
			continue
		}
		if w := uint64(expNeg(x)*weightOne + 0.5); w > 0 {
			dst = append(dst, cand{int32(i), l, w})
		}
	}
	return dst
}

// cutMinP drops, in place, the candidates below minP times the best one's probability.
func cutMinP(c []cand, minP float32) []cand {
	if minP == 0 {
		return c
	}
	least := uint64(float64(minP) * weightOne)
	kept := c[:0]
	for _, x := range c {
		if x.weight >= least {
			kept = append(kept, x)
		}
	}
	return kept
}

// cutTop applies top-k, then top-p to what is left. It returns the lowest-ranked
// candidate that stays, and the weight of all that stay.
func (s *Sampler) cutTop(c []cand) (last cand, total uint64) {
	k := len(c)
	if s.p.TopK > 0 && s.p.TopK < k {
		k = s.p.TopK
	}
	full := k == len(c)
	if full {
		total = weightOf(c)
		last = lowest(c)
	} else {
		s.part = append(s.part[:0], c...)
		c = s.part
		total, last = rank(c, k, math.MaxUint64)
		c = c[:k]
	}
	if s.p.TopP == 0 || s.p.TopP == 1 {
		return last, total
	}
	// float64(TopP)*total is exact enough: total < 2^63 and both sides of a
	// comparison anywhere compute the same product.
	target := max(uint64(float64(float64(s.p.TopP)*float64(total))), 1)
	if target >= total {
		return last, total
	}
	if full {
		s.part = append(s.part[:0], c...)
		c = s.part
	}
	total, last = rank(dropTail(c, total-target), len(c), target)
	return last, total
}

func weightOf(c []cand) (total uint64) {
	for _, x := range c {
		total += x.weight
	}
	return total
}

func lowest(c []cand) cand {
	last := c[0]
	for _, x := range c[1:] {
		if last.before(x) {
			last = x
		}
	}
	return last
}

// dropTail removes, in place, candidates that cannot be in the nucleus: each is
// lighter than an equal share of the mass that may be missing, so that all of them
// together do not exceed it, and every token ranked above the nucleus' border stays.
func dropTail(c []cand, missing uint64) []cand {
	share := missing / uint64(len(c))
	kept := c[:0]
	for _, x := range c {
		if x.weight >= share {
			kept = append(kept, x)
		}
	}
	return kept
}

// rank moves the best candidates to the front of c: as few as reach mass in
// weight, and at most k. It returns their weight and the lowest-ranked of them.
// It is Hoare's selection ("Algorithm 65: Find", CACM 1961) on two measures at
// once, with a median-of-three pivot: linear on average, and since the ranking is
// total the answer does not depend on the pivots. At least one candidate is taken.
func rank(c []cand, k int, mass uint64) (total uint64, last cand) {
	for len(c) > 1 {
		n := partition(c) // c[:n] rank above c[n:]; both are not empty
		upper := weightOf(c[:n])
		if n >= k || upper >= mass {
			c = c[:n]
			continue
		}
		// All of c[:n] is taken; the border lies in the rest.
		total += upper
		mass -= upper
		k -= n
		c = c[n:]
	}
	return total + c[0].weight, c[0]
}

// partition reorders c, of at least two candidates, so that the first n all rank
// above the others, 0 < n < len(c).
func partition(c []cand) int {
	mid, end := len(c)/2, len(c)-1
	if c[mid].before(c[0]) {
		c[mid], c[0] = c[0], c[mid]
	}
	if c[end].before(c[0]) {
		c[end], c[0] = c[0], c[end]
	}
	if c[end].before(c[mid]) {
		c[end], c[mid] = c[mid], c[end]
	}
	if len(c) <= 3 {
		return mid // sorted by now
	}
	pivot := c[mid]
	i, j := -1, len(c)
	for {
		for i++; c[i].before(pivot); i++ {
		}
		for j--; pivot.before(c[j]); j-- {
		}
		if i >= j {
			return j + 1
		}
		c[i], c[j] = c[j], c[i]
	}
}
