package cpu

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"bulkhead/kernels"
)

// avx2 is the tier of processors with AVX2, FMA and F16C: Haswell and later,
// Zen and later.
func avx2() *tier {
	const q = int(unsafe.Sizeof(qrecord{}))
	return &tier{
		name:      "avx2",
		supported: func() bool { return cpu.X86.HasAVX2 && cpu.X86.HasFMA && hasF16C() },
		call:      callAVX2,
		gemm: [formatCount][5]gemm{
			formatF32:   {gemm2F32x1, gemm2F32x2, gemm2F32x4},
			formatF16:   {gemm2F16x1, gemm2F16x2, gemm2F16x4},
			formatBF16:  {gemm2BF16x1, gemm2BF16x2, gemm2BF16x4},
			formatU8:    {gemm2U8x1, gemm2U8x2, gemm2U8x4},
			formatU8Min: {gemm2U8Minx1, gemm2U8Minx2, gemm2U8Minx4},
			formatU5K:   {gemm2U5Kx1, gemm2U5Kx2, gemm2U5Kx4},
			formatU6K:   {gemm2U6Kx1, gemm2U6Kx2, gemm2U6Kx4},
			formatU4:    {gemm2U4x1, gemm2U4x2, gemm2U4x4},
			formatU4Min: {gemm2U4Minx1, gemm2U4Minx2, gemm2U4Minx4},
			formatU4K:   {gemm2U4Kx1, gemm2U4Kx2, gemm2U4Kx4},
		},
		outliers: [formatCount]func(*outlierArgs){
			formatU8:    outliers2U8,
			formatU8Min: outliers2U8Min,
			formatU5K:   outliers2U5K,
			formatU6K:   outliers2U6K,
			formatU4:    outliers2U4,
			formatU4Min: outliers2U4Min,
			formatU4K:   outliers2U4K,
		},
		quantise: func(dst []qrecord, stride int, x []float32) {
			quantise2(&dst[0], stride*q, &x[0], len(x)/blockCols)
		},
		rest: func(dst []float32, src []qrecord, stride int, x []float32) {
			rest2(&dst[0], &src[0], stride*q, &x[0], len(x)/blockCols)
		},
		add: func(dst, src []float32) {
			n := len(src) &^ 15
			if n > 0 {
				add2(&dst[0], &src[0], n/16)
			}
			addGeneric(dst[n:], src[n:])
		},
		norm: func(dst, x, w []float32, eps float32) {
			if len(x)%16 != 0 {
				normGeneric(dst, x, w, eps)
				return
			}
			norm2(&dst[0], &x[0], &w[0], len(x)/16, eps)
		},
		siluMul: func(dst, gate, up []float32) {
			n := len(gate) &^ 15
			if n > 0 {
				siluMul2(&dst[0], &gate[0], &up[0], n/16)
			}
			siluMulGeneric(dst[n:], gate[n:], up[n:])
		},
		rope: func(x, table []float32, neox bool) {
			n := len(table) / 2
			switch {
			case n%8 != 0:
				ropeGeneric(x, table, neox)
			case neox:
				ropeNeoX2(&x[0], &table[0], n/8)
			default:
				ropePairs2(&x[0], &table[0], n/4)
			}
		},
		half: func(dst []uint16, x []float32) {
			n := len(x) &^ 15
			if n > 0 {
				half2(&dst[0], &x[0], n/16)
			}
			halfGeneric(dst[n:], x[n:])
		},
		attention: &attention2,
	}
}

var attention2 = attentionKernels{
	scores: func(queries int, score, q *float32, k *uint16, dim, groups int) {
		for i := 0; i < queries; i += 4 {
			to := (*float32)(unsafe.Add(unsafe.Pointer(score), 4*kernels.BlockTokens*i))
			scores2x4(to, (*float32)(unsafe.Add(unsafe.Pointer(q), 4*i)), k, dim, groups)
		}
	},
	softmax: softmax2,
	values: func(queries int, out, p, rescale *float32, v *uint16, dim, n int) {
		if queries == queryTile {
			for i := 0; i < queries; i += 4 {
				at := func(p *float32, stride int) *float32 { return (*float32)(unsafe.Add(unsafe.Pointer(p), 4*stride*i)) }
				valuesAVX2(4, at(out, dim), at(p, kernels.BlockTokens), at(rescale, 1), v, dim, n)
			}
			return
		}
		valuesAVX2(queries, out, p, rescale, v, dim, n)
	},
}

func valuesAVX2(queries int, out, p, rescale *float32, v *uint16, dim, n int) {
	for d := 0; d < dim; {
		to := (*float32)(unsafe.Add(unsafe.Pointer(out), 4*d))
		from := (*uint16)(unsafe.Add(unsafe.Pointer(v), 2*d))
		switch {
		case queries == 4:
			values2x4x2(to, 4*dim, p, rescale, from, 2*dim, n)
			d += 16
		case d+64 <= dim:
			values2x1x8(to, 4*dim, p, rescale, from, 2*dim, n)
			d += 64
		default:
			values2x1x2(to, 4*dim, p, rescale, from, 2*dim, n)
			d += 16
		}
	}
}
