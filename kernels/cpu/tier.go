package cpu

import (
	"fmt"

	"bulkhead/internal/gguf"
)

// tier is one set of kernels, for one set of instructions.
type tier struct {
	name      string
	supported func() bool
	gemm      [formatCount][5]gemm // by log2 of the tile's rows; nil: made of smaller tiles
	call      int                  // block products of one call at most, see pieces
	resumes   bool                 // gemm can go on from what y holds
	outliers  [formatCount]func(*outlierArgs)
	quantise  func(dst []qrecord, stride int, x []float32)
	rest      func(dst []float32, src []qrecord, stride int, x []float32)
	add       func(dst, src []float32)
	norm      func(dst, x, w []float32, eps float32)
	siluMul   func(dst, gate, up []float32)
	rope      func(x, table []float32, neox bool)
	half      func(dst []uint16, x []float32)
	attention *attentionKernels

	// repack has the types whose groups of 16 rows assembly lays out; the others,
	// and what is left of a matrix, are laid out in Go.
	repack map[gguf.Type]repackGroup
}

// repackGroup fills the planes of one group from 16 rows of blocks of the type.
type repackGroup func(w, d, m, src *byte, rowBytes, blocks int)

func generic() *tier {
	t := &tier{
		name:      "generic",
		supported: func() bool { return true },
		call:      callGeneric,
		resumes:   true,
		quantise:  quantiseGeneric,
		rest:      restGeneric,
		add:       addGeneric,
		norm:      normGeneric,
		siluMul:   siluMulGeneric,
		rope:      ropeGeneric,
		half:      halfGeneric,
		attention: &attentionGeneric,
	}
	for f := range formatCount {
		for i := range t.gemm[f] {
			t.gemm[f][i] = genericGemm(f, 1<<i)
		}
		t.outliers[f] = genericOutliers(f) // not called for float formats
	}
	return t
}

// chooseTier gives the named tier, or the best one for "".
func chooseTier(name string) (*tier, error) {
	for _, t := range append(archTiers(), generic()) {
		if (name == "" || t.name == name) && t.supported() {
			return t, nil
		}
	}
	return nil, fmt.Errorf("%w: %q", ErrTier, name)
}
