package router

import (
	"context"

	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// Cluster is what the router asks of the bus: the few calls of a [transfer.Peer] and of
// its [transfer.Directory] that a request needs. [Bus] is one. What it returns has
// been verified to come from the node it names.
type Cluster interface {
	// List returns the announcements of a role that are believed now.
	List(role transfer.Role) []transfer.Announce
	// SubmitJob sends a job to the node of an announcement and returns its answer.
	SubmitJob(ctx context.Context, to transfer.Announce, job transfer.Job) (transfer.Accept, error)
	// SendCancel ends an attempt on a node, and returns when the node has confirmed it.
	SendCancel(ctx context.Context, node string, c transfer.Cancel) error
	// Ping asks whether a node is alive, and in which boot.
	Ping(ctx context.Context, node string) (transfer.Pong, error)
	// ReceiveOutput hears one attempt's output, in order; broken is told the first message that is not in it.
	ReceiveOutput(subject string, key [32]byte, tokenHash transfer.Hash,
		handler func(from transfer.Role, b transfer.OutputBody), broken func(error)) (stop func(), err error)
	// VerifyReceipt checks that a receipt is this attempt's, and returns its hash.
	VerifyReceipt(s *transfer.SignedReceipt, reply string, token transfer.Hash, decode string, epoch uint64, pages int) (seal.Receipt, transfer.Hash, error)
}

// Bus is a Cluster: a router's peer on the bus and its directory of the others.
type Bus struct {
	*transfer.Peer
	*transfer.Directory
}

var _ Cluster = Bus{}
