package model

import "bulkhead/kernels"

// Engine is a loaded model on one backend. It is immutable and safe for
// concurrent use; several roles in one process may share it.
type Engine interface {
	Facts() Facts
	// NewPages makes a KV pool in this engine's layout.
	NewPages(count int) (kernels.Pages, error)
	// NewRunner makes the scratch memory for steps of at most maxRows rows in
	// all and maxSeqs sequences. A Runner belongs to one goroutine.
	NewRunner(maxRows, maxSeqs int) (Runner, error)
	Close() error
}

// Facts are what a node announces of its model.
type Facts struct {
	Name        string // general.name of the file, for people
	Arch        string
	Fingerprint [32]byte // everything that decides a logit: file, KV layout, kernels
	File        [32]byte // digest of the whole model file: SHA-256 of the SHA-256s of its 4 MiB pieces
	Metadata    [32]byte // gguf.File.HeaderDigest: what a router without weights compares
	Layout      kernels.PageLayout
	Vocab       int
	Window      int  // tokens the model was trained for
	Private     bool // blocks say for which request they were computed: they must not be shared
}

// Runner runs forward steps.
type Runner interface {
	// Forward computes one step for several sequences at once. Rows of K and V
	// are appended to each sequence's pages. The outer error is the engine's
	// own failure; a sequence's failure is in its Out.
	Forward(pages kernels.Pages, seqs []Seq) ([]Out, error)
	Close()
}

// Seq is one sequence's part of a step: Tokens stand at positions
// [Pos, Pos+len(Tokens)).
type Seq struct {
	Tokens []int32
	Pos    int
	Table  []kernels.Entry
	Logits bool // want the logits after the last of Tokens
	Source Source
}

// Source says for whom a sequence is computed. A real model's numbers do not
// depend on it; package provenance writes it into what it computes.
type Source struct {
	Tenant         string
	Request        [16]byte
	Child, Attempt uint16
	Prompt         int    // tokens of the prompt
	Prefill        uint64 // boot of the node that computed it
	Decode         uint64 // boot of the node that generates; 0 at prefill
}

// Out is what a step gave for one Seq.
type Out struct {
	Logits []float32 // [Vocab], valid until the next Forward; nil unless asked for
	Err    error     // kernels.Fault: this sequence touched a page not its own
}
