// Package provenance is an engine that computes no language: what it writes
// into KV pages says for whom it was written, and what it answers says what it
// read. It runs behind model.Engine, so the same pool, seal, bus, schedulers and
// router carry it, in tests, in the simulator and in real clusters.
//
// The main type is [Engine]. Let F be the fingerprint, s the source of a sequence
// (tenant, request, child, attempt, and the boot of the node that computes: the
// incarnation), l a layer, p a position and t the token there. An entry is the
// 128 bits of K and V of one token in one layer:
//
//	entry = G(F, l, p, t) + P(F, s, l, p)    mod 2^128
//
// G and P are AES-128 under keys that are SHA-256 of what stands before l. So
// the bytes of an entry are a pseudorandom function of everything that it
// belongs to. Attention adds up every entry that it reads, each times an odd
// weight of its layer and position, less the P that a reader of this sequence
// expects there. If every entry is the right one the P go away, and the sum is
// the one of the G: it follows from the model and the tokens alone, see
// [Oracle.Expected]. Any other entry, of another tenant, request, attempt, boot, model,
// layer, position or token, zeros and stale bytes included, leaves a number that
// is right with probability 2^-128; and a block that was read in another's place
// is found by trying those that are known: see [Oracle.Trace].
//
// Why AES is enough: nothing here is secret and nobody attacks it. Values need
// only be different for different inputs and without structure that sums could
// cancel; AES under distinct keys gives 2^-128 for that, at some 10 ns an entry.
//
// The answer is spelled in hexadecimal, one digit a token, each written "[p0]" to
// "[pf]", in turn the 32 digits of the sum over the prompt, each changed by the sum
// over what was generated. Then the generation ends. So it is O(n) a step, a prompt of a
// million tokens is cheap, and nobody takes the answer for a model's.
//
// Not for: judging the kernels of a real engine. Its pages are its own, and do
// what kernels.Pages promises by the same kernels.CheckEntry.
package provenance
