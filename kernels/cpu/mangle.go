//go:build invariants || race

package cpu

import "bulkhead/kernels"

// Mangle scribbles over a page that is about to be scrubbed. internal/kv calls
// it in builds with invariants: a page that happened to be zero would not show
// that Scrub zeroes.
func (p *pages) Mangle(id kernels.PageID) {
	p.at(id).used.Store(true)
	data := p.page(id)
	for i := range data {
		data[i] = 0xfdfd
	}
}
