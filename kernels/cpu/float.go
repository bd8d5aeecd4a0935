package cpu

import "math"

// fma32 is a*b + c rounded once, as the FMA instructions of all tiers do it.
// The product is exact in float64; only where the sum lies halfway between two
// floats, or is subnormal as a float, could rounding twice go wrong.
func fma32(a, b, c float32) float32 {
	p := float64(a) * float64(b)
	s := p + float64(c)
	u := math.Float64bits(s)
	if u&0x1fffffff == 0x10000000 || u&0x7ff0000000000000 < 0x3810000000000000 {
		return fmaOdd(p, float64(c), s)
	}
	return float32(s)
}

// fmaOdd rounds p + c to odd in float64 before it rounds to float32, which is
// right in every case (Boldo and Melquiond, "Emulation of FMA and correctly
// rounded sums", 2008). s is p + c rounded to nearest.
func fmaOdd(p, c, s float64) float32 {
	t := s - p
	e := (p - (s - t)) + (c - t) // the exact error of s (Knuth's TwoSum)
	if e != 0 && e == e {
		u := math.Float64bits(s)
		if u&1 == 0 {
			if (e > 0) == (s > 0) {
				u++
			} else {
				u--
			}
			s = math.Float64frombits(u)
		}
	}
	return float32(s)
}

// f16to32 widens an IEEE half; exact.
func f16to32(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp := uint32(h>>10) & 31
	man := uint32(h & 0x3ff)
	switch exp {
	case 0:
		// man * 2^-24, exact in f32.
		f := float32(man) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(f) | sign)
	case 31:
		q := uint32(0)
		if man != 0 {
			q = 0x400000 // VCVTPH2PS quiets a signalling NaN
		}
		return math.Float32frombits(sign | 0x7f800000 | man<<13 | q)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | man<<13)
}

// f32to16 rounds to nearest even, as VCVTPS2PH does.
func f32to16(f float32) uint16 {
	u := math.Float32bits(f)
	sign := uint16(u>>16) & 0x8000
	u &= 0x7fffffff
	switch {
	case u > 0x7f800000: // NaN
		return sign | 0x7e00 | uint16(u>>13)&0x3ff
	case u >= 0x477ff000: // rounds beyond 65504
		return sign | 0x7c00
	case u < 0x38800000: // subnormal half
		// Adding 0.5 puts the unit of the sum at 2^-24, the unit of a
		// subnormal half: the float addition does the rounding.
		v := math.Float32frombits(u) + 0.5
		return sign | uint16(math.Float32bits(v)-0x3f000000)
	}
	u += 0xfff + u>>13&1
	return sign | uint16((u-0x38000000)>>13)
}

func bf16to32(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

func isNaN(f float32) bool { return f != f }
