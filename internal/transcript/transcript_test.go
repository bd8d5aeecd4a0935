package transcript

import (
	"fmt"
	"strings"
	"testing"
)

// recorder is a testing.TB that notes failures instead of failing.
type recorder struct {
	testing.TB
	errors, fatals int
}

func (r *recorder) Helper()               {}
func (r *recorder) Errorf(string, ...any) { r.errors++ }
func (r *recorder) Fatalf(string, ...any) { r.fatals++; panic(r) }

// A transcript that matches passes and is returned as it was; each output that
// differs is one error; a line that cannot be run is fatal. Otherwise every
// test that is built on transcripts could pass by not running.
func TestRun(t *testing.T) {
	answer := func(c *Cmd) string {
		return fmt.Sprintf("%s %s %d", c.Name, strings.Join(c.Words, ","), c.Int("n", 7))
	}
	for _, tc := range []struct {
		name, text     string
		errors, fatals int
	}{
		{"match", "# note\nadd a b n=3\n----\nadd a,b 3\n\nadd\n----\nadd  7\n", 0, 0},
		{"two differ", "add\n----\nadd  8\n\nadd\n----\n\nadd\n----\nadd  7\n", 2, 0},
		{"no marker", "add\nadd  7\n", 0, 1},
		{"unknown key", "add m=3\n----\nadd  7\n", 0, 1},
		{"no number", "add n=x\n----\nadd  7\n", 0, 1},
	} {
		r := &recorder{TB: t}
		got := func() (s string) {
			defer func() {
				if p := recover(); p != nil && p != any(r) {
					panic(p)
				}
			}()
			return Run(r, "x", tc.text, answer)
		}()
		if r.errors != tc.errors || r.fatals != tc.fatals {
			t.Errorf("%s: %d errors, %d fatal", tc.name, r.errors, r.fatals)
		}
		if tc.errors+tc.fatals == 0 && got != tc.text {
			t.Errorf("%s: returned %q", tc.name, got)
		}
	}
}
