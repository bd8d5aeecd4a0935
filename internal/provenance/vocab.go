package provenance

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/tokenizer"
)

// The vocabulary: one token for each byte, then the digits of an answer, then
// the end.
const (
	FirstDigit = 256 // "[p0]" ... "[pf]"
	EOG        = 272
	Vocab      = 273
	Digits     = 32 // of a sum
)

const template = `{% for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}`

// metadata is what a model file would say of its tokenizer.
type metadata struct {
	strs  map[string]string
	texts []string
	kinds []int32
}

func newMetadata() metadata {
	m := metadata{strs: map[string]string{
		"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.chat_template": template,
	}}
	for b := range 256 {
		m.texts = append(m.texts, string(byteRune(byte(b))))
	}
	for d := range 16 {
		m.texts = append(m.texts, fmt.Sprintf("[p%x]", d))
	}
	m.texts = append(m.texts, "<|endoftext|>")
	for range m.texts {
		m.kinds = append(m.kinds, 1)
	}
	m.kinds[EOG] = 3 // control
	return m
}

// byteRune is GPT-2's map of bytes to printable characters.
func byteRune(b byte) rune {
	printable := func(b byte) bool { return b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae }
	if printable(b) {
		return rune(b)
	}
	n := rune(256)
	for c := range b {
		if !printable(c) {
			n++
		}
	}
	return n
}

func (m metadata) Str(key string) (string, bool, error) {
	s, ok := m.strs[key]
	return s, ok, nil
}

func (m metadata) Strs(key string) ([]string, bool, error) {
	switch key {
	case "tokenizer.ggml.tokens":
		return m.texts, true, nil
	case "tokenizer.ggml.merges":
		return nil, true, nil
	}
	return nil, false, nil
}

func (m metadata) Ints(key string) ([]int32, bool, error) {
	return m.kinds, key == "tokenizer.ggml.token_type", nil
}

func (m metadata) Uint(key string) (uint64, bool, error) {
	return EOG, key == "tokenizer.ggml.eos_token_id", nil
}

func (m metadata) Bool(string) (bool, bool, error) { return false, false, nil }

// NewTokenizer makes the engine's tokenizer: one token for each byte. The
// digest is what the engine's Facts.Metadata has.
func NewTokenizer() (*tokenizer.Tokenizer, [32]byte, error) {
	tok, err := tokenizer.New(newMetadata())
	return tok, metadataDigest(), err
}

func metadataDigest() [32]byte {
	m := newMetadata()
	return sha256.Sum256([]byte("bulkhead provenance metadata 1\x00" + strings.Join(slices.Concat(m.texts, []string{template}), "\x00")))
}
