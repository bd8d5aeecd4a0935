package sample

import "math"

// A token's weight is what it is drawn by: e^((logit-top)/temperature) times 2^40,
// as an integer. Sums of integers do not depend on the order of summing, so that
// plain Go and every width of vectors choose the same token. 2^40 keeps the sum of
// 2^23 tokens inside 63 bits, and lets a token fall out only below 2^-41 of the
// best one's probability.
const (
	weightBits = 40
	weightOne  = 1 << weightBits
)

// weighing is how one distribution is weighed. The assembly knows the order of
// the fields.
type weighing struct {
	top     float64 // the largest logit
	inverse float64 // 1/temperature
	least   uint64  // lighter tokens get 0
	floor   float32 // tokens of a smaller logit get 0
}

// The exponential of x <= 0 in eleven multiply-adds, each rounded once, which
// all architectures do alike: x = k·ln2 + r with |r| <= ln2/2, and the Taylor
// polynomial of degree 11, whose remainder is below 2^-47. Adding weighMagic
// rounds to the integer k, and leaves k + 40 in the low bits of the sum, from where
// a shift makes it the exponent of the result. (The constants stand in
// kernels/cpu/gen/scan.go, too.)
const (
	weighLeast = -29 // e^-29 rounds to a weight of 0
	weighLog2e = math.Log2E
	weighLn2   = math.Ln2
	weighMagic = 1<<52 + 1<<51 + weightBits
	weighRound = 1 << 52 // adding it rounds a weight to an integer, in the low bits
)

// weight is the definition that the assembly follows bit for bit.
func (p *weighing) weight(logit float32) uint64 {
	x := float64((float64(logit) - p.top) * p.inverse)
	if !(x >= weighLeast && logit >= p.floor) {
		return 0
	}
	t := math.FMA(x, weighLog2e, weighMagic)
	r := math.FMA(t-weighMagic, -weighLn2, x)
	e := math.FMA(1.0/39916800, r, 1.0/3628800)
	e = math.FMA(e, r, 1.0/362880)
	e = math.FMA(e, r, 1.0/40320)
	e = math.FMA(e, r, 1.0/5040)
	e = math.FMA(e, r, 1.0/720)
	e = math.FMA(e, r, 1.0/120)
	e = math.FMA(e, r, 1.0/24)
	e = math.FMA(e, r, 1.0/6)
	e = math.FMA(e, r, 1.0/2)
	e = math.FMA(e, r, 1)
	e = math.FMA(e, r, 1)
	scaled := math.Float64frombits(math.Float64bits(e) + math.Float64bits(t)<<52)
	w := math.Float64bits(scaled+weighRound) - math.Float64bits(weighRound)
	if w < p.least {
		return 0
	}
	return w
}

// floorOf is a logit that every token with a weight reaches: top +
// weighLeast·temperature, rounded to the nearest float, below which no float lies
// nearer to it.
func floorOf(top, temperature float32) float32 {
	return max(float32(float64(top)+weighLeast*float64(temperature)), -math.MaxFloat32)
}
