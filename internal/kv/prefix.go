package kv

import (
	"container/list"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"bulkhead/internal/mutant"
	"bulkhead/kernels"
)

// chainKey names a block by everything that decides its K and V: the tenant,
// the root, and all tokens up to the block's end. SHA-256 chained per block,
// over full-width keys: truncated ones are how other engines mixed requests.
type chainKey [sha256.Size]byte

// block is one complete, immutable block that requests of one tenant share.
type block struct {
	key    chainKey
	tenant string
	root   [32]byte
	tokens []int32 // the block's own tokens, compared on each hit
	index  int     // logical index
	entry  kernels.Entry

	refs      int           // tables that hold it
	idle      *list.Element // place in the eviction order while refs == 0
	detached  bool          // purged: no longer found, retired with its last reader
	condemned string        // reason to quarantine it instead
}

// prefixCache finds blocks by chain key. Tenants cannot meet in it: tenant and
// root enter the first key, and both are compared on a hit all the same.
type prefixCache struct {
	blocks map[chainKey]*block
	idle   *list.List // *block with refs == 0, the longest idle in front
}

// prefix is what a table expects of its leading blocks, fixed at reserve.
type prefix struct {
	tenant string
	root   [32]byte
	prompt []int32
	keys   []chainKey // one per full block of the prompt
}

func newPrefix(tenant string, root [32]byte, prompt []int32) *prefix {
	x := &prefix{tenant: tenant, root: root, prompt: slices.Clone(prompt)}
	x.keys = make([]chainKey, len(prompt)/kernels.BlockTokens)
	key := chainStart(tenant, root)
	for i := range x.keys {
		key = chainNext(key, x.tokens(i))
		x.keys[i] = key
	}
	return x
}

// full is the count of full blocks; 0 for a table without prefix.
func (x *prefix) full() int {
	if x == nil {
		return 0
	}
	return len(x.keys)
}

// tokens are those of block i.
func (x *prefix) tokens(i int) []int32 {
	return x.prompt[i*kernels.BlockTokens : (i+1)*kernels.BlockTokens]
}

// matches reports whether b is what x expects as its block i.
func (x *prefix) matches(b *block, i int) bool {
	tenant := b.tenant == x.tenant && b.root == x.root || mutant.Off(mutant.PrefixTenant) || mutant.Off(mutant.PrefixCompare)
	return tenant && b.index == i && (slices.Equal(b.tokens, x.tokens(i)) || mutant.Off(mutant.PrefixTokens))
}

// chainStart is the key before the first block.
func chainStart(tenant string, root [32]byte) chainKey {
	if mutant.Off(mutant.PrefixTenant) || mutant.Off(mutant.PrefixRoot) {
		tenant, root = "", [32]byte{}
	}
	h := sha256.New()
	h.Write([]byte("bulkhead kv prefix 1\x00"))
	h.Write(root[:])
	h.Write([]byte(tenant)) // last: its length needs no mark
	return chainKey(h.Sum(nil))
}

// chainNext is the key of the block with tokens that follows on parent.
func chainNext(parent chainKey, tokens []int32) chainKey {
	var buf [sha256.Size + 4*kernels.BlockTokens]byte
	b := append(buf[:0], parent[:]...)
	if mutant.Off(mutant.PrefixChain) {
		tokens = nil
	}
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
	}
	return sha256.Sum256(b)
}

// lookup finds the longest run of cached blocks for x, short of the whole
// prompt: the last token is always computed, for its logits. ok is false if a
// block was found that is not what its key says; nothing was taken then and
// the caller must purge. Caller holds mu.
func (p *Pool) lookup(x *prefix) (hits []*block, ok bool) {
	if x == nil {
		return nil, true
	}
	for i := range (len(x.prompt) - 1) / kernels.BlockTokens {
		b := p.cache.blocks[x.keys[i]]
		if b == nil {
			break
		}
		if !x.matches(b, i) || p.filled(b.entry, i, kernels.BlockTokens) != nil && !mutant.Off(mutant.PrefixFilled) {
			b.condemned = "prefix cache: block is not what its key says"
			p.counters.integrityFaults++
			return nil, false
		}
		hits = append(hits, b)
	}
	return hits, true
}

// Publish hands the full blocks of the prompt to the prefix cache; the table
// goes on reading them as a sharer. The table must come from
// ReserveWithPrefix and be ready, with no writer live. Errors: ErrEnded,
// ErrState, ErrWriterLive, or ErrIncomplete, on which nothing was published and
// the caller must call Quarantine.
//
// No tag changes: a block that may be published bears a prefix lease of its
// own from the beginning, never the lease of the request.
func (t *Table) Publish() error {
	p := t.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case t.ended():
		return ErrEnded
	case t.prefix == nil:
		return fmt.Errorf("%w: publish without a prefix", ErrState)
	case t.stage != stateReady && !mutant.Off(mutant.PublishReady):
		return fmt.Errorf("%w: publish after %v", ErrState, t.stage)
	case t.writers > 0:
		return ErrWriterLive
	}
	for i := t.cached; i < t.prefix.full(); i++ {
		if err := p.filled(t.entries[i], i, kernels.BlockTokens); err != nil && !mutant.Off(mutant.PublishFilled) {
			return err
		}
	}
	for i := t.cached; i < t.prefix.full(); i++ {
		key := t.prefix.keys[i]
		if t.blocks[i] != nil || p.cache.blocks[key] != nil {
			continue // published before, or by a twin: then the page stays the table's own
		}
		b := &block{
			key: key, tenant: t.lease.Tenant, root: t.prefix.root,
			tokens: t.prefix.tokens(i), index: i, entry: t.entries[i], refs: 1,
		}
		p.cache.blocks[key] = b
		t.blocks[i] = b
		pg := &p.book[b.entry.Page]
		pg.state, pg.table, pg.block = stateCached, nil, b
	}
	p.assert()
	return nil
}

// Purge drops the cached blocks of one root. Blocks in use are no longer found
// and are retired when their last reader ends.
func (p *Pool) Purge(root [32]byte) {
	p.mu.Lock()
	p.unlockAndRetire(p.purge(&root))
}

// PurgeAll drops the whole prefix cache.
func (p *Pool) PurgeAll() {
	p.mu.Lock()
	p.unlockAndRetire(p.purge(nil))
}

// purge forgets the blocks of one root, or all. Caller holds mu.
func (p *Pool) purge(root *[32]byte) (dead []kernels.PageID) {
	for _, b := range p.cache.blocks {
		if root != nil && b.root != *root {
			continue
		}
		idle := b.refs == 0
		p.cache.remove(b)
		if idle {
			dead = append(dead, p.bury(b)...)
		}
	}
	slices.Sort(dead) // the map's order must not decide which page is next
	return dead
}

// remove makes b unfindable. Caller holds mu.
func (c *prefixCache) remove(b *block) {
	delete(c.blocks, b.key)
	b.detached = true
	if b.idle != nil {
		c.idle.Remove(b.idle)
		b.idle = nil
	}
}

// ref counts one more reader. Caller holds mu.
func (p *Pool) ref(b *block) {
	if b.refs == 0 {
		p.cache.idle.Remove(b.idle)
		b.idle = nil
	}
	b.refs++
}

// unref counts one reader less and returns the page if it is to be retired.
// Caller holds mu.
func (p *Pool) unref(b *block) []kernels.PageID {
	if b.refs--; b.refs > 0 {
		return nil
	}
	if b.refs < 0 {
		panic(fmt.Sprintf("kv: internal error: page %d has %d readers", b.entry.Page, b.refs))
	}
	if b.detached {
		return p.bury(b)
	}
	b.idle = p.cache.idle.PushBack(b)
	return nil
}

// bury ends a detached block without readers. Caller holds mu.
func (p *Pool) bury(b *block) []kernels.PageID {
	if b.condemned != "" && !mutant.Off(mutant.Quarantine) {
		p.quarantine(b.entry.Page, b.condemned)
		return nil
	}
	p.toDirty(b.entry.Page)
	return []kernels.PageID{b.entry.Page}
}
