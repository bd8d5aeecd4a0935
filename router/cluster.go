package router

import (
	"context"

	"bulkhead/transfer"
)

// Cluster is what the router asks of the bus: the few calls of a [transfer.Peer] that a request
// needs. Everything it returns has been verified to come from the node it names.
type Cluster interface {
	// Nodes returns the announcements believed now, of prefill and decode nodes.
	// The caller may keep the slice.
	Nodes() []transfer.Announce
	// Connected reports whether there is a connection to the bus.
	Connected() bool
	// SubmitJob sends a job to the node of an announcement and returns its answer: an Accept, or
	// as error *transfer.Rejected, transfer.ErrNodeLost, or ctx's.
	SubmitJob(ctx context.Context, to transfer.Announce, job transfer.Job) (transfer.Accept, error)
	// SendCancel ends an attempt on a node; it returns when the node has confirmed it.
	SendCancel(ctx context.Context, node string, c transfer.Cancel) error
	// Ping asks whether a node is alive, and in which boot.
	Ping(ctx context.Context, node string) (transfer.Pong, error)
	// Receive hears the output of one attempt until stop is called. handle is called for one message
	// after another and must not wait; err is set when the stream of one role breaks (a gap, bytes
	// that do not open), and nothing follows.
	Receive(a Attempt, handle func(from transfer.Role, body transfer.OutputBody, err error)) (stop func(), err error)
	// Receipt verifies a receipt's signature against the node it is to come from.
	Receipt(statement []byte, from transfer.Announce) (Receipt, error)
}

// Attempt is what a Cluster needs to hear an attempt's output.
type Attempt struct {
	TokenHash       transfer.Hash
	Reply           string
	ReplyKey        [32]byte
	Prefill, Decode transfer.Announce
}

// Receipt is what a verified receipt says; see package seal.
type Receipt struct {
	Hash      transfer.Hash // of its bytes: the x-bulkhead-receipt header
	TokenHash transfer.Hash
	Pages     int
	Decode    string
	Epoch     uint64
}
