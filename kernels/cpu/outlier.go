package cpu

import "unsafe"

// Rounding a block of 32 activations to 8 bits errs by a share of the largest of
// them. In a transformer a few channels are far larger than the rest, so that most
// of a row's error comes from few of its blocks (Dettmers et al., "LLM.int8()",
// 2022, section 3). Of these, which are outliers here, what the rounding left is
// packed as a record of its own, and its product is added after the row's blocks:
// they have 15 bits, at a cost in proportion to their number.
//
// Which blocks are outliers, and the order of the additions, block by block,
// depends on the row alone.

// outlierFactor: a block is an outlier if its scale is more than this many times the
// mean of the row's scales. Measured in package model, precision.go.
const outlierFactor = 1.5

// outlier is what 8 bits left of one block of one row: 64 bytes that the
// assembly knows.
type outlier struct {
	qrecord
	row int32 // in the tile
	_   [3]int32
}

// outlierRun is the outliers of one block among the rows of a tile.
type outlierRun struct{ block, count int32 }

var (
	_ [64 - unsafe.Sizeof(outlier{})]byte
	_ [unsafe.Sizeof(outlier{}) - 64]byte
)

// outlierScratch is the outliers of all rows. A row has room for one of each block,
// a tile room for one run of each block.
type outlierScratch struct {
	outliers []outlier    // [row][blocks]: the first counts[row] of each row
	blockOf  []int32      // [row][blocks]: which block that is
	counts   []int32      // [row]
	order    []int32      // [row][blocks]: for a tile, from its first row on: places in outliers
	runs     []outlierRun // [row][blocks]: for a tile, from its first row on
	runCount []int32      // [row]: for a tile, at its first row
}

func (s *outlierScratch) grow(rows, blocks int) {
	s.outliers = grow(s.outliers, rows*blocks)
	s.blockOf = grow(s.blockOf, rows*blocks)
	s.order = grow(s.order, rows*blocks)
	s.runs = grow(s.runs, rows*blocks)
	s.counts = grow(s.counts, rows)
	s.runCount = grow(s.runCount, rows)
}

// packOutliers finds and packs those of row r, place in its tile, whose records are
// given, stride apart.
func (s *outlierScratch) packOutliers(t *tier, r, place int, records []qrecord, stride int, x []float32) {
	blocks := len(x) / blockCols
	var sum float32
	for b := range blocks {
		sum += records[b*stride].scale
	}
	least := sum / float32(blocks) * outlierFactor
	n := 0
	for b := range blocks {
		if !(records[b*stride].scale > least) {
			continue
		}
		var rest [blockCols]float32
		t.rest(rest[:], records[b*stride:], 1, x[b*blockCols:(b+1)*blockCols])
		o := &s.outliers[r*blocks+n]
		t.quantise(unsafe.Slice(&o.qrecord, 1), 1, rest[:])
		o.row = int32(place)
		s.blockOf[r*blocks+n] = int32(b)
		n++
	}
	s.counts[r] = int32(n)
}

// sortTiles puts the outliers of the tiles of rows [first, end) in order of
// blocks, so that a block of weights is read once for a tile.
func (s *outlierScratch) sortTiles(first, end, rows, blocks int) {
	for first < end {
		size := tileRows(first, rows)
		s.sortTile(first, size, blocks)
		first += size
	}
}

func (s *outlierScratch) sortTile(first, size, blocks int) {
	runs := s.runs[first*blocks:][:0]
	total := 0
	for r := first; r < first+size; r++ {
		total += int(s.counts[r])
	}
	order := s.order[first*blocks:][:0]
	if total > 0 {
		var next [tileMax]int32
		for b := range int32(blocks) {
			before := len(order)
			for i := range size {
				r := first + i
				if n := next[i]; n < s.counts[r] && s.blockOf[r*blocks+int(n)] == b {
					order = append(order, int32(r*blocks)+n)
					next[i]++
				}
			}
			if n := len(order) - before; n > 0 {
				runs = append(runs, outlierRun{b, int32(n)})
			}
		}
	}
	s.runCount[first] = int32(len(runs))
}

// outlierArgs is what a kernel adds to the products of one tile with groups
// consecutive groups. The assembly knows the order of the fields.
type outlierArgs struct {
	y       unsafe.Pointer // *float32: row 0 of the first group, token 0
	ldy     int            // bytes between tokens of y
	w, d, m unsafe.Pointer // planes of the first group
	x       unsafe.Pointer // outliers, all rows
	order   unsafe.Pointer // *int32: the tile's, by block
	runs    unsafe.Pointer // *outlierRun
	count   int            // of runs, > 0
	blocks  int
	groups  int
}

// addOutliers adds to what a has computed for the tile of size rows at row first, in
// calls of the tier's length.
func (s *outlierScratch) addOutliers(t *tier, f format, first, size int, a *gemmArgs) {
	runs := int(s.runCount[first])
	if runs == 0 {
		return
	}
	at := first * a.blocks
	whole := f.planeBytes(a.blocks)
	groups := max(1, t.call/(runs*size))
	var b outlierArgs // one for all calls: it escapes
	for g := 0; g < a.groups; g += groups {
		b = outlierArgs{
			y: unsafe.Add(a.y, g*4*groupRows), ldy: a.ldy, w: unsafe.Add(a.w, g*whole.w), d: unsafe.Add(a.d, g*whole.d),
			x: unsafe.Pointer(&s.outliers[0]), order: unsafe.Pointer(&s.order[at]),
			runs: unsafe.Pointer(&s.runs[at]), count: runs,
			blocks: a.blocks, groups: min(groups, a.groups-g),
		}
		if a.m != nil {
			b.m = unsafe.Add(a.m, g*whole.m)
		}
		t.outliers[f](&b)
	}
}

// genericOutliers is the kernel in plain Go: acc = fma(float(sum of q*x), d*scale,
// acc) and so on, as for a block, in ascending order of blocks.
func genericOutliers(f format) func(a *outlierArgs) {
	return func(a *outlierArgs) {
		order := unsafe.Slice((*int32)(a.order), a.blocks*tileMax)
		runs := unsafe.Slice((*outlierRun)(a.runs), a.count)
		for g := range a.groups {
			at := 0
			for _, run := range runs {
				w := weightsOf(f, a.w, a.d, a.m, g*a.blocks+int(run.block))
				for range run.count {
					o := (*outlier)(unsafe.Add(a.x, int(order[at])*int(unsafe.Sizeof(outlier{}))))
					w.multiply(f, &o.qrecord, (*lanes)(unsafe.Add(a.y, g*4*groupRows+int(o.row)*a.ldy)))
					at++
				}
			}
		}
	}
}
