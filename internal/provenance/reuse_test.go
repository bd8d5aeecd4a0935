package provenance

import (
	"testing"

	"bulkhead/kernels"
)

// What comes back from Recycle is as new: no byte, tag or count of its last use is left,
// also of a page that says it was not written.
func TestRecycle(t *testing.T) {
	e, err := New(Config{Reuse: true})
	if err != nil {
		t.Fatal(err)
	}
	const count = 3
	first, err := e.NewPages(count)
	if err != nil {
		t.Fatal(err)
	}
	p := first.(*pages)
	for id := range kernels.PageID(count) {
		first.Claim(id, kernels.Tag{Owner: 7, Generation: 2, Index: 1})
		for i := range p.page(id) {
			p.page(id)[i] = 1
		}
		p.at(id).used.Store(id == 1)
		for l := range p.at(id).filled {
			p.at(id).filled[l].Store(5)
		}
	}
	if other, _ := e.NewPages(count); other == first {
		t.Fatal("pages in use were lent again")
	}
	e.Recycle()
	if _, err := e.NewPages(count + 1); err != nil {
		t.Fatal(err)
	}
	found := false
	for range 2 {
		again, err := e.NewPages(count)
		if err != nil {
			t.Fatal(err)
		}
		found = found || again == first
		for id := range kernels.PageID(count) {
			if again.Tag(id) != (kernels.Tag{}) || !again.Zeroed(id) || again.(*pages).at(id).used.Load() {
				t.Errorf("page %d is not as new", id)
			}
			for l := range e.facts.Layout.Layers {
				if n := again.Filled(id, l); n != 0 {
					t.Errorf("page %d layer %d: %d slots are filled", id, l, n)
				}
			}
		}
	}
	if !found {
		t.Error("no pages were used again")
	}
}
