package cpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"bulkhead/internal/gguf"
	"bulkhead/kernels"
)

// matrix is a weight matrix [rows, cols] in groups of 16 rows. Rows and columns
// that fill up the last group and block are zero.
type matrix struct {
	rows, cols     int
	groups, blocks int
	format         format
	precise        bool   // multiply with inputs of 15 bits instead of 8
	w, d, m        []byte // planes of [groups][blocks] pieces, sizes in layouts
}

func (m *matrix) Rows() int { return m.rows }
func (m *matrix) Cols() int { return m.cols }

// groupBytes is the size of one group with all its planes.
func (m *matrix) groupBytes() int {
	l := layouts[m.format]
	return m.blocks * (l.w + l.d + l.m)
}

// LoadPrecise is LoadMatrix with a flag that only quantised formats read:
// float formats multiply f32 inputs anyway.
func (b *backend) LoadPrecise(t gguf.Type, rows, cols int, data []byte) (kernels.Matrix, error) {
	m, err := b.LoadMatrix(t, rows, cols, data)
	if err != nil {
		return nil, err
	}
	m.(*matrix).precise = true
	return m, nil
}

func (b *backend) LoadMatrix(t gguf.Type, rows, cols int, data []byte) (kernels.Matrix, error) {
	s, ok := sourceOf(t)
	if !ok {
		return nil, fmt.Errorf("cpu: cannot multiply with tensor type %s", t)
	}
	if rows < 1 || cols < 1 || rows > elementsMax/cols || cols%s.columns != 0 {
		return nil, fmt.Errorf("cpu: matrix of %d x %d of type %s: columns come in blocks of %d", rows, cols, t, s.columns)
	}
	if want := rows * (cols / s.columns * s.bytes); len(data) != want {
		return nil, fmt.Errorf("cpu: matrix of %d x %d of type %s: %d bytes, want %d", rows, cols, t, len(data), want)
	}
	m := &matrix{
		rows: rows, cols: cols, format: s.format,
		groups: (rows + groupRows - 1) / groupRows,
		blocks: (cols + blockCols - 1) / blockCols,
	}
	l := layouts[m.format]
	pieces := m.groups * m.blocks
	for _, plane := range []struct {
		dst *[]byte
		n   int
	}{{&m.w, l.w}, {&m.d, l.d}, {&m.m, l.m}} {
		if plane.n == 0 {
			continue
		}
		p, err := b.memory.alloc(pieces * plane.n)
		if err != nil {
			return nil, err
		}
		*plane.dst = p
	}
	const chunk = 8 // groups
	b.pool.run((m.groups+chunk-1)/chunk, func(i int) {
		for g := i * chunk; g < min((i+1)*chunk, m.groups); g++ {
			m.repack(s, g, data)
		}
	})
	return m, nil
}

// repack fills group g from GGUF rows.
func (m *matrix) repack(s source, g int, data []byte) {
	rowBytes := m.cols / s.columns * s.bytes
	var k block
	for lane := range min(groupRows, m.rows-g*groupRows) {
		row := data[(g*groupRows+lane)*rowBytes:][:rowBytes]
		if s.unpack == nil {
			m.repackFloat(s, g, lane, row)
			continue
		}
		perType := s.columns / blockCols
		for b := range m.blocks {
			s.unpack(&k, row[b/perType*s.bytes:][:s.bytes], b%perType)
			m.put(&k, g*m.blocks+b, lane)
		}
	}
}

func (m *matrix) repackFloat(s source, g, lane int, row []byte) {
	base := g * m.blocks * blockCols * groupRows
	if s.bytes == 4 {
		dst := as[uint32](m.w)
		for c := range m.cols {
			dst[base+c*groupRows+lane] = binary.LittleEndian.Uint32(row[4*c:])
		}
		return
	}
	dst := as[uint16](m.w)
	for c := range m.cols {
		dst[base+c*groupRows+lane] = binary.LittleEndian.Uint16(row[2*c:])
	}
}

// put stores one block of one row into piece (group*blocks + block).
func (m *matrix) put(k *block, piece, lane int) {
	l := layouts[m.format]
	w := m.w[piece*l.w:][:l.w]
	if m.format.nibbles() {
		for j := range 4 {
			for c := range 4 {
				w[64*j+4*lane+c] = k.q[4*j+c] | k.q[16+4*j+c]<<4
			}
		}
	} else {
		for j := range 8 {
			copy(w[64*j+4*lane:][:4], k.q[4*j:])
		}
	}
	switch m.format {
	case formatU8Half:
		d := as[float32](m.d)[piece*32:]
		d[lane], d[16+lane] = k.d[0], k.d[1]
	case formatU8MinF, formatU4MinF:
		as[float32](m.d)[piece*16+lane] = k.d[0]
		as[float32](m.m)[piece*16+lane] = k.m
	default: // exact: the value came from a half
		as[uint16](m.d)[piece*16+lane] = f32to16(k.d[0])
		if m.format.minimums() {
			as[uint16](m.m)[piece*16+lane] = f32to16(k.m)
		}
	}
}

// row dequantises row r into dst [cols], bit for bit as the type's definition.
func (m *matrix) row(dst []float32, r int) {
	g, lane := r/groupRows, r%groupRows
	if !m.format.quantised() {
		for c := range dst {
			i := (g*m.blocks*blockCols+c)*groupRows + lane
			switch m.format {
			case formatF32:
				dst[c] = as[float32](m.w)[i]
			case formatF16:
				dst[c] = f16to32(as[uint16](m.w)[i])
			default:
				dst[c] = bf16to32(as[uint16](m.w)[i])
			}
		}
		return
	}
	var k block
	for b := range m.blocks {
		m.get(&k, g*m.blocks+b, lane)
		out := dst[b*blockCols:][:blockCols]
		for i, q := range k.q {
			switch {
			case m.format == formatU8Half:
				out[i] = k.d[i/16] * float32(int(q)-128)
			case m.format.minimums():
				out[i] = float32(k.d[0]*float32(q)) + k.m
			case m.format.nibbles():
				out[i] = k.d[0] * float32(int(q)-8)
			default:
				out[i] = k.d[0] * float32(int(q)-128)
			}
		}
	}
}

// get is the inverse of put.
func (m *matrix) get(k *block, piece, lane int) {
	l := layouts[m.format]
	w := m.w[piece*l.w:][:l.w]
	if m.format.nibbles() {
		for j := range 4 {
			for c := range 4 {
				v := w[64*j+4*lane+c]
				k.q[4*j+c], k.q[16+4*j+c] = v&15, v>>4
			}
		}
	} else {
		for j := range 8 {
			copy(k.q[4*j:4*j+4], w[64*j+4*lane:])
		}
	}
	switch m.format {
	case formatU8Half:
		d := as[float32](m.d)[piece*32:]
		k.d[0], k.d[1] = d[lane], d[16+lane]
	case formatU8MinF, formatU4MinF:
		k.d[0] = as[float32](m.d)[piece*16+lane]
		k.m = as[float32](m.m)[piece*16+lane]
	default:
		k.d[0] = f16to32(as[uint16](m.d)[piece*16+lane])
		if m.format.minimums() {
			k.m = f16to32(as[uint16](m.m)[piece*16+lane])
		}
	}
}

// plane points at piece g*blocks of a plane, nil if there is none.
func (m *matrix) plane(p []byte, bytes, g int) unsafe.Pointer {
	if bytes == 0 {
		return nil
	}
	return unsafe.Pointer(&p[g*m.blocks*bytes])
}

var nan32 = float32(math.NaN())
