package kv

import (
	"errors"
	"slices"
	"testing"

	"bulkhead/kernels"

	"pgregory.net/rapid"
)

// TestPoolModel runs random operations against a small model of what each
// table may expect: 100 histories, in all more than 100,000 operations that had
// an effect (fewer where every one is checked twice, with invariants). After
// every one:
//
//   - the books hold together and every free page is zero;
//   - a table whose request or writer lives reads only slots of its own tenant,
//     and those of another request only where the prompts agree up to the
//     block's end;
//   - a table that ended is refused at every page that was its own;
//   - a lease number never comes back, a page's generation never falls, and a
//     page in quarantine never moves;
//   - a reservation fails exactly when the pages are not there.
//
// rapid prints the seed and shrinks the history when one of them fails.
func TestPoolModel(t *testing.T) {
	histories, operations, floor := 100, 5500, 100_000
	if invariants {
		operations, floor = 500, 5_000
	}
	ran := map[string]int{}
	done, hits := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		if done++; done > histories && !t.Failed() {
			return
		}
		m := newModel(t, rapid.SampledFrom([]int{8, 12, 4, 16, 2, 1}).Draw(t, "pages"))
		for i := range operations {
			name := rapid.SampledFrom(modelOps).Draw(t, "op")
			if m.step(name) {
				ran[name]++
			}
			m.verify(i%5 == 0)
		}
		hits += int(m.pool.Stats().HitBlocks)
		m.drain()
	})
	total := 0
	for _, n := range ran {
		total += n
	}
	t.Logf("%d histories, %d prefix blocks shared, %d operations that had an effect: %v", done, hits, total, ran)
	if hits == 0 || total < floor {
		t.Errorf("too little happened; the floor is %d operations", floor)
	}
	for _, name := range modelOps { // a history that never gets anywhere shows nothing
		if ran[name] == 0 && !invariants { // the short histories may miss the rare ones
			t.Errorf("%s never ran", name)
		}
	}
}

// modelOps: rapid draws the first ones more often than the last.
var modelOps = []string{
	"compute", "prefix", "done", "publish", "ready", "begin", "release", "reserve",
	"prefix", "begin", "compute", "done", "ready", "publish", "abandon", "quarantine", "purge",
}

type modelTable struct {
	*Table
	prompt   []int32 // nil: reserved without
	cached   int     // tokens
	written  int     // tokens
	writers  []*Writer
	ready    bool
	shared   bool // published
	released bool
	ended    bool // quarantined or abandoned
}

func (m *modelTable) live() bool { return !m.released && !m.ended }

// over: both lifetimes ended.
func (m *modelTable) over() bool { return !m.live() && len(m.writers) == 0 }

type model struct {
	t      *rapid.T
	pool   *Pool
	fake   *fakePages
	tables []*modelTable // that the test still knows, ended ones too
	byReq  map[[2]byte]*modelTable
	next   int
	owners map[kernels.Owner]bool
	gens   []uint32
	stuck  map[kernels.PageID]bool
	// abandoned or quarantined pages are few at first, so that histories get far
	faults int
}

func newModel(t *rapid.T, pages int) *model {
	f := newFake(pages)
	p, err := newPool(f, pages*kernels.BlockTokens, 0)
	if err != nil {
		t.Fatal(err)
	}
	return &model{
		t: t, pool: p, fake: f, byReq: map[[2]byte]*modelTable{}, owners: map[kernels.Owner]bool{},
		gens: make([]uint32, pages), stuck: map[kernels.PageID]bool{},
	}
}

// pick a table that the operation can apply to; nil if there is none.
func (m *model) pick(ok func(*modelTable) bool) *modelTable {
	var fit []*modelTable
	for _, x := range m.tables {
		if ok(x) {
			fit = append(fit, x)
		}
	}
	if len(fit) == 0 {
		return nil
	}
	return fit[rapid.IntRange(0, len(fit)-1).Draw(m.t, "table")]
}

// step applies one operation and reports whether there was something to do.
func (m *model) step(name string) bool {
	switch name {
	case "reserve":
		return m.reserve(nil)
	case "prefix":
		// Prompts are cut from few sources, so that prefixes meet.
		n := 64*rapid.SampledFrom([]int{2, 1, 3, 1, 2, 0}).Draw(m.t, "blocks") + rapid.SampledFrom([]int{0, 1, 2, 63}).Draw(m.t, "rest")
		if n == 0 {
			return false
		}
		source := rapid.SampledFrom([]int32{0, 0, 0, 1000}).Draw(m.t, "source")
		turn := rapid.SampledFrom([]int{64, 128, 1 << 20}).Draw(m.t, "turn")
		prompt := make([]int32, n)
		for i := range prompt {
			prompt[i] = int32(i)
			if i >= turn {
				prompt[i] += source
			}
		}
		return m.reserve(prompt)
	case "purge":
		if rapid.IntRange(0, 63).Draw(m.t, "rare") != 20 {
			return false
		}
		m.pool.PurgeAll()
		return true
	case "begin":
		x := m.pick(func(x *modelTable) bool { return !x.over() && len(x.writers) < 3 })
		if x == nil {
			return false
		}
		w, err := x.BeginWrite()
		if (err == nil) != x.live() || err != nil && !errors.Is(err, ErrEnded) {
			m.t.Fatalf("begin: %v, live %v", err, x.live())
		}
		if err == nil {
			x.writers = append(x.writers, w)
		}
		return err == nil
	case "compute":
		// Also after release: that is the late writer.
		x := m.pick(func(x *modelTable) bool { return len(x.writers) > 0 && x.written < x.Tokens() })
		if x == nil {
			return false
		}
		to := x.Tokens()
		if x.prompt != nil && x.written < len(x.prompt) {
			to = len(x.prompt)
		}
		if rapid.IntRange(0, 7).Draw(m.t, "part") == 7 {
			to = rapid.IntRange(x.written+1, to).Draw(m.t, "to")
		}
		if err := m.fake.compute(x.Table, x.written, to); err != nil {
			m.t.Fatalf("compute [%d, %d): %v", x.written, to, err)
		}
		x.written = to
		return true
	case "done":
		x := m.pick(func(x *modelTable) bool { return len(x.writers) > 0 })
		if x == nil {
			return false
		}
		x.writers[0].Done()
		x.writers = x.writers[1:]
		return true
	case "ready":
		x := m.pick(func(x *modelTable) bool { return !x.ready && x.written > 0 })
		if x == nil {
			return false
		}
		err := x.MarkReady(x.written)
		switch {
		case err == nil && x.live() && len(x.writers) == 0:
			x.ready = true
		case errors.Is(err, ErrEnded) && !x.live():
		case errors.Is(err, ErrWriterLive) && len(x.writers) > 0:
		case errors.Is(err, ErrSuspect) && x.cached > 0 && m.faults > 0:
		case errors.Is(err, ErrState) && x.written == x.cached: // no writer yet
		default:
			m.t.Fatalf("ready: %v", err)
		}
		return err == nil
	case "publish":
		x := m.pick(func(x *modelTable) bool { return x.prompt != nil && x.ready })
		if x == nil {
			return false
		}
		err := x.Publish()
		switch {
		case err == nil && x.live() && len(x.writers) == 0 && x.written >= len(x.prompt):
			x.shared = true
		case errors.Is(err, ErrIncomplete) && x.written < len(x.prompt)/64*64:
		case err == nil && x.written >= len(x.prompt)/64*64:
			x.shared = true
		case errors.Is(err, ErrEnded) && !x.live():
		case errors.Is(err, ErrWriterLive) && len(x.writers) > 0:
		default:
			m.t.Fatalf("publish: %v", err)
		}
		return err == nil
	case "release":
		early := rapid.IntRange(0, 3).Draw(m.t, "early") == 0
		x := m.pick(func(x *modelTable) bool { return !x.released && (early || x.prompt == nil || x.shared) })
		if x == nil {
			return false
		}
		x.Release()
		x.released = true
		return true
	case "abandon", "quarantine":
		if m.faults >= 2 || rapid.IntRange(0, 63).Draw(m.t, "rare") != 20 {
			return false
		}
		x := m.pick(func(x *modelTable) bool {
			return len(x.writers) > 0 && !x.ended && 3*(len(m.stuck)+len(x.Entries())) <= 2*len(m.gens)
		})
		if x == nil {
			return false
		}
		m.faults++
		x.ended = true
		for _, e := range x.Entries() {
			if m.pool.book[e.Page].table == x.Table {
				m.stuck[e.Page] = true
			}
		}
		if name == "abandon" {
			x.writers[0].Abandon("test")
		} else {
			x.Quarantine("test")
		}
		return true
	}
	m.t.Fatalf("unknown operation %s", name)
	return false
}

func (m *model) reserve(prompt []int32) bool {
	m.next++
	l := Lease{
		Tenant:  rapid.SampledFrom([]string{"a", "a", "b"}).Draw(m.t, "tenant"),
		Request: [16]byte{byte(m.next >> 8), byte(m.next)},
	}
	x := &modelTable{prompt: prompt}
	tokens := len(prompt) + rapid.IntRange(0, 100).Draw(m.t, "new")
	if prompt == nil {
		tokens = rapid.SampledFrom([]int{1, 64, 65, 130, 64 * len(m.gens), 64*len(m.gens) + 1}).Draw(m.t, "tokens")
	}
	before := m.pool.Stats()
	var err error
	if prompt == nil {
		x.Table, err = m.pool.Reserve(l, tokens)
	} else {
		// One root for both tenants: the cache must part them all the same.
		x.Table, x.cached, err = m.pool.ReserveWithPrefix(l, [32]byte{1}, prompt, tokens)
	}
	var none *NoPagesError
	switch {
	case tokens > before.CapacityTokens:
		if !errors.Is(err, ErrTooLong) {
			m.t.Fatalf("reserve %d of %d: %v", tokens, before.CapacityTokens, err)
		}
		return false
	case errors.As(err, &none):
		if none.Need <= none.Free || pagesFor(tokens) <= before.Free || m.pool.Stats() != before {
			m.t.Fatalf("reserve %d tokens: %v; %+v became %+v", tokens, err, before, m.pool.Stats())
		}
		return false
	case err != nil:
		m.t.Fatalf("reserve: %v", err)
	case tokens > before.FreeTokens && x.cached == 0:
		m.t.Fatalf("reserved %d tokens where %d were free", tokens, before.FreeTokens)
	}
	if x.cached%64 != 0 || x.cached > 0 && x.cached >= len(prompt) {
		m.t.Fatalf("%d cached tokens of a prompt of %d", x.cached, len(prompt))
	}
	x.written = x.cached
	fresh := map[kernels.Owner]bool{}
	for i, e := range x.Entries() {
		if m.stuck[e.Page] {
			m.t.Fatalf("page %d came back from quarantine", e.Page)
		}
		if i >= x.cached/64 {
			if m.owners[e.Owner] || e.Generation <= m.gens[e.Page] {
				m.t.Fatalf("lease %d or generation %d of page %d was used before", e.Owner, e.Generation, e.Page)
			}
			m.gens[e.Page] = e.Generation
			fresh[e.Owner] = true
		}
	}
	for o := range fresh {
		m.owners[o] = true
	}
	m.tables = append(m.tables, x)
	if len(m.tables) > 20 { // forget the oldest that is over
		if i := slices.IndexFunc(m.tables, (*modelTable).over); i >= 0 {
			m.tables = slices.Delete(m.tables, i, i+1)
		}
	}
	m.byReq[[2]byte{l.Request[0], l.Request[1]}] = x
	return true
}

// verify checks what the list above promises; all that tables read, which is
// most of the time, only when told to.
func (m *model) verify(reads bool) {
	if err := m.pool.CheckIntegrity(); err != nil {
		m.t.Fatal(err)
	}
	for _, id := range m.pool.free {
		if !m.fake.Zeroed(id) {
			m.t.Fatalf("page %d is free and not zero", id)
		}
	}
	for id := range m.stuck {
		if m.pool.book[id].state != stateQuarantined {
			m.t.Fatalf("page %d left quarantine", id)
		}
	}
	for _, x := range m.tables {
		if x.over() {
			m.verifyOver(x)
			continue
		}
		if !reads {
			continue
		}
		marks, err := m.fake.read(x.Table, x.written)
		if err != nil {
			m.t.Fatalf("read of a live table: %v", err)
		}
		for pos, mk := range marks {
			tenant, req, _ := unmark(mk)
			from := m.byReq[req]
			if tenant != x.lease.Tenant {
				m.t.Fatalf("tenant %s reads position %d of tenant %s", x.lease.Tenant, pos, tenant)
			}
			if end := pos/64*64 + 64; from.Table != x.Table && (pos >= x.cached || !slices.Equal(from.prompt[:end], x.prompt[:end])) {
				m.t.Fatalf("request %v reads position %d of request %v, whose prompt differs", x.lease.Request, pos, req)
			}
		}
	}
}

// verifyOver: attention refuses every page that was x's own.
func (m *model) verifyOver(x *modelTable) {
	for i, e := range x.Entries() {
		if i < x.cached/64 || x.shared && i < len(x.prompt)/64 || m.stuck[e.Page] {
			continue
		}
		if kernels.CheckEntry(e, i, m.fake.Tag(e.Page)) == nil {
			m.t.Fatalf("an ended table still reads page %d", e.Page)
		}
	}
}

// drain ends everything: the pool is back at its baseline.
func (m *model) drain() {
	for _, x := range m.tables {
		x.Release()
		for _, w := range x.writers {
			w.Done()
		}
	}
	m.pool.PurgeAll()
	if s := m.pool.Stats(); s.Tables != 0 || s.Free+s.Quarantined != s.Pages {
		m.t.Fatalf("pages leaked: %+v", s)
	}
}
