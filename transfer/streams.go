package transfer

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// The one table of what is asked of JetStream. A KV stream is a pipe with a
// memory, not a store: what is lost is only sent again, so nothing is written to disk or replicated.
const (
	kvMaxAge     = 60 * time.Second // safety net: an attempt is dead long before
	kvAckWait    = 30 * time.Second // a consumer that holds a frame longer has lost it
	kvMaxDeliver = 3
	kvMaxPending = 4096                   // frames delivered and not acknowledged; bytes are bounded by max_bytes and the senders' windows
	kvDedupe     = 100 * time.Millisecond // nobody sends a Nats-Msg-Id; the least the server takes

	kvPullBatch = 32                     // frames asked for at a time: at most 33 MiB on their way
	kvHeartbeat = time.Second            // of an idle pull
	kvSilence   = 3 * time.Second        // without one: the pull is broken
	kvExpires   = 30 * time.Second       // of a pull
	kvRetry     = 250 * time.Millisecond // between tries while there is no stream
)

// KVStreamName is the stream of a node; its durable consumer bears the node's name.
func KVStreamName(node string) string { return "KV_" + node }

// KVFilter is what a node's stream listens to.
func KVFilter(node string) string { return "kv." + node + ".>" }

func kvStream(node string, maxBytes int64) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:         KVStreamName(node),
		Description:  "KV frames on their way to " + node,
		Subjects:     []string{KVFilter(node)},
		Storage:      jetstream.MemoryStorage,
		Replicas:     1,
		Retention:    jetstream.WorkQueuePolicy, // gone once acknowledged
		Discard:      jetstream.DiscardNew,      // a full stream says so; DiscardOld would drop frames silently
		MaxBytes:     maxBytes,
		MaxMsgs:      -1,
		MaxAge:       kvMaxAge,
		MaxMsgSize:   kvMessageMax,
		MaxConsumers: 1, // the node's own; nobody can add a second reader
		Duplicates:   kvDedupe,
		AllowDirect:  false, // no reads past the consumer
	}
}

// kvConsumer has no filter: the server does not check the reply subject of a pull, so a hostile node can
// have a message stored in another's stream under a subject that is not the stream's. Behind
// a filter it would lie there and take room; without, the node sees it, counts it and takes it out.
func kvConsumer(node string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:       node,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       kvAckWait,
		MaxDeliver:    kvMaxDeliver,
		MaxAckPending: kvMaxPending,
		DeliverPolicy: jetstream.DeliverAllPolicy,
		MemoryStorage: true,
		Replicas:      1,
	}
}
