package kv

import (
	"errors"
	"testing"

	"bulkhead/kernels"
)

// lease of a tenant's n-th request.
func lease(tenant string, n byte) Lease { return Lease{Tenant: tenant, Request: [16]byte{n}} }

// testPool is a pool of count pages whose lease numbers start at 101.
func testPool(t testing.TB, count int) (*Pool, *fakePages) {
	t.Helper()
	f := newFake(count)
	p, err := newPool(f, count*kernels.BlockTokens, 100)
	if err != nil {
		t.Fatal(err)
	}
	return p, f
}

// reserve, or fail the test.
func reserve(t testing.TB, p *Pool, l Lease, tokens int) *Table {
	t.Helper()
	x, err := p.Reserve(l, tokens)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// begin a writer, or fail the test.
func begin(t testing.TB, x *Table) *Writer {
	t.Helper()
	w, err := x.BeginWrite()
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// fill computes tokens [from, to) of x and commits it.
func fill(t testing.TB, f *fakePages, x *Table, from, to int) {
	t.Helper()
	w := begin(t, x)
	if err := f.compute(x, from, to); err != nil {
		t.Fatal(err)
	}
	w.Done()
	if err := x.MarkReady(to); err != nil {
		t.Fatal(err)
	}
}

// check the books and that every free page is zero.
func check(t testing.TB, p *Pool, f *fakePages) {
	t.Helper()
	if err := p.CheckIntegrity(); err != nil {
		t.Fatal(err)
	}
	for _, id := range p.free {
		if !f.Zeroed(id) {
			t.Fatalf("page %d is free and not zero", id)
		}
	}
}

// The pool must have exactly the pages of its capacity: else the advertised
// number and the memory drift apart, which is how the incident began.
func TestNewPoolCapacity(t *testing.T) {
	for _, tc := range []struct {
		pages, capacity int
		ok              bool
	}{
		{1, 1, true}, {1, 64, true}, {2, 65, true}, {167, 10645, true},
		{1, 65, false}, {2, 64, false}, {0, 0, false}, {1, 0, false}, {1, -1, false},
	} {
		_, err := NewPool(newFake(tc.pages), tc.capacity)
		if (err == nil) != tc.ok {
			t.Errorf("%d pages for %d tokens: %v", tc.pages, tc.capacity, err)
		}
	}
	f := newFake(1)
	f.Claim(0, kernels.Tag{Owner: 9})
	if _, err := NewPool(f, 64); err == nil {
		t.Error("a pool over pages that somebody holds")
	}
}

// A sequence may hold capacity tokens and no more, even where the last page
// has slots beyond it.
func TestReserveLimits(t *testing.T) {
	f := newFake(3)
	p, err := newPool(f, 130, 0)
	if err != nil {
		t.Fatal(err)
	}
	var long *TooLongError
	if _, err := p.Reserve(lease("a", 1), 131); !errors.Is(err, ErrTooLong) || !errors.As(err, &long) || *long != (TooLongError{130, 131}) {
		t.Fatalf("131 of 130 tokens: %v", err)
	}
	for _, n := range []int{0, -1} {
		if _, err := p.Reserve(lease("a", 1), n); !errors.Is(err, ErrLease) {
			t.Errorf("%d tokens: %v", n, err)
		}
	}
	if _, err := p.Reserve(Lease{}, 1); !errors.Is(err, ErrLease) {
		t.Errorf("no tenant: %v", err)
	}
	if _, _, err := p.ReserveWithPrefix(lease("a", 1), [32]byte{}, nil, 5); !errors.Is(err, ErrLease) {
		t.Errorf("no prompt: %v", err)
	}
	if _, _, err := p.ReserveWithPrefix(lease("a", 1), [32]byte{}, make([]int32, 6), 5); !errors.Is(err, ErrLease) {
		t.Errorf("prompt beyond the reservation: %v", err)
	}
	x := reserve(t, p, lease("a", 1), 129)
	if len(x.Entries()) != 3 || x.Tokens() != 129 || x.Owner() == 0 {
		t.Fatalf("129 tokens: %v", x.Entries())
	}
	if _, err := p.Reserve(lease("a", 1), 1); !errors.Is(err, ErrLeaseHeld) {
		t.Fatalf("the same attempt twice: %v", err)
	}
	var none *NoPagesError
	if _, err := p.Reserve(lease("b", 1), 1); !errors.Is(err, ErrNoPages) || !errors.As(err, &none) || *none != (NoPagesError{1, 0}) {
		t.Fatalf("full pool: %v", err)
	}
	if s := p.Stats(); s.FreeTokens != 0 || s.Held != 3 {
		t.Fatalf("full pool: %+v", s)
	}
	x.Release()
	if s := p.Stats(); s.FreeTokens != 130 || s.Free != 3 || s.Tables != 0 {
		t.Fatalf("empty pool: %+v", s)
	}
	check(t, p, f)
}

// A reservation that does not fit takes nothing.
func TestReserveAllOrNothing(t *testing.T) {
	p, f := testPool(t, 4)
	reserve(t, p, lease("a", 1), 100)
	before := p.Stats()
	if _, err := p.Reserve(lease("b", 1), 3*64); !errors.Is(err, ErrNoPages) {
		t.Fatal(err)
	}
	if after := p.Stats(); after != before {
		t.Fatalf("%+v became %+v", before, after)
	}
	check(t, p, f)
}

// Lease numbers are never 0, even when the counter wraps, and two pools do not
// start alike.
func TestOwners(t *testing.T) {
	p, err := newPool(newFake(3), 3*64, ^kernels.Owner(0))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[kernels.Owner]bool{0: true} // the first number after the wrap
	for n := range byte(3) {
		x := reserve(t, p, lease("a", n), 1)
		for _, e := range x.Entries() {
			if seen[e.Owner] {
				t.Fatalf("lease number %d given twice", e.Owner)
			}
			seen[e.Owner] = true
		}
	}
	a, _ := NewPool(newFake(1), 1)
	b, _ := NewPool(newFake(1), 1)
	if a.lastOwner == b.lastOwner {
		t.Fatal("two pools start with the same lease number")
	}
}

// A table that outlives its pages is refused by the check that attention makes,
// whoever holds the pages now.
func TestStaleTableIsRefused(t *testing.T) {
	p, f := testPool(t, 1)
	x := reserve(t, p, lease("a", 1), 64)
	fill(t, f, x, 0, 64)
	if _, err := f.read(x, 64); err != nil {
		t.Fatal(err)
	}
	old := x.Entries()[0]
	x.Release()
	if _, err := f.read(x, 1); !errors.Is(err, kernels.ErrStalePage) {
		t.Fatalf("freed page: %v", err)
	}
	y := reserve(t, p, lease("b", 1), 64)
	fill(t, f, y, 0, 64)
	if _, err := f.read(x, 1); !errors.Is(err, kernels.ErrForeignPage) {
		t.Fatalf("page of another tenant: %v", err)
	}
	if now := y.Entries()[0]; now.Page != old.Page || now.Generation <= old.Generation {
		t.Fatalf("generation did not rise: %v, %v", old, now)
	}
}

// MarkReady believes the memory and not the caller: short, over-full, and
// uneven fills are refused.
func TestMarkReadyComparesMemory(t *testing.T) {
	for _, tc := range []struct {
		name  string
		write func(*fakePages, *Table)
		ready int
		want  error
	}{
		{"exact", func(f *fakePages, x *Table) { f.compute(x, 0, 70) }, 70, nil},
		{"nothing", func(f *fakePages, x *Table) {}, 70, ErrIncomplete},
		{"short by one", func(f *fakePages, x *Table) { f.compute(x, 0, 69) }, 70, ErrIncomplete},
		{"one too many", func(f *fakePages, x *Table) { f.compute(x, 0, 71) }, 70, ErrIncomplete},
		{"one layer short", func(f *fakePages, x *Table) { f.compute(x, 0, 70); f.filled[x.entries[0].Page][1] = 63 }, 70, ErrIncomplete},
		{"foreign tag", func(f *fakePages, x *Table) { f.compute(x, 0, 70) }, 70, kernels.ErrForeignPage},
		{"no tokens", func(f *fakePages, x *Table) {}, 0, ErrState},
		{"more than reserved", func(f *fakePages, x *Table) { f.compute(x, 0, 128) }, 129, ErrState},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, f := testPool(t, 2)
			x := reserve(t, p, lease("a", 1), 128)
			if err := x.MarkReady(tc.ready); !errors.Is(err, ErrState) {
				t.Fatalf("ready before any writer: %v", err)
			}
			w := begin(t, x)
			tc.write(f, x)
			if err := x.MarkReady(tc.ready); !errors.Is(err, ErrWriterLive) {
				t.Fatalf("ready under a live writer: %v", err)
			}
			w.Done()
			if tc.want == kernels.ErrForeignPage {
				f.tags[x.entries[1].Page].Owner++
			}
			if err := x.MarkReady(tc.ready); !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if tc.want != nil {
				return
			}
			if err := x.MarkReady(tc.ready); !errors.Is(err, ErrState) {
				t.Fatalf("ready twice: %v", err)
			}
		})
	}
}

// The two lifetimes of a page, in both orders, and the quarantine of a writer
// that cannot be fenced.
func TestTwoLifetimes(t *testing.T) {
	t.Run("request ends first", func(t *testing.T) {
		p, f := testPool(t, 2)
		x := reserve(t, p, lease("a", 1), 128)
		w1, w2 := begin(t, x), begin(t, x)
		x.Release()
		if _, err := x.BeginWrite(); !errors.Is(err, ErrEnded) {
			t.Fatalf("a new writer after the end: %v", err)
		}
		if err := x.MarkReady(1); !errors.Is(err, ErrEnded) {
			t.Fatalf("ready after the end: %v", err)
		}
		w1.Done()
		w1.Done() // says nothing about w2
		if s := p.Stats(); s.Dirty != 2 || s.Free != 0 {
			t.Fatalf("a writer lives: %+v", s)
		}
		if err := f.compute(x, 0, 10); err != nil {
			t.Fatalf("the late write goes into pages that are still its own: %v", err)
		}
		w2.Done()
		if s := p.Stats(); s.Free != 2 || s.Tables != 0 {
			t.Fatalf("both ended: %+v", s)
		}
		check(t, p, f)
	})
	t.Run("writer ends first", func(t *testing.T) {
		p, f := testPool(t, 2)
		x := reserve(t, p, lease("a", 1), 128)
		begin(t, x).Done()
		if s := p.Stats(); s.Held != 2 {
			t.Fatalf("the request lives: %+v", s)
		}
		x.Release()
		x.Release()
		if s := p.Stats(); s.Free != 2 {
			t.Fatalf("both ended: %+v", s)
		}
		check(t, p, f)
	})
	t.Run("writer not fenced", func(t *testing.T) {
		p, f := testPool(t, 3)
		x := reserve(t, p, lease("a", 1), 128)
		w := begin(t, x)
		x.Release()
		w.Abandon("no fence within 1s")
		w.Abandon("again")
		if s := p.Stats(); s.Quarantined != 2 || s.Free != 1 {
			t.Fatalf("%+v", s)
		}
		f.lateWrite(x.Entries()[0].Page)
		w.Done()
		x.Release()
		if s := p.Stats(); s.Quarantined != 2 || s.Free != 1 || s.Tables != 0 {
			t.Fatalf("a late Done must not free: %+v", s)
		}
		if q := p.Quarantined(); len(q) != 2 || q[0].Reason != "no fence within 1s" || q[0].Owner != x.Owner() {
			t.Fatalf("%+v", q)
		}
		if _, err := p.Reserve(lease("b", 1), 65); !errors.Is(err, ErrNoPages) {
			t.Fatalf("quarantined pages were given away: %v", err)
		}
		check(t, p, f)
	})
	t.Run("abandoned after it was done", func(t *testing.T) {
		p, f := testPool(t, 2)
		x := reserve(t, p, lease("a", 1), 128)
		w := begin(t, x)
		w.Done()
		w.Abandon("too late")
		if s := p.Stats(); s.Held != 2 || s.Quarantined != 0 {
			t.Fatalf("a writer that had ended took the pages along: %+v", s)
		}
		check(t, p, f)
	})
	t.Run("fault", func(t *testing.T) {
		p, f := testPool(t, 3)
		x := reserve(t, p, lease("a", 1), 128)
		w := begin(t, x)
		x.Quarantine("stale page")
		w.Done()
		x.Release()
		if s := p.Stats(); s.Quarantined != 2 || s.Free != 1 || s.Tables != 0 || s.IntegrityFaults != 1 {
			t.Fatalf("%+v", s)
		}
		x.Quarantine("again") // the books have closed
		check(t, p, f)
	})
}
