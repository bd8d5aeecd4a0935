package kv

import (
	"encoding/binary"
	"fmt"
	"sync"

	"bulkhead/kernels"
)

// fakePages is a kernels.Pages in plain slices for the tests of this package.
// It keeps the whole contract: Claim refuses a claimed or dirty page, Import
// and Export check their entry, and every byte is really there. A wrong call
// panics with "fake:", which no test expects unless it says so.
type fakePages struct {
	layout kernels.PageLayout
	mu     sync.Mutex // the books promise one user per page; the fake checks only contents
	bytes  [][]byte
	tags   []kernels.Tag
	filled [][]int

	mangled   int
	skipScrub bool // a broken backend: Scrub clears the tag and not the bytes
}

var fakeLayout = kernels.PageLayout{Layers: 2, KVHeads: 1, HeadDim: 1}

func newFake(count int) *fakePages {
	f := &fakePages{layout: fakeLayout, tags: make([]kernels.Tag, count)}
	for range count {
		f.bytes = append(f.bytes, make([]byte, fakeLayout.PageBytes()))
		f.filled = append(f.filled, make([]int, fakeLayout.Layers))
	}
	return f
}

func (f *fakePages) Layout() kernels.PageLayout { return f.layout }
func (f *fakePages) Count() int                 { return len(f.tags) }

func (f *fakePages) Claim(p kernels.PageID, t kernels.Tag) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tags[p].Owner != 0 {
		panic(fmt.Sprintf("fake: page %d is claimed by %d still", p, f.tags[p].Owner))
	}
	if t.Owner == 0 {
		panic("fake: claim for nobody")
	}
	if !f.zeroed(p) || f.filled[p][0] != 0 || f.filled[p][1] != 0 {
		panic(fmt.Sprintf("fake: page %d was not scrubbed", p))
	}
	f.tags[p] = t
}

func (f *fakePages) Scrub(p kernels.PageID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.skipScrub {
		clear(f.bytes[p])
	}
	clear(f.filled[p])
	f.tags[p] = kernels.Tag{}
}

func (f *fakePages) Mangle(p kernels.PageID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mangled++
	for i := range f.bytes[p] {
		f.bytes[p][i] = 0xfd
	}
}

func (f *fakePages) zeroed(p kernels.PageID) bool {
	for _, b := range f.bytes[p] {
		if b != 0 {
			return false
		}
	}
	return true
}

func (f *fakePages) Zeroed(p kernels.PageID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.zeroed(p)
}

func (f *fakePages) Tag(p kernels.PageID) kernels.Tag {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tags[p]
}

func (f *fakePages) Filled(p kernels.PageID, layer int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.filled[p][layer]
}

// layerBytes is one layer of a page; the fake keeps [layer][slot][4 bytes].
const layerBytes = 4 * kernels.BlockTokens

func (f *fakePages) Export(dst []byte, e kernels.Entry, index, lo, hi, tokens int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := kernels.CheckEntry(e, index, f.tags[e.Page]); err != nil {
		return err
	}
	for l := lo; l < hi; l++ {
		if f.filled[e.Page][l] < tokens {
			return kernels.ErrUnwrittenPage
		}
		dst = dst[copy(dst, f.bytes[e.Page][l*layerBytes:][:4*tokens]):]
	}
	return nil
}

func (f *fakePages) Import(e kernels.Entry, index, lo, hi, tokens int, src []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := kernels.CheckEntry(e, index, f.tags[e.Page]); err != nil {
		return err
	}
	for l := lo; l < hi; l++ {
		if f.filled[e.Page][l] != 0 {
			return kernels.ErrAppendGap
		}
		src = src[copy(f.bytes[e.Page][l*layerBytes:], src[:4*tokens]):]
		f.filled[e.Page][l] = tokens
	}
	return nil
}

// compute writes slots [from, to) of the sequence, as a step would: checked
// per entry, and every slot must follow on what its page holds. The value of
// a slot names its tenant and request, so that a mix-up names its victim.
func (f *fakePages) compute(t *Table, from, to int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for pos := from; pos < to; pos++ {
		i, slot := pos/kernels.BlockTokens, pos%kernels.BlockTokens
		e := t.Entries()[i]
		if err := kernels.CheckEntry(e, i, f.tags[e.Page]); err != nil {
			return err
		}
		for l := range f.layout.Layers {
			if f.filled[e.Page][l] != slot {
				return kernels.ErrAppendGap
			}
			f.filled[e.Page][l]++
			binary.LittleEndian.PutUint32(f.bytes[e.Page][l*layerBytes+4*slot:], mark(t.lease, pos))
		}
	}
	return nil
}

// read walks what attention would read, checking every entry, and returns the
// mark that each slot holds.
func (f *fakePages) read(t *Table, tokens int) (marks []uint32, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for pos := range tokens {
		i, slot := pos/kernels.BlockTokens, pos%kernels.BlockTokens
		e := t.Entries()[i]
		if err := kernels.CheckEntry(e, i, f.tags[e.Page]); err != nil {
			return nil, err
		}
		if f.filled[e.Page][0] <= slot {
			return nil, kernels.ErrUnwrittenPage
		}
		m := binary.LittleEndian.Uint32(f.bytes[e.Page][4*slot:])
		if _, _, p := unmark(m); p != pos {
			return nil, fmt.Errorf("position %d holds position %d", pos, p)
		}
		marks = append(marks, m)
	}
	return marks, nil
}

// mark is the value of a slot: tenant (4 bits), request (16), position (12).
func mark(l Lease, pos int) uint32 {
	return uint32(l.Tenant[0]&15)<<28 | uint32(l.Request[0])<<20 | uint32(l.Request[1])<<12 | uint32(pos&0xfff)
}

func unmark(m uint32) (tenant string, request [2]byte, pos int) {
	return string(rune('a' - 1 + m>>28)), [2]byte{byte(m >> 20), byte(m >> 12)}, int(m & 0xfff)
}

// lateWrite scribbles into a page without asking: a writer that was not fenced.
func (f *fakePages) lateWrite(p kernels.PageID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes[p][0] = 0x55
}
