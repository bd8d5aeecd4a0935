package kerneltest

import (
	"encoding/binary"
	"math"

	"bulkhead/internal/gguf"
)

// weightTypes is every type that a backend must multiply.
var weightTypes = []gguf.Type{
	gguf.TypeF32, gguf.TypeF16, gguf.TypeBF16, gguf.TypeQ8_0, gguf.TypeQ4_0, gguf.TypeQ4_1,
	gguf.TypeQ5_0, gguf.TypeQ5_1, gguf.TypeQ4_K, gguf.TypeQ5_K, gguf.TypeQ6_K,
}

func isFloat(t gguf.Type) bool {
	return t == gguf.TypeF32 || t == gguf.TypeF16 || t == gguf.TypeBF16
}

// weights is a random matrix: its bytes, and what they stand for.
type weights struct {
	t          gguf.Type
	rows, cols int
	data       []byte
	v          []float32
}

func (w *weights) row(r int) []float32 { return w.v[r*w.cols : (r+1)*w.cols] }

// weights makes random blocks: any bytes are valid quants, and the f16 scales
// among them are replaced by moderate values, some of them negative or zero.
func (f *fixture) weights(t gguf.Type, rows, cols int) *weights {
	f.Helper()
	rowBytes, err := t.RowBytes(cols)
	if err != nil {
		f.Fatal(err)
	}
	w := &weights{t: t, rows: rows, cols: cols, data: make([]byte, rows*rowBytes), v: make([]float32, rows*cols)}
	if t == gguf.TypeF32 {
		copy(w.data, bytesOf(f.normal(rows*cols)))
	} else {
		for i := range w.data {
			w.data[i] = byte(f.rng.Uint32())
		}
		size := t.BlockBytes()
		for at := 0; at < len(w.data); at += size {
			f.moderate(t, w.data[at:at+size])
		}
	}
	if err := gguf.Dequantize(w.v, t, w.data); err != nil {
		f.Fatal(err)
	}
	return w
}

// moderate replaces the float fields of a block.
func (f *fixture) moderate(t gguf.Type, b []byte) {
	half := func(at int, scale float64) {
		v := f.rng.NormFloat64() * scale
		if f.rng.IntN(50) == 0 {
			v = 0
		}
		binary.LittleEndian.PutUint16(b[at:], toHalf(v))
	}
	switch t {
	case gguf.TypeF16:
		half(0, 1)
	case gguf.TypeBF16:
		binary.LittleEndian.PutUint16(b, uint16(math.Float32bits(float32(f.rng.NormFloat64()))>>16))
	case gguf.TypeQ4_1, gguf.TypeQ5_1:
		half(0, .1)
		half(2, 1)
	case gguf.TypeQ4_K, gguf.TypeQ5_K:
		half(0, .01)
		half(2, .02)
	case gguf.TypeQ6_K:
		half(208, .001)
	default:
		half(0, .1)
	}
}

// toHalf rounds to the nearest IEEE half, ties to even, by arithmetic: the
// reference of what a backend does with bits.
func toHalf(v float64) uint16 {
	sign := uint16(0)
	if math.Signbit(v) {
		sign, v = 0x8000, -v
	}
	switch {
	case v != v:
		return 0x7e00
	case v >= 65520:
		return sign | 0x7c00
	case v < 1.0/(1<<14): // subnormal: units of 2^-24
		return sign | uint16(math.RoundToEven(v*(1<<24)))
	}
	fraction, exp := math.Frexp(v) // v = fraction * 2^exp, fraction in [.5, 1)
	units := uint16(math.RoundToEven(fraction * 2048))
	return sign | (uint16(exp+13)<<10 + units) // a carry of units moves the exponent
}

func fromHalf(h uint16) float64 {
	sign := 1.0
	if h&0x8000 != 0 {
		sign = -1
	}
	exp, man := int(h>>10&31), float64(h&0x3ff)
	switch exp {
	case 0:
		return sign * math.Ldexp(man, -24)
	case 31:
		if man != 0 {
			return math.NaN()
		}
		return sign * math.Inf(1)
	}
	return sign * math.Ldexp(1024+man, exp-25)
}
