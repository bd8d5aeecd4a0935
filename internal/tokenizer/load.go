package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits on metadata. Real vocabularies have up to 262,144 tokens and as many merges,
// tokens of at most a few hundred bytes, and some thousands of added tokens.
const (
	maxTokens         = 1 << 20
	maxMerges         = 1 << 21
	maxTokenBytes     = 4096
	maxVocabBytes     = 64 << 20
	maxAddedTokens    = 1 << 16
	maxAddedBytes     = 256     // of one control or user-defined token: bounds a match attempt
	maxAddedTextBytes = 2 << 20 // of all of them: bounds the matcher's memory
	maxNameBytes      = 64      // of tokenizer.ggml.model and .pre
	keyModel          = "tokenizer.ggml.model"
	keyPre            = "tokenizer.ggml.pre"
	keyTokens         = "tokenizer.ggml.tokens"
	keyTypes          = "tokenizer.ggml.token_type"
	keyMerges         = "tokenizer.ggml.merges"
	keyAddBOS         = "tokenizer.ggml.add_bos_token"
	keyTemplate       = "tokenizer.chat_template"
)

// tokenType is GGUF's llama_token_type.
type tokenType int32

const (
	typeNormal      tokenType = 1
	typeUnknown     tokenType = 2
	typeControl     tokenType = 3
	typeUserDefined tokenType = 4
	typeUnused      tokenType = 5
	typeByte        tokenType = 6
)

// control: the unknown token steers nothing, but no text may turn into it either, and
// it stands for no text; so it is kept with the control tokens.
func (k tokenType) control() bool { return k == typeControl || k == typeUnknown }

// preTokenizer is what a value of tokenizer.ggml.pre stands for.
type preTokenizer struct {
	split      splitter
	nfc        bool
	wholeWords bool
	addBOS     bool // when the file does not say
}

// preTokenizers: names as written by llama.cpp's converter, which picks them by hashing
// the ids of a test string.
var preTokenizers = map[string]preTokenizer{
	"smollm":    {split: splitSmolLM},
	"llama-bpe": {split: splitLlama3, wholeWords: true, addBOS: true},
	"llama3":    {split: splitLlama3, wholeWords: true, addBOS: true},
	"llama-v3":  {split: splitLlama3, wholeWords: true, addBOS: true},
	"qwen2":     {split: splitQwen2, nfc: true},
}

// idKeys are the metadata keys that name one token each; the second column is the
// variable under which Hugging Face shows its text to a template.
var idKeys = []struct {
	key, variable string
	endsTurn      bool
}{
	{"tokenizer.ggml.bos_token_id", "bos_token", false},
	{"tokenizer.ggml.eos_token_id", "eos_token", true},
	{"tokenizer.ggml.unknown_token_id", "unk_token", false},
	{"tokenizer.ggml.padding_token_id", "pad_token", false},
	{"tokenizer.ggml.eot_token_id", "", true},
	{"tokenizer.ggml.eom_token_id", "", true},
}

// endOfTurnText: control tokens that end a turn in the model families served here. Files
// name only one of them as eos, while generation_config.json lists several.
var endOfTurnText = []string{"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"}

// New reads a tokenizer from GGUF metadata. It keeps the strings it is given and none
// of the slices.
//
// Errors: ErrUnsupportedModel, ErrUnsupportedPre, ErrTemplate, or a *MetadataError
// (ErrMetadata, ErrLimit) naming the key.
func New(md Metadata) (*Tokenizer, error) {
	t := &Tokenizer{bos: -1, eog: map[int32]bool{}, special: map[string]string{}}
	for _, step := range []func(Metadata) error{
		t.loadNames, t.loadTokens, t.loadMerges, t.loadIDs, t.loadTemplate,
	} {
		if err := step(md); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *Tokenizer) loadNames(md Metadata) error {
	model, err := required(md.Str, keyModel)
	if err != nil {
		return err
	}
	if model != "gpt2" {
		return fmt.Errorf("%w: %q (have \"gpt2\", byte-level BPE)", ErrUnsupportedModel, clip(model))
	}
	pre, err := required(md.Str, keyPre)
	if err != nil {
		return err
	}
	p, ok := preTokenizers[pre]
	if !ok {
		return fmt.Errorf("%w: %q (have smollm, llama-bpe, qwen2)", ErrUnsupportedPre, clip(pre))
	}
	t.model, t.pre = model, pre
	t.split, t.nfc, t.wholeWords, t.addBOS = p.split, p.nfc, p.wholeWords, p.addBOS
	add, ok, err := md.Bool(keyAddBOS)
	if err != nil {
		return badKey(keyAddBOS, "%v", err)
	}
	if ok {
		t.addBOS = add
	}
	return nil
}

func (t *Tokenizer) loadTokens(md Metadata) error {
	tokens, err := required(md.Strs, keyTokens)
	if err != nil {
		return err
	}
	types, err := required(md.Ints, keyTypes)
	if err != nil {
		return err
	}
	switch n := len(tokens); {
	case n == 0:
		return badKey(keyTokens, "no tokens")
	case n > maxTokens:
		return overLimit(keyTokens, "token count", n, maxTokens)
	case n != len(types):
		return badKey(keyTypes, "has %d entries for %d tokens", len(types), n)
	}
	t.text = make([]string, len(tokens))
	t.piece = make([]string, len(tokens))
	t.kind = make([]tokenType, len(tokens))
	t.words = make(map[string]int32, len(tokens))
	for i := range t.byteID {
		t.byteID[i] = -1
	}
	seen := make(map[string]struct{}, len(tokens))
	total, addedCount, addedBytes := 0, 0, 0
	for i, text := range tokens {
		id, kind := int32(i), tokenType(types[i])
		if kind < typeNormal || kind > typeByte {
			return badKey(keyTypes, "entry %d has unknown type %d", i, types[i])
		}
		if text == "" {
			return badKey(keyTokens, "token %d is empty", i)
		}
		if len(text) > maxTokenBytes {
			return overLimit(keyTokens, fmt.Sprintf("length of token %d", i), len(text), maxTokenBytes)
		}
		if total += len(text); total > maxVocabBytes {
			return overLimit(keyTokens, "total length", total, maxVocabBytes)
		}
		if _, dup := seen[text]; dup {
			return badKey(keyTokens, "token %d repeats an earlier one", i)
		}
		seen[text] = struct{}{}
		t.text[i], t.kind[i] = text, kind
		switch {
		case kind.control() || kind == typeUserDefined:
			t.piece[i] = text
			addedCount++
			addedBytes += len(text)
			switch {
			case !utf8.ValidString(text):
				return badKey(keyTokens, "control or user-defined token %d is not UTF-8", i)
			case len(text) > maxAddedBytes:
				return overLimit(keyTokens, fmt.Sprintf("length of control or user-defined token %d", i), len(text), maxAddedBytes)
			case addedCount > maxAddedTokens:
				return overLimit(keyTypes, "count of control and user-defined tokens", addedCount, maxAddedTokens)
			case addedBytes > maxAddedTextBytes:
				return overLimit(keyTokens, "text of control and user-defined tokens", addedBytes, maxAddedTextBytes)
			}
			t.added.insert(text, id)
		case kind == typeUnused:
			t.piece[i] = text
		default:
			raw := bytesOf(text)
			t.piece[i] = raw
			if _, dup := t.words[raw]; dup {
				return badKey(keyTokens, "token %d stands for the bytes of an earlier one", i)
			}
			t.words[raw] = id
			if len(raw) == 1 {
				t.byteID[raw[0]] = id
			}
		}
	}
	return t.checkBytes()
}

// checkBytes refuses a vocabulary without printable ASCII, tab or newline: that is no
// byte-level vocabulary. Others may lack: SmolLM2 has no token for eight bytes that valid
// text may hold (six control characters; the lead bytes F1 and F2). Hugging Face drops such
// a byte from the prompt, and so does Encode.
func (t *Tokenizer) checkBytes() error {
	for b, id := range t.byteID {
		if id < 0 && (b >= ' ' && b <= '~' || b == '\t' || b == '\n') {
			return badKey(keyTokens, "no token for byte %#02x", b)
		}
	}
	return nil
}

func (t *Tokenizer) loadMerges(md Metadata) error {
	merges, err := required(md.Strs, keyMerges)
	if err != nil {
		return err
	}
	if len(merges) > maxMerges {
		return overLimit(keyMerges, "merge count", len(merges), maxMerges)
	}
	t.merges = make(map[pair]rule, len(merges))
	for rank, m := range merges {
		// The alphabet has no space, so the first space after the first byte parts them.
		if len(m) > 2*maxTokenBytes+1 {
			return overLimit(keyMerges, fmt.Sprintf("length of merge %d", rank), len(m), 2*maxTokenBytes+1)
		}
		cut := strings.IndexByte(m[min(1, len(m)):], ' ') + 1
		if cut <= 0 || cut == len(m)-1 {
			return badKey(keyMerges, "merge %d is not two parts", rank)
		}
		left, right := bytesOf(m[:cut]), bytesOf(m[cut+1:])
		a, okA := t.words[left]
		b, okB := t.words[right]
		both, okC := t.words[left+right]
		if !okA || !okB || !okC {
			// Were the result a control token, a user could spell it; a control token
			// is never in words, so this line refuses that too.
			return badKey(keyMerges, "merge %d has a part or a result that is no ordinary token", rank)
		}
		p := pair{a, b}
		if _, dup := t.merges[p]; dup {
			return badKey(keyMerges, "merge %d repeats an earlier one", rank)
		}
		t.merges[p] = rule{rank: int32(rank), id: both}
	}
	return nil
}

func (t *Tokenizer) loadIDs(md Metadata) error {
	for _, k := range idKeys {
		id, ok, err := md.Uint(k.key)
		if err != nil {
			return badKey(k.key, "%v", err)
		}
		if !ok {
			continue
		}
		if id >= uint64(len(t.text)) {
			return badKey(k.key, "id %d is outside the vocabulary of %d", id, len(t.text))
		}
		if k.endsTurn {
			t.eog[int32(id)] = true
		}
		if k.variable != "" {
			t.special[k.variable] = t.text[id]
		}
		if k.variable == "bos_token" {
			t.bos = int32(id)
		}
	}
	if t.addBOS && t.bos < 0 {
		return badKey(keyAddBOS, "set, but the file names no bos token")
	}
	for _, text := range endOfTurnText {
		if id, ok := t.added.exact(text); ok && t.kind[id].control() {
			t.eog[id] = true
		}
	}
	return nil
}

func (t *Tokenizer) loadTemplate(md Metadata) error {
	source, ok, err := md.Str(keyTemplate)
	if err != nil {
		return badKey(keyTemplate, "%v", err)
	}
	if ok {
		if t.template, err = newTemplate(source, t.special); err != nil {
			return err
		}
		var controls []string
		for i, text := range t.text {
			if t.kind[i].control() {
				controls = append(controls, text)
			}
		}
		t.guard = newGuard(controls, t.template)
	}
	t.fingerprint = t.sum(source, ok)
	return nil
}

func required[T any](get func(string) (T, bool, error), key string) (T, error) {
	v, ok, err := get(key)
	switch {
	case err != nil:
		return v, badKey(key, "%v", err)
	case !ok:
		return v, badKey(key, "missing")
	}
	return v, nil
}

// clip keeps a hostile name from filling a log line.
func clip(s string) string {
	if len(s) > maxNameBytes {
		return s[:maxNameBytes] + "..."
	}
	return s
}
