package cpu

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"bulkhead/internal/gguf"
)

//go:generate go run ./gen .

// avx512 is the tier of processors with AVX-512 and VNNI: Ice Lake and later,
// Zen 4 and later.
func avx512() *tier {
	return &tier{
		name: "avx512vnni",
		supported: func() bool {
			return cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ &&
				cpu.X86.HasAVX512VL && cpu.X86.HasAVX512VNNI && cpu.X86.HasFMA
		},
		call: callAVX512,
		gemm: [formatCount][5]gemm{
			// 16 sums of floats would not fit into registers.
			formatF32:   {gemm512F32x1, gemm512F32x2, gemm512F32x4, gemm512F32x8},
			formatF16:   {gemm512F16x1, gemm512F16x2, gemm512F16x4, gemm512F16x8},
			formatBF16:  {gemm512BF16x1, gemm512BF16x2, gemm512BF16x4, gemm512BF16x8},
			formatU8:    {gemm512U8x1, gemm512U8x2, gemm512U8x4, gemm512U8x8, gemm512U8x16},
			formatU8Min: {gemm512U8Minx1, gemm512U8Minx2, gemm512U8Minx4, gemm512U8Minx8, gemm512U8Minx16},
			formatU5K:   {gemm512U5Kx1, gemm512U5Kx2, gemm512U5Kx4, gemm512U5Kx8, gemm512U5Kx16},
			formatU6K:   {gemm512U6Kx1, gemm512U6Kx2, gemm512U6Kx4, gemm512U6Kx8, gemm512U6Kx16},
			formatU4:    {gemm512U4x1, gemm512U4x2, gemm512U4x4, gemm512U4x8, gemm512U4x16},
			formatU4Min: {gemm512U4Minx1, gemm512U4Minx2, gemm512U4Minx4, gemm512U4Minx8, gemm512U4Minx16},
			formatU4K:   {gemm512U4Kx1, gemm512U4Kx2, gemm512U4Kx4, gemm512U4Kx8, gemm512U4Kx16},
		},
		outliers: [formatCount]func(*outlierArgs){
			formatU8:    outliers512U8,
			formatU8Min: outliers512U8Min,
			formatU5K:   outliers512U5K,
			formatU6K:   outliers512U6K,
			formatU4:    outliers512U4,
			formatU4Min: outliers512U4Min,
			formatU4K:   outliers512U4K,
		},
		quantise: func(dst []qrecord, stride int, x []float32) {
			quantise512(&dst[0], stride*int(unsafe.Sizeof(qrecord{})), &x[0], len(x)/blockCols)
		},
		rest: func(dst []float32, src []qrecord, stride int, x []float32) {
			rest512(&dst[0], &src[0], stride*int(unsafe.Sizeof(qrecord{})), &x[0], len(x)/blockCols)
		},
		add:     func(dst, src []float32) { add512(&dst[0], &src[0], len(src)) },
		norm:    func(dst, x, w []float32, eps float32) { norm512(&dst[0], &x[0], &w[0], len(x), eps) },
		siluMul: func(dst, gate, up []float32) { siluMul512(&dst[0], &gate[0], &up[0], len(gate)) },
		rope: func(x, table []float32, neox bool) {
			n := len(table) / 2
			switch {
			case neox:
				ropeNeoX512(&x[0], &table[0], n)
			case n%8 == 0:
				ropePairs512(&x[0], &table[0], n)
			default:
				ropeGeneric(x, table, neox)
			}
		},
		half: func(dst []uint16, x []float32) {
			n := len(x) &^ 15
			if n > 0 {
				half512(&dst[0], &x[0], n)
			}
			halfGeneric(dst[n:], x[n:])
		},
		attention: &attention512,
		repack: map[gguf.Type]repackGroup{
			gguf.TypeQ8_0: repack512Q8_0, gguf.TypeQ4_0: repack512Q4_0, gguf.TypeQ4_1: repack512Q4_1,
			gguf.TypeQ4_K: repack512Q4_K, gguf.TypeQ6_K: repack512Q6_K,
		},
	}
}

var attention512 = attentionKernels{
	scores: func(queries int, score, q *float32, k *uint16, dim, groups int) {
		switch queries {
		case 1:
			scores512x1(score, q, k, dim, groups)
		case 4:
			scores512x4(score, q, k, dim, groups)
		case 8:
			scores512x8(score, q, k, dim, groups)
		default:
			scores512x16(score, q, k, dim, groups)
		}
	},
	softmax: softmax512,
	values: func(queries int, out, p, rescale *float32, v *uint16, dim, n int) {
		for d := 0; d < dim; {
			to := (*float32)(unsafe.Add(unsafe.Pointer(out), 4*d))
			from := (*uint16)(unsafe.Add(unsafe.Pointer(v), 2*d))
			wide := d+64 <= dim
			if queries == queryTile {
				values512x16(to, 4*dim, p, rescale, from, 2*dim, n)
				d += 16
				continue
			}
			switch {
			case queries == 1 && wide:
				values512x1x4(to, 4*dim, p, rescale, from, 2*dim, n)
			case queries == 1:
				values512x1x1(to, 4*dim, p, rescale, from, 2*dim, n)
			case wide:
				values512x4x4(to, 4*dim, p, rescale, from, 2*dim, n)
			default:
				values512x4x1(to, 4*dim, p, rescale, from, 2*dim, n)
			}
			d += 16
			if wide {
				d += 48
			}
		}
	},
}
