package cpu

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// TestFMA32 compares with exact arithmetic, on numbers chosen so that sums lie
// close to halfway between two floats and among the subnormals.
func TestFMA32(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	number := func() float32 {
		// Few bits set make exact ties likely; exponents near each other make
		// both operands matter.
		m := 1 + float64(rng.IntN(8))/8 + float64(rng.IntN(4))*0x1p-23
		e := rng.IntN(24) - 12
		if rng.IntN(4) == 0 {
			e -= 70
		}
		return float32(math.Copysign(math.Ldexp(m, e), rng.Float64()-.5))
	}
	for range 300000 {
		a, b, c := number(), number(), number()
		if rng.IntN(3) == 0 {
			c = float32(math.Ldexp(float64(c), rng.IntN(60)-60))
		}
		exact := new(big.Float).SetPrec(400).SetFloat64(float64(a))
		exact.Mul(exact, new(big.Float).SetPrec(400).SetFloat64(float64(b)))
		exact.Add(exact, new(big.Float).SetPrec(400).SetFloat64(float64(c)))
		want, _ := exact.Float32()
		if got := fma32(a, b, c); got != want {
			t.Fatalf("fma32(%b, %b, %b) = %b, want %b", a, b, c, got, want)
		}
	}
	inf := float32(math.Inf(1))
	if got := fma32(inf, 1, -inf); got == got {
		t.Errorf("inf - inf = %v", got)
	}
	if got := fma32(3e38, 10, 0); got != inf {
		t.Errorf("overflow gives %v", got)
	}
}

// TestHalf: every half widens to its value and comes back.
func TestHalf(t *testing.T) {
	for h := range 1 << 16 {
		f := f16to32(uint16(h))
		exp, man := h>>10&31, h&0x3ff
		want := math.Ldexp(float64(man), -24)
		switch {
		case exp == 31 && man != 0:
			if !isNaN(f) {
				t.Fatalf("%04x is %v, want NaN", h, f)
			}
			if !isNaN(f16to32(f32to16(f))) {
				t.Fatalf("%04x comes back as %04x, want NaN", h, f32to16(f))
			}
			continue
		case exp == 31:
			want = math.Inf(1)
		case exp > 0:
			want = math.Ldexp(float64(1024+man), exp-25)
		}
		if h>>15 == 1 {
			want = -want
		}
		if math.Float64bits(float64(f)) != math.Float64bits(want) {
			t.Fatalf("%04x is %v, want %v", h, f, want)
		}
		if back := f32to16(f); back != uint16(h) {
			t.Fatalf("%04x comes back as %04x", h, back)
		}
	}
}

// TestExp: the error is a few units in the last place over the whole range.
func TestExp(t *testing.T) {
	const tolerance = 2e-7
	for x := float32(expMin); x < expMax; x += .00173 {
		want := math.Exp(float64(x))
		if got := float64(expGeneric(x)); math.Abs(got-want) > tolerance*want {
			t.Fatalf("e^%v = %v, want %v", x, got, want)
		}
	}
	inf := float32(math.Inf(1))
	for x, want := range map[float32]float32{0: 1, -inf: 0, inf: inf, 100: inf, -100: 0} {
		if got := expGeneric(x); got != want {
			t.Errorf("e^%v = %v, want %v", x, got, want)
		}
	}
	if got := expGeneric(nan32); !isNaN(got) {
		t.Errorf("e^NaN = %v", got)
	}
}
