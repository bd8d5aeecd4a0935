package sample

import (
	"math"
	"math/bits"
	"sync"
)

// cand is a token that may be drawn.
type cand struct {
	id     int32
	logit  float32
	weight uint64
}

// before says whether c ranks above d: larger logit, then lower id. No two
// candidates rank equal, so every cut has one answer.
func (c cand) before(d cand) bool {
	return c.logit > d.logit || (c.logit == d.logit && c.id < d.id)
}

// nothing ranks below every token.
var nothing = cand{id: math.MaxInt32, logit: float32(math.Inf(-1))}

// scratch is what a draw needs beside the logits; nothing in it outlives a call.
type scratch struct {
	weights []uint64 // [vocab]
	bits    []uint16 // [vocab/16]
	cands   []cand

	// Of each scanBlock tokens: the largest logit, the weight that is kept, and the
	// weights above the cuts of one pass.
	most []float32
	sums []uint64
	cuts [][scanCuts]uint64
}

// scratches are shared by all sequences: a vocabulary's weights are too much to
// keep for each.
var scratches = sync.Pool{New: func() any { return new(scratch) }}

func (s *scratch) grow(vocab int) {
	if len(s.weights) == vocab {
		return
	}
	n := blockCount(vocab)
	*s = scratch{
		weights: make([]uint64, vocab), bits: make([]uint16, (vocab+15)/16), cands: s.cands,
		most: make([]float32, n), sums: make([]uint64, n), cuts: make([][scanCuts]uint64, n),
	}
}

// Cutting. Top-k and top-p each end the ranking at a border: the k-th token, or
// the one whose weight completes the mass. Sorting the vocabulary to find it would
// cost more than all else. Instead a pass measures what lies above a few cuts, the
// next pass looks between the two cuts that enclose the border, and when few
// tokens are left between them these alone are ranked.

const (
	fewTokens  = 256 // are ranked rather than cut once more
	passesMax  = 5   // after so many the rest are ranked, however many they are
	cutsWithin = scanCuts + 1

	guessStretch = scanBlock / 8 // tokens of each block that a guess looks at
	guessPasses  = 3
	guessMargin  = 200 // of the range of logits, this part either way
)

// border is between two logits: what lies at or above hi measures above, less than
// the target; with what lies at or above lo the target is reached, unless lo is
// still the lowest logit that counts.
type border struct {
	lo, hi float32
	above  uint64
}

// pass measures what lies at or above each of the cuts between from and to, where
// the border may be or not. took says which of them became its hi, -1 for none.
func (b *border) pass(from, to float32, target uint64, measure func(*[scanCuts]float32) [scanCuts]uint64) (took int) {
	var cuts [scanCuts]float32
	for j := range cuts { // from the top down
		cuts[j] = float32(float64(from) + (float64(to)-float64(from))*float64(scanCuts-j)/cutsWithin)
	}
	took = -1
	for j, m := range measure(&cuts) {
		if m >= target {
			b.lo = max(b.lo, cuts[j])
			break
		}
		b.hi, b.above, took = cuts[j], m, j
	}
	return took
}

// between lists the tokens lo <= logit < hi that weigh something, by ascending id.
// weights nil gives each of them a weight of 1.
func (s *scratch) between(logits []float32, weights []uint64) {
	s.cands = s.cands[:0]
	for i, word := range s.bits {
		for ; word != 0; word &= word - 1 {
			id := 16*i + bits.TrailingZeros16(word)
			c := cand{int32(id), logits[id], 1}
			if weights != nil {
				c.weight = weights[id]
			}
			if c.weight > 0 {
				s.cands = append(s.cands, c)
			}
		}
	}
}

func (s *scratch) marked() (n int) {
	for _, word := range s.bits {
		n += bits.OnesCount16(word)
	}
	return n
}

// topK gives the k-th token, or nothing if no more than k tokens reach floor. It
// leaves those near it in s.cands.
func (s *scratch) topK(kern *scan, logits []float32, k int, top, floor float32) cand {
	b := border{lo: floor, hi: float32(math.Inf(1))}
	for range passesMax {
		b.pass(b.lo, min(b.hi, top), uint64(k), func(c *[scanCuts]float32) [scanCuts]uint64 { return kern.countAll(logits, c) })
		kern.maskAll(s.bits, logits, b.lo, b.hi)
		if s.marked() <= fewTokens {
			break
		}
	}
	s.between(logits, nil)
	if k -= int(b.above); k > len(s.cands) {
		return nothing
	}
	_, last := rank(s.cands, k, math.MaxUint64)
	return last
}

// topP gives the token that completes the target, less than total, the sum of
// s.weights, and leaves in s.sums what each block keeps.
func (s *scratch) topP(kern *scan, logits []float32, target, total uint64, top, floor float32) (last cand, kept uint64) {
	b := border{lo: floor, hi: float32(math.Inf(1))}
	from, to := s.guess(kern, logits, total-target, top, floor)
	clear(s.sums)
	for range passesMax {
		took := b.pass(from, to, target, func(c *[scanCuts]float32) [scanCuts]uint64 {
			return kern.aboveAll(s.cuts, logits, s.weights, c)
		})
		if took >= 0 {
			for i := range s.sums {
				s.sums[i] = s.cuts[i][took]
			}
		}
		kern.maskAll(s.bits, logits, b.lo, b.hi)
		if s.marked() <= fewTokens {
			break
		}
		from, to = b.lo, min(b.hi, top)
	}
	s.between(logits, s.weights)
	kept, last = rank(s.cands, len(s.cands), target-b.above)
	for _, c := range s.cands {
		if !last.before(c) {
			s.sums[c.id/scanBlock] += c.weight
		}
	}
	return last, b.above + kept
}

// guess says between which logits top-p's border should be, by the first tokens of
// each block. It goes by the weight that is cut off: that of many tokens, of which
// these are a fair sample, where the weight that stays may be that of one.
func (s *scratch) guess(kern *scan, logits []float32, cut uint64, top, floor float32) (from, to float32) {
	var total uint64
	for at := 0; at < len(logits); at += scanBlock {
		total += sum(s.weights[at:min(at+guessStretch, len(logits))])
	}
	cut /= scanBlock / guessStretch
	if cut >= total {
		return floor, top
	}
	b := border{lo: floor, hi: float32(math.Inf(1))}
	for range guessPasses {
		b.pass(b.lo, min(b.hi, top), total-cut, func(c *[scanCuts]float32) (all [scanCuts]uint64) {
			for at := 0; at < len(logits); at += scanBlock {
				end := min(at+guessStretch, len(logits))
				part := kern.aboveOf(logits[at:end], s.weights[at:end], c)
				for j, v := range part {
					all[j] += v
				}
			}
			return all
		})
	}
	margin := (top - floor) / guessMargin
	return max(floor, b.lo-margin), min(top, b.hi+margin)
}

func sum(weights []uint64) (total uint64) {
	for _, w := range weights {
		total += w
	}
	return total
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

func weightOf(c []cand) (total uint64) {
	for _, x := range c {
		total += x.weight
	}
	return total
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
