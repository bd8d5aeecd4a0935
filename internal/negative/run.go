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

// seedMax bounds what is given to a fuzzer, in bytes: it works best on small inputs.
const seedMax = 16 << 10

// Seeds calls add with the inputs of the vectors in dir, for a fuzz target's
// corpus: each stands at an edge that was thought of.
func Seeds(f *testing.F, dir string, add func(what string, data []byte)) {
	f.Helper()
	files, err := Set{Dir: dir}.read()
	if err != nil {
		f.Fatal(err)
	}
	for _, v := range files {
		if len(v.Data) <= seedMax {
			add(v.What, v.Data)
		}
	}
}
