package cpu

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"bulkhead/internal/mutant"
	"bulkhead/kernels"
)

// checkRange checks what Export and Import share.
func (p *pages) checkRange(bytes int, e kernels.Entry, index, lo, hi, tokens int) error {
	if index < 0 || lo < 0 || hi <= lo || hi > p.layout.Layers || tokens < 1 || tokens > kernels.BlockTokens {
		return fmt.Errorf("%w: block %d, layers [%d, %d) of %d, %d tokens of %d", errPages, index, lo, hi, p.layout.Layers, tokens, kernels.BlockTokens)
	}
	if want := (hi - lo) * tokens * p.layout.TokenLayerBytes(); bytes != want && !mutant.Off(mutant.ImportBytes) {
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
		if n := p.Filled(e.Page, l); n < tokens && !mutant.Off(mutant.ExportFilled) {
			return fmt.Errorf("block %d page %d layer %d: %d of %d tokens: %w", index, e.Page, l, n, tokens, kernels.ErrUnwrittenPage)
		}
	}
	dim := p.layout.HeadDim
	for l := lo; l < hi; l++ {
		keys, values := p.keys(e.Page, l), p.values(e.Page, l)
		for h := range p.layout.KVHeads {
			for t := 0; t < tokens; t += keyLanes {
				n := min(keyLanes, tokens-t)
				unpackKeys(dst[:2*n*dim], keys[p.keyAt(h, t):][:dim*keyLanes], n, dim)
				dst = dst[2*n*dim:]
			}
		}
		for h := range p.layout.KVHeads {
			n := 2 * tokens * dim
			copyOut(dst[:n], values[p.valueAt(h, 0):][:tokens*dim])
			dst = dst[n:]
		}
	}
	return nil
}

func (p *pages) Import(e kernels.Entry, index, lo, hi, tokens int, src []byte) error {
	if err := p.checkRange(len(src), e, index, lo, hi, tokens); err != nil {
		return err
	}
	for l := lo; l < hi; l++ {
		if n := p.Filled(e.Page, l); n != 0 && !mutant.Off(mutant.ImportEmpty) {
			return fmt.Errorf("block %d page %d layer %d already holds %d tokens: %w", index, e.Page, l, n, kernels.ErrAppendGap)
		}
	}
	s := p.at(e.Page)
	s.used.Store(true)
	dim := p.layout.HeadDim
	for l := lo; l < hi; l++ {
		keys, values := p.keys(e.Page, l), p.values(e.Page, l)
		for h := range p.layout.KVHeads {
			for t := 0; t < tokens; t += keyLanes {
				n := min(keyLanes, tokens-t)
				packKeys(keys[p.keyAt(h, t):][:dim*keyLanes], src[:2*n*dim], n, dim)
				src = src[2*n*dim:]
			}
		}
		for h := range p.layout.KVHeads {
			n := 2 * tokens * dim
			copyIn(values[p.valueAt(h, 0):][:tokens*dim], src[:n])
			src = src[n:]
		}
		s.filled[l].Store(int32(tokens))
	}
	return nil
}

// A key tile is [dim][keyLanes]: dimension by dimension, the keys of sixteen
// tokens side by side, as attention reads them. On the wire the same keys are
// [token][dim]. Four dimensions are moved at a time: one 8-byte load of a
// token's key, four lanes apart from each other.

// packKeys writes the keys of n tokens from the wire into the first n lanes of
// a tile.
func packKeys(tile []uint16, src []byte, n, dim int) {
	for i := range n {
		row := src[2*i*dim:][:2*dim]
		d := 0
		for ; d+4 <= dim; d += 4 {
			v := binary.LittleEndian.Uint64(row[2*d:])
			out := (*[3*keyLanes + 1]uint16)(tile[d*keyLanes+i:])
			out[0], out[keyLanes], out[2*keyLanes], out[3*keyLanes] = uint16(v), uint16(v>>16), uint16(v>>32), uint16(v>>48)
		}
		for ; d < dim; d++ {
			tile[d*keyLanes+i] = binary.LittleEndian.Uint16(row[2*d:])
		}
	}
}

// unpackKeys is its inverse.
func unpackKeys(dst []byte, tile []uint16, n, dim int) {
	for i := range n {
		row := dst[2*i*dim:][:2*dim]
		d := 0
		for ; d+4 <= dim; d += 4 {
			in := (*[3*keyLanes + 1]uint16)(tile[d*keyLanes+i:])
			binary.LittleEndian.PutUint64(row[2*d:], uint64(in[0])|uint64(in[keyLanes])<<16|uint64(in[2*keyLanes])<<32|uint64(in[3*keyLanes])<<48)
		}
		for ; d < dim; d++ {
			binary.LittleEndian.PutUint16(row[2*d:], tile[d*keyLanes+i])
		}
	}
}

// littleEndian: the wire's order is the machine's own.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// copyIn and copyOut move values between wire and page.
func copyIn(dst []uint16, src []byte) {
	if littleEndian && len(dst) > 0 {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&dst[0])), 2*len(dst)), src)
		return
	}
	for i := range dst {
		dst[i] = binary.LittleEndian.Uint16(src[2*i:])
	}
}

func copyOut(dst []byte, src []uint16) {
	if littleEndian && len(src) > 0 {
		copy(dst, unsafe.Slice((*byte)(unsafe.Pointer(&src[0])), 2*len(src)))
		return
	}
	for i, v := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], v)
	}
}
