package sample

import "math"

const lowest32 = -math.MaxFloat32

// genericScan is plain Go: always built, and the oracle of the others. It takes any
// number of tokens.
var genericScan = scan{
	name:      "generic",
	supported: func() bool { return true },
	most:      genericMost,
	weigh:     genericWeigh,
	above:     genericAbove,
	count:     genericCount,
	mask:      genericMask,
}

func genericMost(logits []float32) (most float32, ok bool) {
	most = float32(math.Inf(-1))
	for _, l := range logits {
		if !(l <= math.MaxFloat32) {
			return most, false
		}
		if l > most {
			most = l
		}
	}
	return most, true
}

func genericWeigh(weights []uint64, logits []float32, p *weighing) (sum uint64) {
	for i, l := range logits {
		weights[i] = p.weight(l)
		sum += weights[i]
	}
	return sum
}

func genericAbove(logits []float32, weights []uint64, cuts *[scanCuts]float32, sums *[scanCuts]uint64) {
	*sums = [scanCuts]uint64{}
	for i, l := range logits {
		if l >= cuts[scanCuts-1] {
			sums[firstCut(l, cuts)] += weights[i]
		}
	}
	for j := range scanCuts - 1 {
		sums[j+1] += sums[j]
	}
}

func genericCount(logits []float32, cuts *[scanCuts]float32, sums *[scanCuts]uint64) {
	*sums = [scanCuts]uint64{}
	for _, l := range logits {
		if l >= cuts[scanCuts-1] {
			sums[firstCut(l, cuts)]++
		}
	}
	for j := range scanCuts - 1 {
		sums[j+1] += sums[j]
	}
}

// firstCut is the first cut that l reaches; it reaches the last.
func firstCut(l float32, cuts *[scanCuts]float32) (j int) {
	for l < cuts[j] {
		j++
	}
	return j & (scanCuts - 1)
}

func genericMask(bits []uint16, logits []float32, lo, hi float32) {
	clear(bits)
	for i, l := range logits {
		if lo <= l && l < hi {
			bits[i/16] |= 1 << (i % 16)
		}
	}
}
