package model

import (
	"fmt"
	"slices"

	"bulkhead/internal/gguf"
)

// Names of the tensors, as llama.cpp's gguf-py gives them (constants.py).
const (
	nameEmbed      = "token_embd.weight"
	nameOutNorm    = "output_norm.weight"
	nameOutput     = "output.weight" // absent where the embedding is the head
	nameRopeFreqs  = "rope_freqs.weight"
	nameAttnNorm   = "attn_norm.weight"
	nameQ          = "attn_q.weight"
	nameK          = "attn_k.weight"
	nameV          = "attn_v.weight"
	nameQBias      = "attn_q.bias"
	nameKBias      = "attn_k.bias"
	nameVBias      = "attn_v.bias"
	nameQNorm      = "attn_q_norm.weight"
	nameKNorm      = "attn_k_norm.weight"
	nameAttnOutput = "attn_output.weight"
	nameFFNNorm    = "ffn_norm.weight"
	nameGate       = "ffn_gate.weight"
	nameUp         = "ffn_up.weight"
	nameDown       = "ffn_down.weight"
)

// inLayer is a tensor's full name in one layer.
func inLayer(layer int, name string) string { return fmt.Sprintf("blk.%d.%s", layer, name) }

// wanted is one tensor that the architecture knows. dims are in the file's order:
// [columns, rows] of a matrix, [n] of a vector.
type wanted struct {
	name     string
	dims     []int
	presence presence
}

// tensors lists every tensor a file of this shape may hold.
func (s Spec) tensors() []wanted {
	all := []wanted{
		{nameEmbed, []int{s.Hidden, s.Vocab}, required},
		{nameOutNorm, []int{s.Hidden}, required},
		{nameOutput, []int{s.Hidden, s.Vocab}, optional},
	}
	if s.family.ropeFactors {
		all = append(all, wanted{nameRopeFreqs, []int{s.RopeDims / 2}, optional})
	}
	q, kv := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	qkNorm := absent
	if s.family.qkNorm {
		qkNorm = required
	}
	layer := []wanted{
		{nameAttnNorm, []int{s.Hidden}, required},
		{nameQ, []int{s.Hidden, q}, required},
		{nameK, []int{s.Hidden, kv}, required},
		{nameV, []int{s.Hidden, kv}, required},
		{nameQBias, []int{q}, s.family.attnBias},
		{nameKBias, []int{kv}, s.family.attnBias},
		{nameVBias, []int{kv}, s.family.attnBias},
		{nameQNorm, []int{s.HeadDim}, qkNorm},
		{nameKNorm, []int{s.HeadDim}, qkNorm},
		{nameAttnOutput, []int{q, s.Hidden}, required},
		{nameFFNNorm, []int{s.Hidden}, required},
		{nameGate, []int{s.Hidden, s.FFN}, required},
		{nameUp, []int{s.Hidden, s.FFN}, required},
		{nameDown, []int{s.FFN, s.Hidden}, required},
	}
	for l := range s.Layers {
		for _, w := range layer {
			if w.presence != absent {
				all = append(all, wanted{inLayer(l, w.name), w.dims, w.presence})
			}
		}
	}
	return all
}

// checkTensors compares the file's index with what the architecture knows: none
// missing, none of another shape, none unknown. The error is a *TensorError.
func checkTensors(f *gguf.File, s Spec) error {
	known := map[string]bool{}
	for _, w := range s.tensors() {
		known[w.name] = true
		t, ok := f.Tensor(w.name)
		switch {
		case !ok && w.presence == required:
			return &TensorError{Name: w.name, Want: w.dims, Err: ErrMissing}
		case ok && w.name == nameEmbed && s.Vocab == 0: // readVocab left it
			return &TensorError{Name: w.name, Want: []int{s.Hidden, vocabMax}, Found: t.Dims, Err: ErrLimit}
		case ok && !slices.Equal(t.Dims, w.dims):
			return &TensorError{Name: w.name, Want: w.dims, Found: t.Dims, Err: ErrShape}
		}
	}
	for _, t := range f.Tensors() {
		if !known[t.Name] {
			return &TensorError{Name: t.Name, Found: t.Dims, Err: ErrUnknown}
		}
	}
	return nil
}
