// Package tenant defines whom a request belongs to: the registry of tenants
// and their keys, and the tenant token, which grants one attempt at one
// generation to one pair of nodes.
//
// The main types are [Registry] (who may ask) and [Claims] (what was granted).
//
// # The tenant token
//
// A token is PASETO v4.public (Ed25519), signed by the node key of the router
// that admitted the request:
//
//	v4.public.<base64url(claims JSON || 64-byte signature)>.<base64url(router)>
//
// The footer is the name of the router, whose verified announcement has the
// key. The implicit assertion, signed but not carried, is "kvgrant/1|" followed
// by the cluster's id, so a token of one cluster is nothing in another.
//
// The claims are one flat JSON object. Every member is there exactly once, none
// else is, and none holds another object. Names are 1 to 32 characters of
// [A-Za-z0-9_-] (tenant ids up to 64), digests are 64 lower-case hex digits,
// times are RFC 3339 in UTC with whole seconds.
//
//	member  JSON    meaning                                         bounds
//	v       number  version of this list                            1
//	ten     string  tenant id (opaque, not the tenant's name)       1..64 characters
//	rid     string  request id, random, made by the router          32 hex digits
//	chd     number  child: index of the sequence in the request     0..65535
//	att     number  attempt, from 1                                 1..65535
//	mdl     string  model fingerprint                               64 hex digits
//	len     number  prompt length in tokens                         1..16777216
//	dig     string  salted prompt digest, see PromptDigest          64 hex digits
//	btk     number  tokens in a block                               64
//	blk     number  blocks                                          ceil(len / btk)
//	max     number  tokens to generate at most                      1..16777216
//	pre     string  prefill node                                    name
//	dec     string  decode node                                     name
//	dep     string  boot epoch of the decode node                   16 hex digits
//	rep     string  reply binding, see ReplyBinding                 64 hex digits
//	pfx     string  prefix scope, see Registry.PrefixRoot           64 hex digits
//	iat     string  issued at                                       time
//	nbf     string  not before                                      iat <= nbf < exp
//	exp     string  expires: the attempt must have started          exp - iat <= 120 s
//
// A token is at most 4,096 bytes. It is not a bearer token: its users prove
// with their own node keys that they are the nodes it names, so it may travel
// readable in a message header. Clients never see one.
//
// # Promises
//
// [Verify] gives claims only if the signature, the form, the bounds and the
// times are right; each fault has its own error for logs and tests. What a
// remote peer is told of a bad token is one word for all of them.
// [Claims.Check] then compares with what a node knows by itself.
//
// Nothing in this package prints a key: see [Secret].
//
// It is not for quotas over time (the router counts) nor for node identity
// (package identity).
package tenant
