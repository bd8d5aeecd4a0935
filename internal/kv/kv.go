// Package kv owns the books of a KV pool: who holds each page, for which
// tenant, in which state, and when it is clean. The bytes and the tags that
// attention reads live in a [kernels.Pages]; kv decides what they may say.
//
// The main type is [Pool]. A sequence reserves all its pages at once:
//
//	t, err := pool.Reserve(kv.Lease{Tenant: "acme", Request: id}, prompt+maxNew)
//	w, err := t.BeginWrite()       // the writer's lifetime starts
//	... import or compute, always with t.Entries() ...
//	w.Done()                       // nobody writes any more
//	err = t.MarkReady(prompt)      // memory is compared with the books
//	...
//	t.Release()                    // the request's lifetime ends
//
// Promises, each one a named check of [Pool.CheckIntegrity] (DESIGN.md beside
// this file draws the states):
//
//   - Every page is in exactly one state, and a held page has one holder.
//   - A page is free only when the request that held it has ended and every
//     writer into it has ended, and after its bytes were zeroed. A writer that
//     cannot be fenced sends its pages to quarantine, never to the free list.
//   - The owner of a page is a lease number that is never used twice; the
//     generation is raised each time the page is freed. A table that outlives
//     its pages is therefore refused by attention, not served.
//   - Pages are shared only within a tenant, only when complete, and only
//     through the prefix cache ([Pool.ReserveWithPrefix], [Table.Publish]).
//
// A broken promise panics with "kv: internal error" where going on could mix
// tenants. With the build tag invariants, which -race implies, every change of
// the books is followed by a full check, and freed pages are scribbled over
// before they are zeroed.
//
// Not for: moving bytes, checking frames, or deciding who may run.
package kv

import (
	"container/list"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"

	"bulkhead/internal/mutant"
	"bulkhead/kernels"
)

// Lease says for whom pages are held: one child sequence of one attempt at one
// request of one tenant. A pool holds at most one table for a Lease at a time.
type Lease struct {
	Tenant  string
	Request [16]byte
	Child   uint16
	Attempt uint16
}

// Pool is a fixed set of pages. Safe for concurrent use.
type Pool struct {
	pages    kernels.Pages
	capacity int // tokens
	layers   int

	mu sync.Mutex
	// Below: guarded by mu. Pages marked as moving belong to the goroutine
	// that is scrubbing or claiming them, until it takes mu again.
	book      []page
	free      []kernels.PageID // stack
	tables    map[*Table]struct{}
	leases    map[Lease]*Table
	lastOwner kernels.Owner
	cache     prefixCache
	counters  counters
}

// page is one line of the books.
type page struct {
	state  state
	moving bool // being scrubbed or claimed outside the lock; state is dirty
	gen    uint32
	owner  kernels.Owner // the lease in the tag; 0 when free
	index  uint32        // logical index in the tag
	table  *Table        // the one holder; nil when free, cached or past its request
	block  *block        // the cached block; nil unless cached
	reason string        // why it is in quarantine
}

// state of a page.
type state uint8

const (
	stateFree        state = iota // zeroed, no tag, in the free list
	stateReserved                 // tagged for a table, nothing written
	stateFilling                  // a writer has begun
	stateReady                    // complete and compared with the books
	stateCached                   // complete, immutable, shared within a tenant
	stateDirty                    // request over; waits for its writer or for the scrub
	stateQuarantined              // never used again in this process
	stateCount
)

var stateNames = [stateCount]string{"free", "reserved", "filling", "ready", "cached", "dirty", "quarantined"}

func (s state) String() string {
	if s < stateCount {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

type counters struct {
	hitBlocks, evictions, integrityFaults uint64
}

// NewPool makes the books for pages, which must be scrubbed and unclaimed.
// capacityTokens is the most tokens that a single sequence may hold; the pool
// must have exactly the pages for it, so that the advertised capacity and the
// memory cannot drift apart.
func NewPool(pages kernels.Pages, capacityTokens int) (*Pool, error) {
	var start [8]byte
	rand.Read(start[:]) // never fails: crypto/rand aborts the process instead
	return newPool(pages, capacityTokens, kernels.Owner(binary.LittleEndian.Uint64(start[:])))
}

// newPool is NewPool with a chosen start of the lease counter.
func newPool(pages kernels.Pages, capacityTokens int, lastOwner kernels.Owner) (*Pool, error) {
	if capacityTokens < 1 {
		return nil, fmt.Errorf("kv: capacity of %d tokens", capacityTokens)
	}
	if want := pagesFor(capacityTokens); pages.Count() != want {
		return nil, fmt.Errorf("kv: %d pages for a capacity of %d tokens; it takes %d", pages.Count(), capacityTokens, want)
	}
	n := pages.Count()
	p := &Pool{
		pages:     pages,
		capacity:  capacityTokens,
		layers:    pages.Layout().Layers,
		book:      make([]page, n),
		free:      make([]kernels.PageID, 0, n),
		tables:    make(map[*Table]struct{}),
		leases:    make(map[Lease]*Table),
		lastOwner: lastOwner,
		cache:     prefixCache{blocks: make(map[chainKey]*block), idle: list.New()},
	}
	for i := n - 1; i >= 0; i-- { // page 0 is taken first
		id := kernels.PageID(i)
		if t := pages.Tag(id); t.Owner != 0 {
			return nil, fmt.Errorf("kv: page %d already bears the tag of lease %d", id, t.Owner)
		}
		p.book[i].gen = 1
		p.free = append(p.free, id)
	}
	return p, nil
}

// pagesFor is the count of pages that hold n tokens.
func pagesFor(n int) int { return (n + kernels.BlockTokens - 1) / kernels.BlockTokens }

// nextOwner gives a lease number that was never given before. Caller holds mu.
func (p *Pool) nextOwner() kernels.Owner {
	p.lastOwner++
	if p.lastOwner == 0 { // 0 is nobody
		p.lastOwner++
	}
	return p.lastOwner
}

// Reserve takes all the pages for tokens at once, cleaned and tagged for l, or
// none. Errors: ErrTooLong, ErrNoPages, ErrLeaseHeld, ErrLease.
func (p *Pool) Reserve(l Lease, tokens int) (*Table, error) {
	t := &Table{pool: p, lease: l, tokens: tokens}
	if err := p.reserve(t); err != nil {
		return nil, err
	}
	return t, nil
}

// ReserveWithPrefix is Reserve for a prompt whose leading blocks may be in the
// prefix cache. root names the tenant's chain: HMAC(tenant key, model
// fingerprint), from the caller. The first cached tokens of the table are
// complete pages shared with other requests of the tenant: they may be read
// and never written. cached is a multiple of BlockTokens and smaller than the
// prompt, so that at least one token is always computed. prompt is copied.
func (p *Pool) ReserveWithPrefix(l Lease, root [32]byte, prompt []int32, tokens int) (t *Table, cached int, err error) {
	if len(prompt) < 1 || tokens < len(prompt) {
		return nil, 0, fmt.Errorf("%w: prompt of %d tokens in a reservation of %d", ErrLease, len(prompt), tokens)
	}
	t = &Table{pool: p, lease: l, tokens: tokens, prefix: newPrefix(l.Tenant, root, prompt)}
	if err := p.reserve(t); err != nil {
		return nil, 0, err
	}
	return t, t.cached * kernels.BlockTokens, nil
}

// reserve finds, cleans and tags the pages of t.
func (p *Pool) reserve(t *Table) error {
	if t.lease.Tenant == "" {
		return fmt.Errorf("%w: no tenant", ErrLease)
	}
	if t.tokens < 1 {
		return fmt.Errorf("%w: reservation of %d tokens", ErrLease, t.tokens)
	}
	if t.tokens > p.capacity && !mutant.Off(mutant.PoolCapacity) {
		return &TooLongError{Limit: p.capacity, Value: t.tokens}
	}
	scrub, err := p.enter(t)
	if err != nil {
		return err
	}
	for _, id := range scrub {
		p.scrub(id)
	}
	for i, e := range t.entries[t.cached:] {
		p.claim(e, t.cached+i)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range t.entries[t.cached:] {
		pg := &p.book[e.Page]
		pg.state, pg.moving = stateReserved, false
	}
	p.assert()
	return nil
}

// enter writes t into the books with its pages in transit, and returns those
// that were evicted from the prefix cache and must be scrubbed first.
func (p *Pool) enter(t *Table) (scrub []kernels.PageID, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	hits, ok := p.lookup(t.prefix)
	for !ok { // the cache contradicted the memory: it is dropped, the request computes everything
		p.unlockAndRetire(p.purge(nil))
		p.mu.Lock()
		hits, ok = p.lookup(t.prefix)
	}
	if _, held := p.leases[t.lease]; held && !mutant.Off(mutant.LeaseHeld) {
		return nil, ErrLeaseHeld
	}
	need := pagesFor(t.tokens) - len(hits)
	for _, b := range hits { // before eviction, which must not take them
		p.ref(b)
	}
	if avail := len(p.free) + p.cache.idle.Len(); need > avail {
		for i := len(hits) - 1; i >= 0; i-- {
			p.unref(hits[i]) // none is detached: they were just found
		}
		return nil, &NoPagesError{Need: need, Free: avail}
	}

	t.cached = len(hits)
	t.stage = stateReserved
	t.owner = p.nextOwner()
	prefixOwner := p.nextOwner()
	t.entries = make([]kernels.Entry, 0, t.cached+need)
	t.blocks = make([]*block, t.cached+need)
	for i, b := range hits {
		t.entries = append(t.entries, b.entry)
		t.blocks[i] = b
	}
	for i := t.cached; i < t.cached+need; i++ {
		id, evicted := p.take()
		if evicted {
			scrub = append(scrub, id)
		}
		owner := t.owner
		if i < t.prefix.full() {
			owner = prefixOwner // may be published: never bears the request's lease
		}
		pg := &p.book[id]
		*pg = page{state: stateDirty, moving: true, gen: pg.gen, owner: owner, index: uint32(i), table: t}
		t.entries = append(t.entries, kernels.Entry{Page: id, Owner: owner, Generation: pg.gen})
	}
	p.tables[t] = struct{}{}
	p.leases[t.lease] = t
	p.counters.hitBlocks += uint64(t.cached)
	return scrub, nil
}

// take gives a free page, or else evicts the cached block that has been idle
// longest. Caller holds mu and has counted that there is one.
func (p *Pool) take() (id kernels.PageID, evicted bool) {
	if n := len(p.free); n > 0 {
		id = p.free[n-1]
		p.free = p.free[:n-1]
		return id, false
	}
	b := p.cache.idle.Front().Value.(*block)
	p.cache.remove(b)
	p.counters.evictions++
	p.book[b.entry.Page].gen++
	return b.entry.Page, true
}
