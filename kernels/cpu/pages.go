package cpu

import (
	"errors"
	"fmt"
	"sync/atomic"

	"bulkhead/internal/mutant"
	"bulkhead/kernels"
)

// pages is a KV pool. A page holds, for each layer, the keys of its heads and
// then their values, as f16:
//
//	K  [head][4 groups of 16 tokens][dim][16 tokens]
//	V  [head][64 tokens][dim]
//
// so that one vector is one dimension of 16 keys, or 16 dimensions of a value.
// Export and Import translate to the order of the wire.
//
// What a page says of itself is atomic: the check of a stale block table may
// run while the page's new user claims it, and must then read some tag, old or
// new, that it refuses.
type pages struct {
	layout kernels.PageLayout
	state  []pageState
	data   []uint16 // [page][layer][K, V]
	half   int      // elements of K, or of V, in one layer of a page
}

type pageState struct {
	owner  atomic.Uint64
	place  atomic.Uint64 // generation<<32 | index
	used   atomic.Bool   // written since the last scrub
	filled []atomic.Int32
}

// keyLanes is the keys of one vector.
const keyLanes = 16

var _ [kernels.BlockTokens % keyLanes]struct{} = [0]struct{}{}

// errPages is for arguments of Export and Import that fit no page. They may
// come from the wire, so they are an error and not a panic.
var errPages = errors.New("cpu: export or import out of range")

func (b *backend) NewPages(l kernels.PageLayout, count int) (kernels.Pages, error) {
	const sideMax = 1 << 16
	if l.Layers < 1 || l.KVHeads < 1 || l.HeadDim < 1 || l.Layers > sideMax || l.KVHeads > sideMax || l.HeadDim > sideMax {
		return nil, fmt.Errorf("cpu: pages of %d layers, %d heads, %d dimensions: want 1 to %d of each", l.Layers, l.KVHeads, l.HeadDim, sideMax)
	}
	const countMax = 1<<31 - 1 // PageID is an int32
	if count < 1 || count > countMax || count > allocMax/l.PageBytes() {
		return nil, fmt.Errorf("cpu: %d pages of %d bytes: want at least 1, and at most %d bytes", count, l.PageBytes(), allocMax)
	}
	mem, err := b.memory.alloc(count * l.PageBytes())
	if err != nil {
		return nil, err
	}
	p := &pages{
		layout: l,
		state:  make([]pageState, count),
		data:   as[uint16](mem),
		half:   l.KVHeads * kernels.BlockTokens * l.HeadDim,
	}
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
		panic(fmt.Sprintf("cpu: internal error: page %d of %d", id, len(p.state)))
	}
	return &p.state[id]
}

func (p *pages) Claim(id kernels.PageID, t kernels.Tag) {
	s := p.at(id)
	switch {
	case t.Owner == 0:
		panic(fmt.Sprintf("cpu: internal error: page %d claimed for nobody", id))
	case s.owner.Load() != 0:
		panic(fmt.Sprintf("cpu: internal error: page %d claimed twice", id))
	case s.used.Load():
		panic(fmt.Sprintf("cpu: internal error: page %d claimed before it was scrubbed", id))
	}
	s.place.Store(uint64(t.Generation)<<32 | uint64(t.Index))
	s.owner.Store(uint64(t.Owner))
}

func (p *pages) Scrub(id kernels.PageID) {
	s := p.at(id)
	// The tag goes first: from here on every check refuses the page.
	s.owner.Store(0)
	s.place.Store(0)
	for i := range s.filled {
		s.filled[i].Store(0)
	}
	if s.used.Load() {
		if !mutant.Bare && !mutant.Off(mutant.PageZero) {
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

func (p *pages) Tag(id kernels.PageID) kernels.Tag {
	s := p.at(id)
	place := s.place.Load()
	return kernels.Tag{Owner: kernels.Owner(s.owner.Load()), Generation: uint32(place >> 32), Index: uint32(place)}
}

func (p *pages) Filled(id kernels.PageID, layer int) int {
	return int(p.at(id).filled[layer].Load())
}

// page is all elements of a page.
func (p *pages) page(id kernels.PageID) []uint16 {
	n := p.layout.Layers * 2 * p.half
	return p.data[int(id)*n:][:n:n]
}

// keys and values are one layer of a page.
func (p *pages) keys(id kernels.PageID, layer int) []uint16 {
	return p.page(id)[layer*2*p.half:][:p.half:p.half]
}

func (p *pages) values(id kernels.PageID, layer int) []uint16 {
	return p.page(id)[(layer*2+1)*p.half:][:p.half:p.half]
}

// check is the ownership check of an entry that is about to be used.
func (p *pages) check(e kernels.Entry, index int) error {
	if mutant.Bare {
		return nil
	}
	if e.Page < 0 || int(e.Page) >= len(p.state) {
		return kernels.ErrPageRange
	}
	if mutant.Off(mutant.PageOwner) {
		return nil
	}
	return kernels.CheckEntry(e, index, p.Tag(e.Page))
}

// keyAt is the place of dimension 0 of a token's key of one head; the next
// dimension is keyLanes further.
func (p *pages) keyAt(head, slot int) int {
	return (head*kernels.BlockTokens+slot&^(keyLanes-1))*p.layout.HeadDim + slot%keyLanes
}

func (p *pages) valueAt(head, slot int) int {
	return (head*kernels.BlockTokens + slot) * p.layout.HeadDim
}
