package attack

import (
	"errors"
	"slices"

	"bulkhead/internal/kv"
	"bulkhead/internal/mutant"
	"bulkhead/kernels"
)

// pool is the books over n pages.
type pool struct {
	*kv.Pool
	pages kernels.Pages
}

func (x *rig) pool(n int) pool {
	p, err := x.shared.NewPages(n)
	must(err)
	b, err := kv.NewPool(p, n*kernels.BlockTokens)
	must(err)
	return pool{b, p}
}

func lease(tenant string, n byte) kv.Lease {
	return kv.Lease{Tenant: tenant, Request: [16]byte{n}, Attempt: 1}
}

// fill writes the first tokens of a table, as a receiver of frames does.
func (p pool) fill(t *kv.Table, tokens int) {
	w, err := t.BeginWrite()
	must(err)
	l := p.pages.Layout()
	for i, e := range t.Entries() {
		n := min(kernels.BlockTokens, tokens-i*kernels.BlockTokens)
		if n <= 0 || p.pages.Filled(e.Page, 0) > 0 {
			continue
		}
		must(p.pages.Import(e, i, 0, l.Layers, n, plain(i, n*l.Layers*l.TokenLayerBytes())))
	}
	w.Done()
}

// share puts the full blocks of a prompt into the cache, and leaves them idle there.
func (p pool) share(tenant string, root [32]byte, prompt []int32) {
	t := p.prefix(tenant, root, prompt, 1)
	p.fill(t, len(prompt))
	must(t.MarkReady(len(prompt)))
	must(t.Publish())
	t.Release()
}

func (p pool) prefix(tenant string, root [32]byte, prompt []int32, n byte) *kv.Table {
	t, _, err := p.ReserveWithPrefix(lease(tenant, n), root, prompt, len(prompt))
	must(err)
	return t
}

// hit is nil if a prompt takes blocks from the cache.
func (p pool) hit(tenant string, root [32]byte, prompt []int32) error {
	_, cached, err := p.ReserveWithPrefix(lease(tenant, 2), root, prompt, len(prompt))
	must(err)
	if cached > 0 {
		return nil
	}
	return errors.New("nothing was taken from the cache")
}

func prompt(n int) []int32 {
	p := make([]int32, n)
	for i := range p {
		p[i] = int32(i % 200)
	}
	return p
}

func poolRows() []row {
	inMemory := func(name, want string, w []mutant.Check, move func(x *rig) error) row {
		return row{name, "memory", want, w, move}
	}
	return []row{
		inMemory("a node with a window over its pool starts", "exceeds this node's own capacity", walls(mutant.NodeWindow), func(*rig) error {
			_, err := kv.Window(1<<20, 681_280, false)
			return err
		}),
		inMemory("a reservation over the capacity", "capacity", walls(mutant.PoolCapacity), func(x *rig) error {
			p, err := x.shared.NewPages(2)
			must(err)
			b, err := kv.NewPool(p, 100)
			must(err)
			_, err = b.Reserve(lease("a", 1), 120)
			return err
		}),
		inMemory("a second table for a lease", "lease", walls(mutant.LeaseHeld), func(x *rig) error {
			p := x.pool(4)
			_, err := p.Reserve(lease("a", 1), 64)
			must(err)
			_, err = p.Reserve(lease("a", 1), 64)
			return err
		}),
		inMemory("pages are given away while a writer lives", "pages", walls(mutant.PageWriter), func(x *rig) error {
			p := x.pool(1)
			t, err := p.Reserve(lease("a", 1), 64)
			must(err)
			_, err = t.BeginWrite()
			must(err)
			t.Release()
			_, err = p.Reserve(lease("b", 2), 64)
			return err
		}),
		inMemory("a table is ready while a writer lives", "writer", walls(mutant.WriterLive), func(x *rig) error {
			p := x.pool(1)
			t, err := p.Reserve(lease("a", 1), 64)
			must(err)
			p.fill(t, 64)
			_, err = t.BeginWrite()
			must(err)
			return t.MarkReady(64)
		}),
		inMemory("a table is ready with a page that nobody filled", "page", walls(mutant.ReadyPages), func(x *rig) error {
			p := x.pool(2)
			t, err := p.Reserve(lease("a", 1), 128)
			must(err)
			p.fill(t, 64)
			return t.MarkReady(128)
		}),
		inMemory("the pages of a faulty table are used again", "pages", walls(mutant.Quarantine), func(x *rig) error {
			p := x.pool(1)
			t, err := p.Reserve(lease("a", 1), 64)
			must(err)
			p.fill(t, 64)
			t.Quarantine("a foreign page was read")
			_, err = p.Reserve(lease("b", 2), 64)
			return err
		}),
		inMemory("the pages of a writer that cannot be stopped are used again", "pages", walls(mutant.Quarantine), func(x *rig) error {
			p := x.pool(1)
			t, err := p.Reserve(lease("a", 1), 64)
			must(err)
			w, err := t.BeginWrite()
			must(err)
			w.Abandon("it does not answer")
			w.Done() // at last
			t.Release()
			_, err = p.Reserve(lease("b", 2), 64)
			return err
		}),
		inMemory("the cache outlives an integrity fault", "nothing was taken", walls(mutant.Purge), func(x *rig) error {
			p := x.pool(8)
			p.share("a", [32]byte{1}, prompt(130))
			t, err := p.Reserve(lease("b", 3), 64)
			must(err)
			p.fill(t, 64)
			t.Quarantine("a foreign page was read")
			return p.hit("a", [32]byte{1}, prompt(130))
		}),
		inMemory("a table over a condemned block is sound", "condemned", walls(mutant.Suspect), func(x *rig) error {
			p := x.pool(8)
			p.share("a", [32]byte{1}, prompt(130))
			t := p.prefix("a", [32]byte{1}, prompt(130), 2)
			u := p.prefix("a", [32]byte{1}, prompt(130), 3)
			u.Quarantine("a foreign page was read")
			return t.Sound()
		}),
		inMemory("a tenant takes another's blocks from the cache", "nothing was taken", walls(mutant.PrefixRoot, mutant.PrefixCompare), func(x *rig) error {
			p := x.pool(8)
			p.share("a", [32]byte{1}, prompt(130))
			return p.hit("b", [32]byte{2}, prompt(130))
		}),
		inMemory("a tenant takes another's blocks where nothing keeps them apart", "nothing was taken", walls(mutant.PrefixTenant), func(x *rig) error {
			p := x.pool(8)
			p.share("a", [32]byte{1}, prompt(130))
			return p.hit("b", [32]byte{2}, prompt(130))
		}),
		inMemory("a prompt takes the blocks of another prompt", "nothing was taken", walls(mutant.PrefixChain, mutant.PrefixTokens), func(x *rig) error {
			p := x.pool(8)
			p.share("a", [32]byte{1}, prompt(130))
			other := slices.Clone(prompt(130))
			other[7]++
			return p.hit("a", [32]byte{1}, other)
		}),
		inMemory("a cached page that was changed behind the books is taken", "nothing was taken", walls(mutant.PrefixFilled), func(x *rig) error {
			p := x.pool(8)
			p.share("a", [32]byte{1}, prompt(130))
			p.pages.(interface{ Swap(a, b kernels.PageID) }).Swap(0, 1)
			return p.hit("a", [32]byte{1}, prompt(130))
		}),
		inMemory("a table is published before it was compared", "publish", walls(mutant.PublishReady), func(x *rig) error {
			p := x.pool(8)
			t := p.prefix("a", [32]byte{1}, prompt(130), 1)
			p.fill(t, 130)
			return t.Publish()
		}),
		inMemory("a block is published that is not full", "page", walls(mutant.PublishFilled), func(x *rig) error {
			p := x.pool(8)
			t := p.prefix("a", [32]byte{1}, prompt(130), 1)
			p.fill(t, 64)
			must(t.MarkReady(64))
			return t.Publish()
		}),
	}
}
