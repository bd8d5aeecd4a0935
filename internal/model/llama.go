package model

// llama is Llama 1 to 3, SmolLM2, Mistral and their like (transformers'
// LlamaForCausalLM). The GGUF converter has permuted the rows of Q and K, so that RoPE
// pairs neighbours; Llama 3's frequency scaling arrives as rope_freqs.weight.
func llama() family {
	return family{attnBias: optional, ropeFactors: true}
}
