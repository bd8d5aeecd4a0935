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
	precise        bool   // add the outliers of the inputs
	w, d, m        []byte // planes of [groups][blocks] pieces
}

func (m *matrix) Rows() int { return m.rows }
func (m *matrix) Cols() int { return m.cols }

// groupBytes is the size of one group with all its planes.
func (m *matrix) groupBytes() int {
	l := m.format.planeBytes(m.blocks)
	return l.w + l.d + l.m
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
	l := m.format.planeBytes(m.groups * m.blocks)
	for _, plane := range []struct {
		dst *[]byte
		n   int
	}{{&m.w, l.w}, {&m.d, l.d}, {&m.m, l.m}} {
		if plane.n == 0 {
			continue
		}
		p, err := b.memory.alloc(plane.n)
		if err != nil {
			return nil, err
		}
		*plane.dst = p
	}
	const chunk = 8 // groups
	b.pool.run((m.groups+chunk-1)/chunk, func(i int) {
		for g := i * chunk; g < min((i+1)*chunk, m.groups); g++ {
			m.repack(s, b.tier.repack[t], g, data)
		}
	})
	return m, nil
}

// repack fills group g from GGUF rows; kernel, if it is not nil, fills whole groups.
func (m *matrix) repack(s source, kernel repackGroup, g int, data []byte) {
	rowBytes := m.cols / s.columns * s.bytes
	rows := min(groupRows, m.rows-g*groupRows)
	data = data[g*groupRows*rowBytes:][:rows*rowBytes]
	if s.unpack == nil {
		for lane := range rows {
			m.repackFloat(s, g, lane, data[lane*rowBytes:][:rowBytes])
		}
		return
	}
	const strideMax = 1 << 26 // the kernels' offsets are of 32 bits
	if kernel != nil && rows == groupRows && rowBytes <= strideMax {
		w, d, least := m.planes(g)
		kernel((*byte)(w), (*byte)(d), (*byte)(least), &data[0], rowBytes, m.cols/s.columns)
		return
	}
	var k block
	perType := s.columns / blockCols
	for b := range m.blocks {
		at := b / perType * s.bytes
		for lane := range rows {
			s.unpack(&k, data[at:][:s.bytes:s.bytes], b%perType)
			m.put(&k, g*m.blocks+b, lane)
			at += rowBytes
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
	w := m.w[piece*layouts[m.format].w:]
	if m.format.nibbles() {
		w = w[4*lane:][:196]
		a, b := k.q[0]|k.q[2]<<4, k.q[1]|k.q[3]<<4
		binary.LittleEndian.PutUint32(w, uint32(a))
		binary.LittleEndian.PutUint32(w[64:], uint32(a>>32))
		binary.LittleEndian.PutUint32(w[128:], uint32(b))
		binary.LittleEndian.PutUint32(w[192:], uint32(b>>32))
	} else {
		w = w[4*lane:][:452]
		for j, q := range k.q {
			binary.LittleEndian.PutUint32(w[128*j:], uint32(q))
			binary.LittleEndian.PutUint32(w[128*j+64:], uint32(q>>32))
		}
	}
	if !m.format.super() {
		as[uint16](m.d)[piece*16+lane] = k.d
		if m.format.minimums() {
			as[uint16](m.m)[piece*16+lane] = k.m
		}
		return
	}
	d := m.d[piece*32:][:32]
	d[lane], d[16+lane] = k.k[0], k.k[1]
	if piece%superBlocks == 0 {
		of := as[uint16](m.m[piece/superBlocks*layouts[m.format].m:])
		of[lane] = k.d
		if m.format.minimums() {
			of[16+lane] = k.m
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
		d, least := k.scales(m.format)
		out := dst[b*blockCols:][:blockCols]
		for i := range out {
			q := int(k.q[i/8] >> (8 * (i % 8)) & 255)
			switch {
			case m.format == formatU6K:
				out[i] = d[i/16] * float32(q-128)
			case m.format.minimums():
				out[i] = float32(d[0]*float32(q)) + least
			case m.format.nibbles():
				out[i] = d[0] * float32(q-8)
			default:
				out[i] = d[0] * float32(q-128)
			}
		}
	}
}

// get is the inverse of put.
func (m *matrix) get(k *block, piece, lane int) {
	l := layouts[m.format]
	w := m.w[piece*l.w:][:l.w]
	read := func(line int) uint64 { return uint64(binary.LittleEndian.Uint32(w[64*line+4*lane:])) }
	if m.format.nibbles() {
		a, b := read(0)|read(1)<<32, read(2)|read(3)<<32
		k.q = [4]uint64{a & nibble, b & nibble, a >> 4 & nibble, b >> 4 & nibble}
	} else {
		for j := range k.q {
			k.q[j] = read(2*j) | read(2*j+1)<<32
		}
	}
	if !m.format.super() {
		k.d = as[uint16](m.d)[piece*16+lane]
		if m.format.minimums() {
			k.m = as[uint16](m.m)[piece*16+lane]
		}
		return
	}
	d := m.d[piece*32:][:32]
	k.k = [2]uint8{d[lane], d[16+lane]}
	of := as[uint16](m.m[piece/superBlocks*l.m:])
	k.d = of[lane]
	if m.format.minimums() {
		k.m = of[16+lane]
	}
}

// planes points at group g in the three planes; those that there are not are nil.
func (m *matrix) planes(g int) (w, d, least unsafe.Pointer) {
	l := m.format.planeBytes(g * m.blocks)
	at := func(p []byte, n int) unsafe.Pointer {
		if len(p) == 0 {
			return nil
		}
		return unsafe.Pointer(&p[n])
	}
	return at(m.w, l.w), at(m.d, l.d), at(m.m, l.m)
}

var nan32 = float32(math.NaN())
