package model

// qwen3 is the dense Qwen 3 (transformers' Qwen3ForCausalLM): query and key are
// normed per head.
func qwen3() family {
	return family{neox: true, qkNorm: true}
}
