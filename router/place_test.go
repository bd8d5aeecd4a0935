package router

import (
	"slices"
	"testing"
	"time"

	"bulkhead/transfer"
)

func announced(role transfer.Role, name string, change func(*transfer.Announce)) transfer.Announce {
	a := transfer.Announce{
		Node: name, Role: role, Epoch: 1, Metadata: testMetadata, Capacity: 1024, Window: 1024, FreeTokens: 1024,
		Ready: true, Expires: time.Unix(1000, 0),
	}
	if change != nil {
		change(&a)
	}
	return a
}

func boardOf(nodes ...transfer.Announce) *board {
	b := newBoard(testMetadata)
	b.update(nodes)
	return b
}

// TestChoose: which pair, or why none.
func TestChoose(t *testing.T) {
	p := func(name string, change func(*transfer.Announce)) transfer.Announce {
		return announced(transfer.RolePrefill, name, change)
	}
	d := func(name string, change func(*transfer.Announce)) transfer.Announce {
		return announced(transfer.RoleDecode, name, change)
	}
	ok := need{prompt: 100, maxNew: 28}
	for _, tc := range []struct {
		name  string
		nodes []transfer.Announce
		need  need
		want  string // pair, or verdict
	}{
		{"one pair", []transfer.Announce{p("p0", nil), d("d0", nil)}, ok, "p0 d0"},
		{"nobody", nil, ok, "none"},
		{"no decode", []transfer.Announce{p("p0", nil)}, ok, "none"},
		{"decode not ready", []transfer.Announce{p("p0", nil), d("d0", func(a *transfer.Announce) { a.Ready = false })}, ok, "none"},
		{"prefill draining", []transfer.Announce{p("p0", func(a *transfer.Announce) { a.Draining = true }), d("d0", nil)}, ok, "none"},
		{"decode draining", []transfer.Announce{p("p0", nil), d("d0", func(a *transfer.Announce) { a.Draining = true }), d("d1", nil)}, ok, "p0 d1"},
		{"other model", []transfer.Announce{p("p0", nil), d("d0", func(a *transfer.Announce) { a.Model[0] = 7 })}, ok, "none"},
		{"other layout", []transfer.Announce{p("p0", nil), d("d0", func(a *transfer.Announce) { a.Layout[0] = 7 })}, ok, "none"},
		{"other vocabulary", []transfer.Announce{p("p0", nil), d("d0", func(a *transfer.Announce) { a.Vocab = 7 })}, ok, "none"},
		{"other tokenizer than the router's", []transfer.Announce{
			p("p0", func(a *transfer.Announce) { a.Metadata[0] = 7 }), d("d0", func(a *transfer.Announce) { a.Metadata[0] = 7 })}, ok, "none"},
		{"avoid decode", []transfer.Announce{p("p0", nil), d("d0", nil), d("d1", nil)}, need{prompt: 1, maxNew: 1, avoid: []string{"d0"}}, "p0 d1"},
		{"avoid the only prefill", []transfer.Announce{p("p0", nil), d("d0", nil)}, need{prompt: 1, maxNew: 1, avoid: []string{"p0"}}, "none"},
		{"at the limit", []transfer.Announce{p("p0", nil), d("d0", nil)}, need{prompt: 1000, maxNew: 24}, "p0 d0"},
		{"over the limit", []transfer.Announce{p("p0", nil), d("d0", nil)}, need{prompt: 1000, maxNew: 25}, "too long"},
		{"over prefill's capacity", []transfer.Announce{p("p0", func(a *transfer.Announce) { a.Capacity, a.FreeTokens = 64, 64 }), d("d0", nil)}, ok, "too long"},
		{"over decode's window", []transfer.Announce{p("p0", nil), d("d0", func(a *transfer.Announce) { a.Window = 64 })}, ok, "too long"},
		{"capacity that is no whole number of pages", []transfer.Announce{
			p("p0", func(a *transfer.Announce) { a.Capacity, a.FreeTokens = 1000, 1000 }),
			d("d0", func(a *transfer.Announce) { a.Capacity, a.FreeTokens = 1000, 1000 })}, need{prompt: 999, maxNew: 1}, "p0 d0"},
		{"decode full", []transfer.Announce{p("p0", nil), d("d0", func(a *transfer.Announce) { a.FreeTokens = 64 })}, ok, "no room"},
		{"prefill full", []transfer.Announce{p("p0", func(a *transfer.Announce) { a.FreeTokens = 64 }), d("d0", nil)}, ok, "no room"},
		{"one too small, one full", []transfer.Announce{p("p0", nil), d("d0", func(a *transfer.Announce) { a.Window = 64 }), d("d1", func(a *transfer.Announce) { a.FreeTokens = 0 })}, ok, "no room"},
		{"the shorter prefill queue", []transfer.Announce{p("p0", func(a *transfer.Announce) { a.Waiting = 2000 }), p("p1", nil), d("d0", nil)}, ok, "p1 d0"},
		{"the emptier decode pool", []transfer.Announce{p("p0", nil), d("d0", func(a *transfer.Announce) { a.FreeTokens = 512 }), d("d1", nil)}, ok, "p0 d1"},
		{"the smaller batch", []transfer.Announce{p("p0", nil), d("d0", func(a *transfer.Announce) { a.Running = 3 }), d("d1", nil)}, ok, "p0 d1"},
	} {
		got, v := boardOf(tc.nodes...).choose(tc.need)
		name := map[verdict]string{noRoomNow: "no room", tooLong: "too long", noNode: "none"}[v]
		if v == placed {
			name = got.prefill.Node + " " + got.decode.Node
		}
		if name != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, name, tc.want)
		}
	}
}

// TestTies: equal pairs share the work.
func TestTies(t *testing.T) {
	b := boardOf(announced(transfer.RolePrefill, "p0", nil), announced(transfer.RolePrefill, "p1", nil), announced(transfer.RoleDecode, "d0", nil), announced(transfer.RoleDecode, "d1", nil))
	count := map[string]int{}
	for tie := range uint64(400) {
		p, _ := b.choose(need{prompt: 1, maxNew: 1, tie: tie})
		count[p.prefill.Node+p.decode.Node]++
	}
	for _, pair := range []string{"p0d0", "p0d1", "p1d0", "p1d1"} {
		if count[pair] < 50 {
			t.Errorf("pair %s was chosen %d times of 400", pair, count[pair])
		}
	}
}

// TestLedger: what was given out since the last announcement counts, whatever the announcement says;
// what an announcement knows is not counted twice; a restart voids it.
func TestLedger(t *testing.T) {
	p, d := announced(transfer.RolePrefill, "p0", nil), announced(transfer.RoleDecode, "d0", nil)
	b := boardOf(p, d)
	n := need{prompt: 500, maxNew: 12} // 8 pages at both
	pair, _ := b.choose(n)
	first := b.reserve(pair, n)
	second := b.reserve(pair, n)
	if _, v := b.choose(n); v != noRoomNow {
		t.Fatalf("a third of 512 tokens in 1024: verdict %d", v)
	}
	d.FreeTokens, d.Expires = 0, d.Expires.Add(time.Second) // now decode says it itself
	p.FreeTokens, p.Expires = 0, p.Expires.Add(time.Second)
	b.update([]transfer.Announce{p, d})
	for _, r := range first {
		b.release(r)
	}
	d.FreeTokens, d.Expires = 512, d.Expires.Add(time.Second)
	p.FreeTokens, p.Expires = 512, p.Expires.Add(time.Second)
	b.update([]transfer.Announce{p, d})
	if _, v := b.choose(n); v != placed {
		t.Fatalf("512 of 1024 are free again: verdict %d", v)
	}
	b.markFull("d0")
	if _, v := b.choose(n); v != noRoomNow {
		t.Fatalf("d0 said it is full: verdict %d", v)
	}
	d.Epoch, d.FreeTokens, d.Expires = 2, 1024, d.Expires.Add(time.Second)
	p.Epoch, p.FreeTokens, p.Expires = 2, 1024, p.Expires.Add(time.Second)
	b.update([]transfer.Announce{p, d})
	for _, r := range second { // of a boot that is gone: must not be added to the new one
		b.release(r)
	}
	if got := b.free(&d); got != 1024 {
		t.Errorf("free after the restart: %d, want 1024", got)
	}
}

// goal: one model name never stands for two files. method: nodes of a second file with the
// same header join, stay alone, and leave.
func TestOneFile(t *testing.T) {
	b := newBoard(transfer.Hash{1})
	of := func(file byte, names ...string) (out []transfer.Announce) {
		for i, name := range names {
			role := transfer.RolePrefill
			if i%2 == 1 {
				role = transfer.RoleDecode
			}
			out = append(out, announced(role, name, func(a *transfer.Announce) {
				a.Metadata, a.File, a.Model = transfer.Hash{1}, transfer.Hash{file}, transfer.Hash{file}
			}))
		}
		return out
	}
	ours, others := of(2, "p1", "d1"), of(1, "p2", "d2", "p3", "d3")
	for _, step := range []struct {
		what    string
		nodes   []transfer.Announce
		serves  string
		refused int
	}{
		{"the first file", ours, "p1", 0},
		{"a second file joins, with more nodes", append(slices.Clone(ours), others...), "p1", 4},
		{"only its decode node is left of the first", append(slices.Clone(ours[1:]), others...), "", 4},
		{"the first is gone", others, "p2", 0},
		{"and comes back", append(slices.Clone(ours), others...), "p2", 2},
	} {
		b.update(step.nodes)
		p, ok := b.best()
		if ok != (step.serves != "") || ok && p.prefill.Node != step.serves && step.serves == "p1" || ok && p.prefill.File != p.decode.File {
			t.Errorf("%s: served by %+v (%v), want %q", step.what, p.prefill.Node, ok, step.serves)
		}
		if len(b.refused) != step.refused {
			t.Errorf("%s: refused %v, want %d", step.what, b.refused, step.refused)
		}
	}
}
