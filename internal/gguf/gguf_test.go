package gguf

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// goldenFile is written by the gguf Python package (scripts/make-gguf-goldens.py).
const goldenFile = "testdata/python-gguf.gguf"

// sample returns a small valid file with a metadata value of each kind that the
// Writer knows and three tensors, and the data of the tensors.
func sample(t testing.TB) (file []byte, data [][]byte) {
	t.Helper()
	data = [][]byte{
		EncodeF32([]float32{1, 2, 3, 4, 5, 6}),
		bytes.Repeat([]byte{7}, 2*3*34),
		{1, 2, 3, 4, 5, 6},
	}
	w := NewWriter()
	w.Str("general.architecture", "llama")
	w.Uint32("n.u32", 7)
	w.Uint64("n.u64", math.MaxUint64)
	w.Int32("n.i32", -7)
	w.Float32("n.f32", 0.5)
	w.Float64("n.f64", 0.1)
	w.Bool("b", true)
	w.Strs("a.strings", []string{"", "x", "\xff\x00"})
	w.Ints("a.ints", []int32{-1, 2})
	w.Floats("a.floats", []float32{1.5, -2})
	w.Tensor("vector", TypeF32, []int{6}, data[0])
	w.Tensor("matrix", TypeQ8_0, []int{64, 3}, data[1])
	w.Tensor("cube", TypeF16, []int{1, 1, 3, 1}, data[2])
	return written(t, w), data
}

func written(t testing.TB, w *Writer) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := w.WriteTo(&b)
	if err != nil {
		t.Fatal(err)
	}
	if n != int64(b.Len()) {
		t.Fatalf("WriteTo said %d bytes and wrote %d", n, b.Len())
	}
	return b.Bytes()
}

// TestWriterRoundTrip: what the Writer wrote, the reader finds, in versions 3 and 2
// (same layout) and at every alignment.
func TestWriterRoundTrip(t *testing.T) {
	file, data := sample(t)
	v2 := slices.Clone(file)
	v2[4] = 2
	for _, file := range [][]byte{file, v2} {
		f, err := Parse(file)
		if err != nil {
			t.Fatal(err)
		}
		if f.Version() != int(file[4]) {
			t.Errorf("version %d, want %d", f.Version(), file[4])
		}
		want := []Tensor{
			{"vector", TypeF32, []int{6}, data[0]},
			{"matrix", TypeQ8_0, []int{64, 3}, data[1]},
			{"cube", TypeF16, []int{1, 1, 3, 1}, data[2]},
		}
		if d := cmp.Diff(want, f.Tensors()); d != "" {
			t.Errorf("tensors (-want +got):\n%s", d)
		}
		m, ok := f.Tensor("matrix")
		if !ok || m.Rows() != 3 || m.Elems() != 192 || cap(m.Data) != len(m.Data) {
			t.Errorf("matrix: found %v, rows %d, elems %d, data len %d cap %d", ok, m.Rows(), m.Elems(), len(m.Data), cap(m.Data))
		}
		if _, ok := f.Tensor("absent"); ok {
			t.Error("found a tensor that is not there")
		}
		if !bytes.Equal(f.Data(), file) {
			t.Error("Data is not the whole file")
		}
		if got := f.Keys(); len(got) != 10 || got[0] != "general.architecture" || got[9] != "a.floats" {
			t.Errorf("keys %q", got)
		}
	}
	for align := alignmentMin; align <= alignmentMax; align *= 2 {
		w := NewWriter()
		w.Alignment(align)
		w.Tensor("a", TypeF16, []int{3}, []byte{1, 2, 3, 4, 5, 6})
		w.Tensor("b", TypeF16, []int{1}, []byte{7, 8})
		file := written(t, w)
		f, err := Parse(file)
		if err != nil {
			t.Fatalf("alignment %d: %v", align, err)
		}
		b, _ := f.Tensor("b")
		at := bytes.Index(file, []byte{7, 8})
		if !bytes.Equal(b.Data, []byte{7, 8}) || at%align != 0 {
			t.Errorf("alignment %d: b = %v at %d", align, b.Data, at)
		}
	}
}

// TestPythonFile: the reader finds in a file of the gguf Python package what its
// writer was given.
func TestPythonFile(t *testing.T) {
	f, err := Open(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	type got struct {
		V   any
		OK  bool
		Err error
	}
	is := func(key string, v any, ok bool, err error, want any) {
		t.Helper()
		if d := cmp.Diff(got{want, true, nil}, got{v, ok, err}); d != "" {
			t.Errorf("%s (-want +got):\n%s", key, d)
		}
	}
	for key, want := range map[string]uint64{"uint8": 200, "uint16": 60000, "uint32": 4000000000, "uint64": 1 << 63} {
		v, ok, err := f.Uint("test." + key)
		is(key, v, ok, err, want)
	}
	for key, want := range map[string]float64{
		"uint8": 200, "uint64": 1 << 63, "int8": -100, "int16": -30000, "int32": -2000000000, "int64": -(1 << 62),
		"float32": float64(float32(0.1)), "float64": 0.1,
	} {
		v, ok, err := f.Float("test." + key)
		is(key, v, ok, err, want)
	}
	b, ok, err := f.Bool("test.bool")
	is("bool", b, ok, err, true)
	s, ok, err := f.Str("test.string")
	is("string", s, ok, err, "café 😀\n\x00end")
	ss, ok, err := f.Strs("test.strings")
	is("strings", ss, ok, err, []string{"", "a", "Ġthe", "你好"})
	n, ok, err := f.Ints("test.ints")
	is("ints", n, ok, err, []int32{1, -2, math.MaxInt32, math.MinInt32})
	x, ok, err := f.Floats("test.floats")
	is("floats", x, ok, err, []float32{0.5, -1.25, 3e38})
	if len(f.Keys()) != 18 || len(f.Tensors()) != 22 {
		t.Errorf("%d keys and %d tensors, want 18 and 22", len(f.Keys()), len(f.Tensors()))
	}
}

// TestGetterErrors: an absent key is not an error, a wrong type or value is one
// that names key, wanted and found; integer and float arrays narrow only where
// nothing is lost.
func TestGetterErrors(t *testing.T) {
	f, err := Open(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	getters := map[string]func(string) (bool, error){
		"Uint":   func(k string) (bool, error) { _, ok, err := f.Uint(k); return ok, err },
		"Float":  func(k string) (bool, error) { _, ok, err := f.Float(k); return ok, err },
		"Bool":   func(k string) (bool, error) { _, ok, err := f.Bool(k); return ok, err },
		"Str":    func(k string) (bool, error) { _, ok, err := f.Str(k); return ok, err },
		"Strs":   func(k string) (bool, error) { _, ok, err := f.Strs(k); return ok, err },
		"Ints":   func(k string) (bool, error) { _, ok, err := f.Ints(k); return ok, err },
		"Floats": func(k string) (bool, error) { _, ok, err := f.Floats(k); return ok, err },
	}
	for name, get := range getters {
		if ok, err := get("absent"); ok || err != nil {
			t.Errorf("%s(absent) = %v, %v; want false, nil", name, ok, err)
		}
	}
	for _, c := range []struct {
		getter, key string
		err         error
		want        []string
	}{
		{"Uint", "test.float32", ErrType, []string{`"test.float32"`, "want an integer", "found f32"}},
		{"Uint", "test.bool", ErrType, []string{"found bool"}},
		{"Uint", "test.int8", ErrValue, []string{`"test.int8"`, "found -100", "0 or more"}},
		{"Uint", "test.int64", ErrValue, []string{"found -4611686018427387904"}},
		{"Float", "test.string", ErrType, []string{"want a number", "found string"}},
		{"Bool", "test.uint8", ErrType, []string{"want bool", "found u8"}},
		{"Str", "test.strings", ErrType, []string{"want string", "found array of string"}},
		{"Strs", "test.string", ErrType, []string{"want array of string", "found string"}},
		{"Strs", "test.ints", ErrType, []string{"found array of i32"}},
		{"Ints", "test.floats", ErrType, []string{"want array of integers", "found array of f32"}},
		{"Ints", "test.int32", ErrType, []string{"found i32"}},
		{"Ints", "test.nested", ErrType, []string{"found array of array"}},
		{"Floats", "test.ints", ErrType, []string{"want array of f32 or f64", "found array of i32"}},
	} {
		ok, err := getters[c.getter](c.key)
		var e *Error
		if ok || !errors.Is(err, c.err) || !errors.As(err, &e) || e.Offset == 0 {
			t.Errorf("%s(%s) = %v, %v; want an *Error with %v", c.getter, c.key, ok, err, c.err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s(%s): %q does not say %q", c.getter, c.key, err, want)
			}
		}
	}
}

// TestNarrowing: Ints takes every integer type whose values fit an int32, and
// refuses the first that does not; Floats rounds f64.
func TestNarrowing(t *testing.T) {
	file := func(elem valueType, payload ...byte) *File {
		b := header(3, 0, 1)
		b = append(b, str("k")...)
		b = append(b, u32(uint32(typeArray))...)
		b = append(b, u32(uint32(elem))...)
		b = append(b, u64(uint64(len(payload)/elem.size()))...)
		f, err := Parse(append(b, payload...))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	le := binary.LittleEndian
	for _, c := range []struct {
		elem    valueType
		payload []byte
		want    []int32 // nil: an error
	}{
		{typeUint8, []byte{0, 255}, []int32{0, 255}},
		{typeInt8, []byte{0x80, 127}, []int32{-128, 127}},
		{typeUint16, []byte{255, 255}, []int32{65535}},
		{typeInt16, []byte{255, 255}, []int32{-1}},
		{typeUint32, le.AppendUint32(nil, math.MaxInt32), []int32{math.MaxInt32}},
		{typeUint32, le.AppendUint32(nil, math.MaxInt32+1), nil},
		{typeUint64, le.AppendUint64(nil, math.MaxInt32), []int32{math.MaxInt32}},
		{typeUint64, le.AppendUint64(nil, math.MaxUint64), nil},
		{typeInt64, le.AppendUint64(nil, 0xffffffff80000000), []int32{math.MinInt32}},
		{typeInt64, le.AppendUint64(nil, 0xffffffff7fffffff), nil},
		{typeInt64, le.AppendUint64(nil, 1<<31), nil},
	} {
		got, ok, err := file(c.elem, c.payload...).Ints("k")
		if c.want == nil {
			if ok || !errors.Is(err, ErrValue) {
				t.Errorf("%s %x: %v, %v, want ErrValue", c.elem, c.payload, got, err)
			}
		} else if !ok || err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s %x: %v, %v, want %v", c.elem, c.payload, got, err, c.want)
		}
	}
	x, ok, err := file(typeFloat64, le.AppendUint64(nil, math.Float64bits(0.1))...).Floats("k")
	if !ok || err != nil || len(x) != 1 || x[0] != 0.1 {
		t.Errorf("f64 array: %v, %v, %v", x, ok, err)
	}
}

// TestOpen: a mapping reads like the bytes, survives DropPages, and after Close
// every method says so instead of touching dead memory.
func TestOpen(t *testing.T) {
	file, data := sample(t)
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.DropPages(); err != nil {
		t.Errorf("DropPages: %v", err)
	}
	m, ok := f.Tensor("matrix")
	if !ok || !bytes.Equal(m.Data, data[1]) || !bytes.Equal(f.Data(), file) {
		t.Error("the mapping does not hold the file after DropPages")
	}
	for range 2 {
		if err := f.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	unmapped(t, path)
	if _, ok := f.Tensor("matrix"); ok || f.Data() != nil || len(f.Tensors()) != 0 {
		t.Error("tensors are still there after Close")
	}
	if _, ok, err := f.Str("general.architecture"); ok || err != ErrClosed {
		t.Errorf("Str after Close: %v, %v", ok, err)
	}
	if err := f.DropPages(); err != ErrClosed {
		t.Errorf("DropPages after Close: %v", err)
	}
}

// unmapped fails the test where the process still maps a file whose path contains
// path. Only Linux lists mappings; elsewhere it sees none.
func unmapped(t *testing.T, path string) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err == nil && bytes.Contains(maps, []byte(path)) {
		t.Errorf("%s is still mapped", filepath.Base(path))
	}
}

// TestOpenRefuses: what is not a readable regular file of sufficient size is an
// error, at once: a FIFO without a writer must not block.
func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	empty, short, fifo, garbage := dir+"/empty", dir+"/short", dir+"/fifo", dir+"/garbage"
	for path, content := range map[string]string{empty: "", short: "GGUF\x03\x00\x00\x00", garbage: strings.Repeat("x", 100)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	defer unmapped(t, dir)
	for path, want := range map[string]error{dir + "/absent": fs.ErrNotExist, empty: ErrTruncated, short: ErrTruncated, garbage: ErrMagic} {
		if f, err := Open(path); f != nil || !errors.Is(err, want) {
			t.Errorf("Open(%s) = %v, want %v", filepath.Base(path), err, want)
		}
	}
	for _, path := range []string{dir, fifo, os.DevNull} {
		var e *fs.PathError
		if f, err := Open(path); f != nil || !errors.As(err, &e) || e.Path != path {
			t.Errorf("Open(%s) = %v, want a PathError naming it", filepath.Base(path), err)
		}
	}
}

// TestWriterRefuses: the Writer does not write what the reader would refuse.
func TestWriterRefuses(t *testing.T) {
	f32 := EncodeF32([]float32{1, 2})
	for name, use := range map[string]func(*Writer){
		"key twice":             func(w *Writer) { w.Bool("k", true); w.Bool("k", false) },
		"empty key":             func(w *Writer) { w.Str("", "x") },
		"long key":              func(w *Writer) { w.Str(strings.Repeat("k", keyBytesMax+1), "x") },
		"long string":           func(w *Writer) { w.Str("k", strings.Repeat("k", stringBytesMax+1)) },
		"tensor twice":          func(w *Writer) { w.Tensor("t", TypeF32, []int{2}, f32); w.Tensor("t", TypeF32, []int{2}, f32) },
		"empty name":            func(w *Writer) { w.Tensor("", TypeF32, []int{2}, f32) },
		"long name":             func(w *Writer) { w.Tensor(strings.Repeat("n", nameBytesMax+1), TypeF32, []int{2}, f32) },
		"no dimension":          func(w *Writer) { w.Tensor("t", TypeF32, nil, f32) },
		"five dimensions":       func(w *Writer) { w.Tensor("t", TypeF32, []int{2, 1, 1, 1, 1}, f32) },
		"zero dimension":        func(w *Writer) { w.Tensor("t", TypeF32, []int{2, 0}, nil) },
		"overflow":              func(w *Writer) { w.Tensor("t", TypeF32, []int{1 << 31, 1 << 31, 1 << 31}, f32) },
		"short data":            func(w *Writer) { w.Tensor("t", TypeF32, []int{3}, f32) },
		"half a block":          func(w *Writer) { w.Tensor("t", TypeQ8_0, []int{16}, make([]byte, 17)) },
		"unsupported type":      func(w *Writer) { w.Tensor("t", Type(16), []int{256}, make([]byte, 66)) },
		"odd alignment":         func(w *Writer) { w.Alignment(24) },
		"alignment below eight": func(w *Writer) { w.Alignment(4) },
	} {
		w := NewWriter()
		use(w)
		if n, err := w.WriteTo(new(bytes.Buffer)); err == nil || n != 0 {
			t.Errorf("%s: wrote %d bytes, error %v", name, n, err)
		}
	}
}

// TestType: names, block shapes and row sizes are ggml's.
func TestType(t *testing.T) {
	for typ, want := range map[Type]struct {
		name         string
		elems, bytes int
	}{
		TypeF32: {"F32", 1, 4}, TypeF16: {"F16", 1, 2}, TypeBF16: {"BF16", 1, 2},
		TypeQ4_0: {"Q4_0", 32, 18}, TypeQ4_1: {"Q4_1", 32, 20}, TypeQ5_0: {"Q5_0", 32, 22}, TypeQ5_1: {"Q5_1", 32, 24}, TypeQ8_0: {"Q8_0", 32, 34},
		TypeQ4_K: {"Q4_K", 256, 144}, TypeQ5_K: {"Q5_K", 256, 176}, TypeQ6_K: {"Q6_K", 256, 210},
		16: {"IQ2_XXS", 0, 0}, 4: {"type 4", 0, 0}, math.MaxUint32: {"type 4294967295", 0, 0},
	} {
		if typ.String() != want.name || typ.BlockElems() != want.elems || typ.BlockBytes() != want.bytes || typ.Supported() != (want.elems > 0) {
			t.Errorf("%s: %d elements, %d bytes, supported %v; want %+v", typ, typ.BlockElems(), typ.BlockBytes(), typ.Supported(), want)
		}
		if want.elems == 0 {
			if _, err := typ.RowBytes(256); !errors.Is(err, ErrType) {
				t.Errorf("%s: RowBytes: %v, want ErrType", typ, err)
			}
			continue
		}
		if n, err := typ.RowBytes(512); err != nil || n != 512/want.elems*want.bytes {
			t.Errorf("%s: RowBytes(512) = %d, %v", typ, n, err)
		}
		bad := []int{0, -want.elems}
		if want.elems > 1 {
			bad = append(bad, want.elems-1, want.elems+1)
		}
		for _, cols := range bad {
			if _, err := typ.RowBytes(cols); !errors.Is(err, ErrValue) {
				t.Errorf("%s: RowBytes(%d): %v, want ErrValue", typ, cols, err)
			}
		}
	}
	if n, err := TypeF32.RowBytes(math.MaxInt/4 + 1); !errors.Is(err, ErrLimit) {
		t.Errorf("RowBytes overflowed to %d, %v", n, err)
	}
}

// TestSmolLM2 opens the model that scripts/get-model fetches and compares digests of
// dequantised tensors with those of the gguf Python package
// (scripts/make-gguf-goldens.py --digest).
func TestSmolLM2(t *testing.T) {
	const path = "../../models/smollm2-135m-instruct.gguf"
	f, err := Open(path)
	if errors.Is(err, fs.ErrNotExist) && os.Getenv("BULKHEAD_REQUIRE_MODEL") != "1" {
		t.Skip("NOT RUN: there is no models/smollm2-135m-instruct.gguf; scripts/get-model fetches it")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	types := map[Type]int{}
	for _, w := range f.Tensors() {
		types[w.Type]++
	}
	if d := cmp.Diff(map[Type]int{TypeQ4_1: 210, TypeF32: 61, TypeQ8_0: 1}, types); d != "" {
		t.Errorf("tensor types (-want +got):\n%s", d)
	}
	tokens, ok, err := f.Strs("tokenizer.ggml.tokens")
	if !ok || err != nil || len(tokens) != 49152 || tokens[2] != "<|im_end|>" {
		t.Errorf("tokens: %d, %v, %v", len(tokens), ok, err)
	}
	for name, want := range map[string]string{
		"blk.0.attn_q.weight": "aa74111ad24c3624a20374d2026fd1f50bfe2520252e3c9aef4a666a28593cc8",
		"blk.0.attn_k.weight": "29614b1cceeca5d59dc07bcd5666f4c7a2ec661c1be425905f2d1b9aa7358073",
		"token_embd.weight":   "3fd491c8066dd9dc1a2bf6796701526c82817d95c0ecabacdef3013c2b8bbbaa",
		"output_norm.weight":  "3b87f8e27335e67fc08f159cabfd2d18f205d6c5b225a6f978153552bf01d559",
	} {
		w, ok := f.Tensor(name)
		if !ok {
			t.Errorf("no tensor %s", name)
			continue
		}
		x := make([]float32, w.Elems())
		if err := Dequantize(x, w.Type, w.Data); err != nil {
			t.Error(err)
		}
		sum := sha256.Sum256(EncodeF32(x))
		if got := hex.EncodeToString(sum[:]); got != want {
			t.Errorf("%s: digest %s, want %s", name, got, want)
		}
	}
}
