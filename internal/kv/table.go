package kv

import (
	"fmt"

	"bulkhead/internal/mutant"
	"bulkhead/kernels"
)

// Table is the pages of one sequence in logical order, from Reserve to Release.
// Safe for concurrent use.
type Table struct {
	pool   *Pool
	lease  Lease
	owner  kernels.Owner
	tokens int

	entries []kernels.Entry // never changed after reserve returns
	cached  int             // leading blocks that came from the prefix cache
	prefix  *prefix         // nil: not made by ReserveWithPrefix

	// Guarded by pool.mu.
	blocks   []*block // per entry: the shared block, nil where the page is the table's own
	stage    state    // reserved, filling, ready, dirty (released), quarantined
	released bool     // Release was called
	gone     bool     // both lifetimes ended; the books no longer know the table
	writers  int
}

// Lease says for whom the pages are held.
func (t *Table) Lease() Lease { return t.lease }

// Owner is the lease number of the pages that are the table's own. Blocks that
// are or may become shared bear another one: see Entries.
func (t *Table) Owner() kernels.Owner { return t.owner }

// Tokens is how many tokens were reserved.
func (t *Table) Tokens() int { return t.tokens }

// Entries is the block table, each entry with the owner and generation that
// its page must bear. The slice is shared and constant: never write to it. It
// stays readable after Release, when attention refuses its entries.
func (t *Table) Entries() []kernels.Entry { return t.entries }

// Writer is one party that may touch a table's pages: a receiver of frames, or
// a step that is being computed. The pages cannot become free while it lives.
type Writer struct {
	table *Table
	// Guarded by pool.mu.
	done, abandoned bool
}

// BeginWrite starts a writer's lifetime; several may live at once. Use
// Entries only between BeginWrite and Done. Error: ErrEnded.
func (t *Table) BeginWrite() (*Writer, error) {
	p := t.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.ended() {
		return nil, ErrEnded
	}
	if t.stage == stateReserved {
		p.setStage(t, stateFilling)
	}
	t.writers++
	p.assert()
	return &Writer{table: t}, nil
}

// Done ends the writer's lifetime: it has written its last byte. If it was the
// last writer of a released table, the pages are scrubbed and freed before
// Done returns. Calling it again does nothing.
func (w *Writer) Done() {
	t := w.table
	p := t.pool
	p.mu.Lock()
	if w.done {
		p.mu.Unlock()
		return
	}
	w.done = true
	t.writers--
	p.unlockAndRetire(p.settle(t))
}

// Abandon says that the writer cannot be fenced in time: it may write at any
// moment from now on. The table ends, and its own pages go to quarantine with
// the reason. Blocks that it shared stay held until Done, if that ever comes:
// a writer never writes into those, but it may be reading them.
func (w *Writer) Abandon(reason string) {
	t := w.table
	p := t.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.done || w.abandoned {
		return
	}
	w.abandoned = true
	p.quarantineOwn(t, reason)
	p.assert()
}

// MarkReady commits the table: every page is compared with its entry, and all
// layers must hold exactly the first tokens tokens. Errors: ErrEnded,
// ErrState (nothing was written, or it is ready already), ErrWriterLive,
// ErrSuspect, or ErrIncomplete, on which the caller must call Quarantine.
func (t *Table) MarkReady(tokens int) error {
	p := t.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case t.ended():
		return ErrEnded
	case t.stage != stateFilling:
		return fmt.Errorf("%w: ready after %v", ErrState, t.stage)
	case t.writers > 0 && !mutant.Off(mutant.WriterLive):
		return ErrWriterLive
	case tokens < 1 || tokens > t.tokens:
		return fmt.Errorf("%w: ready with %d tokens of %d", ErrState, tokens, t.tokens)
	}
	if err := t.suspect(); err != nil {
		return err
	}
	for i, e := range t.entries {
		want := min(max(tokens-i*kernels.BlockTokens, 0), kernels.BlockTokens)
		if err := p.filled(e, i, want); err != nil && !mutant.Off(mutant.ReadyPages) {
			return err
		}
	}
	p.setStage(t, stateReady)
	p.assert()
	return nil
}

// Sound reports whether what was computed from the table may still become an
// answer: to be asked right before a manifest is signed or a receipt issued. Errors: ErrEnded
// (released, or quarantined after a fault), ErrSuspect.
func (t *Table) Sound() error {
	t.pool.mu.Lock()
	defer t.pool.mu.Unlock()
	if t.ended() {
		return ErrEnded
	}
	return t.suspect()
}

// suspect finds a shared block that was condemned. Caller holds mu.
func (t *Table) suspect() error {
	for i, b := range t.blocks {
		if b != nil && b.condemned != "" && !mutant.Off(mutant.Suspect) {
			return fmt.Errorf("%w: block %d: %s", ErrSuspect, i, b.condemned)
		}
	}
	return nil
}

// Release ends the request's lifetime. The pages are scrubbed and freed before
// it returns, or, while a writer lives, when the last writer is done. Calling
// it again, or after Quarantine, does nothing.
func (t *Table) Release() {
	p := t.pool
	p.mu.Lock()
	if t.released || t.gone {
		p.mu.Unlock()
		return
	}
	t.released = true
	if t.stage != stateQuarantined {
		p.setStage(t, stateDirty)
	}
	p.unlockAndRetire(p.settle(t))
}

// Quarantine ends the table after a fault (stale, foreign, unwritten): its own
// pages are never used again in this process, shared blocks that it read
// follow when their last reader ends, and the whole prefix cache is dropped.
// After Release it still works as long as a writer lives; later the pages are
// scrubbed and there is nothing left to keep.
func (t *Table) Quarantine(reason string) {
	p := t.pool
	p.mu.Lock()
	if t.gone {
		p.mu.Unlock()
		return
	}
	p.counters.integrityFaults++
	p.quarantineOwn(t, reason)
	for _, b := range t.blocks {
		if b != nil {
			b.condemned = reason
		}
	}
	var dead []kernels.PageID
	if !mutant.Off(mutant.Purge) {
		dead = p.purge(nil)
	}
	p.unlockAndRetire(append(dead, p.settle(t)...))
}

// ended reports whether nobody may begin anything with t. Caller holds mu.
func (t *Table) ended() bool { return t.released || t.gone || t.stage == stateQuarantined }

// setStage moves t and its own pages to a state. Caller holds mu.
func (p *Pool) setStage(t *Table, s state) {
	t.stage = s
	for i, e := range t.entries {
		if t.blocks[i] == nil {
			p.book[e.Page].state = s
		}
	}
}

// quarantineOwn ends t with its own pages in quarantine. Caller holds mu.
func (p *Pool) quarantineOwn(t *Table, reason string) {
	if t.stage == stateQuarantined {
		return
	}
	if mutant.Off(mutant.Quarantine) { // as if it had only been released
		t.released = true
		p.setStage(t, stateDirty)
		return
	}
	t.stage = stateQuarantined
	for i, e := range t.entries {
		if t.blocks[i] == nil {
			p.quarantine(e.Page, reason)
		}
	}
}

// settle removes t from the books if both of its lifetimes have ended, and
// returns the pages to be retired. Caller holds mu.
func (p *Pool) settle(t *Table) (dead []kernels.PageID) {
	if t.writers > 0 && !mutant.Off(mutant.PageWriter) || !t.ended() || t.gone {
		return nil
	}
	t.gone = true
	delete(p.tables, t)
	delete(p.leases, t.lease)
	for i := len(t.entries) - 1; i >= 0; i-- { // the leaf is idle longer than its parent: evicted first
		switch b := t.blocks[i]; {
		case b != nil:
			dead = append(dead, p.unref(b)...)
		case t.stage != stateQuarantined:
			p.toDirty(t.entries[i].Page)
			dead = append(dead, t.entries[i].Page)
		}
	}
	return dead
}
