package transfer

import (
	"errors"
	"fmt"
)

// What can go wrong, for callers that branch on it.
var (
	// ErrSubject is a subject, or a name or id in it, that does not follow the grammar.
	ErrSubject = errors.New("transfer: bad subject")
	// ErrMessage is a message that is not what its type says: a member unknown,
	// doubled, missing or over its limit, or bytes after its end.
	ErrMessage = errors.New("transfer: bad message")
	// ErrEnvelope is a signed message that does not hold: the sender is not
	// vouched for, may not send this kind, or did not sign these bytes for this destination.
	ErrEnvelope = errors.New("transfer: bad envelope")
	// ErrReplay is an announcement or output message that was seen before.
	ErrReplay = errors.New("transfer: replayed")
	// ErrOutput is an output message that breaks its stream: a gap, a foreign
	// token, bytes that do not open.
	ErrOutput = errors.New("transfer: bad output stream")
	// ErrReceipt is a receipt of another attempt, node, boot or page count.
	ErrReceipt = errors.New("transfer: receipt does not match the attempt")
	// ErrSeal is bytes that do not open under the key they should be sealed with.
	ErrSeal = errors.New("transfer: does not open")

	// ErrNodeLost is a request that nobody is there to answer.
	ErrNodeLost = errors.New("transfer: node lost")
	// ErrNoResponders is [Bus.Request]'s way to say the same of a subject.
	ErrNoResponders = errors.New("transfer: no responders")
	// ErrPermission is an operation that the server forbids this identity.
	ErrPermission = errors.New("transfer: permission denied")
	// ErrDisconnected is an operation while there is no connection, or none that answers. Nothing is
	// kept back to be sent later: a late job is worse than none.
	ErrDisconnected = errors.New("transfer: not connected")
	// ErrServer is a server that cannot carry the protocol: too old, or a setting too small.
	ErrServer = errors.New("transfer: unsuitable NATS server")

	// ErrStreamFull is a KV stream at its max_bytes (JetStream 10077). It may be tried again.
	ErrStreamFull = errors.New("transfer: KV stream full")
	// ErrOverflow is a server that cannot store as fast as it is sent to
	// (JetStream 10167). It may be tried again.
	ErrOverflow = errors.New("transfer: KV stream overflows")
	// ErrNoStream is a KV stream that does not exist (any more): a memory
	// stream goes with its server. It may be tried again.
	ErrNoStream = errors.New("transfer: no KV stream")
	// ErrAckTimeout is a message whose storing nobody confirmed in time. It may
	// be stored all the same; sending the same bytes again does no harm.
	ErrAckTimeout = errors.New("transfer: no acknowledgement from the KV stream")

	// ErrKVServer is a decode node's own KV server that cannot be reached, lets this node not in, or has
	// stopped answering. Another decode node may do better.
	ErrKVServer = errors.New("transfer: KV server not reached")

	// ErrWindow is an attempt that has ended while its sender waited for room.
	ErrWindow = errors.New("transfer: attempt closed")
	// ErrClosed is a bus that was closed.
	ErrClosed = errors.New("transfer: closed")
)

// Rejected is a node's signed no, as an error.
type Rejected struct {
	Node string
	Role Role
	Reject
}

func (r *Rejected) Error() string {
	s := fmt.Sprintf("transfer: %s %s rejected: %s", r.Role, r.Node, r.Reason)
	if r.Limit != 0 || r.Value != 0 {
		s += fmt.Sprintf(" (%d, limit %d)", r.Value, r.Limit)
	}
	if r.Detail != "" {
		s += ": " + r.Detail
	}
	return s
}

// BusLost reports whether err is the bus's: no connection, a server that does not answer, a stream that is
// full or gone. It says nothing about the node that met it, and the same may succeed later.
func BusLost(err error) bool {
	return errors.Is(err, ErrDisconnected) || errors.Is(err, ErrAckTimeout) || errors.Is(err, ErrStreamFull) ||
		errors.Is(err, ErrOverflow) || errors.Is(err, ErrNoStream) || errors.Is(err, ErrNoResponders)
}

// BusReason is the reason that a node gives for an error of its own, perhaps of the bus:
// cut off from the bus it is as good as lost.
func BusReason(err error) Reason {
	if BusLost(err) {
		return ReasonNodeLost
	}
	return ReasonInternal
}

// Retryable reports whether a KV publish that failed with err may be tried
// again with the same bytes.
func Retryable(err error) bool {
	return !errors.Is(err, ErrKVServer) && (errors.Is(err, ErrStreamFull) || errors.Is(err, ErrOverflow) || errors.Is(err, ErrNoStream) ||
		errors.Is(err, ErrAckTimeout) || errors.Is(err, ErrDisconnected))
}
