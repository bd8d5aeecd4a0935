// Package identity says who a node is. It is the only package that knows the
// JWTs and nkeys of NATS.
//
// A cluster's root is a NATS operator. It signs one account, and the account
// names one scoped signing key per role. A node makes its own Ed25519 key at
// boot and signs itself a short-lived user JWT with its role's signing key, so
// replicas need no enrolment; the scope's template, which the broker applies,
// gives it the rights of its role for its own name and nothing more (see
// [Scopes]). Any node verifies another's JWT with the two public files alone.
//
// The main types are [Keys] (everything, for `keys init` and the all-in-one
// process), [Minter] (one role's right to make nodes), [Node] (a running node)
// and [Authority] (verifies others).
//
// # Files
//
// [Init] writes into one directory of mode 0700:
//
//	operator.nk operator.jwt   the root; the seed is for offline keeping
//	account.nk  account.jwt    Bulkhead's account with its scoped keys
//	system.nk   system.jwt     the servers' own account
//	router.nk prefill.nk decode.nk   one scoped signing key per role
//	auth.conf                  what a nats-server needs, for its include
//
// Seeds (.nk, mode 0400) are in the text form that nsc and nk read, JWTs in the
// form that nsc reads. A container of a role needs operator.jwt, account.jwt and
// its own <role>.nk; a broker needs auth.conf (or the three .jwt files).
//
// # Signatures
//
// [Node.Sign] signs, with the node's own key,
//
//	"bulkhead signature/1" 0x00
//	u32 length of kind, kind      what sort of statement ("announce", "manifest")
//	u32 length of dest, dest      whom or what it is for ("" for everyone)
//	u64 length of body, body
//
// with lengths in big endian. The same key answers a broker's login challenge,
// whose bytes a hostile broker may choose: [Node.NATSSign] therefore signs only
// what cannot be the start of such an encoding, nor of a PASETO token.
//
// At a decode node's own KV server a node logs in with such a statement, of kind "kv login", to the
// server's name and boot, over its challenge: see [KVLogin].
//
// # Promises
//
// A JWT is believed only if it was signed by a scoped key of this account, has
// no permissions of its own, is in time, and has a name within the grammar. The
// role is the signing key's, never the JWT's word. Nothing here prints a key.
package identity
