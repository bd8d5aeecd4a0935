package tokenizer

// Encode turns text typed by a user into ids. Text that looks like a control token is
// text: the result never holds one. User-defined tokens are matched, as they are in
// Hugging Face: they are words of the model ("<think>"), not commands to it.
//
// The pieces of the result, concatenated, are the text (its NFC form for Qwen) without the
// bytes that the vocabulary has no token for; see checkBytes. Invalid UTF-8 is kept byte
// for byte.
func (t *Tokenizer) Encode(text string) []int32 {
	return t.encode(text, func(start, end int) bool { return false })
}

// encode turns text into ids; a control token at text[start:end] counts only where
// trusted says that all of those bytes may form one. Where it may not, the whole match
// is plain text and the search goes on behind it, as Hugging Face does when it is told
// to split special tokens.
func (t *Tokenizer) encode(text string, trusted func(start, end int) bool) []int32 {
	e := encoder{t: t, out: make([]int32, 0, len(text)/4+1)}
	plain := 0 // start of the plain text not yet encoded
	for i := 0; i < len(text); {
		if !t.added.first[text[i]] {
			i++
			continue
		}
		id, n := t.added.longest(text, i)
		switch {
		case n == 0:
			i++
		case t.kind[id].control() && !trusted(i, i+n):
			i += n
		default:
			e.plain(text[plain:i])
			e.out = append(e.out, id)
			i += n
			plain = i
		}
	}
	e.plain(text[plain:])
	return e.out
}

// maxCachedWord and maxCachedWords bound the words that one call remembers.
const (
	maxCachedWord  = 64
	maxCachedWords = 1 << 15
)

// encoder is the state of one call.
type encoder struct {
	t     *Tokenizer
	out   []int32
	cache map[string][]int32 // word -> its ids; lives as long as the call
	bpe   bpe
}

// plain encodes text that holds no added token.
func (e *encoder) plain(s string) {
	if s == "" {
		return
	}
	if e.t.nfc {
		s = toNFC(s)
	}
	e.t.split(s, e.word)
}

// word encodes one word of the pre-tokenizer.
func (e *encoder) word(w string) {
	if len(w) == 1 {
		if id := e.t.byteID[w[0]]; id >= 0 {
			e.out = append(e.out, id)
		}
		return
	}
	if e.t.wholeWords {
		if id, ok := e.t.words[w]; ok {
			e.out = append(e.out, id)
			return
		}
	}
	if len(w) > maxCachedWord {
		e.out = e.bpe.long(e.t, w, e.out)
		return
	}
	if ids, ok := e.cache[w]; ok {
		e.out = append(e.out, ids...)
		return
	}
	from := len(e.out)
	e.out = e.bpe.short(e.t, w, e.out)
	if len(e.cache) < maxCachedWords {
		if e.cache == nil {
			e.cache = map[string][]int32{}
		}
		e.cache[w] = append([]int32(nil), e.out[from:]...)
	}
}
