package kv

import (
	"fmt"

	"bulkhead/internal/mutant"
	"bulkhead/kernels"
)

// mangler is implemented by pools that can scribble over a page's bytes. Builds
// with invariants do so before a scrub: a page that happened to be zero would
// not show that Scrub zeroes.
type mangler interface{ Mangle(p kernels.PageID) }

// scrub zeroes one page that is in transit. Not under mu: it costs tens of
// microseconds a page, and nobody else may touch the page meanwhile.
func (p *Pool) scrub(id kernels.PageID) {
	if invariants {
		if m, ok := p.pages.(mangler); ok {
			m.Mangle(id)
		}
	}
	p.pages.Scrub(id)
	if invariants && !p.pages.Zeroed(id) {
		panic(fmt.Sprintf("kv: internal error: page %d is not zero after its scrub", id))
	}
}

// claim tags one scrubbed page that is in transit.
func (p *Pool) claim(e kernels.Entry, index int) {
	if invariants && !p.pages.Zeroed(e.Page) {
		panic(fmt.Sprintf("kv: internal error: page %d was written while it was free", e.Page))
	}
	p.pages.Claim(e.Page, kernels.Tag{Owner: e.Owner, Generation: e.Generation, Index: uint32(index)})
}

// toDirty takes a page from its holder; it is in transit from here to free.
// Caller holds mu and passes the page on to unlockAndRetire.
func (p *Pool) toDirty(id kernels.PageID) {
	pg := &p.book[id]
	if pg.moving || pg.state == stateFree || pg.state == stateQuarantined {
		panic(fmt.Sprintf("kv: internal error: page %d retired in state %v", id, pg.state))
	}
	pg.state, pg.moving, pg.table, pg.block = stateDirty, true, nil, nil
}

// unlockAndRetire ends a change of the books: it gives mu back, scrubs the
// pages, raises their generation and only then puts them into the free list.
// Caller holds mu; on return it does not.
func (p *Pool) unlockAndRetire(ids []kernels.PageID) {
	p.assert()
	p.mu.Unlock()
	if len(ids) == 0 {
		return
	}
	for _, id := range ids {
		p.scrub(id)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		p.book[id] = page{state: stateFree, gen: p.book[id].gen + 1}
		p.free = append(p.free, id)
	}
	p.assert()
}

// quarantine takes a page out of use for the rest of the process. Its bytes
// and tag stay as they are: whoever may still write into it must not meet a
// scrub or a new owner. Caller holds mu.
func (p *Pool) quarantine(id kernels.PageID, reason string) {
	pg := &p.book[id]
	if pg.moving || pg.state == stateFree {
		panic(fmt.Sprintf("kv: internal error: page %d quarantined in state %v", id, pg.state))
	}
	if reason == "" {
		reason = "no reason given"
	}
	pg.state, pg.table, pg.block, pg.reason = stateQuarantined, nil, nil, reason
}

// filled compares a page with its entry and with the count of slots that every
// layer must hold, no more and no less.
func (p *Pool) filled(e kernels.Entry, index, want int) error {
	if mutant.Bare {
		return nil
	}
	if err := kernels.CheckEntry(e, index, p.pages.Tag(e.Page)); err != nil {
		return &IncompleteError{Page: e.Page, Block: index, Layer: -1, Err: err}
	}
	for l := range p.layers {
		if have := p.pages.Filled(e.Page, l); have != want {
			return &IncompleteError{Page: e.Page, Block: index, Layer: l, Want: want, Have: have}
		}
	}
	return nil
}
