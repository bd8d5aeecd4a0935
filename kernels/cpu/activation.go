package cpu

import (
	"math"
	"sync"
	"unsafe"
)

// Activations are packed in tiles of 16, 8, 4, 2 or 1 rows before they are
// multiplied: [block][row of the tile] records, so that a kernel walks weights
// and activations in one direction each. What a record holds depends on its
// row only, and so does what a kernel makes of it.

// qrecord is 32 columns of a row for quantised weights: 48 bytes that the
// assembly knows.
type qrecord struct {
	q      [blockCols]int8
	scale  float32 // x = scale*q
	sum    float32 // scale times the sum of q
	corr   int32   // -128 times the sum of q: takes the weights' offset back
	corrHi int32   // -128 times the sum of q[16:]
}

// frecord is 32 columns of a row for float weights.
type frecord [blockCols]float32

var (
	_ [48 - unsafe.Sizeof(qrecord{})]byte
	_ [unsafe.Sizeof(qrecord{}) - 48]byte
)

const tileMax = 16

// tileRows is the size of the tile that starts at row r of rows.
func tileRows(r, rows int) int {
	t := tileMax
	for t > rows-r {
		t /= 2
	}
	return t
}

// amaxMin keeps the inverse of a block's largest value finite. A block below it
// counts as zero, with a scale of zero: a tiny one would make subnormal products
// with the weights' scales, which cost a processor a hundred times as much.
const amaxMin = 1.0 / (1 << 50) / (1 << 50)

// quantiseGeneric fills one record per block of x, stride records apart. The
// length of x is a multiple of blockCols, as it is in all quantised types.
func quantiseGeneric(dst []qrecord, stride int, x []float32) {
	for b := range len(x) / blockCols {
		quantiseBlock(&dst[b*stride], (*[blockCols]float32)(x[b*blockCols:]))
	}
}

func quantiseBlock(r *qrecord, x *[blockCols]float32) {
	*r = qrecord{}
	most := uint32(0) // bits of |x| order as |x|, infinities and NaN on top
	for _, v := range x {
		most = max(most, math.Float32bits(v)&0x7fffffff)
	}
	amax := math.Float32frombits(max(most, math.Float32bits(amaxMin)))
	r.scale = amax / 127
	if most >= 0x7f800000 {
		// Infinite or NaN: so is the scale, and so is whatever comes of it.
		r.sum = 0 * r.scale
		return
	}
	if most < math.Float32bits(amaxMin) {
		r.scale = 0
	}
	inverse := 127 / amax
	var low, high int32
	for i, v := range x {
		// Adding 1.5*2^23 rounds to the nearest even integer.
		const magic = 12582912
		q := int32(math.Float32bits(float32(v*inverse)+magic)) - 0x4b400000
		r.q[i] = int8(q)
		if i < 16 {
			low += q
		} else {
			high += q
		}
	}
	r.sum = r.scale * float32(low+high)
	r.corr, r.corrHi = -128*(low+high), -128*high
}

// scratch is the packed activations of one MatMul.
type scratch struct {
	q []qrecord
	f []frecord
	outlierScratch
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// needs says which packings the matrices of one MatMul read.
type needs struct{ quantised, outliers, float bool }

// pack packs rows of x, or the picked ones.
func (s *step) pack(sc *scratch, x *buffer, rows int, pick []int, n needs) {
	blocks := (x.cols + blockCols - 1) / blockCols
	if n.quantised {
		sc.q = grow(sc.q, rows*blocks)
	}
	if n.outliers {
		sc.outlierScratch.grow(rows, blocks)
	}
	if n.float {
		sc.f = grow(sc.f, rows*blocks)
	}
	row := func(r int) {
		from := r
		if pick != nil {
			from = pick[r]
		}
		sc.packRow(s.b.tier, r, rows, x.row(from), n)
	}
	if rows <= tileMax { // few rows: each may be long
		s.forRows(rows, x.cols, row)
		if n.outliers {
			sc.sortTiles(0, rows, rows, blocks)
		}
		return
	}
	s.b.pool.run((rows+tileMax-1)/tileMax, func(c int) {
		first, end := c*tileMax, min((c+1)*tileMax, rows)
		for r := first; r < end; r++ {
			row(r)
		}
		if n.outliers {
			sc.sortTiles(first, end, rows, blocks)
		}
	})
}

// packRow packs row r of rows into its tile.
func (s *scratch) packRow(t *tier, r, rows int, x []float32, n needs) {
	blocks := (len(x) + blockCols - 1) / blockCols
	first, size := tileOf(r, rows)
	at := first*blocks + r - first
	if n.quantised {
		t.quantise(s.q[at:], size, x)
	}
	if n.outliers {
		s.packOutliers(t, r, r-first, s.q[at:], size, x)
	}
	if n.float {
		for b := range blocks {
			dst := &s.f[at+b*size]
			clear(dst[copy(dst[:], x[b*blockCols:]):])
		}
	}
}

// restGeneric gives x less what the records hold of it.
func restGeneric(dst []float32, src []qrecord, stride int, x []float32) {
	for i, v := range x {
		r := &src[i/blockCols*stride]
		dst[i] = v - float32(r.scale*float32(r.q[i%blockCols]))
	}
}

// tileOf is the first row and the size of the tile that row r of rows is in.
func tileOf(r, rows int) (first, size int) {
	first = r &^ (tileMax - 1)
	size = tileRows(first, rows)
	for r >= first+size {
		first += size
		size = tileRows(first, rows)
	}
	return first, size
}
