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
// Memory is used again: pages, runners and the bytes of messages go from one schedule to the
// next of the same goroutine, each wiped in between, whatever it says of itself (package
// provenance's Engine.Recycle, arena.go). Nodes, books, keys and everything that the product
// remembers are new in every schedule. TestReuseChangesNothing holds schedules in used memory against
// the same ones in fresh memory, line by line.
//
// What is not the product: the bus (bus.go); the clock and all randomness, which
// come from the seed; and the public-key operations (suite.go), replaced by a keyed
// mixing function (mac.go), since Ed25519, ML-KEM and X25519 cost more than everything else
// together. What is signed, sealed, bound and compared is unchanged: the stand-ins fail
// for other bytes, keys and names exactly where the real ones do. Frames, first tokens
// and output are sealed with the product's AES-256-GCM.
//
// The mixture. Of 32 schedules 31 are small, as small as still has room for every
// class of fault: a router, 1 or 2 prefill nodes, a decode node, 1 to 3 requests that begin
// while others are under way, pools of 2 to 5 pages, prompts of 1 to 128 tokens and in one of
// eight up to 319, over most limits, 1 to 3 tokens of answer. The other is big: 1 or 2 nodes
// of each role, 1 to 4 requests, pools of 4 to 10 pages, prompts of 1 to 200 tokens and in one
// of eight up to 650, up to 6 tokens of answer. One request in nine comes twice, as two sequences
// of one request. In a small schedule there are fewer messages and steps, so faults that are rare
// come twice as often in it. What the mixture is worth is not how many schedules a second it
// runs but how many holes it finds: BenchmarkFound. Of the faults in faults.go a quarter of the
// big schedules and an eighth of the small have all, the others each with a chance of 1 in 5,
// but lies, in small schedules, of nearly one half. They are: messages
// dropped, repeated, out of order, delayed beyond their attempt, with a bit changed, at
// another of their kind's address, and sent again from the past (other attempts, requests and
// boots among it); nodes that die and boot under the same name, with another capacity or
// another model; requests under an id that another tenant had; clients that go away; clocks
// that differ; nodes cut off; a stream server that forgets; full streams; pages that
// change places; prefill nodes that lie (short fills, over-claims, placeholders, other manifests);
// and slow steps: an engine checks its pages, then deadlines pass, cancels and messages
// come, and only then its writes land, unchecked, as a copy engine's would.
//
// Not in it: HTTP; the bytes of the window and of credits, which blocks this small
// never reach; an engine whose writes land after Forward has returned, which breaks the contract
// of model.Runner: nothing above it could tell.
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
