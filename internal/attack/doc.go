// Package attack holds hostile moves against the protocol, one row each: what is
// done, by whom, and with which words it is refused. It has tests only.
//
// An attacker here is a bus that changes and repeats what it carries, or a node of
// the cluster with its own keys that does not follow the protocol. Against it stands
// the product: decode.Manual, prefill.Manual and router.Manual with real identities,
// tokens, HPKE and seals, over a bus in memory, on the caller's goroutine; and kv,
// kernels and provenance underneath.
//
// Each row names its walls: the checks that all have to be removed before it goes
// through. In an ordinary build every row must be refused with its words. In a build
// with the tag mutants the walls are proved: with all of them removed the row goes
// through, with any one of them left it does not. So a row with one wall shows that
// nothing stands behind that check, and a row with several shows which ones back each
// other. docs/mutants.md is made from this, and from the simulator (package sim),
// by "make mutants".
package attack
