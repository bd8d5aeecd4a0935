package negative

import (
	"flag"
	"testing"
)

// Run checks a set and fails the test for everything that is wrong. With the
// package's flag -rewrite the folder is written anew first. least is how many
// vectors there must be, so that they cannot get lost.
func Run(t *testing.T, s Set, least int) {
	t.Helper()
	if f := flag.Lookup("rewrite"); f == nil {
		t.Fatal("the package has no flag -rewrite")
	} else if f.Value.String() == "true" {
		if err := s.Write(); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range s.Check() {
		t.Error(err)
	}
	if len(s.Made) < least {
		t.Errorf("%d vectors, at least %d", len(s.Made), least)
	}
}
