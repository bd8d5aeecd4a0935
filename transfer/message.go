package transfer

import (
	"time"

	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
)

// Role is what a node is for.
type Role string

// The roles. They are also subject tokens and the names of signing keys.
const (
	RoleRouter  Role = "router"
	RolePrefill Role = "prefill"
	RoleDecode  Role = "decode"
)

// Hash is a SHA-256 digest.
type Hash = [32]byte

// Announce is a node's signed statement of what it is and can take. It is sent
// every AnnounceEvery and believed until Expires.
type Announce struct {
	Node  string `msgpack:"node"`
	Role  Role   `msgpack:"role"`
	Epoch uint64 `msgpack:"epoch"` // random at every boot
	HPKE  []byte `msgpack:"hpke"`  // public key, new at every boot

	Model     Hash   `msgpack:"model"`      // model fingerprint
	Layout    Hash   `msgpack:"layout"`     // KV layout fingerprint
	Metadata  Hash   `msgpack:"metadata"`   // digest of the GGUF header: tokenizer, template, architecture
	File      Hash   `msgpack:"file"`       // digest of the whole model file
	ModelName string `msgpack:"model_name"` // for people

	Capacity int    `msgpack:"capacity"` // tokens the pool holds
	Window   int    `msgpack:"window"`   // longest prompt + max_new this node takes
	Vocab    int    `msgpack:"vocab"`
	KVURL    string `msgpack:"kv_url"` // where a decode node's KV stream lives (CheckKVURL); "" = the cluster's broker

	Ready    bool `msgpack:"ready"`    // decode: the KV consumer exists
	Draining bool `msgpack:"draining"` // takes nothing new

	FreeTokens int       `msgpack:"free_tokens"` // unreserved capacity now
	Running    int       `msgpack:"running"`     // sequences in work
	Waiting    int       `msgpack:"waiting"`     // queued tokens (prefill) or reservations without KV (decode)
	Expires    time.Time `msgpack:"expires"`
	Version    string    `msgpack:"version"`
}

// Job is what the router tells a node of one attempt. It travels sealed to the
// node's boot key. Both sides of an attempt get the same Token and Prompt.
type Job struct {
	Token  string        `msgpack:"token"` // PASETO v4.public tenant token
	Salt   [32]byte      `msgpack:"salt"`  // of the prompt digest
	Prompt []int32       `msgpack:"prompt"`
	Params sample.Params `msgpack:"params"`
	Reply  string        `msgpack:"reply"` // subject of the attempt's Output messages
	// ReplyKey seals Output. With the router it is the attempt's own; each node gets its role's, by
	// tenant.ReplyKey, and as ReplyOther the tenant.ReplyDigest of the other role's.
	ReplyKey   [32]byte `msgpack:"reply_key"`
	ReplyOther [32]byte `msgpack:"reply_other"`

	Deadline time.Time `msgpack:"deadline"` // of the first token
}

// forRole is the job as a node of one role gets it.
func (j Job) forRole(role Role) Job {
	other := RolePrefill
	if role == RolePrefill {
		other = RoleDecode
	}
	j.ReplyOther = tenant.ReplyDigest(tenant.ReplyKey(j.ReplyKey, string(other)))
	j.ReplyKey = tenant.ReplyKey(j.ReplyKey, string(role))
	return j
}

// Accept is a node's signed yes to a Job.
type Accept struct {
	TokenHash Hash `msgpack:"token_hash"`
	Pages     int  `msgpack:"pages"` // reserved for it
}

// Reason says why an attempt was refused or ended. It is a metric label.
type Reason string

// The reasons.
const (
	ReasonContextLength Reason = "context_length_exceeded" // prompt + max_new over the node's own limit
	ReasonNoPages       Reason = "no_pages"                // capacity is taken now; may be retried
	ReasonBusy          Reason = "busy"                    // queue full; may be retried elsewhere
	ReasonDraining      Reason = "draining"
	ReasonToken         Reason = "bad_token" // signature, audience, epoch, expiry, claims
	ReasonModel         Reason = "wrong_model"
	ReasonPrompt        Reason = "prompt_mismatch" // digest or length recomputed from the token ids
	ReasonProtocol      Reason = "protocol_violation"
	ReasonIntegrity     Reason = "integrity" // AEAD, manifest chain, stale/foreign/unwritten page
	ReasonTimeout       Reason = "timeout"
	ReasonCancelled     Reason = "cancelled"
	ReasonDuplicate     Reason = "duplicate_attempt"
	ReasonInternal      Reason = "internal"
	ReasonLogits        Reason = "bad_logits"   // NaN or Inf where a token was to be sampled
	ReasonPeer          Reason = "peer_unknown" // prefill does not know this boot of the decode node
	ReasonNodeLost      Reason = "node_lost"    // it does not answer; or says itself that it lost the bus
	ReasonKVServer      Reason = "kv_server"    // prefill does not reach the decode node's own KV server
)

// Reject is a node's signed no, at any time before the receipt. It is its own
// message: no value of any other message also means no.
type Reject struct {
	TokenHash Hash   `msgpack:"token_hash"`
	Reason    Reason `msgpack:"reason"`
	Limit     int64  `msgpack:"limit"` // the limit that was passed, where there is one
	Value     int64  `msgpack:"value"` // the value that passed it
	Detail    string `msgpack:"detail"`
}

// Open is the opening message of an attempt's KV stream, signed by prefill.
// The tenant token itself travels in it, once.
type Open struct {
	Token        string `msgpack:"token"`
	Prefill      string `msgpack:"prefill"`
	PrefillEpoch uint64 `msgpack:"prefill_epoch"`
	Enc          []byte `msgpack:"enc"`    // HPKE encapsulated key
	Frames       int    `msgpack:"frames"` // of the whole attempt
	Layout       Hash   `msgpack:"layout"`
}

// Output is one sealed message of an attempt to its router. Payload opens to an
// OutputBody; Seq counts from 0 per sender role without gaps.
type Output struct {
	TokenHash Hash   `msgpack:"token_hash"`
	From      Role   `msgpack:"from"`
	Seq       uint64 `msgpack:"seq"`
	Payload   []byte `msgpack:"payload"`
}

// OutputBody is what an Output carries: exactly one member is set. Decode
// sends Receipt first, then Tokens, then Finish or Fail; prefill only Fail.
type OutputBody struct {
	Receipt *SignedReceipt `msgpack:"receipt"`
	Tokens  []sample.Token `msgpack:"tokens"`
	Finish  *Finish        `msgpack:"finish"`
	Fail    *Reject        `msgpack:"fail"`
}

// SignedReceipt is decode's statement that it verified and mapped every block,
// as signed bytes (package seal's Receipt), with the prefix tokens that
// prefill did not have to compute.
type SignedReceipt struct {
	Statement []byte `msgpack:"statement"`
	Cached    int    `msgpack:"cached"`
}

// Finish ends a good generation.
type Finish struct {
	Reason    string `msgpack:"reason"` // "stop" (end-of-generation token) or "length"
	Generated int    `msgpack:"generated"`
	Prompt    int    `msgpack:"prompt"`
}

// Cancel ends an attempt on a node. It is acknowledged once the pages are on
// their way back; cancelling what is unknown is acknowledged too.
type Cancel struct {
	TokenHash Hash   `msgpack:"token_hash"`
	Reason    Reason `msgpack:"reason"`
}

// Credit lets prefill have Limit bytes of the attempt's frames published in
// all (an absolute count, so a lost or repeated Credit does no harm).
type Credit struct {
	TokenHash Hash   `msgpack:"token_hash"`
	Limit     int64  `msgpack:"limit"`
	MAC       []byte `msgpack:"mac"` // HMAC-SHA-256 under the attempt's credit key
}

// Pong answers a ping: the node is alive in this boot.
type Pong struct {
	Epoch    uint64 `msgpack:"epoch"`
	Attempts int    `msgpack:"attempts"`
}
