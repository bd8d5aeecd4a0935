package cpu

import "math"

// The plain Go vector operations: the oracle of the assembly, bit for bit.
// Reductions run in 16 lanes, lane i over elements i, 16+i, ..., which are then
// added in halves: 8 with 8, 4 with 4, 2 with 2, 1 with 1.

func addLanes(l *lanes) float32 {
	for n := 8; n > 0; n /= 2 {
		for i := range n {
			l[i] += l[i+n]
		}
	}
	return l[0]
}

func addGeneric(dst, src []float32) {
	for i, v := range src {
		dst[i] += v
	}
}

// normGeneric: dst = x / sqrt(mean(x^2) + eps) * w.
func normGeneric(dst, x, w []float32, eps float32) {
	var l lanes
	for i, v := range x {
		l[i&15] = fma32(v, v, l[i&15])
	}
	mean := addLanes(&l) / float32(len(x))
	inverse := 1 / float32(math.Sqrt(float64(mean+eps)))
	for i, v := range x {
		dst[i] = float32(v*inverse) * w[i]
	}
}

// The exponential: e^x = 2^n * e^r with n = round(x/ln 2), and e^r by its
// series to degree 7 (|r| <= 0.347: relative error below 2^-23). Below expMin
// it is 0 and above expMax infinite; there are no subnormal results.
const (
	expMin  = -87.3
	expMax  = 88.37 // round(expMax / ln 2) is 127
	expLog2 = 1.44269504088896341
	expLnHi = 0.693145751953125 // ln 2 in two pieces: n*expLnHi is exact
	expLnLo = 1.42860682030941723212e-6
	expC2   = 1.0 / 2
	expC3   = 1.0 / 6
	expC4   = 1.0 / 24
	expC5   = 1.0 / 120
	expC6   = 1.0 / 720
	expC7   = 1.0 / 5040
	magic   = 12582912 // 1.5 * 2^23: adding it rounds to an integer
)

func expGeneric(x float32) float32 {
	if x < expMin {
		return 0
	}
	if x > expMax {
		return float32(math.Inf(1))
	}
	n := fma32(x, expLog2, magic) - magic
	r := fma32(n, -expLnHi, x)
	r = fma32(n, -expLnLo, r)
	p := fma32(expC7, r, expC6)
	p = fma32(p, r, expC5)
	p = fma32(p, r, expC4)
	p = fma32(p, r, expC3)
	p = fma32(p, r, expC2)
	p = fma32(p, r, 1)
	p = fma32(p, r, 1)
	if isNaN(p) {
		return p
	}
	return p * math.Float32frombits(uint32(int32(n)+127)<<23)
}

// siluMulGeneric: dst = gate / (1 + e^-gate) * up.
func siluMulGeneric(dst, gate, up []float32) {
	for i, g := range gate {
		dst[i] = float32(g/(1+expGeneric(-g))) * up[i]
	}
}

// ropeGeneric rotates one head. table is [2][dims/2]: cosines, then sines.
func ropeGeneric(x, table []float32, neox bool) {
	n := len(table) / 2
	for i := range n {
		a, b := 2*i, 2*i+1
		if neox {
			a, b = i, i+n
		}
		c, s := table[i], table[n+i]
		u, v := x[a], x[b]
		x[a] = float32(u*c) - float32(v*s)
		x[b] = float32(u*s) + float32(v*c)
	}
}

// halfGeneric rounds to f16, nearest even.
func halfGeneric(dst []uint16, x []float32) {
	for i, v := range x {
		dst[i] = f32to16(v)
	}
}
