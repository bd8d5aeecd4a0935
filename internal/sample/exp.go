package sample

import "math"

// expNeg is e^x for x <= 0, to within 2 units in the last place; below -700 it is 0.
//
// It is here, rather than math.Exp, because math.Exp differs between
// architectures in the last bit, and two nodes must choose the same token. Each
// product is converted explicitly, which forbids the compiler to fuse it into a
// multiply-add (Go specification, "Floating-point operators").
//
// Method: x = k·ln2 + r with |r| <= ln2/2 (Cody and Waite's two-part ln2), then
// the Taylor polynomial of degree 13, whose remainder is below 2^-57, and
// scaling by 2^k through the exponent bits.
func expNeg(x float64) float64 {
	const (
		log2e = 1.44269504088896338700e+00
		ln2Hi = 6.93147180369123816490e-01
		ln2Lo = 1.90821492927058770002e-10
	)
	if !(x > -700) {
		return 0
	}
	k := math.Floor(float64(x*log2e) + 0.5)
	r := float64(x-float64(k*ln2Hi)) - float64(k*ln2Lo)
	// Estrin's scheme: short chains of dependent operations.
	r2 := float64(r * r)
	r4 := float64(r2 * r2)
	lo := (1 + r) + float64(r2*((1.0/2)+float64(r*(1.0/6))))
	mid := (1.0/24 + float64(r*(1.0/120))) + float64(r2*(1.0/720+float64(r*(1.0/5040))))
	hi := (1.0/40320 + float64(r*(1.0/362880))) + float64(r2*(1.0/3628800+float64(r*(1.0/39916800))))
	end := 1.0/479001600 + float64(r*(1.0/6227020800))
	p := lo + float64(r4*(mid+float64(r4*(hi+float64(r4*end)))))
	return p * math.Float64frombits(uint64(1023+int64(k))<<52)
}
