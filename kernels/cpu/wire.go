package cpu

import (
	"encoding/binary"
	"fmt"

	"bulkhead/kernels"
)

// checkRange checks what Export and Import share.
func (p *pages) checkRange(bytes int, e kernels.Entry, index, lo, hi, tokens int) error {
	if index < 0 || lo < 0 || hi <= lo || hi > p.layout.Layers || tokens < 1 || tokens > kernels.BlockTokens {
		return fmt.Errorf("%w: block %d, layers [%d, %d) of %d, %d tokens of %d", errPages, index, lo, hi, p.layout.Layers, tokens, kernels.BlockTokens)
	}
	if want := (hi - lo) * tokens * p.layout.TokenLayerBytes(); bytes != want {
		return fmt.Errorf("%w: %d bytes, want %d", errPages, bytes, want)
	}
	if err := p.check(e, index); err != nil {
		return fmt.Errorf("block %d page %d: %w", index, e.Page, err)
	}
	return nil
}

// Export wants exactly the bytes of the range as dst.
func (p *pages) Export(dst []byte, e kernels.Entry, index, lo, hi, tokens int) error {
	if err := p.checkRange(len(dst), e, index, lo, hi, tokens); err != nil {
		return err
	}
	for l := lo; l < hi; l++ {
		if n := p.Filled(e.Page, l); n < tokens {
			return fmt.Errorf("block %d page %d layer %d: %d of %d tokens: %w", index, e.Page, l, n, tokens, kernels.ErrUnwrittenPage)
		}
	}
	dim := p.layout.HeadDim
	for l := lo; l < hi; l++ {
		keys, values := p.keys(e.Page, l), p.values(e.Page, l)
		for h := range p.layout.KVHeads {
			for t := range tokens {
				at := p.keyAt(h, t)
				for d := range dim {
					binary.LittleEndian.PutUint16(dst[2*d:], keys[at+d*keyLanes])
				}
				dst = dst[2*dim:]
			}
		}
		for h := range p.layout.KVHeads {
			for i, v := range values[p.valueAt(h, 0):][:tokens*dim] {
				binary.LittleEndian.PutUint16(dst[2*i:], v)
			}
			dst = dst[2*tokens*dim:]
		}
	}
	return nil
}

func (p *pages) Import(e kernels.Entry, index, lo, hi, tokens int, src []byte) error {
	if err := p.checkRange(len(src), e, index, lo, hi, tokens); err != nil {
		return err
	}
	for l := lo; l < hi; l++ {
		if n := p.Filled(e.Page, l); n != 0 {
			return fmt.Errorf("block %d page %d layer %d already holds %d tokens: %w", index, e.Page, l, n, kernels.ErrAppendGap)
		}
	}
	s := p.at(e.Page)
	s.used.Store(true)
	dim := p.layout.HeadDim
	for l := lo; l < hi; l++ {
		keys, values := p.keys(e.Page, l), p.values(e.Page, l)
		for h := range p.layout.KVHeads {
			for t := range tokens {
				at := p.keyAt(h, t)
				for d := range dim {
					keys[at+d*keyLanes] = binary.LittleEndian.Uint16(src[2*d:])
				}
				src = src[2*dim:]
			}
		}
		for h := range p.layout.KVHeads {
			to := values[p.valueAt(h, 0):][:tokens*dim]
			for i := range to {
				to[i] = binary.LittleEndian.Uint16(src[2*i:])
			}
			src = src[2*tokens*dim:]
		}
		s.filled[l].Store(int32(tokens))
	}
	return nil
}
