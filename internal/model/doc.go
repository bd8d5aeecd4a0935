// Package model turns a GGUF file into an engine that computes logits, one step
// for several sequences at a time, over paged KV.
//
//	backend, err := cpu.New(cpu.Config{})
//	m, err := model.Open("model.gguf", backend) // the model closes backend from now on
//	defer m.Close()
//	pages, err := m.NewPages(128)
//	runner, err := m.NewRunner(512, 16)
//	outs, err := runner.Forward(pages, []model.Seq{{Tokens: prompt, Table: table, Logits: true}})
//
// The main type is [Model], the one [Engine]. [Spec] is what the file's metadata
// says, checked; a family (llama.go, qwen2.go, qwen3.go) says what its
// architecture adds to the common pre-norm transformer with rotary embedding,
// grouped-query attention and SwiGLU. forward.go is the whole of the computation.
//
// # Promises
//
//   - A file costs at most an error: [SpecError] names the metadata key, its limit
//     and its value, [TensorError] the tensor with the shape wanted and found. A key
//     or tensor that would change the computation and is not understood is refused,
//     never ignored.
//   - The logits of a sequence are bitwise the same whatever shares its step, the
//     chunks its prompt was cut into, the pages it lies in, and the threads; for
//     one Fingerprint they are the same on every node.
//   - A sequence that touches a page not its own gets its fault in Out.Err and no
//     logits; the other sequences of the step are unharmed.
//
// The package neither chooses tokens (sample), nor owns pages (kv), nor reads the
// tokenizer (tokenizer).
package model
