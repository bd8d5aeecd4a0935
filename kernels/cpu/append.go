package cpu

import (
	"fmt"

	"bulkhead/internal/mutant"
	"bulkhead/kernels"
)

// checkSpan checks shapes, which are the model's business, not the wire's.
func (s *step) checkSpan(op string, p *pages, layer, rows int, sp *kernels.Span) {
	if layer < 0 || layer >= p.layout.Layers || sp.Row < 0 || sp.Len < 0 || sp.Pos < 0 || sp.Row+sp.Len > rows ||
		len(sp.Table) < (sp.Pos+sp.Len+kernels.BlockTokens-1)/kernels.BlockTokens {
		panic(fmt.Sprintf("cpu: %s: layer %d of %d, rows [%d, %d) of %d, positions [%d, %d) with %d pages",
			op, layer, p.layout.Layers, sp.Row, sp.Row+sp.Len, rows, sp.Pos, sp.Pos+sp.Len, len(sp.Table)))
	}
}

func (s *step) AppendKV(pp kernels.Pages, layer int, k, v kernels.Buffer, spans []kernels.Span) {
	p, kb, vb := pp.(*pages), s.buffer(k), s.buffer(v)
	if width := p.layout.KVHeads * p.layout.HeadDim; kb.cols != width || vb.cols != width {
		panic(fmt.Sprintf("cpu: AppendKV: %d and %d columns, pages hold %d", kb.cols, vb.cols, width))
	}
	for i := range spans {
		sp := &spans[i]
		s.checkSpan("AppendKV", p, layer, min(kb.rows, vb.rows), sp)
		if s.refused(i) {
			continue
		}
		if block, err := p.reserve(layer, sp); err != nil {
			s.faults = append(s.faults, kernels.Fault{Span: i, Layer: layer, Block: block, Page: sp.Table[block].Page, Err: err})
			continue
		}
		s.forRows(sp.Len, kb.cols, func(r int) {
			at := sp.Pos + r
			p.write(s.b.tier, sp.Table[at/kernels.BlockTokens].Page, layer, at%kernels.BlockTokens, kb.row(sp.Row+r), vb.row(sp.Row+r))
		})
	}
}

// reserve checks every page that the span will write, and only if all may be
// written counts the slots as filled: nothing reads them before the operation
// is over, and a second span of the step that claims the same slots is refused.
// On an error it says at which block.
func (p *pages) reserve(layer int, sp *kernels.Span) (block int, err error) {
	for at := sp.Pos; at < sp.Pos+sp.Len && !mutant.Bare; at = (at/kernels.BlockTokens + 1) * kernels.BlockTokens {
		block := at / kernels.BlockTokens
		e := sp.Table[block]
		if err := p.check(e, block); err != nil {
			return block, err
		}
		if p.Filled(e.Page, layer) != at%kernels.BlockTokens && !mutant.Off(mutant.PageFilled) && !mutant.Off(mutant.AppendGap) {
			return block, kernels.ErrAppendGap
		}
	}
	for at := sp.Pos; at < sp.Pos+sp.Len; at = (at/kernels.BlockTokens + 1) * kernels.BlockTokens {
		block := at / kernels.BlockTokens
		st := p.at(sp.Table[block].Page)
		st.used.Store(true)
		st.filled[layer].Store(int32(min(kernels.BlockTokens, sp.Pos+sp.Len-block*kernels.BlockTokens)))
	}
	return 0, nil
}

// write converts one token's K and V rows into their slot.
func (p *pages) write(t *tier, id kernels.PageID, layer, slot int, k, v []float32) {
	dim := p.layout.HeadDim
	keys, values := p.keys(id, layer), p.values(id, layer)
	var wide [256]uint16
	half := wide[:]
	if dim > len(wide) {
		half = make([]uint16, dim)
	}
	half = half[:dim]
	for h := range p.layout.KVHeads {
		t.half(half, k[h*dim:(h+1)*dim])
		to := keys[p.keyAt(h, slot):]
		for d, x := range half {
			to[d*keyLanes] = x
		}
		t.half(values[p.valueAt(h, slot):][:dim], v[h*dim:(h+1)*dim])
	}
}
