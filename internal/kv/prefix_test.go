package kv

import (
	"errors"
	"testing"

	"bulkhead/kernels"
)

// published is a pool of count pages in which tenant a has cached the two full
// blocks of prompt (129 tokens), idle.
func published(t *testing.T, count int) (p *Pool, f *fakePages, prompt []int32, root [32]byte) {
	t.Helper()
	p, f = testPool(t, count)
	prompt = make([]int32, 129)
	for i := range prompt {
		prompt[i] = int32(i)
	}
	root = [32]byte{7}
	x, cached, err := p.ReserveWithPrefix(lease("a", 1), root, prompt, 129)
	if err != nil || cached != 0 {
		t.Fatal(cached, err)
	}
	fill(t, f, x, 0, 129)
	if err := x.Publish(); err != nil {
		t.Fatal(err)
	}
	x.Release()
	if s := p.Stats(); s.CachedIdle != 2 {
		t.Fatalf("%+v", s)
	}
	return p, f, prompt, root
}

// hit reserves prompt for a tenant and returns the cached tokens.
func hit(t *testing.T, p *Pool, l Lease, root [32]byte, prompt []int32) int {
	t.Helper()
	x, cached, err := p.ReserveWithPrefix(l, root, prompt, len(prompt))
	if err != nil {
		t.Fatal(err)
	}
	x.Release()
	return cached
}

// How far a prompt hits, at every border. At least one token is left over.
func TestPrefixBorders(t *testing.T) {
	p, f, prompt, root := published(t, 8)
	for n, want := range map[int]int{1: 0, 63: 0, 64: 0, 65: 64, 127: 64, 128: 64, 129: 128} {
		if got := hit(t, p, lease("a", 2), root, prompt[:n]); got != want {
			t.Errorf("prompt of %d: %d cached, want %d", n, got, want)
		}
	}
	other := append([]int32(nil), prompt...)
	other[63]++
	if got := hit(t, p, lease("a", 2), root, other); got != 0 {
		t.Errorf("another token in the first block: %d cached", got)
	}
	other[63]--
	other[64]++
	if got := hit(t, p, lease("a", 2), root, other); got != 64 {
		t.Errorf("another token in the second block: %d cached", got)
	}
	if got := hit(t, p, lease("a", 2), [32]byte{8}, prompt); got != 0 {
		t.Errorf("another model's root: %d cached", got)
	}
	if s := p.Stats(); s.IntegrityFaults != 0 || s.Cached != 2 {
		t.Errorf("an ordinary miss is no fault: %+v", s)
	}
	check(t, p, f)
}

// Tenants do not meet in the cache, with the same tokens and the same root.
// The control, tenant a itself, hits: the test can see a hit.
func TestPrefixTenants(t *testing.T) {
	p, f, prompt, root := published(t, 8)
	if got := hit(t, p, lease("a", 2), root, prompt); got != 128 {
		t.Fatalf("control: %d cached", got)
	}
	if got := hit(t, p, lease("b", 2), root, prompt); got != 0 {
		t.Fatalf("tenant b got %d tokens of tenant a", got)
	}
	if s := p.Stats(); s.IntegrityFaults != 0 {
		t.Fatalf("an ordinary miss counted as a fault: %+v", s)
	}
	check(t, p, f)
}

// Each comparison behind the key stands alone: a block that lies under the key
// of something else (a collision, or a broken cache) is refused, the cache is
// dropped, and the block never becomes free again.
func TestPrefixHitIsCompared(t *testing.T) {
	for _, tc := range []struct {
		name    string
		corrupt func(f *fakePages, b *block)
	}{
		{"tenant", func(f *fakePages, b *block) { b.tenant = "b" }},
		{"root", func(f *fakePages, b *block) { b.root[0]++ }},
		{"place", func(f *fakePages, b *block) { b.index++ }},
		{"tokens", func(f *fakePages, b *block) { b.tokens[63]++ }},
		{"owner in memory", func(f *fakePages, b *block) { f.tags[b.entry.Page].Owner++ }},
		{"generation in memory", func(f *fakePages, b *block) { f.tags[b.entry.Page].Generation++ }},
		{"unfilled layer", func(f *fakePages, b *block) { f.filled[b.entry.Page][1] = 63 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, f, prompt, root := published(t, 8)
			b := p.cache.blocks[newPrefix("a", root, prompt).keys[1]]
			page := b.entry.Page
			tc.corrupt(f, b)
			if got := hit(t, p, lease("a", 2), root, prompt); got != 0 {
				t.Fatalf("%d tokens of a block that is not what its key says", got)
			}
			s := p.Stats()
			if s.IntegrityFaults != 1 || s.Cached != 0 || s.Quarantined != 1 || p.book[page].state != stateQuarantined {
				t.Fatalf("%+v", s)
			}
			check(t, p, f)
		})
	}
}

// Only what memory shows to be complete can be published, and only while
// nobody writes.
func TestPublishIsChecked(t *testing.T) {
	start := func(t *testing.T) (*Pool, *fakePages, *Table) {
		p, f := testPool(t, 4)
		x, _, err := p.ReserveWithPrefix(lease("a", 1), [32]byte{1}, make([]int32, 130), 130)
		if err != nil {
			t.Fatal(err)
		}
		fill(t, f, x, 0, 130)
		return p, f, x
	}
	t.Run("plain table", func(t *testing.T) {
		p, f := testPool(t, 1)
		x := reserve(t, p, lease("a", 1), 64)
		fill(t, f, x, 0, 64)
		if err := x.Publish(); !errors.Is(err, ErrState) {
			t.Fatal(err)
		}
	})
	t.Run("writer live", func(t *testing.T) {
		_, _, x := start(t)
		begin(t, x)
		if err := x.Publish(); !errors.Is(err, ErrWriterLive) {
			t.Fatal(err)
		}
	})
	t.Run("ended", func(t *testing.T) {
		_, _, x := start(t)
		x.Release()
		if err := x.Publish(); !errors.Is(err, ErrEnded) {
			t.Fatal(err)
		}
	})
	t.Run("memory disagrees", func(t *testing.T) {
		p, f, x := start(t)
		f.filled[x.entries[1].Page][0] = 63
		if err := x.Publish(); !errors.Is(err, ErrIncomplete) {
			t.Fatal(err)
		}
		if s := p.Stats(); s.Cached != 0 {
			t.Fatalf("a part was published: %+v", s)
		}
		x.Quarantine("incomplete")
		check(t, p, f)
	})
	t.Run("twice", func(t *testing.T) {
		p, _, x := start(t)
		for range 2 {
			if err := x.Publish(); err != nil {
				t.Fatal(err)
			}
		}
		if s := p.Stats(); s.Cached != 2 {
			t.Fatalf("%+v", s)
		}
	})
}

// Published blocks never bear the lease of the request, so that ending the
// request cannot be mistaken for ending them.
func TestPublishedLease(t *testing.T) {
	p, f := testPool(t, 4)
	x, _, err := p.ReserveWithPrefix(lease("a", 1), [32]byte{1}, make([]int32, 130), 130)
	if err != nil {
		t.Fatal(err)
	}
	e := x.Entries()
	if e[0].Owner == x.Owner() || e[0].Owner != e[1].Owner || e[2].Owner != x.Owner() {
		t.Fatalf("owners %v, own %d", e, x.Owner())
	}
	fill(t, f, x, 0, 130)
	if err := x.Publish(); err != nil {
		t.Fatal(err)
	}
	for i, e := range x.Entries() {
		if err := kernels.CheckEntry(e, i, f.Tag(e.Page)); err != nil {
			t.Fatalf("publishing changed the tag of block %d: %v", i, err)
		}
	}
}

// A writer that is never fenced keeps the shared blocks that it may be reading
// out of eviction until it is done.
func TestAbandonPinsSharedBlocks(t *testing.T) {
	p, f, prompt, root := published(t, 4)
	x, cached, err := p.ReserveWithPrefix(lease("a", 2), root, prompt, 129)
	if err != nil || cached != 128 {
		t.Fatal(cached, err)
	}
	w := begin(t, x)
	w.Abandon("not fenced")
	x.Release()
	if s := p.Stats(); s.CachedIdle != 0 || s.Quarantined != 1 {
		t.Fatalf("%+v", s)
	}
	if _, err := p.Reserve(lease("b", 1), 128); !errors.Is(err, ErrNoPages) {
		t.Fatalf("a block under a live reader was evicted: %v", err)
	}
	w.Done()
	if s := p.Stats(); s.CachedIdle != 2 || s.Quarantined != 1 {
		t.Fatalf("%+v", s)
	}
	reserve(t, p, lease("b", 1), 192)
	check(t, p, f)
}

// Purge of one root leaves the others.
func TestPurgeRoot(t *testing.T) {
	p, f, prompt, root := published(t, 8)
	x, _, err := p.ReserveWithPrefix(lease("b", 1), [32]byte{9}, prompt, 129)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, f, x, 0, 129)
	if err := x.Publish(); err != nil {
		t.Fatal(err)
	}
	x.Release()
	p.Purge(root)
	if a, b := hit(t, p, lease("a", 2), root, prompt), hit(t, p, lease("b", 2), [32]byte{9}, prompt); a != 0 || b != 128 {
		t.Fatalf("a %d, b %d", a, b)
	}
	p.PurgeAll()
	if b := hit(t, p, lease("b", 2), [32]byte{9}, prompt); b != 0 {
		t.Fatal(b)
	}
	check(t, p, f)
	if s := p.Stats(); s.Free != s.Pages {
		t.Fatalf("%+v", s)
	}
}
