package attack

import (
	"testing"

	"bulkhead/internal/mutant"
)

// Goal: every hostile move is refused, and for the reason that is meant for it.
// Method: each row against the product, with all checks in place.
func TestAttacks(t *testing.T) {
	known, named := map[mutant.Check]bool{}, map[string]bool{}
	for _, i := range mutant.All() {
		known[i.Check] = true
	}
	for _, r := range rows() {
		if named[r.name] {
			t.Errorf("two rows are called %q", r.name)
		}
		named[r.name] = true
		for _, c := range r.walls {
			if !known[c] {
				t.Errorf("%s: %q is no check", r.name, c)
			}
		}
		switch got := r.try(); {
		case got == "":
			t.Errorf("%s: went through", r.name)
		case !contains(got, r.want):
			t.Errorf("%s: refused with %q, expected %q", r.name, got, r.want)
		}
	}
}
