package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
)

// valueType is the type number of a metadata value.
type valueType uint32

const (
	typeUint8   valueType = 0
	typeInt8    valueType = 1
	typeUint16  valueType = 2
	typeInt16   valueType = 3
	typeUint32  valueType = 4
	typeInt32   valueType = 5
	typeFloat32 valueType = 6
	typeBool    valueType = 7
	typeString  valueType = 8
	typeArray   valueType = 9
	typeUint64  valueType = 10
	typeInt64   valueType = 11
	typeFloat64 valueType = 12
)

func (t valueType) String() string {
	switch t {
	case typeUint8:
		return "u8"
	case typeInt8:
		return "i8"
	case typeUint16:
		return "u16"
	case typeInt16:
		return "i16"
	case typeUint32:
		return "u32"
	case typeInt32:
		return "i32"
	case typeFloat32:
		return "f32"
	case typeBool:
		return "bool"
	case typeString:
		return "string"
	case typeArray:
		return "array"
	case typeUint64:
		return "u64"
	case typeInt64:
		return "i64"
	case typeFloat64:
		return "f64"
	}
	return fmt.Sprintf("value type %d", uint32(t))
}

// size returns the bytes of a value of fixed size; 0 for string, array and unknown types.
func (t valueType) size() int {
	switch t {
	case typeUint8, typeInt8, typeBool:
		return 1
	case typeUint16, typeInt16:
		return 2
	case typeUint32, typeInt32, typeFloat32:
		return 4
	case typeUint64, typeInt64, typeFloat64:
		return 8
	}
	return 0
}

// integer says whether the type is one of the eight integer types.
func (t valueType) integer() bool {
	switch t {
	case typeUint8, typeInt8, typeUint16, typeInt16, typeUint32, typeInt32, typeUint64, typeInt64:
		return true
	}
	return false
}

// value is where a metadata value lies; it is decoded when asked for.
type value struct {
	typ   valueType
	elem  valueType // of an array
	count int       // elements of an array
	off   int       // of the payload: a string's length field, an array's first element
	bytes int       // bytes of text in a string or an array of strings
}

func (v value) describe() string {
	if v.typ == typeArray {
		return "array of " + v.elem.String()
	}
	return v.typ.String()
}

func (f *File) parseMetadata(r *reader, count int) error {
	f.keys = make([]string, 0, count)
	f.meta = make(map[string]value, count)
	for i := range count {
		r.withinEntry("metadata", i)
		b, err := r.str("key", 1, keyBytesMax)
		if err != nil {
			return err
		}
		key := string(b)
		r.name = key
		if _, ok := f.meta[key]; ok {
			return r.fail("key", r.entry, ErrDuplicate, "")
		}
		typ, err := r.u32("value type")
		if err != nil {
			return err
		}
		v, err := r.value(valueType(typ), 0)
		if err != nil {
			return err
		}
		f.keys = append(f.keys, key)
		f.meta[key] = v
	}
	return nil
}

// value walks over one value of the given type and returns where it lies. depth
// counts the arrays around it.
func (r *reader) value(typ valueType, depth int) (value, error) {
	v := value{typ: typ, off: r.pos}
	switch {
	case typ == typeString:
		b, err := r.str("value", 0, stringBytesMax)
		v.bytes = len(b)
		return v, err
	case typ == typeArray:
		return r.array(depth)
	case typ.size() > 0:
		b, err := r.bytes("value", typ.size())
		if err == nil && typ == typeBool && b[0] > 1 {
			err = r.fail("value", v.off, ErrValue, "bool is %d, want 0 or 1", b[0])
		}
		return v, err
	}
	return v, r.fail("value type", r.pos-4, ErrType, "found %d", uint32(typ))
}

// array walks over an array value, elements included.
func (r *reader) array(depth int) (value, error) {
	v := value{typ: typeArray}
	if depth >= arrayDepthMax {
		return v, r.fail("array", r.pos, ErrLimit, "arrays nested deeper than %d", arrayDepthMax)
	}
	pos := r.pos
	elem, err := r.u32("array element type")
	if err != nil {
		return v, err
	}
	v.elem = valueType(elem)
	bytesMin := v.elem.size()
	switch v.elem {
	case typeString:
		bytesMin = stringBytesMin
	case typeArray:
		bytesMin = arrayBytesMin
	}
	if bytesMin == 0 {
		return v, r.fail("array element type", pos, ErrType, "found %d", elem)
	}
	if v.count, err = r.count("array length", arrayElemsMax, bytesMin); err != nil {
		return v, err
	}
	v.off = r.pos
	if v.elem.size() > 0 && v.elem != typeBool {
		_, err := r.bytes("array", v.count*bytesMin) // count() saw that they are there
		return v, err
	}
	for range v.count {
		e, err := r.value(v.elem, depth+1)
		if err != nil {
			return v, err
		}
		v.bytes += e.bytes
	}
	return v, nil
}

// Keys returns the metadata keys in file order. The slice is the caller's.
func (f *File) Keys() []string { return slices.Clone(f.keys) }

// find looks a key up and reports a type other than those wanted.
func (f *File) find(key, want string, fits func(value) bool) (v value, ok bool, err error) {
	if f.closed {
		return v, false, ErrClosed
	}
	if v, ok = f.meta[key]; !ok {
		return v, false, nil
	}
	if !fits(v) {
		return v, false, f.keyError(key, v, ErrType, "want %s, found %s", want, v.describe())
	}
	return v, true, nil
}

func (f *File) keyError(key string, v value, err error, format string, args ...any) error {
	return &Error{Field: "metadata " + quote(key), Offset: int64(v.off), Err: err, Msg: fmt.Sprintf(format, args...)}
}

// Uint returns an integer of any width. ok is false where the key is absent. A
// value of another type (ErrType), or a negative one (ErrValue), is an error.
func (f *File) Uint(key string) (n uint64, ok bool, err error) {
	v, ok, err := f.find(key, "an integer", func(v value) bool { return v.typ.integer() })
	if !ok {
		return 0, false, err
	}
	n, negative := integerAt(f.data[v.off:], v.typ)
	if negative {
		return 0, false, f.keyError(key, v, ErrValue, "found %d, want 0 or more", int64(n))
	}
	return n, true, nil
}

// Float returns an f32, an f64 or any integer, as a float64. ok is false where
// the key is absent; another type is an error.
func (f *File) Float(key string) (x float64, ok bool, err error) {
	v, ok, err := f.find(key, "a number", func(v value) bool {
		return v.typ == typeFloat32 || v.typ == typeFloat64 || v.typ.integer()
	})
	if !ok {
		return 0, false, err
	}
	if v.typ.integer() {
		n, negative := integerAt(f.data[v.off:], v.typ)
		if negative {
			return float64(int64(n)), true, nil
		}
		return float64(n), true, nil
	}
	return floatAt(f.data[v.off:], v.typ), true, nil
}

// Bool returns a bool. ok is false where the key is absent; another type is an error.
func (f *File) Bool(key string) (b, ok bool, err error) {
	v, ok, err := f.find(key, "bool", func(v value) bool { return v.typ == typeBool })
	if !ok {
		return false, false, err
	}
	return f.data[v.off] != 0, true, nil
}

// Str returns a string, copied out of the file; it need not be valid UTF-8. ok is
// false where the key is absent; another type is an error.
func (f *File) Str(key string) (s string, ok bool, err error) {
	v, ok, err := f.find(key, "string", func(v value) bool { return v.typ == typeString })
	if !ok {
		return "", false, err
	}
	b, err := f.reader(key, v).str("value", 0, v.bytes)
	if err != nil {
		return "", false, err
	}
	return string(b), true, nil
}

// Strs returns an array of strings (tokenizer.ggml.tokens), copied out of the
// file; they need not be valid UTF-8. They share one allocation. ok is false where
// the key is absent; another type is an error.
func (f *File) Strs(key string) (s []string, ok bool, err error) {
	v, ok, err := f.find(key, "array of string", arrayOf(func(t valueType) bool { return t == typeString }))
	if !ok {
		return nil, false, err
	}
	r := f.reader(key, v)
	var text strings.Builder
	text.Grow(v.bytes)
	ends := make([]int, v.count)
	for i := range ends {
		// The limit holds the copy to what Parse counted, even if the file changed.
		b, err := r.str("array element", 0, v.bytes-text.Len())
		if err != nil {
			return nil, false, err
		}
		text.Write(b)
		ends[i] = text.Len()
	}
	all := text.String()
	s = make([]string, v.count)
	from := 0
	for i, end := range ends {
		s[i] = all[from:end]
		from = end
	}
	return s, true, nil
}

// Ints returns an array of any integer type. ok is false where the key is absent;
// another type (ErrType), or an element that does not fit an int32 (ErrValue), is an error.
func (f *File) Ints(key string) (n []int32, ok bool, err error) {
	v, ok, err := f.find(key, "array of integers", arrayOf(valueType.integer))
	if !ok {
		return nil, false, err
	}
	n = make([]int32, v.count)
	size := v.elem.size()
	for i := range n {
		u, negative := integerAt(f.data[v.off+i*size:], v.elem)
		if (negative && int64(u) < math.MinInt32) || (!negative && u > math.MaxInt32) {
			return nil, false, f.keyError(key, v, ErrValue, "element %d does not fit 32 signed bits", i)
		}
		n[i] = int32(u)
	}
	return n, true, nil
}

// Floats returns an array of f32, or of f64 rounded to f32. ok is false where the
// key is absent; another type is an error.
func (f *File) Floats(key string) (x []float32, ok bool, err error) {
	v, ok, err := f.find(key, "array of f32 or f64", arrayOf(func(t valueType) bool { return t == typeFloat32 || t == typeFloat64 }))
	if !ok {
		return nil, false, err
	}
	x = make([]float32, v.count)
	size := v.elem.size()
	for i := range x {
		x[i] = float32(floatAt(f.data[v.off+i*size:], v.elem))
	}
	return x, true, nil
}

// reader returns a reader on a value's payload, for another checked walk over it.
func (f *File) reader(key string, v value) *reader {
	r := newReader(f.data, v.off)
	r.within("metadata")
	r.name = key
	return r
}

func arrayOf(elem func(valueType) bool) func(value) bool {
	return func(v value) bool { return v.typ == typeArray && elem(v.elem) }
}

// integerAt decodes an integer of type t at the start of b. A negative one comes
// back as the two's complement, with negative set.
func integerAt(b []byte, t valueType) (n uint64, negative bool) {
	var s int64
	switch t {
	case typeUint8:
		return uint64(b[0]), false
	case typeUint16:
		return uint64(binary.LittleEndian.Uint16(b)), false
	case typeUint32:
		return uint64(binary.LittleEndian.Uint32(b)), false
	case typeUint64:
		return binary.LittleEndian.Uint64(b), false
	case typeInt8:
		s = int64(int8(b[0]))
	case typeInt16:
		s = int64(int16(binary.LittleEndian.Uint16(b)))
	case typeInt32:
		s = int64(int32(binary.LittleEndian.Uint32(b)))
	case typeInt64:
		s = int64(binary.LittleEndian.Uint64(b))
	}
	return uint64(s), s < 0
}

// floatAt decodes an f32 or f64 at the start of b.
func floatAt(b []byte, t valueType) float64 {
	if t == typeFloat32 {
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(b))
}
