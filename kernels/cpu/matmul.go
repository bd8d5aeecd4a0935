package cpu

import (
	"fmt"
	"unsafe"

	"bulkhead/kernels"
)

// gemmArgs is what a kernel multiplies: groups consecutive groups of a matrix
// with one tile. The assembly knows the order of the fields.
type gemmArgs struct {
	y       unsafe.Pointer // *float32: row 0 of the first group, token 0
	ldy     int            // bytes between tokens of y
	w, d, m unsafe.Pointer // planes of the first group
	x       unsafe.Pointer // records of the tile's first block
	xstride int            // bytes between the records of two blocks
	blocks  int
	groups  int
}

// gemm multiplies with a tile of a fixed size.
type gemm func(*gemmArgs)

// tileIndex is log2 of a tile's rows, the place in tier.gemm.
func tileIndex(rows int) int {
	switch rows {
	case 1:
		return 0
	case 2:
		return 1
	case 4:
		return 2
	case 8:
		return 3
	}
	return 4
}

// A chunk is at most chunkBytesMax of weights, which stay in the second level
// cache while all tiles pass; less if the threads would have fewer than
// chunksPerThread each, so that none waits long for another; but at least
// chunkBytesMin, a few hundred nanoseconds for one row.
const (
	chunkBytesMax   = 192 << 10
	chunkBytesMin   = 8 << 10
	chunksPerThread = 4
)

func chunkBytes(total, threads int) int {
	if threads == 1 {
		return chunkBytesMax
	}
	return min(max(total/(threads*chunksPerThread), chunkBytesMin), chunkBytesMax)
}

// blockRows is the rows that pass one chunk before the next chunk is taken, so
// that the packed rows stay in cache too.
const blockRows = 512

func (s *step) MatMul(dst []kernels.Buffer, src kernels.Buffer, rows int, w []kernels.Matrix, bias []kernels.Vector) {
	x := s.buffer(src)
	s.checkRows("MatMul", x, rows)
	if len(dst) != len(w) || (bias != nil && len(bias) != len(w)) {
		panic(fmt.Sprintf("cpu: MatMul: %d outputs, %d matrices, %d biases", len(dst), len(w), len(bias)))
	}
	outs := make([]product, len(w))
	for i := range w {
		outs[i] = product{w: w[i].(*matrix), y: s.buffer(dst[i])}
		if bias != nil && bias[i] != nil {
			outs[i].bias = bias[i].(vector)
			if len(outs[i].bias) != outs[i].w.rows {
				panic(fmt.Sprintf("cpu: MatMul: bias of %d for %d rows", len(outs[i].bias), outs[i].w.rows))
			}
		}
	}
	s.matmul(outs, x, rows, nil)
}

func (s *step) MatMulRows(dst, src kernels.Buffer, pick []int, w kernels.Matrix) {
	x := s.buffer(src)
	for _, r := range pick {
		s.checkRows("MatMulRows", x, r+1)
	}
	s.matmul([]product{{w: w.(*matrix), y: s.buffer(dst)}}, x, len(pick), pick)
}

// product is one matrix of a MatMul with where its result goes.
type product struct {
	w    *matrix
	y    *buffer
	bias vector

	firstChunk, chunks, chunkGroups int
}

func (s *step) matmul(outs []product, x *buffer, rows int, pick []int) {
	if rows == 0 {
		return
	}
	var n needs
	total := 0
	for i := range outs {
		o := &outs[i]
		if o.w.cols != x.cols || o.y.cols != o.w.rows || o.y.rows < rows {
			panic(fmt.Sprintf("cpu: MatMul: [%d, %d] = [%d, %d] x [%d, %d] for %d rows",
				o.y.rows, o.y.cols, x.rows, x.cols, o.w.rows, o.w.cols, rows))
		}
		switch {
		case !o.w.format.quantised():
			n.float = true
		case o.w.precise:
			n.precise = true
		default:
			n.quantised = true
		}
		total += o.w.groups * o.w.groupBytes()
	}
	chunks := 0
	for i := range outs {
		o := &outs[i]
		o.chunkGroups = max(1, chunkBytes(total, s.b.info.Threads)/o.w.groupBytes())
		o.firstChunk = chunks
		o.chunks = (o.w.groups + o.chunkGroups - 1) / o.chunkGroups
		chunks += o.chunks
	}
	blocks := (x.cols + blockCols - 1) / blockCols
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	if n.quantised {
		sc.q = grow(sc.q, rows*blocks)
	}
	if n.precise {
		sc.p = grow(sc.p, 2*rows*blocks)
	}
	if n.float {
		sc.f = grow(sc.f, rows*blocks)
	}
	s.forRows(rows, x.cols, func(r int) {
		from := r
		if pick != nil {
			from = pick[r]
		}
		sc.packRow(s.b.tier, r, rows, x.row(from), n)
	})
	bands := (rows + blockRows - 1) / blockRows
	s.b.pool.run(chunks*bands, func(c int) {
		band, c := c/chunks, c%chunks
		i := 0
		for c >= outs[i].firstChunk+outs[i].chunks {
			i++
		}
		o := &outs[i]
		g := (c - o.firstChunk) * o.chunkGroups
		run := o.run
		if o.w.precise && o.w.format.quantised() {
			run = o.runPrecise
		}
		run(s.b.tier, sc, g, min(g+o.chunkGroups, o.w.groups), band*blockRows, min((band+1)*blockRows, rows), rows)
	})
}

// run multiplies groups [g0, g1) with rows [r0, r1); r0 begins a tile.
func (o *product) run(t *tier, sc *scratch, g0, g1, r0, r1, rows int) {
	m := o.w
	l := layouts[m.format]
	full := g1
	if g1 == m.groups && m.rows%groupRows != 0 {
		full = g1 - 1 // the last group does not fit into y
	}
	var edge [tileMax * groupRows]float32
	for r := r0; r < r1; {
		size := tileRows(r, rows)
		a := gemmArgs{blocks: m.blocks, ldy: 4 * o.y.cols}
		if m.format.quantised() {
			a.x = unsafe.Pointer(&sc.q[r*m.blocks])
			a.xstride = size * int(unsafe.Sizeof(qrecord{}))
		} else {
			a.x = unsafe.Pointer(&sc.f[r*m.blocks])
			a.xstride = size * int(unsafe.Sizeof(frecord{}))
		}
		kernel := t.gemm[m.format][tileIndex(size)]
		if full > g0 {
			a.y = unsafe.Pointer(&o.y.v[r*o.y.cols+g0*groupRows])
			a.groups = full - g0
			a.w, a.d, a.m = m.plane(m.w, l.w, g0), m.plane(m.d, l.d, g0), m.plane(m.m, l.m, g0)
			kernel(&a)
		}
		if full < g1 {
			a.y, a.ldy, a.groups = unsafe.Pointer(&edge), 4*groupRows, 1
			a.w, a.d, a.m = m.plane(m.w, l.w, full), m.plane(m.d, l.d, full), m.plane(m.m, l.m, full)
			kernel(&a)
			for i := range size {
				copy(o.y.row(r + i)[full*groupRows:], edge[i*groupRows:(i+1)*groupRows])
			}
		}
		if o.bias != nil {
			last := min(g1*groupRows, m.rows)
			for i := range size {
				t.add(o.y.row(r + i)[g0*groupRows:last], o.bias[g0*groupRows:last])
			}
		}
		r += size
	}
}

// runPrecise is run for a precise matrix: each row was packed as two, what 8
// bits hold of it and what they leave, whose products are added.
func (o *product) runPrecise(t *tier, sc *scratch, g0, g1, r0, r1, rows int) {
	const groupsMax = 8
	var pairs [tileMax * groupsMax * groupRows]float32 // [packed row][groupsMax*groupRows]
	const width = groupsMax * groupRows
	m := o.w
	l := layouts[m.format]
	for r := 2 * r0; r < 2*r1; {
		size := tileRows(r, 2*rows)
		kernel := t.gemm[m.format][tileIndex(size)]
		for g := g0; g < g1; g += groupsMax {
			groups := min(groupsMax, g1-g)
			kernel(&gemmArgs{
				y: unsafe.Pointer(&pairs), ldy: 4 * width, groups: groups, blocks: m.blocks,
				w: m.plane(m.w, l.w, g), d: m.plane(m.d, l.d, g), m: m.plane(m.m, l.m, g),
				x: unsafe.Pointer(&sc.p[r*m.blocks]), xstride: size * int(unsafe.Sizeof(qrecord{})),
			})
			first, last := g*groupRows, min((g+groups)*groupRows, m.rows)
			for i := 0; i < size; i += 2 {
				y := o.y.row((r + i) / 2)[first:last]
				copy(y, pairs[i*width:])
				t.add(y, pairs[(i+1)*width:][:len(y)])
				if o.bias != nil {
					t.add(y, o.bias[first:last])
				}
			}
		}
		r += size
	}
}
