package kv

import (
	"errors"
	"testing"

	"bulkhead/kernels"
)

// corruptible is a pool with a page in every state: one shared and purged block
// that y still reads, two pages of y reserved, one dirty under a live writer,
// one quarantined, one ready, the rest free.
func corruptible(t *testing.T) (p *Pool, f *fakePages, y, ready *Table) {
	t.Helper()
	p, f = testPool(t, 9)
	prompt := make([]int32, 129)
	prompt[64] = 1
	x, _, err := p.ReserveWithPrefix(lease("a", 1), [32]byte{1}, prompt, 129)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, f, x, 0, 129)
	if err := x.Publish(); err != nil {
		t.Fatal(err)
	}
	x.Release() // pages 0, 1 cached; 2 free
	y, _, err = p.ReserveWithPrefix(lease("a", 2), [32]byte{1}, prompt[:65], 192)
	if err != nil {
		t.Fatal(err)
	}
	dirty := reserve(t, p, lease("b", 1), 64)
	begin(t, dirty)
	dirty.Release()
	reserve(t, p, lease("b", 2), 64).Quarantine("test") // purges: nothing idle is left
	ready = reserve(t, p, lease("b", 3), 64)
	fill(t, f, ready, 0, 64)
	if err := p.CheckIntegrity(); err != nil {
		t.Fatal(err)
	}
	return p, f, y, ready
}

// Each invariant is seen red on books that break it alone. An integrity check
// that has never failed is no evidence.
func TestCheckIntegrityRed(t *testing.T) {
	// page finds the first page in a state.
	page := func(p *Pool, s state) kernels.PageID {
		for i := range p.book {
			if p.book[i].state == s {
				return kernels.PageID(i)
			}
		}
		t.Fatalf("no page is %v", s)
		return 0
	}
	for _, tc := range []struct {
		name, check string
		corrupt     func(p *Pool, f *fakePages, y, ready *Table)
	}{
		{"free page lost", checkState, func(p *Pool, f *fakePages, _, _ *Table) { p.free = p.free[:len(p.free)-1] }},
		{"free page listed twice", checkState, func(p *Pool, f *fakePages, _, _ *Table) { p.free = append(p.free, p.free[0]) }},
		{"held page in the free list", checkState, func(p *Pool, f *fakePages, y, _ *Table) {
			p.free = append(p.free, y.entries[1].Page)
		}},
		{"dirty page in the free list", checkState, func(p *Pool, f *fakePages, _, _ *Table) { p.free = append(p.free, page(p, stateDirty)) }},
		{"quarantined page in the free list", checkState, func(p *Pool, f *fakePages, _, _ *Table) {
			p.free = append(p.free, page(p, stateQuarantined))
		}},
		{"unknown state", checkState, func(p *Pool, f *fakePages, _, _ *Table) { p.book[page(p, stateQuarantined)].state = stateCount }},
		{"page ahead of its table", checkState, func(p *Pool, f *fakePages, y, _ *Table) { p.book[y.entries[1].Page].state = stateReady }},
		{"page of two tables", checkHolder, func(p *Pool, f *fakePages, y, ready *Table) {
			ready.entries[0] = y.entries[1]
		}},
		{"page twice in a table", checkHolder, func(p *Pool, f *fakePages, y, _ *Table) { y.entries[2] = y.entries[1] }},
		{"holder forgotten", checkHolder, func(p *Pool, f *fakePages, y, _ *Table) { p.book[y.entries[1].Page].table = nil }},
		{"generation moved under a table", checkHolder, func(p *Pool, f *fakePages, y, _ *Table) { p.book[y.entries[1].Page].gen++ }},
		{"owner moved under a table", checkHolder, func(p *Pool, f *fakePages, y, _ *Table) { p.book[y.entries[1].Page].owner++ }},
		{"holder of a quarantined page", checkHolder, func(p *Pool, f *fakePages, y, _ *Table) {
			p.book[page(p, stateQuarantined)].table = y
		}},
		{"quarantine without reason", checkHolder, func(p *Pool, f *fakePages, _, _ *Table) { p.book[page(p, stateQuarantined)].reason = "" }},
		{"owner of a free page", checkHolder, func(p *Pool, f *fakePages, _, _ *Table) { p.book[page(p, stateFree)].owner = 5 }},
		{"dirty page nobody waits for", checkHolder, func(p *Pool, f *fakePages, _, _ *Table) {
			p.book[page(p, stateDirty)].table.writers = 0
		}},
		{"table forgotten", checkLease, func(p *Pool, f *fakePages, y, _ *Table) { delete(p.tables, y) }},
		{"table and lease forgotten", checkHolder, func(p *Pool, f *fakePages, _, ready *Table) {
			delete(p.tables, ready)
			delete(p.leases, ready.lease)
		}},
		{"two tables of one lease", checkLease, func(p *Pool, f *fakePages, y, ready *Table) {
			delete(p.leases, ready.lease)
			ready.lease = y.lease
			p.leases[Lease{Tenant: "z"}] = ready
		}},
		{"lease number given twice", checkLease, func(p *Pool, f *fakePages, y, ready *Table) { ready.owner = y.owner }},
		{"table shortened", checkLease, func(p *Pool, f *fakePages, y, _ *Table) { y.entries = y.entries[:2] }},
		{"reader not counted", checkShare, func(p *Pool, f *fakePages, y, _ *Table) { y.blocks[0].refs++ }},
		{"reader counted too little", checkShare, func(p *Pool, f *fakePages, y, _ *Table) { y.blocks[0].refs-- }},
		{"block of another tenant", checkShare, func(p *Pool, f *fakePages, y, _ *Table) { y.blocks[0].tenant = "b" }},
		{"block of another place", checkShare, func(p *Pool, f *fakePages, y, _ *Table) { y.blocks[0].index = 1 }},
		{"purged block findable", checkShare, func(p *Pool, f *fakePages, y, _ *Table) { p.cache.blocks[y.blocks[0].key] = y.blocks[0] }},
		{"block under another key", checkShare, func(p *Pool, f *fakePages, y, _ *Table) {
			b := y.blocks[0]
			b.detached = false
			p.cache.blocks[chainKey{9}] = b
		}},
		{"eviction order lists a read block", checkShare, func(p *Pool, f *fakePages, y, _ *Table) { p.cache.idle.PushBack(y.blocks[0]) }},
		{"cached page without block", checkHolder, func(p *Pool, f *fakePages, y, _ *Table) {
			id := y.blocks[0].entry.Page
			y.entries, y.blocks, y.tokens = y.entries[1:], y.blocks[1:], y.tokens-64
			p.book[id].block = nil
			for i, e := range y.entries {
				p.book[e.Page].index = uint32(i)
			}
		}},
		{"page missing from the books", checkTotal, func(p *Pool, f *fakePages, _, _ *Table) {
			last := len(p.book) - 1 // the highest page is free
			p.book = p.book[:last]
			for i, id := range p.free {
				if int(id) == last {
					p.free = append(p.free[:i], p.free[i+1:]...)
					break
				}
			}
		}},
		{"tag of a held page", checkTag, func(p *Pool, f *fakePages, y, _ *Table) { f.tags[y.entries[1].Page].Owner++ }},
		{"generation of a held page", checkTag, func(p *Pool, f *fakePages, y, _ *Table) { f.tags[y.entries[1].Page].Generation++ }},
		{"index of a held page", checkTag, func(p *Pool, f *fakePages, y, _ *Table) { f.tags[y.entries[1].Page].Index++ }},
		{"tag of a shared page", checkTag, func(p *Pool, f *fakePages, y, _ *Table) { f.tags[y.entries[0].Page].Owner++ }},
		{"tag of a free page", checkTag, func(p *Pool, f *fakePages, _, _ *Table) { f.tags[page(p, stateFree)].Owner = 7 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, f, y, ready := corruptible(t)
			tc.corrupt(p, f, y, ready)
			var got *IntegrityError
			if err := p.CheckIntegrity(); !errors.Is(err, ErrIntegrity) || !errors.As(err, &got) || got.Check != tc.check {
				t.Fatalf("got %v, want the check %q", err, tc.check)
			}
		})
	}
}

// Builds with invariants stop at the change that broke the books, scribble
// over freed pages, and notice a backend that does not zero and a write into a
// free page. Other builds must not pay for it.
func TestInvariantBuilds(t *testing.T) {
	panics := func(f func()) (v any) {
		defer func() { v = recover() }()
		f()
		return nil
	}
	want := func(name string, v any) {
		t.Helper()
		if (v != nil) != invariants {
			t.Errorf("%s: invariants %v, panic %v", name, invariants, v)
		}
	}
	p, _ := testPool(t, 2)
	x := reserve(t, p, lease("a", 1), 64)
	p.book[x.entries[0].Page].owner++
	want("broken books", panics(func() { x.BeginWrite() }))

	p, f := testPool(t, 2)
	x = reserve(t, p, lease("a", 1), 64)
	x.Release()
	if (f.mangled > 0) != invariants {
		t.Errorf("invariants %v, %d pages mangled", invariants, f.mangled)
	}

	p, f = testPool(t, 2)
	x = reserve(t, p, lease("a", 1), 64)
	fill(t, f, x, 0, 64)
	f.skipScrub = true
	want("scrub that does not zero", panics(x.Release))

	p, f = testPool(t, 1)
	f.lateWrite(0)
	if v := panics(func() { p.Reserve(lease("a", 1), 64) }); v == nil {
		t.Error("a page that was written while free was given away") // the fake's Claim looks too, in every build
	}
}
