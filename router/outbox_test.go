package router

import (
	"testing"

	"bulkhead/internal/sample"
)

// goal: only the client of a stream can be too slow. method: the same burst of
// tokens, which nobody takes, into both kinds of outbox.
func TestOutboxBound(t *testing.T) {
	const most = 4
	burst := output{tokens: make([]sample.Token, 3)}
	for _, stream := range []bool{false, true} {
		b := newOutbox(outboxBound(stream, most))
		if !b.put(burst) {
			t.Fatalf("stream %t: no room for %d of %d tokens", stream, len(burst.tokens), most)
		}
		if fits := b.put(burst); fits == stream {
			t.Errorf("stream %t: the second burst fits: %t", stream, fits)
		}
		if !b.put(output{finish: "stop"}) {
			t.Errorf("stream %t: an end must always fit", stream)
		}
		if b.take(); !b.put(burst) {
			t.Errorf("stream %t: no room after everything was taken", stream)
		}
	}
}
