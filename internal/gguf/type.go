package gguf

// Type is the number of a tensor type in a GGUF file (ggml's numbering).
type Type uint32
