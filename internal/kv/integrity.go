package kv

import (
	"fmt"

	"bulkhead/kernels"
)

// Stats counts pages by what they are, at one moment. Free + Held + Cached +
// Dirty + Quarantined == Pages.
type Stats struct {
	Pages       int
	Free        int
	Held        int // reserved, filling or ready: of one table each
	Cached      int // complete prefix blocks, in use or idle
	CachedIdle  int // the part of Cached that a reservation may evict
	Dirty       int // waiting for a writer to end, or for the scrub
	Quarantined int

	Tables         int // not yet ended, or with a writer live
	CapacityTokens int // the most one sequence may hold
	FreeTokens     int // what one reservation may ask for now, at most

	HitBlocks       uint64 // blocks taken from the prefix cache
	Evictions       uint64 // idle cached blocks given to a reservation
	IntegrityFaults uint64 // tables quarantined and cache contradictions
}

// Stats counts the pages.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{
		Pages: len(p.book), Tables: len(p.tables), CapacityTokens: p.capacity, CachedIdle: p.cache.idle.Len(),
		HitBlocks: p.counters.hitBlocks, Evictions: p.counters.evictions, IntegrityFaults: p.counters.integrityFaults,
	}
	for i := range p.book {
		switch p.book[i].state {
		case stateFree:
			s.Free++
		case stateReserved, stateFilling, stateReady:
			s.Held++
		case stateCached:
			s.Cached++
		case stateDirty:
			s.Dirty++
		case stateQuarantined:
			s.Quarantined++
		}
	}
	s.FreeTokens = min((s.Free+s.CachedIdle)*kernels.BlockTokens, p.capacity)
	return s
}

// Quarantined is one page that is out of use, and why.
type Quarantined struct {
	Page   kernels.PageID
	Owner  kernels.Owner // whose it was
	Reason string
}

// Quarantined lists the pages that are out of use, for the audit log.
func (p *Pool) Quarantined() []Quarantined {
	p.mu.Lock()
	defer p.mu.Unlock()
	var q []Quarantined
	for i, pg := range p.book {
		if pg.state == stateQuarantined {
			q = append(q, Quarantined{kernels.PageID(i), pg.owner, pg.reason})
		}
	}
	return q
}

// CheckIntegrity compares the books with themselves and with the tags in
// memory. It reads no page's bytes. Error: ErrIntegrity, naming the invariant.
// A node runs it when idle; after an error nothing that the pool says holds.
func (p *Pool) CheckIntegrity() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.check()
}

// Asserts says whether this build checks the books after every change, and
// panics where memory contradicts them.
const Asserts = invariants

// assert runs the checks in builds with invariants. Caller holds mu.
func (p *Pool) assert() {
	if !invariants {
		return
	}
	if err := p.check(); err != nil {
		panic("kv: internal error: " + err.Error())
	}
}

// The invariants, by the names that an IntegrityError gives.
const (
	checkState  = "one state"       // each page is in exactly one state, and in that state's one place
	checkHolder = "one holder"      // a held page is in one table, once
	checkShare  = "counted readers" // a cached page has one block, read by as many tables as it counts, of its tenant
	checkTotal  = "total"           // free + held + cached + dirty + quarantined == pages
	checkLease  = "one lease"       // lease numbers are given once; one table per lease
	checkTag    = "tag"             // memory says of each page what the books say
)

// check is CheckIntegrity under the lock.
func (p *Pool) check() error {
	readers, err := p.checkTables()
	if err != nil {
		return err
	}
	if err := p.checkCache(readers); err != nil {
		return err
	}
	return p.checkPages()
}

// checkTables walks the tables: each page they list must name them back.
func (p *Pool) checkTables() (readers map[*block]int, err error) {
	readers = make(map[*block]int)
	owners := make(map[kernels.Owner]*Table, len(p.tables))
	if len(p.tables) != len(p.leases) {
		return nil, &IntegrityError{checkLease, -1, fmt.Sprintf("%d tables, %d leases", len(p.tables), len(p.leases))}
	}
	for t := range p.tables {
		if p.leases[t.lease] != t {
			return nil, &IntegrityError{checkLease, -1, "a table is not the one of its lease"}
		}
		if t.gone || len(t.blocks) != len(t.entries) || len(t.entries) != pagesFor(t.tokens) {
			return nil, &IntegrityError{checkLease, -1, "a table is not what it was reserved as"}
		}
		if owners[t.owner] != nil || t.owner == 0 {
			return nil, &IntegrityError{checkLease, -1, "a lease number was given twice"}
		}
		owners[t.owner] = t
		for i, e := range t.entries {
			if b := t.blocks[i]; b != nil {
				if b.tenant != t.lease.Tenant {
					return nil, &IntegrityError{checkShare, e.Page, "read by another tenant"}
				}
				if b.entry != e || b.index != i {
					return nil, &IntegrityError{checkShare, e.Page, "the table expects another block"}
				}
				readers[b]++
				continue
			}
			if err := p.checkHeld(t, i, e); err != nil {
				return nil, err
			}
		}
	}
	return readers, nil
}

// checkHeld checks one page that is t's own.
func (p *Pool) checkHeld(t *Table, i int, e kernels.Entry) error {
	pg := &p.book[e.Page]
	if pg.state == stateQuarantined && t.stage == stateQuarantined {
		return nil
	}
	if pg.table != t || pg.index != uint32(i) {
		return &IntegrityError{checkHolder, e.Page, "listed by a table that does not hold it"}
	}
	if pg.owner != e.Owner || pg.gen != e.Generation || e.Owner == 0 {
		return &IntegrityError{checkHolder, e.Page, "the table expects another owner or generation"}
	}
	if pg.state != t.stage && !(pg.moving && pg.state == stateDirty && t.stage == stateReserved) {
		return &IntegrityError{checkState, e.Page, fmt.Sprintf("%v in a table that is %v", pg.state, t.stage)}
	}
	return nil
}

// checkCache walks the prefix cache and the blocks that tables still read.
func (p *Pool) checkCache(readers map[*block]int) error {
	idle := 0
	for key, b := range p.cache.blocks {
		if b.key != key || b.detached || len(b.tokens) != kernels.BlockTokens {
			return &IntegrityError{checkShare, b.entry.Page, "found under a key that is not its own"}
		}
		if (b.refs == 0) != (b.idle != nil) {
			return &IntegrityError{checkShare, b.entry.Page, "idle and read at once"}
		}
		if b.idle != nil {
			idle++
		}
		if p.book[b.entry.Page].block != b || b.refs != readers[b] {
			return &IntegrityError{checkShare, b.entry.Page, fmt.Sprintf("%d readers counted, %d found", b.refs, readers[b])}
		}
	}
	if idle != p.cache.idle.Len() {
		return &IntegrityError{checkShare, -1, "the eviction order lists other blocks than the cache"}
	}
	for b, n := range readers {
		if p.book[b.entry.Page].block != b || b.refs != n {
			return &IntegrityError{checkShare, b.entry.Page, fmt.Sprintf("%d readers counted, %d found", b.refs, n)}
		}
		if b.detached == (p.cache.blocks[b.key] == b) {
			return &IntegrityError{checkShare, b.entry.Page, "purged and findable at once"}
		}
	}
	return nil
}

// checkPages walks the pages: each is in its state's place, and memory agrees.
func (p *Pool) checkPages() error {
	var count [stateCount]int
	listed := make([]bool, len(p.book))
	for _, id := range p.free {
		if listed[id] {
			return &IntegrityError{checkState, id, "twice in the free list"}
		}
		if s := p.book[id].state; s != stateFree {
			return &IntegrityError{checkState, id, fmt.Sprintf("%v and in the free list", s)}
		}
		listed[id] = true
	}
	for i := range p.book {
		id, pg := kernels.PageID(i), &p.book[i]
		if pg.state >= stateCount {
			return &IntegrityError{checkState, id, pg.state.String()}
		}
		count[pg.state]++
		if pg.state == stateFree && !listed[i] {
			return &IntegrityError{checkState, id, "free and not in the free list"}
		}
		if err := p.checkPlace(id, pg); err != nil {
			return err
		}
		if pg.moving || pg.state == stateQuarantined {
			continue // memory belongs to whoever moves it, or to nobody
		}
		want := kernels.Tag{Owner: pg.owner, Generation: pg.gen, Index: pg.index}
		if pg.state == stateFree {
			want = kernels.Tag{}
		}
		if tag := p.pages.Tag(id); tag != want {
			return &IntegrityError{checkTag, id, fmt.Sprintf("tag %v, books %v", tag, want)}
		}
	}
	total := 0
	for _, n := range count {
		total += n
	}
	if total != p.pages.Count() {
		return &IntegrityError{checkTotal, -1, fmt.Sprintf("%d pages in the books, %d in memory", total, p.pages.Count())}
	}
	return nil
}

// checkPlace checks that a page has the holder that its state calls for.
func (p *Pool) checkPlace(id kernels.PageID, pg *page) error {
	_, held := p.tables[pg.table]
	var ok bool
	switch pg.state {
	case stateFree:
		ok = pg.table == nil && pg.block == nil && pg.owner == 0 && !pg.moving
	case stateReserved, stateFilling, stateReady:
		ok = held && pg.block == nil && !pg.moving && p.lists(pg.table, id)
	case stateCached:
		ok = pg.table == nil && pg.block != nil && pg.block.entry.Page == id && !pg.moving &&
			(pg.block.refs > 0 || !pg.block.detached) &&
			pg.owner == pg.block.entry.Owner && pg.gen == pg.block.entry.Generation
	case stateDirty:
		ok = pg.block == nil && (pg.moving || held && pg.table.writers > 0 && p.lists(pg.table, id))
	case stateQuarantined:
		ok = pg.table == nil && pg.block == nil && pg.reason != "" && !pg.moving
	}
	if !ok {
		return &IntegrityError{checkHolder, id, fmt.Sprintf("%v without the holder of that state", pg.state)}
	}
	return nil
}

// lists reports whether t's own pages include id, at the index in the books.
func (p *Pool) lists(t *Table, id kernels.PageID) bool {
	i := int(p.book[id].index)
	return i < len(t.entries) && t.entries[i].Page == id && t.blocks[i] == nil
}
