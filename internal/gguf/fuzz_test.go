package gguf

import (
	"math"
	"os"
	"testing"
	"unsafe"

	"bulkhead/internal/negative"
)

// FuzzParse: any bytes give a File that keeps its promises, or an *Error. Every
// getter and the decoder run on what was accepted.
func FuzzParse(f *testing.F) {
	small, _ := sample(f)
	f.Add(small)
	golden, err := os.ReadFile(goldenFile)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden[:4096]) // its whole metadata and index; the data is missing
	negative.Seeds(f, "testdata/negative", func(_ string, data []byte) { f.Add(data) })
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := Parse(data)
		if err != nil {
			if _, ok := err.(*Error); !ok {
				t.Fatalf("%T is not an *Error: %v", err, err)
			}
			return
		}
		for _, key := range g.Keys() {
			readings := 0
			for _, get := range []func() (bool, error){
				func() (bool, error) { _, ok, err := g.Uint(key); return ok, err },
				func() (bool, error) { _, ok, err := g.Bool(key); return ok, err },
				func() (bool, error) { _, ok, err := g.Str(key); return ok, err },
				func() (bool, error) { _, ok, err := g.Strs(key); return ok, err },
				func() (bool, error) { _, ok, err := g.Ints(key); return ok, err },
				func() (bool, error) { _, ok, err := g.Floats(key); return ok, err },
			} {
				if ok, err := get(); ok == (err != nil) {
					t.Fatalf("%q is there: ok %v, error %v", key, ok, err)
				} else if ok {
					readings++
				}
			}
			if readings > 1 {
				t.Fatalf("%q reads as %d types", key, readings)
			}
			g.Float(key)
		}
		used := make([]bool, len(data))
		for _, w := range g.Tensors() {
			row, err := w.Type.RowBytes(w.Dims[0])
			if err != nil || len(w.Data) != row*w.Rows() || len(w.Data) > len(data) {
				t.Fatalf("%s %v: %d bytes, row of %d, %v", w.Type, w.Dims, len(w.Data), row, err)
			}
			if err := Dequantize(make([]float32, w.Elems()), w.Type, w.Data); err != nil {
				t.Fatal(err)
			}
			at := int(uintptr(unsafe.Pointer(&w.Data[0])) - uintptr(unsafe.Pointer(&data[0])))
			for i := range w.Data {
				if used[at+i] {
					t.Fatalf("%q shares byte %d with another tensor", w.Name, at+i)
				}
				used[at+i] = true
			}
			if found, ok := g.Tensor(w.Name); !ok || &found.Data[0] != &w.Data[0] {
				t.Fatalf("%q is not found by its name", w.Name)
			}
		}
	})
}

// FuzzDequantize: any bytes decode or are refused; values are d*q+m of finite
// halves or follow from an infinity or NaN in the file, never a panic.
func FuzzDequantize(f *testing.F) {
	for _, typ := range supported {
		f.Add(uint32(typ), make([]byte, 2*typ.BlockBytes()), 2*typ.BlockElems())
	}
	f.Add(uint32(16), make([]byte, 66), 256)
	f.Add(uint32(math.MaxUint32), []byte{}, 0)
	f.Fuzz(func(t *testing.T, typ uint32, src []byte, elems int) {
		if elems < 0 || elems > 1<<16 {
			return
		}
		err := Dequantize(make([]float32, elems), Type(typ), src)
		fits := false
		if s, ok := Type(typ).shape(); ok {
			fits = elems%s.elems == 0 && len(src) == elems/s.elems*s.bytes
		}
		if (err == nil) != fits {
			t.Fatalf("%s: %d elements from %d bytes: %v", Type(typ), elems, len(src), err)
		}
	})
}
