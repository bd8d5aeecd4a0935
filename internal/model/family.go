package model

// family is what an architecture adds to the common transformer.
type family struct {
	neox        bool // RoPE pairs dimension i with i+d/2 (transformers' order), not 2i with 2i+1
	attnBias    presence
	qkNorm      bool // RMS norm of each head's query and key before RoPE
	ropeFactors bool // rope_freqs.weight may divide the frequencies
}

// presence says whether a tensor must be there.
type presence int

const (
	absent presence = iota
	optional
	required
)

// familyOf returns the family of a GGUF architecture name.
func familyOf(arch string) (family, bool) {
	switch arch {
	case "llama":
		return llama(), true
	case "qwen2":
		return qwen2(), true
	case "qwen3":
		return qwen3(), true
	}
	return family{}, false
}

// architectures lists the names that familyOf knows.
func architectures() []string { return []string{"llama", "qwen2", "qwen3"} }
