// Package tokenizer maps text to token ids and back, and renders chats, from the
// metadata of a GGUF file alone.
//
// The main type is [Tokenizer]: byte-level BPE (GGUF model "gpt2") with the
// pre-tokenizers of SmolLM2 ("smollm"), Llama 3 ("llama-bpe") and Qwen 2 and 3 ("qwen2").
//
//	tok, err := tokenizer.New(file)              // reads tokenizer.ggml.* once
//	ids := tok.Encode("what a user typed")       // never yields a control token
//	ids, err = tok.RenderChat(messages, true)    // the file's chat template
//	dec := tok.NewDecoder()
//	fmt.Print(dec.Push(id), dec.Flush())         // whole UTF-8 characters only
//
// What it promises:
//
//   - The ids are those of Hugging Face tokenizers. Golden files of thousands of
//     strings say so; the script beside them names the versions compared.
//   - Text typed by a user never becomes a control token: not through Encode, not
//     through a chat, wherever a template puts it. chat.go says why this holds.
//   - Encoding takes time linear in the text for text of any shape (bpe.go).
//   - Metadata is hostile until checked: New returns an error naming the key, and
//     uses memory in proportion to what the file really holds.
//   - A Tokenizer is immutable and safe for concurrent use. It keeps no cache between
//     calls, so one tenant's words never make another tenant's encoding faster.
//
// Not for: SentencePiece models ([ErrUnsupportedModel] names them), templates from
// clients (a template is code; it comes from the model file only).
package tokenizer

// Metadata is the part of a GGUF file that New reads. Each getter reports the value of
// a key, whether the key is there, and an error when it is there with another type.
type Metadata interface {
	Str(key string) (string, bool, error)
	Strs(key string) ([]string, bool, error)
	Ints(key string) ([]int32, bool, error)
	Uint(key string) (uint64, bool, error)
	Bool(key string) (bool, bool, error)
}

// Tokenizer is one model's vocabulary, merge rules, special tokens and chat template.
type Tokenizer struct {
	model string // GGUF tokenizer model, "gpt2"
	pre   string // GGUF pre-tokenizer name as the file gives it
	split splitter
	nfc   bool // text is put into Unicode NFC first (Qwen)
	// wholeWords: a word that is itself a token is that token, whatever the merges
	// would make of it (Llama 3; "ignore_merges" in tokenizer.json).
	wholeWords bool

	text   []string      // token text as in the file; len = vocabulary size
	kind   []tokenType   // as in the file
	piece  []string      // raw bytes that each token stands for
	merges map[pair]rule // what two neighbours become, and how early
	words  map[string]int32
	byteID [256]int32 // token of one byte, -1 if the vocabulary has none

	added   matcher // control and user-defined tokens
	eog     map[int32]bool
	bos     int32 // -1 if the file names none
	addBOS  bool
	special map[string]string // bos_token, eos_token ... as templates see them

	template    *Template // nil if the file has none
	guard       *guard    // nil without template
	fingerprint [32]byte
}

// VocabSize is the number of tokens; ids run from 0 to VocabSize()-1.
func (t *Tokenizer) VocabSize() int { return len(t.text) }

// BOS returns the id that begins a sequence (-1 if the file names none) and whether a
// plain prompt wants it in front. Chats never do: their template writes it.
func (t *Tokenizer) BOS() (id int32, add bool) { return t.bos, t.addBOS }

// IsControl reports whether id is a token that steers the model and stands for no text
// of an answer. An id outside the vocabulary is not.
func (t *Tokenizer) IsControl(id int32) bool {
	return t.known(id) && t.kind[id].control()
}

// EOG reports whether id ends a generation: end of text, of turn or of message.
func (t *Tokenizer) EOG(id int32) bool { return t.eog[id] }

// Piece returns the raw bytes of one token, not always whole UTF-8; for control tokens
// their text; nil for an id outside the vocabulary. The caller may keep the result.
func (t *Tokenizer) Piece(id int32) []byte {
	if !t.known(id) {
		return nil
	}
	return []byte(t.piece[id])
}

// Template returns the file's chat template, and false if it has none.
func (t *Tokenizer) Template() (*Template, bool) { return t.template, t.template != nil }

// Fingerprint is the SHA-256 over everything in the metadata that decides ids or the
// rendering of a chat; see fingerprint.go for the exact encoding.
func (t *Tokenizer) Fingerprint() [32]byte { return t.fingerprint }

func (t *Tokenizer) known(id int32) bool { return id >= 0 && int(id) < len(t.text) }
