package cpu

import "bulkhead/internal/gguf"

// The tensor types that can be multiplied.
const (
	typeF32  gguf.Type = 0
	typeF16  gguf.Type = 1
	typeQ4_0 gguf.Type = 2
	typeQ4_1 gguf.Type = 3
	typeQ5_0 gguf.Type = 6
	typeQ5_1 gguf.Type = 7
	typeQ8_0 gguf.Type = 8
	typeQ4_K gguf.Type = 12
	typeQ5_K gguf.Type = 13
	typeQ6_K gguf.Type = 14
	typeBF16 gguf.Type = 30
)
