package cpu

import (
	"fmt"
	"math"
	"slices"

	"bulkhead/kernels"
)

// ropeTable holds the cosines and sines of the rows of one step. All layers,
// queries and keys rotate by the same angles, and a sine costs more than the
// rotation, so the step keeps its tables.
type ropeTable struct {
	pos     []int32
	invFreq []float32
	scale   float32
	v       []float32 // [rows][2][dims/2]: cosines, then sines, times scale
}

func (s *step) ropeTable(pos []int32, p kernels.RoPE) *ropeTable {
	for _, t := range s.ropes {
		if t.scale == p.Scale && &t.invFreq[0] == &p.InvFreq[0] && len(t.invFreq) == len(p.InvFreq) && slices.Equal(t.pos, pos) {
			return t
		}
	}
	n := len(p.InvFreq)
	t := &ropeTable{pos: slices.Clone(pos), invFreq: p.InvFreq, scale: p.Scale, v: make([]float32, len(pos)*2*n)}
	// A sine costs as much as some 32 simple elements.
	s.forRows(len(pos), 32*n, func(r int) {
		row := t.v[r*2*n:][:2*n]
		for i, f := range p.InvFreq {
			angle := float32(pos[r]) * f // in f32, as the models were trained
			sin, cos := math.Sincos(float64(angle))
			row[i], row[n+i] = float32(cos)*p.Scale, float32(sin)*p.Scale
		}
	})
	s.ropes = append(s.ropes, t)
	return t
}

func (s *step) RoPE(x kernels.Buffer, rows, heads int, pos []int32, p kernels.RoPE) {
	b := s.buffer(x)
	s.checkRows("RoPE", b, rows)
	if heads < 1 || b.cols != heads*p.HeadDim || p.Dims > p.HeadDim || p.Dims%2 != 0 || len(p.InvFreq) != p.Dims/2 || len(pos) < rows {
		panic(fmt.Sprintf("cpu: RoPE: %d columns, %d heads of %d, %d dims, %d frequencies, %d positions for %d rows",
			b.cols, heads, p.HeadDim, p.Dims, len(p.InvFreq), len(pos), rows))
	}
	if p.Dims == 0 || rows == 0 {
		return
	}
	t := s.ropeTable(pos[:rows], p)
	s.forRows(rows, b.cols, func(r int) {
		row, table := b.row(r), t.v[r*p.Dims:][:p.Dims]
		for h := range heads {
			s.b.tier.rope(row[h*p.HeadDim:(h+1)*p.HeadDim], table, p.NeoX)
		}
	})
}
