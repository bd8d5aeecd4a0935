package model

import (
	"errors"
	"testing"

	"bulkhead/internal/gguf"
	"bulkhead/kernels/cpu"
)

// A step larger than the runner, or pages of another model, is the engine's own
// error: nothing is computed.
func TestForwardRefuses(t *testing.T) {
	m, other := openTest(t, "llama-gqa", cpu.Config{Threads: 1}), openTest(t, "qwen3", cpu.Config{Threads: 1})
	pages := newPages(t, m, 2)
	table := claim(pages, 1, 0, 1)
	r := newRunner(t, m, 4, 2)
	one := Seq{Tokens: []int32{1}, Table: table}
	for name, c := range map[string]struct {
		want error
		seqs []Seq
	}{
		"too many rows":      {ErrStepSize, []Seq{{Tokens: make([]int32, 5), Table: table}}},
		"rows of several":    {ErrStepSize, []Seq{{Tokens: make([]int32, 3), Table: table}, {Tokens: make([]int32, 2), Table: table}}},
		"too many sequences": {ErrStepSize, []Seq{one, one, one}},
	} {
		if _, err := r.Forward(pages, c.seqs); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if _, err := r.Forward(newPages(t, other, 1), []Seq{one}); !errors.Is(err, ErrLayout) {
		t.Errorf("pages of another model: %v", err)
	}
	for _, size := range [][2]int{{0, 1}, {1, 0}, {-1, 1}} {
		if _, err := m.NewRunner(size[0], size[1]); !errors.Is(err, ErrStepSize) {
			t.Errorf("runner of %v: %v", size, err)
		}
	}
	for p := range 2 {
		if n := pages.Filled(table[p].Page, 0); n != 0 {
			t.Errorf("a refused step wrote %d slots", n)
		}
	}
}

func TestClosed(t *testing.T) {
	m := openTest(t, "llama-gqa", cpu.Config{Threads: 1})
	pages := newPages(t, m, 1)
	closed, r := newRunner(t, m, 1, 1), newRunner(t, m, 1, 1)
	closed.Close()
	if _, err := closed.Forward(pages, nil); err != ErrClosed {
		t.Errorf("closed runner: %v", err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Forward(pages, nil); err != ErrClosed {
		t.Errorf("closed model: %v", err)
	}
	if _, err := m.NewRunner(1, 1); err != ErrClosed {
		t.Errorf("NewRunner: %v", err)
	}
	if _, err := m.NewPages(1); err != ErrClosed {
		t.Errorf("NewPages: %v", err)
	}
}

// Whatever a file says, loading it and running a step on it end in an error or in
// numbers, never in a panic.
func FuzzLoad(f *testing.F) {
	for _, arch := range architectures() {
		f.Add(goodFile(arch).bytes(f))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := gguf.Parse(data)
		if err != nil {
			return
		}
		b, err := cpu.New(cpu.Config{Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		m, err := Load(g, b)
		if err != nil {
			b.Close()
			return
		}
		defer m.Close()
		pages, err := m.NewPages(1)
		if err != nil {
			return
		}
		r, err := m.NewRunner(2, 1)
		if err != nil {
			return
		}
		if _, err := r.Forward(pages, []Seq{{Tokens: []int32{0, 0}, Table: claim(pages, 1, 0), Logits: true}}); err != nil {
			t.Fatal(err)
		}
	})
}
