package prefill

import (
	"context"
	"sync"

	"bulkhead/internal/kv"
	"bulkhead/internal/model"
	"bulkhead/internal/sample"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// attempt is one granted job on this node, from its acceptance to the end of
// its pages.
type attempt struct {
	id      JobID
	grant   *transfer.Grant
	prompt  []int32 // what is computed; the grant's prompt
	plan    seal.Plan
	cached  int // leading tokens that came from the prefix cache
	table   *kv.Table
	writer  *kv.Writer // the engine's
	reader  *kv.Writer // the shipper's: pages stay while it reads them
	publish func()     // hands the full blocks to the prefix cache
	decode  transfer.Announce
	keys    *seal.Sender
	enc     []byte
	kv      *transfer.KVAttempt
	out     *transfer.OutputSender

	ctx    context.Context // ends when the attempt does
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	moved   chan struct{} // closed and replaced when the lines below change
	blocks  int           // complete, from the front
	first   *sample.Token // sampled; nil until the prompt is done
	whole   bool          // all of it was stored: its blocks may be shared
	onEnd   []func()      // told when the pages are back
	pending int           // parties that still touch the pages: engine, shipper
}

// source says for whom the attempt is computed.
func (a *attempt) source(epoch uint64) model.Source {
	c := &a.grant.Claims
	return model.Source{Tenant: c.Tenant, Request: c.Request, Child: c.Child, Attempt: c.Attempt, Prompt: len(a.prompt), Prefill: epoch}
}

// computed tells the shipper how far the engine is.
func (a *attempt) computed(blocks int, first *sample.Token) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.blocks = max(a.blocks, blocks)
	if first != nil {
		a.first = first
	}
	close(a.moved)
	a.moved = make(chan struct{})
}

// wait returns when done, called with mu held, is true, or with the cause of the
// attempt's end.
func (a *attempt) wait(done func() bool) error {
	for {
		a.mu.Lock()
		ok, moved := done(), a.moved
		a.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-moved:
		case <-a.ctx.Done():
			return context.Cause(a.ctx)
		}
	}
}

// leave is called once by each party that no longer touches the pages; the
// last one ends the job's books.
func (a *attempt) leave() {
	a.mu.Lock()
	a.pending--
	last := a.pending == 0
	var told []func()
	if last {
		told, a.onEnd = a.onEnd, nil
	}
	a.mu.Unlock()
	if last {
		if a.whole {
			a.publish()
		}
		a.table.Release()
		for _, f := range told {
			f()
		}
	}
}

// whenEnded calls f when the pages are on their way back, at once if they are.
func (a *attempt) whenEnded(f func()) {
	a.mu.Lock()
	if a.pending > 0 {
		a.onEnd = append(a.onEnd, f)
		a.mu.Unlock()
		return
	}
	a.mu.Unlock()
	f()
}
