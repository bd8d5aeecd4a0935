// Package kernels declares the tensor operations that a forward pass needs,
// and the paged KV pool that those operations read and write.
//
// The main type is [Backend]: it holds weights in its own layout ([Matrix],
// [Vector]), activations ([Buffer]) and KV pages ([Pages]), and runs steps.
// Everything above this package is the same for a CPU and for a GPU.
//
// Two promises are part of the contract of every Backend:
//
//   - Fixed reduction order. For one [Info.Tier], the result of a row depends
//     only on that row's inputs: never on the number of rows in the batch, the
//     chunk a prompt was cut into, the number of threads, or the node. Equality
//     is bitwise.
//   - Ownership. Attention compares every block-table entry that it reads with
//     the tag of the page, and append does so for every slot it writes. A page
//     of another owner or generation, or a slot that was not written, is a
//     [Fault]: the row's output is NaN, the fault is returned by Step before any
//     output may be used, and the other sequences of the batch are unharmed.
//
// The package holds no state and imports only the GGUF type numbers.
package kernels
