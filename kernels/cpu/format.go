package cpu

import "bulkhead/internal/gguf"

// Weights are kept in groups of 16 rows and blocks of 32 columns. A group's
// blocks follow each other, so that a group times a row is one stream of reads.
const (
	groupRows = 16
	blockCols = 32
)

// format is a layout of one block of a group. The planes of scales and
// minimums lie apart from the weights, which keeps all of them aligned.
//
//	F32, F16, BF16  [32 columns][16 rows] of the type itself
//	u8, u6, u5      [8][16 rows][4 columns] unsigned bytes
//	u4              [4][16 rows][4 columns] bytes: column 4j+c low, 16+4j+c high
//
// A weight is d*(q-128) in formatU8 and formatU6K, d*(q-8) in formatU4, and
// d*q + m where there are minimums. In the K formats d is a product of a small
// integer of the block and a scale of eight blocks, and so is m.
type format uint8

const (
	formatF32   format = iota
	formatF16          // IEEE half
	formatBF16         //
	formatU8           // d [16] f16: Q8_0, Q5_0
	formatU8Min        // d, m [16] f16: Q5_1
	formatU5K          // [16] u8, [16] u8; of eight blocks d, m [16] f16: Q5_K
	formatU6K          // [2][16] i8, one for each half of the block; of eight blocks d [16] f16: Q6_K
	formatU4           // d [16] f16: Q4_0
	formatU4Min        // d, m [16] f16: Q4_1
	formatU4K          // as formatU5K: Q4_K
	formatCount
)

// superBlocks is how many blocks share the scales of a K format.
const superBlocks = 8

// layout is the size in bytes of the planes of one block of a group; that of
// plane m of a K format is for superBlocks blocks.
type layout struct{ w, d, m int }

var layouts = [formatCount]layout{
	formatF32:   {w: 2048},
	formatF16:   {w: 1024},
	formatBF16:  {w: 1024},
	formatU8:    {w: 512, d: 32},
	formatU8Min: {w: 512, d: 32, m: 32},
	formatU5K:   {w: 512, d: 32, m: 64},
	formatU6K:   {w: 512, d: 32, m: 32},
	formatU4:    {w: 256, d: 32},
	formatU4Min: {w: 256, d: 32, m: 32},
	formatU4K:   {w: 256, d: 32, m: 64},
}

// quantised reports whether the format is multiplied with int8 activations.
func (f format) quantised() bool { return f > formatBF16 }

func (f format) nibbles() bool { return f >= formatU4 }

// super reports whether plane m holds scales of superBlocks blocks.
func (f format) super() bool { return f == formatU5K || f == formatU6K || f == formatU4K }

func (f format) minimums() bool { return layouts[f].m > 0 && f != formatU6K }

// planeBytes is the size of the planes of n blocks.
func (f format) planeBytes(n int) layout {
	l := layouts[f]
	m := n
	if f.super() {
		m /= superBlocks
	}
	return layout{w: n * l.w, d: n * l.d, m: m * l.m}
}

// source says how a GGUF type is read: bytes hold columns, and every 32 columns
// of them are unpacked into one block of the format.
type source struct {
	bytes, columns int
	format         format
	// unpack gives columns [32*sub, 32*sub+32) of one block of the type.
	unpack func(dst *block, src []byte, sub int)
}

// block is 32 columns of one row: q is unsigned bytes, as the format's table
// says, eight in a word, the first one lowest.
type block struct {
	q    [4]uint64
	d, m uint16   // f16
	k    [2]uint8 // K formats: the integers of d and m, or of the two d
}

// scales gives what the weights are multiplied by, the second factor only in
// formatU6K, and what is added to them.
func (b *block) scales(f format) (d [2]float32, m float32) {
	d[0], m = f16to32(b.d), f16to32(b.m)
	switch f {
	case formatU6K:
		d = [2]float32{d[0] * float32(int8(b.k[0])), d[0] * float32(int8(b.k[1]))}
	case formatU5K, formatU4K:
		d[0], m = d[0]*float32(b.k[0]), m*float32(b.k[1])
	}
	return d, m
}

func sourceOf(t gguf.Type) (source, bool) {
	switch t {
	case gguf.TypeF32:
		return source{4, 1, formatF32, nil}, true
	case gguf.TypeF16:
		return source{2, 1, formatF16, nil}, true
	case gguf.TypeBF16:
		return source{2, 1, formatBF16, nil}, true
	case gguf.TypeQ8_0:
		return source{34, 32, formatU8, unpackQ8_0}, true
	case gguf.TypeQ4_0:
		return source{18, 32, formatU4, unpackQ4_0}, true
	case gguf.TypeQ4_1:
		return source{20, 32, formatU4Min, unpackQ4_1}, true
	case gguf.TypeQ5_0:
		return source{22, 32, formatU8, unpackQ5_0}, true
	case gguf.TypeQ5_1:
		return source{24, 32, formatU8Min, unpackQ5_1}, true
	case gguf.TypeQ4_K:
		return source{144, 256, formatU4K, unpackQ4_K}, true
	case gguf.TypeQ5_K:
		return source{176, 256, formatU5K, unpackQ5_K}, true
	case gguf.TypeQ6_K:
		return source{210, 256, formatU6K, unpackQ6_K}, true
	}
	return source{}, false
}
