package transfer

import "sync/atomic"

// A Count is one thing that is counted. Its String is a metric label.
type Count uint8

// What is counted. Refused messages are dropped: the sender learns nothing,
// the operator sees the number move.
const (
	CountBadSubject  Count = iota // a subject that does not parse, or names another node
	CountBadMessage               // a message that does not decode
	CountBadEnvelope              // sender unknown, role not allowed, or signature wrong
	CountBadSeal                  // a job or output that does not open
	CountReplay                   // an announcement older than the one held
	CountBadOutput                // an output stream broken: gap, repeat, foreign token
	CountForeignKV                // a KV message of another node's stream (see the doc of ConsumeKV)
	CountPermission               // an operation the server denied
	CountSlow                     // messages dropped because a handler was too slow
	CountReconnect                // connections lost and made again
	CountKVRetry                  // KV messages sent again
	CountKVFull                   // publishes refused by a full stream
	CountKVServer                 // dials of decode nodes' own KV servers that failed
	counts
)

var countNames = [counts]string{
	"bad_subject", "bad_message", "bad_envelope", "bad_seal", "replay", "bad_output", "foreign_kv",
	"permission", "slow_consumer", "reconnect", "kv_retry", "kv_full", "kv_server_unreachable",
}

func (c Count) String() string { return countNames[c] }

// Counters counts. The zero value is ready; a nil pointer counts nothing.
type Counters struct {
	n [counts]atomic.Uint64
}

// Get returns one count.
func (c *Counters) Get(what Count) uint64 {
	if c == nil {
		return 0
	}
	return c.n[what].Load()
}

// Each calls f for every count.
func (c *Counters) Each(f func(what Count, n uint64)) {
	for i := range counts {
		f(i, c.Get(i))
	}
}

func (c *Counters) add(what Count) {
	if c != nil {
		c.n[what].Add(1)
	}
}
