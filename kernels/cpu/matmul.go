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

	resume bool // go on from what y holds; only for tiers that say so
}

// gemm multiplies with a tile of a fixed size.
type gemm func(*gemmArgs)

// The runtime cannot interrupt assembly: the collector, and whoever waits for the
// thread, wait for the end of a call. So a call has a limit for each tier, in
// products of a block (16 rows of 32 weights) with one row of activations, of which
// these make 20 to 40 us on the machines of docs/BENCHMARKS.md; a hundred times what
// the call itself costs. Plain Go can be interrupted, and keeps to it all the same.
const (
	callAVX512  = 16 << 10
	callAVXVNNI = 4 << 10
	callAVX2    = 2 << 10
	callGeneric = 128
)

// multiply computes one tile, in calls of the tier's length: the largest tile that
// there is a kernel for, as many groups as the limit allows, and less than the whole
// of a row only where a single group would be too long and the kernel can resume.
func (t *tier) multiply(m *matrix, size int, a gemmArgs) {
	tiles, rows := &t.gemm[m.format], size
	for tiles[tileIndex(rows)] == nil {
		rows /= 2
	}
	kernel, record := tiles[tileIndex(rows)], a.xstride/size
	blocks := a.blocks
	if n := t.call / rows &^ (superBlocks - 1); t.resumes && n < blocks {
		blocks = max(n, superBlocks)
	}
	groups := max(1, t.call/(rows*blocks))
	if blocks < a.blocks {
		groups = 1
	}
	whole := m.format.planeBytes(a.blocks)
	var b gemmArgs // one for all calls: it escapes
	for g := 0; g < a.groups; g += groups {
		for i := 0; i < size; i += rows {
			for from := 0; from < a.blocks; from += blocks {
				skip := m.format.planeBytes(from)
				b = gemmArgs{
					y: unsafe.Add(a.y, i*a.ldy+g*4*groupRows), ldy: a.ldy,
					w: unsafe.Add(a.w, g*whole.w+skip.w),
					x: unsafe.Add(a.x, i*record+from*a.xstride), xstride: a.xstride,
					blocks: min(blocks, a.blocks-from), groups: min(groups, a.groups-g), resume: from > 0,
				}
				if a.d != nil {
					b.d = unsafe.Add(a.d, g*whole.d+skip.d)
				}
				if a.m != nil {
					b.m = unsafe.Add(a.m, g*whole.m+skip.m)
				}
				kernel(&b)
			}
		}
	}
}

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

// bandRows is the rows that pass one chunk before the next chunk is taken: so many
// that the packed rows stay in the second level cache beside the chunk, and not so
// many that one call takes long.
func bandRows(blocks int) int {
	const bytesMax = 640 << 10
	rows := bytesMax / (blocks * int(unsafe.Sizeof(qrecord{}))) &^ (tileMax - 1)
	return min(max(rows, 2*tileMax), 512)
}

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
		default:
			n.quantised = true
			n.outliers = n.outliers || o.w.precise
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
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	s.pack(sc, x, rows, pick, n)
	band := bandRows((x.cols + blockCols - 1) / blockCols)
	bands := (rows + band - 1) / band
	s.b.pool.run(chunks*bands, func(c int) {
		first, c := c/chunks*band, c%chunks
		i := 0
		for c >= outs[i].firstChunk+outs[i].chunks {
			i++
		}
		o := &outs[i]
		g := (c - o.firstChunk) * o.chunkGroups
		o.run(s.b.tier, sc, g, min(g+o.chunkGroups, o.w.groups), first, min(first+band, rows), rows)
	})
}

// run multiplies groups [g0, g1) with rows [r0, r1); r0 begins a tile.
func (o *product) run(t *tier, sc *scratch, g0, g1, r0, r1, rows int) {
	m := o.w
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
		multiply := func() {
			t.multiply(m, size, a)
			if m.precise && m.format.quantised() {
				sc.addOutliers(t, m.format, r, size, &a)
			}
		}
		if full > g0 {
			a.y = unsafe.Pointer(&o.y.v[r*o.y.cols+g0*groupRows])
			a.groups = full - g0
			a.w, a.d, a.m = m.planes(g0)
			multiply()
		}
		if full < g1 {
			a.y, a.ldy, a.groups = unsafe.Pointer(&edge), 4*groupRows, 1
			a.w, a.d, a.m = m.planes(full)
			multiply()
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
