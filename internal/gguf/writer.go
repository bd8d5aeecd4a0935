package gguf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// Writer collects metadata and tensors and writes them as one GGUF v3 file, little
// endian. It is for the small models that tests and tools build: everything is held
// in memory until WriteTo. The first mistake sticks, and WriteTo reports it.
//
//	w := gguf.NewWriter()
//	w.Str("general.architecture", "llama")
//	w.Uint32("llama.block_count", 2)
//	w.Tensor("token_embd.weight", gguf.TypeF32, []int{64, 256}, gguf.EncodeF32(weights))
//	_, err := w.WriteTo(file)
type Writer struct {
	meta  bytes.Buffer
	keys  map[string]bool
	index []Tensor
	names map[string]bool
	align int
	err   error
}

// NewWriter returns an empty Writer with the default alignment of 32 bytes.
func NewWriter() *Writer {
	return &Writer{keys: map[string]bool{}, names: map[string]bool{}, align: alignmentDefault}
}

// Alignment sets general.alignment: a power of two from 8 to 65,536.
func (w *Writer) Alignment(n int) {
	if n < alignmentMin || n > alignmentMax || n&(n-1) != 0 {
		w.fail("alignment %d, want a power of two from %d to %d", n, alignmentMin, alignmentMax)
		return
	}
	w.align = n
	w.Uint32(alignmentKey, uint32(n))
}

// Uint32 adds a u32.
func (w *Writer) Uint32(key string, v uint32) { w.scalar(key, typeUint32, u32(v)) }

// Uint64 adds a u64.
func (w *Writer) Uint64(key string, v uint64) { w.scalar(key, typeUint64, u64(v)) }

// Int32 adds an i32.
func (w *Writer) Int32(key string, v int32) { w.scalar(key, typeInt32, u32(uint32(v))) }

// Float32 adds an f32.
func (w *Writer) Float32(key string, v float32) {
	w.scalar(key, typeFloat32, u32(math.Float32bits(v)))
}

// Float64 adds an f64.
func (w *Writer) Float64(key string, v float64) {
	w.scalar(key, typeFloat64, u64(math.Float64bits(v)))
}

// Bool adds a bool.
func (w *Writer) Bool(key string, v bool) {
	b := []byte{0}
	if v {
		b[0] = 1
	}
	w.scalar(key, typeBool, b)
}

// Str adds a string of at most 16 MiB.
func (w *Writer) Str(key, v string) {
	if len(v) > stringBytesMax {
		w.fail("metadata %s: string of %d bytes, at most %d", quote(key), len(v), stringBytesMax)
		return
	}
	w.scalar(key, typeString, str(v))
}

// Strs adds an array of strings.
func (w *Writer) Strs(key string, v []string) {
	var b []byte
	for _, s := range v {
		b = append(b, str(s)...)
	}
	w.array(key, typeString, len(v), b)
}

// Ints adds an array of i32.
func (w *Writer) Ints(key string, v []int32) {
	var b []byte
	for _, n := range v {
		b = append(b, u32(uint32(n))...)
	}
	w.array(key, typeInt32, len(v), b)
}

// Floats adds an array of f32.
func (w *Writer) Floats(key string, v []float32) { w.array(key, typeFloat32, len(v), EncodeF32(v)) }

// Tensor adds a tensor; dims are in ggml order (fastest first). data is kept until
// WriteTo and must be exactly as long as t and dims say.
func (w *Writer) Tensor(name string, t Type, dims []int, data []byte) {
	if name == "" || len(name) > nameBytesMax || w.names[name] {
		w.fail("tensor name %s is empty, longer than %d bytes or used twice", quote(name), nameBytesMax)
		return
	}
	if len(dims) < 1 || len(dims) > dimsMax {
		w.fail("tensor %s: %d dimensions, want 1 to %d", quote(name), len(dims), dimsMax)
		return
	}
	want, err := t.RowBytes(dims[0])
	if err != nil {
		w.fail("tensor %s: %w", quote(name), err)
		return
	}
	for _, d := range dims[1:] {
		if d <= 0 || want > math.MaxInt/d {
			w.fail("tensor %s: bad dimensions %v", quote(name), dims)
			return
		}
		want *= d
	}
	if len(data) != want {
		w.fail("tensor %s: %d bytes of data, want %d for %s %v", quote(name), len(data), want, t, dims)
		return
	}
	w.names[name] = true
	w.index = append(w.index, Tensor{Name: name, Type: t, Dims: dims, Data: data})
}

// WriteTo writes the file and returns the bytes written.
func (w *Writer) WriteTo(out io.Writer) (int64, error) {
	if w.err != nil {
		return 0, w.err
	}
	head := append([]byte("GGUF"), u32(3)...)
	head = append(head, u64(uint64(len(w.index)))...)
	head = append(head, u64(uint64(len(w.keys)))...)
	head = append(head, w.meta.Bytes()...)
	offset := 0
	for _, t := range w.index {
		head = append(head, str(t.Name)...)
		head = append(head, u32(uint32(len(t.Dims)))...)
		for _, d := range t.Dims {
			head = append(head, u64(uint64(d))...)
		}
		head = append(head, u32(uint32(t.Type))...)
		head = append(head, u64(uint64(offset))...)
		offset += len(t.Data) + w.padding(len(t.Data))
	}
	var total int64
	write := func(b []byte) error {
		for _, part := range [][]byte{b, make([]byte, w.padding(len(b)))} {
			n, err := out.Write(part)
			total += int64(n)
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := write(head); err != nil {
		return total, err
	}
	for _, t := range w.index {
		if err := write(t.Data); err != nil {
			return total, err
		}
	}
	return total, nil
}

// EncodeF32 returns x as the data of a TypeF32 tensor.
func EncodeF32(x []float32) []byte {
	b := make([]byte, 0, 4*len(x))
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func (w *Writer) padding(n int) int { return -n & (w.align - 1) }

func (w *Writer) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("gguf: write: "+format, args...)
	}
}

func (w *Writer) scalar(key string, t valueType, payload []byte) {
	if key == "" || len(key) > keyBytesMax || w.keys[key] {
		w.fail("metadata key %s is empty, longer than %d bytes or used twice", quote(key), keyBytesMax)
		return
	}
	w.keys[key] = true
	w.meta.Write(str(key))
	w.meta.Write(u32(uint32(t)))
	w.meta.Write(payload)
}

func (w *Writer) array(key string, elem valueType, count int, payload []byte) {
	if count > arrayElemsMax {
		w.fail("metadata %s: array of %d elements, at most %d", quote(key), count, arrayElemsMax)
		return
	}
	head := append(u32(uint32(elem)), u64(uint64(count))...)
	w.scalar(key, typeArray, append(head, payload...))
}

func u32(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }
func u64(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }
func str(s string) []byte { return append(u64(uint64(len(s))), s...) }
