package router

import (
	"math"
	"sync"

	"bulkhead/internal/sample"
)

// output is what a sequence has for its client.
type output struct {
	choice  int
	attempt int
	receipt *receiptFacts  // commit
	tokens  []sample.Token // emit
	finish  string         // the end, good
	err     *apiError      // the end, bad
}

// outbox carries the outputs of a request's sequences to the goroutine that writes
// to the client. Senders never wait: tokens beyond the bound are refused, so a client that
// does not read cannot hold memory here or a place in a decode batch.
type outbox struct {
	most  int           // tokens
	ready chan struct{} // holds one value when there is something to take

	mu     sync.Mutex
	items  []output // guarded by mu
	tokens int      // in items
}

func newOutbox(most int) *outbox { return &outbox{most: most, ready: make(chan struct{}, 1)} }

// outboxBound is how many tokens may wait for the client. There is no bound for an answer
// that is sent whole: its client cannot read before its end, all of it is kept until
// then, and max_new bounds it. The bound of a stream must be wide: a busy
// machine may not run the writer for a while, and that is not the client's fault.
func outboxBound(stream bool, most int) int {
	if !stream {
		return math.MaxInt
	}
	return most
}

// put adds o and reports whether there was room. Commits and ends always fit.
func (b *outbox) put(o output) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(o.tokens) > 0 && b.tokens+len(o.tokens) > b.most {
		return false
	}
	b.tokens += len(o.tokens)
	b.items = append(b.items, o)
	select {
	case b.ready <- struct{}{}:
	default:
	}
	return true
}

// take returns everything that is there, in order.
func (b *outbox) take() []output {
	b.mu.Lock()
	defer b.mu.Unlock()
	items := b.items
	b.items, b.tokens = nil, 0
	return items
}
