// Package rogue is misbehaving peers: a prefill node, a decode node and a router that are a
// second, small implementation of the protocol, each with named bugs that are switched on
// one at a time. They run as processes beside honest ones of the released binary, as BoGo's
// shims do for TLS, and what the honest ones make of it is judged from outside.
//
// The main type is [Switch], a bug with what the honest side must do about it; [Switches]
// lists all; [Main] runs one peer, told over its standard input which bug to have.
//
//  1. A rogue has an identity of its role, made with the role's own signing key: it is a node that
//     was taken over or is badly written, not a stranger. Strangers are the permission tests' affair.
//  2. It builds on transfer, seal and tenant, whose senders can be given wrong values, and on a
//     bus wrapped by [tap], which drops, repeats and replaces what they send. What these
//     refuse to say is written by hand (a tenant token's PASETO, see resign).
//  3. Everything computes with the provenance engine, so the one right answer to each request
//     is known from its prompt alone.
//  4. A bug acts once per request that reaches the rogue; it counts them, and the test goes on
//     until there were enough. Other requests of the same run go to the honest nodes, and must be right.
//  5. Verdict per switch: no answer is wrong; a request that met the bug was refused (an HTTP error or
//     an SSE error event) or answered right after a retry; the honest nodes' counter that is named in
//     the table has moved at least once per request that met the bug; pages are back; honest requests go on.
//  6. Some lies cannot be noticed by a peer: what a node computes is its word. They are in
//     the table as blind, and they are the control: the oracle must find them wrong.
//
// docs/misbehaving-peers.md is the table that the test printed last. The test has the tag rogue, for it
// takes minutes: see make rogue.
//
// Not for: the release. Nothing of it is linked into the program.
package rogue
