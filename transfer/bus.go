package transfer

import (
	"context"
)

// Bus is what the protocol needs of a message bus, in bytes. [Connect] gives
// one over NATS; package membus gives one in memory, which can lose, repeat,
// reorder and change what it carries.
//
// A Bus is one identity's view: what it may publish and hear is decided by the
// server. Data given to a Bus may be changed by the caller as soon as the call
// returns. Data that a Bus hands to a handler belongs to the handler, for a KVMsg until it is ended.
type Bus interface {
	// Publish sends data to whoever listens now, and does not wait.
	Publish(subject string, data []byte) error
	// Request sends data to the one listener of subject and returns its answer:
	// ErrNoResponders at once if nobody listens, else ctx's error when it ends first.
	Request(ctx context.Context, subject string, data []byte) ([]byte, error)
	// Subscribe calls handler for every message on subject, one after another.
	// When it returns, the server knows of the subscription. A "*" in subject stands
	// for any one token, a last ">" for the rest.
	Subscribe(subject string, handler func(Msg)) (stop func(), err error)

	// PublishKV sends data into the KV stream that listens on subject. done is
	// called once, from another goroutine, when the stream has stored it (nil)
	// or not (ErrStreamFull, ErrOverflow, ErrNoStream, ErrAckTimeout,
	// ErrPermission, ErrDisconnected, ErrClosed). When PublishKV itself
	// returns an error, done is not called.
	PublishKV(subject string, data []byte, done func(error)) error
	// ConsumeKV calls handler for every message of the node's KV stream, one
	// after another and again for those not acknowledged. It survives loss and
	// re-creation of stream and server, and may be called before they exist.
	// ready is called (true) each time pulling starts and (false) each time it
	// is found broken; it may be nil.
	ConsumeKV(node string, handler func(KVMsg), ready func(bool)) (stop func(), err error)
	// EnsureKV makes the node's KV stream and its durable consumer, or brings
	// them to this shape. Only a router may.
	EnsureKV(ctx context.Context, node string, maxBytes int64) error
	// StoredKV returns what the node's KV stream holds: messages not yet
	// acknowledged and their bytes. Only a router may ask.
	StoredKV(ctx context.Context, node string) (msgs int, bytes int64, err error)
	// DropKV removes them with all they hold. It is no error if there are none.
	DropKV(ctx context.Context, node string) error

	// Close ends all subscriptions and publishes without waiting for anything.
	Close()
}

// Msg is one message of a subscription.
type Msg struct {
	Subject string
	Data    []byte
	Respond func([]byte) error // nil when the sender waits for no answer
}

// KVMsg is one message of a node's KV stream. Exactly one of Ack and Term is
// to be called, at any time and from any goroutine.
type KVMsg struct {
	Subject string
	Data    []byte // the handler's until then: its memory is used again
	// Ack removes the message from the stream: its bytes are in their page.
	Ack func()
	// Term removes it because nobody will want it: its attempt is dead or unknown.
	Term func()
}
