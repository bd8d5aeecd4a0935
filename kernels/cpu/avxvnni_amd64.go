package cpu

import "golang.org/x/sys/cpu"

// avxvnni is the tier of processors without AVX-512 that have VPDPBUSD in 256 bits:
// Alder Lake and later. All but the products of quantised weights is that of avx2.
func avxvnni() *tier {
	t := avx2()
	hasAVX2 := t.supported
	t.name = "avxvnni"
	t.supported = func() bool { return hasAVX2() && cpu.X86.HasAVXVNNI }
	t.gemm[formatU8] = [5]gemm{gemm2VNNIU8x1, gemm2VNNIU8x2, gemm2VNNIU8x4}
	t.gemm[formatU8Min] = [5]gemm{gemm2VNNIU8Minx1, gemm2VNNIU8Minx2, gemm2VNNIU8Minx4}
	t.gemm[formatU5K] = [5]gemm{gemm2VNNIU5Kx1, gemm2VNNIU5Kx2, gemm2VNNIU5Kx4}
	t.gemm[formatU6K] = [5]gemm{gemm2VNNIU6Kx1, gemm2VNNIU6Kx2, gemm2VNNIU6Kx4}
	t.gemm[formatU4] = [5]gemm{gemm2VNNIU4x1, gemm2VNNIU4x2, gemm2VNNIU4x4}
	t.gemm[formatU4Min] = [5]gemm{gemm2VNNIU4Minx1, gemm2VNNIU4Minx2, gemm2VNNIU4Minx4}
	t.gemm[formatU4K] = [5]gemm{gemm2VNNIU4Kx1, gemm2VNNIU4Kx2, gemm2VNNIU4Kx4}
	t.call = callAVXVNNI
	t.outliers[formatU8] = outliers2VNNIU8
	t.outliers[formatU8Min] = outliers2VNNIU8Min
	t.outliers[formatU5K] = outliers2VNNIU5K
	t.outliers[formatU6K] = outliers2VNNIU6K
	t.outliers[formatU4] = outliers2VNNIU4
	t.outliers[formatU4Min] = outliers2VNNIU4Min
	t.outliers[formatU4K] = outliers2VNNIU4K
	return t
}
