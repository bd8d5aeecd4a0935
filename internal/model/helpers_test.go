package model

import (
	"testing"

	"bulkhead/internal/gguf"
	"bulkhead/kernels"
	"bulkhead/kernels/cpu"
)

// openTest loads a model of testdata on a CPU backend.
func openTest(t testing.TB, name string, c cpu.Config) *Model {
	t.Helper()
	return openWith(t, name, c, true)
}

// openWith is openTest with or without precise inputs.
func openWith(t testing.TB, name string, c cpu.Config, precise bool) *Model {
	t.Helper()
	b, err := cpu.New(c)
	if err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open("testdata/" + name + ".gguf")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := load(f, b, precise)
	if err != nil {
		b.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func newPages(t testing.TB, m *Model, count int) kernels.Pages {
	t.Helper()
	p, err := m.NewPages(count)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func newRunner(t testing.TB, m *Model, rows, seqs int) Runner {
	t.Helper()
	r, err := m.NewRunner(rows, seqs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// claim gives owner the named pages, as a block table.
func claim(p kernels.Pages, owner kernels.Owner, ids ...kernels.PageID) []kernels.Entry {
	table := make([]kernels.Entry, len(ids))
	for i, id := range ids {
		p.Claim(id, kernels.Tag{Owner: owner, Generation: 7, Index: uint32(i)})
		table[i] = kernels.Entry{Page: id, Owner: owner, Generation: 7}
	}
	return table
}

// run returns the logits after every token, computing the tokens in chunks of
// the given sizes; the last size repeats. Only the last row of a chunk is known,
// so rows in between are nil.
func run(t testing.TB, r Runner, p kernels.Pages, table []kernels.Entry, tokens []int32, chunks ...int) [][]float32 {
	t.Helper()
	rows := make([][]float32, len(tokens))
	for pos := 0; pos < len(tokens); {
		n := min(chunks[0], len(tokens)-pos)
		if len(chunks) > 1 {
			chunks = chunks[1:]
		}
		outs, err := r.Forward(p, []Seq{{Tokens: tokens[pos : pos+n], Pos: pos, Table: table, Logits: true}})
		if err != nil {
			t.Fatal(err)
		}
		if outs[0].Err != nil {
			t.Fatal(outs[0].Err)
		}
		rows[pos+n-1] = append([]float32(nil), outs[0].Logits...)
		pos += n
	}
	return rows
}

// sequence is pseudo-random tokens.
func sequence(n, vocab, salt int) []int32 {
	tokens := make([]int32, n)
	x := uint32(salt)*2654435761 + 12345
	for i := range tokens {
		x = x*1664525 + 1013904223
		tokens[i] = int32(x>>8) % int32(vocab)
	}
	return tokens
}

// sameBits reports the first index where a and b differ in any bit; -1 if none.
func sameBits(a, b []float32) int {
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	for i := range a {
		if a[i] != b[i] && (a[i] == a[i] || b[i] == b[i]) {
			return i
		}
	}
	return -1
}
