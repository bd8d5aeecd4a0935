// Package transcript runs readable test files: commands with the output that
// they gave, in the manner of cockroachdb/datadriven as etcd's raft uses it.
//
//	# A comment says what to look at.
//	reserve a tokens=100
//	----
//	a: pages 0 1, lease 101
//
// A command is one line: a name, then words and key=value pairs. "----" ends
// it; what follows, up to an empty line, is the output that is expected. With
// -rewrite the files are written anew from what the code does: read the
// difference, and commit it only if you know what caused it.
//
// For tests only: it registers the flag -rewrite.
package transcript

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the transcripts in testdata anew")

// Cmd is one command of a transcript.
type Cmd struct {
	Name  string
	Words []string // positional arguments
	keys  map[string]string
	used  map[string]bool
	where string
	t     testing.TB
}

// Word gives the i-th positional argument; the test fails if it is not there.
func (c *Cmd) Word(i int) string {
	c.t.Helper()
	if i >= len(c.Words) {
		c.t.Fatalf("%s: %s takes more than %d words", c.where, c.Name, len(c.Words))
	}
	return c.Words[i]
}

// Str gives key=value, or otherwise its default.
func (c *Cmd) Str(key, otherwise string) string {
	c.used[key] = true
	if v, ok := c.keys[key]; ok {
		return v
	}
	return otherwise
}

// Int gives key=number, or otherwise its default.
func (c *Cmd) Int(key string, otherwise int) int {
	c.t.Helper()
	v := c.Str(key, "")
	if v == "" {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		c.t.Fatalf("%s: %s=%s is no number", c.where, key, v)
	}
	return n
}

// Fatalf ends the test with the place of the command.
func (c *Cmd) Fatalf(format string, args ...any) {
	c.t.Helper()
	c.t.Fatalf("%s: %s: %s", c.where, c.Name, fmt.Sprintf(format, args...))
}

// RunDir runs every .txt file of dir as a subtest. start is called for each
// file and gives the function that answers its commands, so that files do not
// share state. An empty dir fails the test.
func RunDir(t *testing.T, dir string, start func(t *testing.T) func(*Cmd) string) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts in %s (%v)", dir, err)
	}
	slices.Sort(files)
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := Run(t, path, string(data), start(t))
			if *rewrite && got != string(data) {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// Run answers the commands of one transcript, reports each output that
// differs, and returns the transcript with the outputs that it got.
func Run(t testing.TB, name, text string, answer func(*Cmd) string) string {
	t.Helper()
	var out strings.Builder
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i := 0; i < len(lines); {
		line := lines[i]
		i++
		out.WriteString(line + "\n")
		if trimmed := strings.TrimSpace(line); trimmed == "" || strings.HasPrefix(trimmed, "#") {
			continue
		}
		cmd := parse(t, fmt.Sprintf("%s:%d", name, i), line)
		if i >= len(lines) || lines[i] != "----" {
			cmd.Fatalf("no ---- on the next line")
		}
		i++
		from := i
		for i < len(lines) && lines[i] != "" {
			i++
		}
		want := strings.Join(lines[from:i], "\n")
		got := strings.TrimRight(answer(cmd), "\n")
		for key := range cmd.keys {
			if !cmd.used[key] {
				cmd.Fatalf("unknown key %s", key)
			}
		}
		if strings.Contains(got, "\n\n") {
			cmd.Fatalf("the output has an empty line, which would end it")
		}
		if got != want && !*rewrite {
			t.Errorf("%s: %s\ngot:\n%s\nwant:\n%s", cmd.where, line, got, want)
		}
		out.WriteString("----\n" + got)
		if got != "" {
			out.WriteString("\n")
		}
	}
	return out.String()
}

func parse(t testing.TB, where, line string) *Cmd {
	words := strings.Fields(line)
	c := &Cmd{Name: words[0], keys: map[string]string{}, used: map[string]bool{}, where: where, t: t}
	for _, w := range words[1:] {
		if key, value, ok := strings.Cut(w, "="); ok {
			c.keys[key] = value
		} else {
			c.Words = append(c.Words, w)
		}
	}
	return c
}
