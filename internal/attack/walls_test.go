//go:build mutants

package attack

import (
	"testing"

	"bulkhead/internal/mutant"
)

// Goal: the rows see what they are for, and each wall is one. Method: with all walls
// of a row removed it goes through; with any one of them left it is refused.
func TestMutantsWalls(t *testing.T) {
	for _, r := range rows() {
		if got := without(r, r.walls...); got != "" {
			t.Errorf("%s: refused without %v: %q", r.name, r.walls, got)
			continue
		}
		for i, left := range r.walls {
			rest := append(append([]mutant.Check(nil), r.walls[:i]...), r.walls[i+1:]...)
			if len(rest) > 0 && without(r, rest...) == "" {
				t.Errorf("%s: goes through with %s in place: that is no wall of it", r.name, left.Name())
			}
		}
	}
}

// without tries a row with checks removed.
func without(r row, off ...mutant.Check) string {
	defer mutant.Remove(off...)()
	return r.try()
}

// Every check is a wall of some move.
func TestMutantsCovered(t *testing.T) {
	held := map[mutant.Check]bool{}
	for _, r := range rows() {
		for _, c := range r.walls {
			held[c] = true
		}
	}
	for _, c := range mutant.All() {
		if !held[c.Check] {
			t.Errorf("%s: no move meets it", c.Check.Name())
		}
	}
}
