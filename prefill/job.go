package prefill

import (
	"context"
	"sync"

	"bulkhead/internal/kv"
	"bulkhead/internal/sample"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// job is one attempt on this node, from its acceptance to the end of its pages.
type job struct {
	id     uint64
	grant  *transfer.Grant
	prompt []int32 // what is computed; the grant's prompt
	plan   seal.Plan
	cached int // leading tokens that came from the prefix cache
	table  *kv.Table
	writer *kv.Writer // the engine's
	reader *kv.Writer // the shipper's: pages stay while it reads them
	decode transfer.Announce
	keys   *seal.Sender
	enc    []byte
	kv     *transfer.KVAttempt
	out    *transfer.OutputSender

	ctx    context.Context // ends when the attempt does
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	moved   chan struct{} // closed and replaced when the lines below change
	blocks  int           // complete, from the front
	first   *sample.Token // sampled; nil until the prompt is done
	onEnd   []func()      // told when the pages are back
	pending int           // parties that still touch the pages: engine, shipper
}

// computed tells the shipper how far the engine is.
func (j *job) computed(blocks int, first *sample.Token) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.blocks = max(j.blocks, blocks)
	if first != nil {
		j.first = first
	}
	close(j.moved)
	j.moved = make(chan struct{})
}

// waitBlock returns when block i is complete.
func (j *job) waitBlock(i int) error {
	return j.wait(func() bool { return j.blocks > i })
}

// waitFirst returns the first token when it is sampled.
func (j *job) waitFirst() (sample.Token, error) {
	if err := j.wait(func() bool { return j.first != nil }); err != nil {
		return sample.Token{}, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return *j.first, nil
}

func (j *job) wait(done func() bool) error {
	for {
		j.mu.Lock()
		ok, moved := done(), j.moved
		j.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-moved:
		case <-j.ctx.Done():
			return context.Cause(j.ctx)
		}
	}
}

// leave is called once by each party that no longer touches the pages; the
// last one ends the job's books.
func (j *job) leave() {
	j.mu.Lock()
	j.pending--
	last := j.pending == 0
	var told []func()
	if last {
		told, j.onEnd = j.onEnd, nil
	}
	j.mu.Unlock()
	if last {
		j.table.Release()
		for _, f := range told {
			f()
		}
	}
}

// whenEnded calls f when the pages are on their way back, at once if they are.
func (j *job) whenEnded(f func()) {
	j.mu.Lock()
	if j.pending > 0 {
		j.onEnd = append(j.onEnd, f)
		j.mu.Unlock()
		return
	}
	j.mu.Unlock()
	f()
}
