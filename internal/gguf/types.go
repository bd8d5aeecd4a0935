package gguf

import (
	"fmt"
	"math"
)

// Type is a tensor's data type: the number that ggml and GGUF give it.
type Type uint32

// The supported types. A quantised tensor is a run of blocks; one block holds
// BlockElems consecutive elements of a row in BlockBytes bytes. Layouts are
// ggml's (ggml-common.h); dequant.go states them.
const (
	TypeF32  Type = 0
	TypeF16  Type = 1
	TypeQ4_0 Type = 2
	TypeQ4_1 Type = 3
	TypeQ5_0 Type = 6
	TypeQ5_1 Type = 7
	TypeQ8_0 Type = 8
	TypeQ4_K Type = 12
	TypeQ5_K Type = 13
	TypeQ6_K Type = 14
	TypeBF16 Type = 30
)

// blockShape is the size of one block of a type.
type blockShape struct{ elems, bytes int }

// shape returns the block shape of a supported type, and ok = false for others.
func (t Type) shape() (s blockShape, ok bool) {
	switch t {
	case TypeF32:
		return blockShape{1, 4}, true
	case TypeF16, TypeBF16:
		return blockShape{1, 2}, true
	case TypeQ4_0:
		return blockShape{32, 2 + 16}, true
	case TypeQ4_1:
		return blockShape{32, 2 + 2 + 16}, true
	case TypeQ5_0:
		return blockShape{32, 2 + 4 + 16}, true
	case TypeQ5_1:
		return blockShape{32, 2 + 2 + 4 + 16}, true
	case TypeQ8_0:
		return blockShape{32, 2 + 32}, true
	case TypeQ4_K:
		return blockShape{256, 2 + 2 + 12 + 128}, true
	case TypeQ5_K:
		return blockShape{256, 2 + 2 + 12 + 32 + 128}, true
	case TypeQ6_K:
		return blockShape{256, 128 + 64 + 16 + 2}, true
	}
	return blockShape{}, false
}

// names holds every type number ggml has given out and still uses, so that a
// refusal can name the type; most are not supported here.
var names = map[Type]string{
	0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
	10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
	16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
	24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
	34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}

// String returns ggml's name of the type, or "type N" for a number it never gave out.
func (t Type) String() string {
	if s, ok := names[t]; ok {
		return s
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Supported says whether Parse accepts tensors of this type and Dequantize reads them.
func (t Type) Supported() bool {
	_, ok := t.shape()
	return ok
}

// BlockElems returns the number of elements in one block: 1, 32 or 256; 0 where
// the type is not supported.
func (t Type) BlockElems() int {
	s, _ := t.shape()
	return s.elems
}

// BlockBytes returns the number of bytes of one block; 0 where the type is not supported.
func (t Type) BlockBytes() int {
	s, _ := t.shape()
	return s.bytes
}

// RowBytes returns the bytes of a row of cols elements. It fails where the type
// is not supported, cols is not a positive multiple of BlockElems, or the result
// does not fit an int.
func (t Type) RowBytes(cols int) (int, error) {
	s, ok := t.shape()
	switch {
	case !ok:
		return 0, fmt.Errorf("gguf: tensor type %s: %w", t, ErrType)
	case cols <= 0 || cols%s.elems != 0:
		return 0, fmt.Errorf("gguf: row of %d elements of type %s: %w: want a positive multiple of %d", cols, t, ErrValue, s.elems)
	case cols/s.elems > math.MaxInt/s.bytes:
		return 0, fmt.Errorf("gguf: row of %d elements of type %s: %w", cols, t, ErrLimit)
	}
	return cols / s.elems * s.bytes, nil
}
