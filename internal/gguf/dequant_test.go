package gguf

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"
)

// supported lists all types that Dequantize reads.
var supported = []Type{TypeF32, TypeF16, TypeQ4_0, TypeQ4_1, TypeQ5_0, TypeQ5_1, TypeQ8_0, TypeQ4_K, TypeQ5_K, TypeQ6_K, TypeBF16}

// TestDequantizeAgreesWithPython: 2,048 elements of each type, random blocks and
// the extremes of every field, decode to the very bits of gguf.quants.dequantize.
func TestDequantizeAgreesWithPython(t *testing.T) {
	f, err := Open(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, typ := range supported {
		src, ok := f.Tensor(typ.String())
		want, okWant := f.Tensor(typ.String() + ".want")
		if !ok || !okWant || src.Type != typ || want.Type != TypeF32 || src.Elems() != 2048 || want.Elems() != 2048 {
			t.Errorf("%s: the golden file lacks it", typ)
			continue
		}
		got := make([]float32, src.Elems())
		if err := Dequantize(got, typ, src.Data); err != nil {
			t.Errorf("%s: %v", typ, err)
			continue
		}
		wrong := 0
		for i, x := range got {
			bits := binary.LittleEndian.Uint32(want.Data[4*i:])
			if math.Float32bits(x) != bits {
				if wrong++; wrong <= 3 {
					t.Errorf("%s: element %d is %08x (%g), want %08x (%g)", typ, i, math.Float32bits(x), x, bits, math.Float32frombits(bits))
				}
			}
		}
		if wrong > 3 {
			t.Errorf("%s: %d of %d elements differ", typ, wrong, len(got))
		}
	}
}

// TestHalf: every one of the 65,536 halves against the definition of IEEE 754.
func TestHalf(t *testing.T) {
	for h := range 1 << 16 {
		sign, exp, frac := 1.0, h>>10&31, float64(h&1023)
		if h>>15 == 1 {
			sign = -1
		}
		want := math.Copysign(math.Ldexp(1+frac/1024, exp-15), sign)
		switch {
		case exp == 0:
			want = math.Copysign(math.Ldexp(frac/1024, -14), sign)
		case exp == 31 && frac == 0:
			want = math.Inf(int(sign))
		case exp == 31:
			want = math.NaN()
		}
		got := f16([]byte{byte(h), byte(h >> 8)})
		if math.IsNaN(want) {
			if got == got {
				t.Errorf("half %04x is %g, want NaN", h, got)
			}
		} else if math.Float32bits(got) != math.Float32bits(float32(want)) {
			t.Errorf("half %04x is %g, want %g", h, got, want)
		}
	}
}

// TestDequantizeLengths: lengths that do not belong together, and types without a
// decoder, are refused before anything is written.
func TestDequantizeLengths(t *testing.T) {
	for _, typ := range supported {
		elems, size := typ.BlockElems(), typ.BlockBytes()
		for _, c := range []struct{ dst, src int }{
			{elems, size - 1}, {elems, size + 1}, {elems, 0}, {elems, 2 * size}, {2 * elems, size}, {0, size}, {2*elems - 1, 2 * size}, {2*elems + 1, 2 * size},
		} {
			if c.dst%elems == 0 && c.src == c.dst/elems*size {
				continue // for one-element blocks some of these are right
			}
			dst := make([]float32, c.dst)
			src := make([]byte, c.src)
			for i := range src {
				src[i] = 0x11
			}
			if err := Dequantize(dst, typ, src); !errors.Is(err, ErrValue) {
				t.Errorf("%s: %d elements from %d bytes: %v, want ErrValue", typ, c.dst, c.src, err)
			}
			for _, x := range dst {
				if x != 0 {
					t.Fatalf("%s: wrote to dst before refusing", typ)
				}
			}
		}
		if err := Dequantize(nil, typ, nil); err != nil {
			t.Errorf("%s: nothing from nothing: %v", typ, err)
		}
	}
	if err := Dequantize(make([]float32, 256), Type(16), make([]byte, 66)); !errors.Is(err, ErrType) {
		t.Errorf("IQ2_XXS: %v, want ErrType", err)
	}
}
