package transfer

import (
	"bulkhead/internal/tenant"
	"bulkhead/transfer/seal"
)

// For tests outside the package that play a dishonest node: its key is in
// order, what it says is not.

// SignForTest signs anything.
func SignForTest(p *Peer, k, dest string, body []byte) []byte {
	data, err := p.sign(kind(k), dest, body)
	if err != nil {
		panic(err)
	}
	return data
}

// AnswerForTest signs anything as the answer to a request.
func AnswerForTest(p *Peer, k string, request, body []byte) []byte {
	return SignForTest(p, k, answerDest(request), body)
}

// EncodeForTest encodes a message.
func EncodeForTest(v any) []byte {
	var b []byte
	var err error
	switch v := v.(type) {
	case Accept:
		b, err = accepts.encode(&v)
	case Reject:
		b, err = rejects.encode(&v)
	case Credit:
		b, err = credits.encode(&v)
	case Cancel:
		b, err = cancels.encode(&v)
	case Announce:
		b, err = announces.encode(&v)
	case Output:
		b, err = outputs.encode(&v)
	case OutputBody:
		b, err = bodies.encode(&v)
	default:
		panic("no codec")
	}
	if err != nil {
		panic(err)
	}
	return b
}

// JobForRole is a job as it comes to a node.
func JobForRole(j Job, role Role) Job { return j.forRole(role) }

// SealOutputForTest makes the first output message of a role.
func SealOutputForTest(key [32]byte, from Role, hash Hash, b OutputBody) []byte {
	payload, err := seal.NewStream(tenant.ReplyKey(key, string(from)), string(from), hash).Seal(0, EncodeForTest(b))
	if err != nil {
		panic(err)
	}
	return EncodeForTest(Output{TokenHash: hash, From: from, Seq: 0, Payload: payload})
}
