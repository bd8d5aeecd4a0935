package model

// qwen2 is Qwen 2 and 2.5 (transformers' Qwen2ForCausalLM): biases on Q, K and V.
func qwen2() family {
	return family{neox: true, attnBias: required}
}
