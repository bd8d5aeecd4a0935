package provenance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"bulkhead/internal/mutant"
	"bulkhead/kernels"
)

// pages is a KV pool: for each page and layer 64 halves of entries as K, then 64
// as V. What a page says of itself is atomic, as in package cpu: a check of a
// stale block table may run while the page's new user claims it.
type pages struct {
	layout kernels.PageLayout
	state  []pageState
	data   []uint64 // [page][layer][K, V][slot]
}

type pageState struct {
	owner  atomic.Uint64
	place  atomic.Uint64 // generation<<32 | index
	used   atomic.Bool   // written since the last scrub
	filled []atomic.Int32
}

// countMax bounds a pool: 2^20 pages are 64 Mi tokens.
const countMax = 1 << 20

var errPages = errors.New("provenance: export or import out of range")

func newPages(l kernels.PageLayout, count int) (*pages, error) {
	if count < 1 || count > countMax {
		return nil, fmt.Errorf("provenance: %d pages, want 1 to %d", count, countMax)
	}
	p := &pages{layout: l, state: make([]pageState, count), data: make([]uint64, count*l.Layers*2*kernels.BlockTokens)}
	filled := make([]atomic.Int32, count*l.Layers)
	for i := range p.state {
		p.state[i].filled = filled[i*l.Layers : (i+1)*l.Layers]
	}
	return p, nil
}

func (p *pages) Layout() kernels.PageLayout { return p.layout }
func (p *pages) Count() int                 { return len(p.state) }

func (p *pages) at(id kernels.PageID) *pageState {
	if id < 0 || int(id) >= len(p.state) {
		panic(fmt.Sprintf("provenance: internal error: page %d of %d", id, len(p.state)))
	}
	return &p.state[id]
}

func (p *pages) page(id kernels.PageID) []uint64 {
	n := p.layout.Layers * 2 * kernels.BlockTokens
	return p.data[int(id)*n:][:n:n]
}

// half is K (0) or V (1) of one layer of a page.
func (p *pages) half(id kernels.PageID, layer, which int) []uint64 {
	return p.page(id)[(2*layer+which)*kernels.BlockTokens:][:kernels.BlockTokens:kernels.BlockTokens]
}

func (p *pages) Claim(id kernels.PageID, t kernels.Tag) {
	s := p.at(id)
	switch {
	case t.Owner == 0:
		panic(fmt.Sprintf("provenance: internal error: page %d claimed for nobody", id))
	case s.owner.Load() != 0:
		panic(fmt.Sprintf("provenance: internal error: page %d claimed twice", id))
	case s.used.Load():
		panic(fmt.Sprintf("provenance: internal error: page %d claimed before it was scrubbed", id))
	}
	s.place.Store(uint64(t.Generation)<<32 | uint64(t.Index))
	s.owner.Store(uint64(t.Owner))
}

func (p *pages) Scrub(id kernels.PageID) {
	s := p.at(id)
	s.owner.Store(0) // first: from here on every check refuses the page
	s.place.Store(0)
	for i := range s.filled {
		s.filled[i].Store(0)
	}
	if s.used.Load() {
		if !mutant.Off(mutant.PageZero) {
			clear(p.page(id))
		}
		s.used.Store(false)
	}
}

func (p *pages) Zeroed(id kernels.PageID) bool {
	p.at(id)
	for _, v := range p.page(id) {
		if v != 0 {
			return false
		}
	}
	return true
}

// Mangle scribbles over a page, in builds with invariants: see package kv.
func (p *pages) Mangle(id kernels.PageID) {
	p.at(id).used.Store(true)
	for i := range p.page(id) {
		p.page(id)[i] = 0xdeadbeefdeadbeef
	}
}

// Swap lets two pages change places, tags and all: what a wrong index or a stray
// copy would do. Only a test may call it, and nobody may use the pages meanwhile.
func (p *pages) Swap(a, b kernels.PageID) {
	x, y := p.page(a), p.page(b)
	for i := range x {
		x[i], y[i] = y[i], x[i]
	}
	s, t := p.at(a), p.at(b)
	owner, place, used := s.owner.Load(), s.place.Load(), s.used.Load()
	s.owner.Store(t.owner.Load())
	s.place.Store(t.place.Load())
	s.used.Store(t.used.Load())
	t.owner.Store(owner)
	t.place.Store(place)
	t.used.Store(used)
	for l := range s.filled {
		n := s.filled[l].Load()
		s.filled[l].Store(t.filled[l].Load())
		t.filled[l].Store(n)
	}
}

func (p *pages) Tag(id kernels.PageID) kernels.Tag {
	s := p.at(id)
	place := s.place.Load()
	return kernels.Tag{Owner: kernels.Owner(s.owner.Load()), Generation: uint32(place >> 32), Index: uint32(place)}
}

func (p *pages) Filled(id kernels.PageID, layer int) int {
	return int(p.at(id).filled[layer].Load())
}

// check is the ownership check of an entry that is about to be used.
func (p *pages) check(e kernels.Entry, index int) error {
	if e.Page < 0 || int(e.Page) >= len(p.state) {
		return kernels.ErrPageRange
	}
	if mutant.Off(mutant.PageOwner) {
		return nil
	}
	return kernels.CheckEntry(e, index, p.Tag(e.Page))
}

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
	for l := lo; l < hi; l++ {
		for which := range 2 {
			for _, v := range p.half(e.Page, l, which)[:tokens] {
				binary.LittleEndian.PutUint64(dst, v)
				dst = dst[8:]
			}
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
	for l := lo; l < hi; l++ {
		for which := range 2 {
			to := p.half(e.Page, l, which)[:tokens]
			for i := range to {
				to[i] = binary.LittleEndian.Uint64(src)
				src = src[8:]
			}
		}
		s.filled[l].Store(int32(tokens))
	}
	return nil
}
