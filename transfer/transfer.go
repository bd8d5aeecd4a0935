// Package transfer is the bus: how the nodes of a cluster talk, and the only
// package that speaks NATS.
//
// The main types are [Peer], a node on the bus, and [Bus], what a Peer needs of
// a message bus; [Conn] is a Bus over NATS, package membus has one in memory.
//
// # Subjects
//
//	announce.<role>.<node>                       what a node is, every second; all listen
//	job.<role>.<node>                            router asks one node to take an attempt
//	cancel.<node>                                router ends an attempt
//	ping.<node>                                  router asks whether a node is alive
//	credit.<prefill>.<decode>                    decode lets prefill publish more
//	out.<router>.<request>.<token>               receipt, tokens and end of an attempt
//	kv.<decode>.<request>.<attempt>.<token>      an attempt's KV, into stream KV_<decode>
//
// Node names are [A-Za-z0-9_-]{1,32}; request and token are 128 bits in base32
// (lower case, 26 characters): the request's id and the first half of the tenant
// token's SHA-256; attempt is a decimal number from 1 to 65535. Nothing else parses.
//
// # Messages
//
// Control messages are msgpack maps of typed structs (message.go). Every member
// is there exactly once, none else is, every string, byte string and list is
// within its limit (the table in codec.go), nothing follows the end; all this is checked
// before anything is decoded, so a hostile message costs no more than its own bytes.
//
// A control message travels in an envelope {kind, from, body, sig}: from is the
// sender's user JWT, sig its Ed25519 signature over kind, destination and body.
// The destination is the subject; for a job, the subject and the boot epoch it is
// meant for; for an answer, the SHA-256 of the request that it answers. A message is taken only
// if the cluster's account vouches for the sender, the sender's role may send
// this kind, the signature holds, and the sender has the name that the subject gives it. So nothing
// can be replayed to another node, another boot, or as the answer to another question.
//
// A job's body is also sealed (HPKE) to the boot key that the node announced,
// bound to subject, epoch and router. Output is sealed under a reply key of
// the sender's role, and numbered without gaps. Both are ciphertext to the bus.
//
// A KV frame is not an envelope: it is the frame's header and ciphertext as
// package seal made them, copied by no codec. It begins with "BKHF", which no
// envelope does. Opening, manifest and refusal of an attempt are envelopes on
// the same subject. The opening is stored before any frame is sent, the manifest
// after every frame is stored; between them a frame that was sent again may come
// late or twice, the same bytes each time.
//
// # Flow control
//
// A [Window] bounds what a prefill node has in flight to one decode node (16 MiB);
// within it every attempt may publish as far as decode's absolute [Credit]
// says. A full stream (JetStream 10077) is the backstop: the message is sent
// again, the same bytes, until the attempt ends.
//
// # KV servers
//
// A decode node may carry its own KV stream, on a NATS server in its process that it announces
// (Announce.KVURL). Only kv.<decode>.* goes there, straight from prefill to where it is consumed.
// Credits, cancellations, jobs and output stay on the cluster's bus: they are small, a prefill node hears
// them there already, whichever node they come from, and so the only right that anybody has at the
// server is to publish to its node's stream. A connection is made for the first job that a router grants to the node, is
// shared by all attempts of its boot ([KVSender]), and ends with the node. What is announced is a
// place to dial, chosen by another node, so it is bounded ([CheckKVURL]), the login is good there and
// nowhere else (identity.KVLogin), and the server is listened to no more than it needs ([KVLink]). One that
// cannot be reached, or falls silent, is ErrKVServer: the attempt ends with ReasonKVServer, and the
// router takes another decode node.
//
// # Promises
//
// Bytes from the bus can only cause an error, which is counted ([Counters]) and
// logged; they never panic and never reach a handler unverified. Nothing is
// queued for a connection that is not there. A handler that is called once is not
// called again for the same message, but for KV: a KV message comes again until
// it is acknowledged, so its receiver tells repeats by their content.
//
// A job that was opened is not yet a job that was granted: [Peer.VerifyJob] holds
// its tenant token against what the node knows by itself, and [Once] refuses a
// token that was used.
//
// It is not for work queues: every message is for a node that was chosen by name.
package transfer
