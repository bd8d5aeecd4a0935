// Package sim runs whole clusters in one goroutine, by seed: routers, prefill and
// decode nodes, tenants, and a bus that does everything a bus may do wrong. It
// looks for a schedule of faults in which a request reads a KV entry that was not
// written for it.
//
// The main function is [Run]: many schedules, each a world of its own from one
// seed, which fails or not; [Replay] runs one again and writes its transcript.
//
// What runs is the product: router.Manual, prefill.Manual and decode.Manual are
// the roles without goroutines and clock; the pools are kv.Pool, the tokens
// package tenant's, messages and streams package transfer's, frames and manifests
// package seal's. The engine is package provenance, whose every reading is held
// against what the request alone says it should be.
//
// What is not the product: the bus (bus.go); the clock and all randomness, which
// come from the seed; and the public-key operations (suite.go), replaced by keyed
// hashes, since Ed25519, ML-KEM and X25519 cost more than everything else together.
// What is signed, sealed, bound and compared is unchanged: the stand-ins fail
// for other bytes, keys and names exactly where the real ones do.
//
// A schedule promises, and is checked for:
//
//   - no entry is read that is not the reader's own, and none of another tenant or
//     request;
//   - every request ends once: with the answer that its prompt alone decides, behind a
//     receipt, or with an error after at most a beginning of that answer;
//   - when all is quiet every page is free, or cached and idle, or in quarantine with
//     a reason, and the books agree with memory;
//   - no prompt and no tenant's name crosses the bus in the clear.
package sim
