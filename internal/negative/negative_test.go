package negative

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var (
	errShort = errors.New("short")
	errOdd   = errors.New("odd")
)

// set is a decoder of an even number of bytes, at least two, and a vector of
// each class. Whatever a test breaks in it must be seen.
func set(t *testing.T) Set {
	s := Set{
		Dir: filepath.Join(t.TempDir(), "vectors"),
		Decoders: map[string]Decoder{"pairs": {Honest: []byte("ab"), Decode: func(b []byte) error {
			switch {
			case len(b) < 2:
				return errShort
			case len(b)%2 != 0:
				return errOdd
			case b[0] == 'x':
				return errors.New("new")
			}
			return nil
		}}},
		Classes: []string{"short", "odd"},
		Classify: func(err error) string {
			switch {
			case errors.Is(err, errShort):
				return "short"
			case errors.Is(err, errOdd):
				return "odd"
			}
			return ""
		},
		Made: []Vector{
			{Name: "short", What: "pairs", Expect: "short", Comment: "nothing at all"},
			{Name: "odd", What: "pairs", Expect: "odd", Says: "odd", Comment: "one byte over", Data: []byte("abc\n\nd\n")},
			{Name: "binary", What: "pairs", Expect: "odd", Comment: "no text", Data: []byte{0, 0xff, '\r'}},
			{Name: "large", What: "pairs", Expect: "odd", Comment: "over the size of a file", Data: make([]byte, 1<<20+1)},
		},
	}
	if err := s.Write(); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSet: a good set is good, and each way in which one can rot is seen.
func TestSet(t *testing.T) {
	if errs := set(t).Check(); len(errs) != 0 {
		t.Fatal(errs)
	}
	write := func(s *Set, name, text string) {
		if err := os.WriteFile(filepath.Join(s.Dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	change := func(s *Set, i int, f func(*Vector)) { // table and file alike
		f(&s.Made[i])
		if err := s.Write(); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name, want string
		spoil      func(s *Set)
	}{
		{"decodes", "decodes without", func(s *Set) { change(s, 1, func(v *Vector) { v.Data = []byte("ab") }) }},
		{"another class", `class "short", want "odd"`, func(s *Set) { change(s, 1, func(v *Vector) { v.Data = []byte("a") }) }},
		{"unknown class", `unknown class "even"`, func(s *Set) { change(s, 1, func(v *Vector) { v.Expect = "even" }) }},
		{"error of no class", "error of no class", func(s *Set) { change(s, 1, func(v *Vector) { v.Data = []byte("xx") }) }},
		{"other words", "does not say", func(s *Set) { change(s, 1, func(v *Vector) { v.Says = "even" }) }},
		{"unknown decoder", "unknown decoder", func(s *Set) { change(s, 1, func(v *Vector) { v.What = "triples" }) }},
		{"class without a vector", "a class without", func(s *Set) { s.Classes = append(s.Classes, "even") }},
		{"decoder without a vector", "a decoder without", func(s *Set) { s.Decoders["more"] = s.Decoders["pairs"] }},
		{"dishonest sample", "honest sample is refused", func(s *Set) {
			s.Decoders["pairs"] = Decoder{Decode: s.Decoders["pairs"].Decode, Honest: []byte("a")}
		}},
		{"made twice", "made twice", func(s *Set) { s.Made = append(s.Made, s.Made[0]) }},
		{"file missing", "has no file", func(s *Set) { os.Remove(filepath.Join(s.Dir, "odd.txt")) }},
		{"file too many", "no table makes", func(s *Set) { s.Made = s.Made[1:] }},
		{"file of another kind", "no vector belongs", func(s *Set) { write(s, "odd.bin", "") }},
		{"file edited", "not what the table makes", func(s *Set) {
			write(s, "odd.txt", "expect: odd\nwhat: pairs\nsays: odd\ncomment: one byte over\nform: text\n\nabcde")
		}},
		{"no empty line", "no empty line", func(s *Set) { write(s, "odd.txt", "expect: odd") }},
		{"unknown header", "unknown, repeated", func(s *Set) { write(s, "odd.txt", "expected: odd\n\n") }},
		{"repeated header", "unknown, repeated", func(s *Set) { write(s, "odd.txt", "expect: odd\nexpect: odd\n\n") }},
		{"header missing", "no ", func(s *Set) { write(s, "odd.txt", "expect: odd\n\n") }},
		{"unknown form", "unknown form", func(s *Set) { write(s, "odd.txt", "expect: odd\nwhat: pairs\ncomment: c\nform: base64\n\n") }},
		{"bad hex", "invalid byte", func(s *Set) { write(s, "odd.txt", "expect: odd\nwhat: pairs\ncomment: c\nform: hex\n\n0g") }},
		{"bad zlib", "zlib", func(s *Set) { write(s, "odd.txt", "expect: odd\nwhat: pairs\ncomment: c\nform: zlib\n\n00000000") }},
	} {
		s := set(t)
		tc.spoil(&s)
		found := false
		for _, err := range s.Check() {
			found = found || strings.Contains(err.Error(), tc.want)
		}
		if !found {
			t.Errorf("%s: %v, want %q", tc.name, s.Check(), tc.want)
		}
	}
}
