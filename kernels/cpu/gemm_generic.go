package cpu

import "unsafe"

// The plain Go kernels. For each of 16 rows and each token:
//
//	quantised  acc = fma(float(sum of q*x), d*scale, acc), then, with minimums,
//	           acc = fma(m, sum, acc), for each block in ascending order
//	float      part = fma(w, x, part) over the block, then acc += part
//
// acc begins at 0, or at what y holds.

func genericGemm(f format, tokens int) gemm {
	if !f.quantised() {
		return func(a *gemmArgs) { genericFloat(a, f, tokens) }
	}
	return func(a *gemmArgs) { genericQuantised(a, f, tokens) }
}

type lanes [groupRows]float32

func (a *gemmArgs) out(g, t int) *lanes {
	return (*lanes)(unsafe.Add(a.y, g*4*groupRows+t*a.ldy))
}

func (a *gemmArgs) begin(g, tokens int) (acc [tileMax]lanes) {
	if a.resume {
		for t := range tokens {
			acc[t] = *a.out(g, t)
		}
	}
	return acc
}

func genericQuantised(a *gemmArgs, f format, tokens int) {
	for g := range a.groups {
		acc := a.begin(g, tokens)
		for b := range a.blocks {
			w := weightsOf(f, a.w, a.d, a.m, g*a.blocks+b)
			for t := range tokens {
				w.multiply(f, (*qrecord)(unsafe.Add(a.x, b*a.xstride+t*int(unsafe.Sizeof(qrecord{})))), &acc[t])
			}
		}
		for t := range tokens {
			*a.out(g, t) = acc[t]
		}
	}
}

// pieceWeights is one block of one group.
type pieceWeights struct {
	w []byte
	d [2]lanes
	m lanes
}

func weightsOf(f format, w, d, m unsafe.Pointer, piece int) (p pieceWeights) {
	l := layouts[f]
	p.w = unsafe.Slice((*byte)(unsafe.Add(w, piece*l.w)), l.w)
	readScales(f, &p.d, &p.m, d, m, piece)
	return p
}

// multiply adds the products of 16 rows with x to acc.
func (p *pieceWeights) multiply(f format, x *qrecord, acc *lanes) {
	var sum [2][groupRows]int32
	start(f, &sum, x)
	if f.nibbles() {
		dotNibbles(&sum[0], (*[256]byte)(p.w), &x.q)
	} else {
		high := &sum[0]
		if f == formatU6K {
			high = &sum[1]
		}
		dotBytes(&sum[0], (*[256]byte)(p.w), (*[16]int8)(x.q[:16]))
		dotBytes(high, (*[256]byte)(p.w[256:]), (*[16]int8)(x.q[16:]))
	}
	for r := range acc {
		v := fma32(float32(sum[0][r]), p.d[0][r]*x.scale, acc[r])
		if f == formatU6K {
			v = fma32(float32(sum[1][r]), p.d[1][r]*x.scale, v)
		}
		if f.minimums() {
			v = fma32(p.m[r], x.sum, v)
		}
		acc[r] = v
	}
}

// start sets the sums so that the offset of unsigned weights cancels.
func start(f format, sum *[2][groupRows]int32, x *qrecord) {
	var s0, s1 int32
	switch f {
	case formatU8:
		s0 = x.corr
	case formatU6K:
		s0, s1 = x.corr-x.corrHi, x.corrHi
	case formatU4:
		s0 = x.corr >> 4
	default:
		return
	}
	for r := range groupRows {
		sum[0][r], sum[1][r] = s0, s1
	}
}

func readScales(f format, d *[2]lanes, m *lanes, dPlane, mPlane unsafe.Pointer, piece int) {
	at := f.planeBytes(piece)
	dp, mp := unsafe.Add(dPlane, at.d), unsafe.Pointer(nil)
	if mPlane != nil {
		mp = unsafe.Add(mPlane, at.m)
	}
	for r := range groupRows {
		var b block
		half := func(p unsafe.Pointer, i int) uint16 { return (*[2 * groupRows]uint16)(p)[i] }
		if f.super() {
			b.k = [2]uint8{(*[2 * groupRows]uint8)(dp)[r], (*[2 * groupRows]uint8)(dp)[groupRows+r]}
			b.d = half(mp, r)
			if f.minimums() {
				b.m = half(mp, groupRows+r)
			}
		} else {
			b.d = half(dp, r)
			if mp != nil {
				b.m = half(mp, r)
			}
		}
		both, least := b.scales(f)
		d[0][r], d[1][r], m[r] = both[0], both[1], least
	}
}

// dotBytes adds 16 columns of 16 rows, [4][16 rows][4] unsigned bytes.
func dotBytes(sum *[groupRows]int32, w *[256]byte, x *[16]int8) {
	for j := range 4 {
		x0, x1, x2, x3 := int32(x[4*j]), int32(x[4*j+1]), int32(x[4*j+2]), int32(x[4*j+3])
		v := w[64*j : 64*j+64]
		for r := range sum {
			c := v[4*r : 4*r+4 : 4*r+4]
			sum[r] += int32(c[0])*x0 + int32(c[1])*x1 + int32(c[2])*x2 + int32(c[3])*x3
		}
	}
}

func dotNibbles(sum *[groupRows]int32, w *[256]byte, x *[blockCols]int8) {
	for j := range 4 {
		x0, x1, x2, x3 := int32(x[4*j]), int32(x[4*j+1]), int32(x[4*j+2]), int32(x[4*j+3])
		y0, y1, y2, y3 := int32(x[16+4*j]), int32(x[17+4*j]), int32(x[18+4*j]), int32(x[19+4*j])
		v := w[64*j : 64*j+64]
		for r := range sum {
			c := v[4*r : 4*r+4 : 4*r+4]
			sum[r] += int32(c[0]&15)*x0 + int32(c[1]&15)*x1 + int32(c[2]&15)*x2 + int32(c[3]&15)*x3 +
				int32(c[0]>>4)*y0 + int32(c[1]>>4)*y1 + int32(c[2]>>4)*y2 + int32(c[3]>>4)*y3
		}
	}
}

func genericFloat(a *gemmArgs, f format, tokens int) {
	l := layouts[f]
	var w [blockCols]lanes
	for g := range a.groups {
		acc := a.begin(g, tokens)
		for b := range a.blocks {
			readWeights(f, &w, unsafe.Add(a.w, (g*a.blocks+b)*l.w))
			for t := range tokens {
				x := (*frecord)(unsafe.Add(a.x, b*a.xstride+t*int(unsafe.Sizeof(frecord{}))))
				var part lanes
				for k := range w {
					for r := range part {
						part[r] = fma32(w[k][r], x[k], part[r])
					}
				}
				for r := range part {
					acc[t][r] += part[r]
				}
			}
		}
		for t := range tokens {
			*a.out(g, t) = acc[t]
		}
	}
}

func readWeights(f format, w *[blockCols]lanes, p unsafe.Pointer) {
	if f == formatF32 {
		*w = *(*[blockCols]lanes)(p)
		return
	}
	h := (*[blockCols][groupRows]uint16)(p)
	for k := range w {
		for r := range w[k] {
			if f == formatF16 {
				w[k][r] = f16to32(h[k][r])
			} else {
				w[k][r] = bf16to32(h[k][r])
			}
		}
	}
}
