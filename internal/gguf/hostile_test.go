package gguf

import (
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"
)

// header returns the first 24 bytes of a file.
func header(version uint32, tensors, metadata uint64) []byte {
	b := append([]byte("GGUF"), u32(version)...)
	b = append(b, u64(tensors)...)
	return append(b, u64(metadata)...)
}

// join builds a file from parts.
func join(parts ...[]byte) []byte {
	var b []byte
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// kv is a metadata entry; arr the payload of an array.
func kv(key string, t valueType, payload []byte) []byte {
	return join(str(key), u32(uint32(t)), payload)
}

func arr(elem valueType, count uint64, payload []byte) []byte {
	return join(u32(uint32(elem)), u64(count), payload)
}

// info is a tensor index entry.
func info(name string, t Type, offset uint64, dims ...uint64) []byte {
	b := join(str(name), u32(uint32(len(dims))))
	for _, d := range dims {
		b = append(b, u64(d)...)
	}
	return join(b, u32(uint32(t)), u64(offset))
}

// body pads a header to the alignment and adds n bytes of tensor data.
func body(n, align int, parts ...[]byte) []byte {
	b := join(parts...)
	return join(b, make([]byte, -len(b)&(align-1)), make([]byte, n))
}

// hostileFiles each hold one lie, named by what it is.
var hostileFiles = []struct {
	name  string
	file  []byte
	err   error
	field string // must be in the error's Field
	msg   string // must be in the error's text
}{
	{"empty", nil, ErrTruncated, "magic", "the file has 0"},
	{"magic cut short", []byte("GGU"), ErrTruncated, "magic", ""},
	{"magic of another format", []byte("GGML\x03\x00\x00\x00"), ErrMagic, "magic", `"GGML"`},
	{"magic in lower case", join([]byte("gguf"), header(3, 0, 0)[4:]), ErrMagic, "magic", ""},
	{"version cut short", []byte("GGUF\x03\x00"), ErrTruncated, "version", ""},
	{"version 0", header(0, 0, 0), ErrVersion, "version", "found 0"},
	{"version 1", header(1, 0, 0), ErrVersion, "version", "found 1, want 2 or 3"},
	{"version 4", header(4, 0, 0), ErrVersion, "version", "found 4"},
	{"big endian", []byte("GGUF\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), ErrBigEndian, "version", "little endian"},
	{"counts cut short", header(3, 0, 0)[:20], ErrTruncated, "metadata count", ""},

	{"2^60 tensors", header(3, 1<<60, 0), ErrLimit, "tensor count", "1152921504606846976"},
	{"2^64-1 tensors", header(3, math.MaxUint64, 0), ErrLimit, "tensor count", ""},
	{"one tensor over the limit", join(header(3, tensorCountMax+1, 0), make([]byte, 100)), ErrLimit, "tensor count", "65537"},
	{"65,536 tensors in no bytes", join(header(3, tensorCountMax, 0), make([]byte, 100)), ErrTruncated, "tensor count", ""},
	{"2^60 metadata entries", header(3, 0, 1<<60), ErrLimit, "metadata count", ""},
	{"65,536 metadata entries in no bytes", join(header(3, 0, metadataCountMax), make([]byte, 100)), ErrTruncated, "metadata count", ""},
	{"one metadata entry and no bytes", header(3, 0, 1), ErrTruncated, "metadata count", ""},

	{"key of 2^60 bytes", join(header(3, 0, 1), u64(1<<60), make([]byte, 20)), ErrLimit, "metadata 0 key length", "at most 65535"},
	{"key longer than the file", join(header(3, 0, 1), u64(1000), make([]byte, 20)), ErrTruncated, "metadata 0 key length", "needs 1000 more bytes, the file has 20"},
	{"key of no bytes", join(header(3, 0, 1), kv("", typeUint32, u32(1))), ErrValue, "metadata 0 key length", ""},
	{"key twice", join(header(3, 0, 2), kv("k", typeBool, []byte{1}), kv("k", typeBool, []byte{1})), ErrDuplicate, `metadata 1 ("k") key`, ""},
	{"value type 13", join(header(3, 0, 1), kv("k", 13, u64(0))), ErrType, `metadata 0 ("k") value type`, "found 13"},
	{"value type 2^32-1", join(header(3, 0, 1), kv("k", math.MaxUint32, u64(0))), ErrType, `metadata 0 ("k") value type`, ""},
	{"value type cut short", join(header(3, 0, 1), str("0123456"), []byte{4, 0}), ErrTruncated, `("0123456") value type`, ""},
	{"value cut short", join(header(3, 0, 1), kv("k", typeUint64, u32(0))), ErrTruncated, `metadata 0 ("k") value`, ""},
	{"bool of 2", join(header(3, 0, 1), kv("k", typeBool, []byte{2})), ErrValue, `metadata 0 ("k") value`, "bool is 2"},
	{"string length cut short", join(header(3, 0, 1), kv("kk", typeString, []byte{1, 0, 0})), ErrTruncated, `metadata 0 ("kk") value length`, "needs 8 more bytes, the file has 3"},
	{"string of 2^64-1 bytes", join(header(3, 0, 1), kv("k", typeString, u64(math.MaxUint64))), ErrLimit, `metadata 0 ("k") value length`, ""},
	{"string longer than the file", join(header(3, 0, 1), kv("k", typeString, u64(5)), []byte("abcd")), ErrTruncated, `metadata 0 ("k") value length`, ""},

	{"array of 2^60 strings in 100 bytes", join(header(3, 0, 1), kv("tokenizer.ggml.tokens", typeArray, arr(typeString, 1<<60, make([]byte, 31)))), ErrLimit, "array length", ""},
	{"array of 2^24 strings in 100 bytes", join(header(3, 0, 1), kv("tokenizer.ggml.tokens", typeArray, arr(typeString, 1<<24, make([]byte, 31)))), ErrTruncated, "array length", ""},
	{"array of 2^24 f64 in 100 bytes", join(header(3, 0, 1), kv("k", typeArray, arr(typeFloat64, 1<<24, make([]byte, 31)))), ErrTruncated, "array length", ""},
	{"array one element short", join(header(3, 0, 1), kv("k", typeArray, arr(typeUint32, 4, make([]byte, 15)))), ErrTruncated, "array length", ""},
	{"array of value type 13", join(header(3, 0, 1), kv("k", typeArray, arr(13, 1, make([]byte, 15)))), ErrType, "array element type", "found 13"},
	{"array element string longer than the file", join(header(3, 0, 1), kv("k", typeArray, arr(typeString, 2, join(str("a"), u64(9), []byte("abcd"))))), ErrTruncated, "value length", ""},
	{"array with a bool of 3", join(header(3, 0, 1), kv("k", typeArray, arr(typeBool, 2, []byte{1, 3}))), ErrValue, "value", "bool is 3"},
	{"arrays nested a thousand deep", join(header(3, 0, 1), kv("k", typeArray, []byte(strings.Repeat(string(arr(typeArray, 1, nil)), 1000)))), ErrLimit, "array", "deeper than 4"},
	{"array of 2^20 arrays in 100 bytes", join(header(3, 0, 1), kv("k", typeArray, arr(typeArray, 1<<20, make([]byte, 48)))), ErrTruncated, "array length", ""},

	{"alignment 0", join(header(3, 0, 1), kv(alignmentKey, typeUint32, u32(0))), ErrValue, alignmentKey, "found 0"},
	{"alignment 4", join(header(3, 0, 1), kv(alignmentKey, typeUint32, u32(4))), ErrValue, alignmentKey, "found 4"},
	{"alignment 48", join(header(3, 0, 1), kv(alignmentKey, typeUint32, u32(48))), ErrValue, alignmentKey, "power of two"},
	{"alignment 2^31", join(header(3, 0, 1), kv(alignmentKey, typeUint32, u32(1<<31))), ErrValue, alignmentKey, "65536"},
	{"alignment as u64", join(header(3, 0, 1), kv(alignmentKey, typeUint64, u64(32))), ErrType, alignmentKey, "want u32, found u64"},
	{"alignment as string", join(header(3, 0, 1), kv(alignmentKey, typeString, str("32"))), ErrType, alignmentKey, "found string"},

	{"one file of a split model", join(header(3, 0, 1), kv(splitKey, typeUint16, []byte{3, 0})), ErrValue, splitKey, "split over 3 files"},
	{"split count as string", join(header(3, 0, 1), kv(splitKey, typeString, str("3"))), ErrType, splitKey, "found string"},

	{"tensor name of 2^60 bytes", join(header(3, 1, 0), u64(1<<60), make([]byte, 40)), ErrLimit, "tensor 0 name length", "at most 64"},
	{"tensor name of 65 bytes", body(4, 32, header(3, 1, 0), info(strings.Repeat("n", 65), TypeF32, 0, 1)), ErrLimit, "tensor 0 name length", ""},
	{"tensor name of no bytes", body(4, 32, header(3, 1, 0), info("", TypeF32, 0, 1)), ErrValue, "tensor 0 name length", ""},
	{"tensor name twice", body(64, 32, header(3, 2, 0), info("t", TypeF32, 0, 1), info("t", TypeF32, 32, 1)), ErrDuplicate, `tensor 1 ("t") name`, ""},
	{"no dimension", body(4, 32, header(3, 1, 0), info("t", TypeF32, 0), make([]byte, 8)), ErrValue, `tensor 0 ("t") dimension count`, "found 0"},
	{"five dimensions", body(4, 32, header(3, 1, 0), info("t", TypeF32, 0, 1, 1, 1, 1, 1)), ErrValue, `tensor 0 ("t") dimension count`, "found 5"},
	{"2^32-1 dimensions", join(header(3, 1, 0), str("t"), u32(math.MaxUint32), make([]byte, 40)), ErrValue, "dimension count", ""},
	{"dimension 0", body(4, 32, header(3, 1, 0), info("t", TypeF32, 0, 1, 0)), ErrValue, `tensor 0 ("t") dimension`, "dimension 1 is 0"},
	{"dimension 2^64-1", body(4, 32, header(3, 1, 0), info("t", TypeF32, 0, math.MaxUint64)), ErrValue, `tensor 0 ("t") dimension`, ""},
	{"dimensions whose product wraps to 0", body(4, 32, header(3, 1, 0), info("t", TypeF32, 0, 1<<32, 1<<32)), ErrValue, `tensor 0 ("t") dimension`, ""},
	{"dimensions whose product wraps to 1", body(4, 32, header(3, 1, 0), info("t", TypeF32, 0, 274177, 67280421310721)), ErrValue, `tensor 0 ("t") dimension`, ""},
	{"size in bytes that wraps to 0", body(4, 32, header(3, 1, 0), info("t", TypeF32, 0, 1<<62)), ErrTruncated, `tensor 0 ("t") dimension`, "overflows"},
	{"row of half a block", body(34, 32, header(3, 1, 0), info("t", TypeQ8_0, 0, 16, 2)), ErrValue, `tensor 0 ("t") dimension`, "multiple of 32"},
	{"row of half a K block", body(144, 32, header(3, 1, 0), info("t", TypeQ4_K, 0, 128, 2)), ErrValue, `tensor 0 ("t") dimension`, "multiple of 256"},
	{"type ggml has and this package has not", body(66, 32, header(3, 1, 0), info("blk.0.w", 16, 0, 256)), ErrType, `tensor 0 ("blk.0.w") type`, "IQ2_XXS (number 16)"},
	{"type nobody has", body(66, 32, header(3, 1, 0), info("t", 4, 0, 256)), ErrType, `tensor 0 ("t") type`, "number 4"},
	{"index cut short", join(header(3, 1, 0), info("t", TypeF32, 0, 1, 1, 1)[:40]), ErrTruncated, `tensor 0 ("t") type`, ""},
	{"offset that is not aligned", body(64, 32, header(3, 1, 0), info("t", TypeF32, 4, 1)), ErrValue, `tensor 0 ("t") offset`, "multiple of the alignment 32"},
	{"offset aligned to 32 where the file says 64", body(96, 64, header(3, 1, 1), kv(alignmentKey, typeUint32, u32(64)), info("t", TypeF32, 32, 1)), ErrValue, `tensor 0 ("t") offset`, "alignment 64"},
	{"offset at the end of the data", body(32, 32, header(3, 1, 0), info("t", TypeF32, 32, 1)), ErrTruncated, `tensor 0 ("t") offset`, "32 bytes of tensor data"},
	{"offset 2^64-32", body(64, 32, header(3, 1, 0), info("t", TypeF32, math.MaxUint64-31, 8)), ErrTruncated, `tensor 0 ("t") offset`, ""},
	{"offset 2^63", body(64, 32, header(3, 1, 0), info("t", TypeF32, 1<<63, 8)), ErrTruncated, `tensor 0 ("t") offset`, ""},
	{"data one byte short", body(67, 32, header(3, 1, 0), info("t", TypeQ8_0, 0, 64)), ErrTruncated, `tensor 0 ("t") offset`, "68 bytes at offset 0 of 67"},
	{"second tensor's data one byte short", body(35, 32, header(3, 2, 0), info("a", TypeF32, 0, 8), info("b", TypeF32, 32, 1)), ErrTruncated, `tensor 1 ("b") offset`, ""},
	{"no data section", join(header(3, 1, 0), info("t", TypeF32, 0, 1)), ErrTruncated, "tensor data", ""},
	{"data section that ends where it starts", body(0, 32, header(3, 1, 0), info("t", TypeF32, 0, 1)), ErrTruncated, `tensor 0 ("t") offset`, ""},
	{"two tensors at one offset", body(64, 32, header(3, 2, 0), info("a", TypeF32, 0, 1), info("b", TypeF32, 0, 1)), ErrOverlap, `tensor 1 ("b") offset`, `inside tensor 0 ("a")`},
	{"tensor that begins inside another", body(128, 32, header(3, 2, 0), info("a", TypeF32, 32, 1), info("b", TypeF32, 0, 16)), ErrOverlap, `tensor 0 ("a") offset`, `inside tensor 1 ("b")`},
}

// TestHostileFiles: each lie costs an *Error with the expected sentinel that names
// the field, and next to no memory, whatever the lie claims.
func TestHostileFiles(t *testing.T) {
	// Error text, the File, two small maps: far under this. A claim of 2^24 of
	// anything that was believed would be over it.
	const allocMax = 64 << 10
	for _, c := range hostileFiles {
		t.Run(c.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			f, err := Parse(c.file)
			runtime.ReadMemStats(&after)
			var e *Error
			if f != nil || !errors.As(err, &e) {
				t.Fatalf("Parse = %v, %v; want an *Error", f, err)
			}
			if !errors.Is(err, c.err) || !strings.Contains(e.Field, c.field) || !strings.Contains(err.Error(), c.msg) {
				t.Errorf("%v (field %q)\nwant %v, field %q, saying %q", err, e.Field, c.err, c.field, c.msg)
			}
			if e.Offset < 0 || e.Offset > int64(len(c.file)) {
				t.Errorf("offset %d in a file of %d bytes", e.Offset, len(c.file))
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > allocMax {
				t.Errorf("allocated %d bytes for a file of %d", n, len(c.file))
			}
		})
	}
}

// TestHarmlessOddities: what looks odd and is allowed, so that the checks do not
// grow beyond the format.
func TestHarmlessOddities(t *testing.T) {
	for name, file := range map[string][]byte{
		"no metadata, no tensors":    header(3, 0, 0),
		"bytes behind the header":    join(header(2, 0, 0), make([]byte, 7)),
		"empty string, empty array":  join(header(3, 0, 2), kv("s", typeString, str("")), kv("a", typeArray, arr(typeString, 0, nil))),
		"arrays nested four deep":    join(header(3, 0, 1), kv("k", typeArray, arr(typeArray, 1, arr(typeArray, 1, arr(typeArray, 1, arr(typeUint8, 2, []byte{1, 2})))))),
		"last tensor without pad":    body(4, 32, header(3, 1, 0), info("t", TypeF32, 0, 1)),
		"tensors out of file order":  body(64, 32, header(3, 2, 0), info("b", TypeF32, 32, 8), info("a", TypeF32, 0, 8)),
		"a model split into one":     join(header(3, 0, 1), kv(splitKey, typeUint16, []byte{1, 0})),
		"a gap between tensors":      body(100, 32, header(3, 2, 0), info("a", TypeF32, 0, 1), info("b", TypeF32, 96, 1)),
		"a name of 64 bytes":         body(4, 32, header(3, 1, 0), info(strings.Repeat("n", 64), TypeF32, 0, 1)),
		"a key that is not UTF-8":    join(header(3, 0, 1), kv("\xff\x00", typeBool, []byte{0})),
		"alignment 8, tensors close": body(12, 8, header(3, 2, 1), kv(alignmentKey, typeUint32, u32(8)), info("a", TypeF32, 0, 2), info("b", TypeF32, 8, 1)),
	} {
		if _, err := Parse(file); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestMemoryFollowsTheFile: the dearest honest header, very many tiny entries, costs
// a bounded multiple of its bytes, and so does the dearest getter.
func TestMemoryFollowsTheFile(t *testing.T) {
	const n = 20000
	file := header(3, 0, n+1)
	key := make([]byte, 3)
	for i := range n {
		key[0], key[1], key[2] = byte(i), byte(i>>8), 'k'
		file = append(file, kv(string(key), typeUint8, []byte{1})...)
	}
	file = append(file, kv("a", typeArray, arr(typeString, n, make([]byte, 8*n)))...)

	var start, parsed, got runtime.MemStats
	runtime.ReadMemStats(&start)
	f, err := Parse(file)
	runtime.ReadMemStats(&parsed)
	if err != nil {
		t.Fatal(err)
	}
	s, _, err := f.Strs("a")
	runtime.ReadMemStats(&got)
	if err != nil || len(s) != n {
		t.Fatal(len(s), err)
	}
	// A map entry with its key and value is about 150 bytes against 16 in the file;
	// an empty string is 24 bytes (header and end) against 8.
	if b := parsed.TotalAlloc - start.TotalAlloc; b > 16*uint64(len(file)) {
		t.Errorf("Parse allocated %d bytes for a header of %d", b, len(file))
	}
	if b := got.TotalAlloc - parsed.TotalAlloc; b > 4*8*n {
		t.Errorf("Strs allocated %d bytes for an array of %d", b, 8*n)
	}
}

// TestFileThatChanges: a mapping whose file is rewritten after Parse gives errors,
// or other values, but never a panic and never more bytes than Parse counted: here
// each string's length grows, first to what the file could still hold, then beyond.
func TestFileThatChanges(t *testing.T) {
	for _, length := range []byte{30, 0xff} {
		file := join(header(3, 0, 3), kv("s", typeString, str("abc")),
			kv("a", typeArray, arr(typeString, 2, join(str("x"), str("y")))), kv("pad", typeString, str(strings.Repeat("p", 100))))
		f, err := Parse(file)
		if err != nil {
			t.Fatal(err)
		}
		file[f.meta["s"].off] = length
		file[f.meta["a"].off] = length
		if s, ok, err := f.Str("s"); ok || !errors.Is(err, ErrLimit) {
			t.Errorf("length %d: Str: %q, %v, %v", length, s, ok, err)
		}
		if s, ok, err := f.Strs("a"); ok || !errors.Is(err, ErrLimit) {
			t.Errorf("length %d: Strs: %q, %v, %v", length, s, ok, err)
		}
	}
}

// TestHeaderLimit: a header beyond headerBytesMax is refused for its size, not read on.
func TestHeaderLimit(t *testing.T) {
	// Seventeen strings of 16 MiB. The pages of the file are never touched but for
	// the lengths, so this costs address space rather than memory.
	b := make([]byte, 17*(stringBytesMax+64))
	pos := copy(b, header(3, 0, 17))
	for i := range 17 {
		pos += copy(b[pos:], kv(string(rune('a'+i)), typeString, u64(stringBytesMax)))
		pos += stringBytesMax
	}
	_, err := Parse(b)
	var e *Error
	if !errors.As(err, &e) || e.Err != ErrLimit || !strings.Contains(e.Field, "metadata 15") {
		t.Errorf("Parse = %v, want ErrLimit at metadata 15", err)
	}
}

// TestErrorQuoting: a hostile name reaches the log escaped and cut.
func TestErrorQuoting(t *testing.T) {
	key := "\x1b[31m\n" + strings.Repeat("k", 60000)
	_, err := Parse(join(header(3, 0, 1), kv(key, 13, u64(0))))
	if s := err.Error(); len(s) > 300 || strings.ContainsAny(s, "\x1b\n") || !strings.Contains(s, `\x1b[31m\n`) {
		t.Errorf("error of %d bytes: %.400q", len(s), s)
	}
}
