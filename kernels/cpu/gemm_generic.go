package cpu

import "unsafe"

// The plain Go kernels. For each of 16 rows and each token:
//
//	quantised  acc = fma(float(sum of q*x), d*scale, acc), then, with minimums,
//	           acc = fma(m, sum, acc), for each block in ascending order
//	float      part = fma(w, x, part) over the block, then acc += part

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

func genericQuantised(a *gemmArgs, f format, tokens int) {
	l := layouts[f]
	for g := range a.groups {
		var acc [tileMax]lanes
		for b := range a.blocks {
			piece := g*a.blocks + b
			w := unsafe.Slice((*byte)(unsafe.Add(a.w, piece*l.w)), l.w)
			var d [2]lanes
			var m lanes
			readScales(f, &d, &m, a, piece)
			for t := range tokens {
				x := (*qrecord)(unsafe.Add(a.x, b*a.xstride+t*int(unsafe.Sizeof(qrecord{}))))
				var sum [2][groupRows]int32
				start(f, &sum, x)
				if f.nibbles() {
					dotNibbles(&sum[0], (*[256]byte)(w), &x.q)
				} else {
					high := &sum[0]
					if f == formatU8Half {
						high = &sum[1]
					}
					dotBytes(&sum[0], (*[256]byte)(w), (*[16]int8)(x.q[:16]))
					dotBytes(high, (*[256]byte)(w[256:]), (*[16]int8)(x.q[16:]))
				}
				for r := range acc[t] {
					v := fma32(float32(sum[0][r]), d[0][r]*x.scale, acc[t][r])
					if f == formatU8Half {
						v = fma32(float32(sum[1][r]), d[1][r]*x.scale, v)
					}
					if f.minimums() {
						v = fma32(m[r], x.sum, v)
					}
					acc[t][r] = v
				}
			}
		}
		for t := range tokens {
			*a.out(g, t) = acc[t]
		}
	}
}

// start sets the sums so that the offset of unsigned weights cancels.
func start(f format, sum *[2][groupRows]int32, x *qrecord) {
	var s0, s1 int32
	switch f {
	case formatU8:
		s0 = x.corr
	case formatU8Half:
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

func readScales(f format, d *[2]lanes, m *lanes, a *gemmArgs, piece int) {
	l := layouts[f]
	dp, mp := unsafe.Add(a.d, piece*l.d), unsafe.Pointer(nil)
	if l.m > 0 {
		mp = unsafe.Add(a.m, piece*l.m)
	}
	switch f {
	case formatU8Half:
		*d = *(*[2]lanes)(dp)
	case formatU8MinF, formatU4MinF:
		d[0], *m = *(*lanes)(dp), *(*lanes)(mp)
	default:
		for r, h := range (*[groupRows]uint16)(dp) {
			d[0][r] = f16to32(h)
		}
		if mp != nil {
			for r, h := range (*[groupRows]uint16)(mp) {
				m[r] = f16to32(h)
			}
		}
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
		var acc [tileMax]lanes
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
