package router

import (
	"math"
	"strings"
	"unicode/utf8"

	"bulkhead/internal/sample"
	"bulkhead/internal/tokenizer"
)

// assembler turns the tokens of one choice into the text that its client may see.
// Text that may be the beginning of a stop string is held back until it is known
// not to be one, so a stop string is never seen, wherever token borders fall.
type assembler struct {
	dec   *tokenizer.Decoder
	stops []string
	want  bool // log probabilities

	held    string // decoded and not yet given out
	given   int    // bytes given out
	runes   int    // characters decoded, for text_offset
	entries []logprob
	count   int // tokens taken
	ended   bool
}

// logprob is what is reported of one sampled token.
type logprob struct {
	token   sample.Token
	offset  int // characters before it in the text
	through int // bytes of text up to and with it
}

// piece is what an assembler gives out at a time.
type piece struct {
	text     string
	logprobs []logprob
}

func (p piece) empty() bool { return p.text == "" && len(p.logprobs) == 0 }

func newAssembler(tok *tokenizer.Tokenizer, stops []string, logprobs bool) *assembler {
	return &assembler{dec: tok.NewDecoder(), stops: stops, want: logprobs}
}

// push takes tokens and returns what is certain of the text. stopped means that a
// stop string came: the rest of tokens was not taken, and nothing more is to be pushed.
func (a *assembler) push(tokens []sample.Token) (out piece, stopped bool) {
	for _, t := range tokens {
		if a.ended {
			break
		}
		a.count++
		text := ""
		if !t.EOG { // the end's own name is no text
			text = a.dec.Push(t.ID)
		}
		a.add(t, text)
		if at := firstStop(a.held, a.stops); at >= 0 {
			a.held, a.ended = a.held[:at], true
		}
	}
	if a.ended {
		return a.give(len(a.held), true), true
	}
	return a.give(len(a.held)-partialStop(a.held, a.stops), false), false
}

// finish returns what was held back, at the end of a generation that no stop string ended.
func (a *assembler) finish() piece {
	if !a.ended {
		a.ended = true
		if a.held += a.dec.Flush(); len(a.stops) > 0 {
			if at := firstStop(a.held, a.stops); at >= 0 { // only of a stop string with U+FFFD in it
				a.held = a.held[:at]
			}
		}
	}
	return a.give(len(a.held), true)
}

func (a *assembler) add(t sample.Token, text string) {
	if a.want {
		a.entries = append(a.entries, logprob{token: t, offset: a.runes, through: a.given + len(a.held) + len(text)})
	}
	a.held += text
	a.runes += utf8.RuneCountInString(text)
}

// give returns the first n held bytes and the entries of the tokens wholly in them.
func (a *assembler) give(n int, all bool) piece {
	p := piece{text: a.held[:n]}
	a.held = a.held[n:]
	a.given += n
	k := 0
	for k < len(a.entries) && (all || a.entries[k].through <= a.given) {
		k++
	}
	p.logprobs, a.entries = a.entries[:k:k], a.entries[k:]
	return p
}

// firstStop returns where the earliest stop string begins in s, -1 if there is none.
func firstStop(s string, stops []string) int {
	first := -1
	for _, stop := range stops {
		if at := strings.Index(s, stop); at >= 0 && (first < 0 || at < first) {
			first = at
		}
	}
	return first
}

// partialStop returns the length of the longest end of s that begins a stop string.
func partialStop(s string, stops []string) int {
	longest := 0
	for _, stop := range stops {
		for n := min(len(s), len(stop)-1); n > longest; n-- {
			if s[len(s)-n:] == stop[:n] {
				longest = n
				break
			}
		}
	}
	return longest
}

// leastLogprob stands for minus infinity, which JSON cannot say.
const leastLogprob = -9999

func finite(x float32) float32 {
	if x64 := float64(x); math.IsNaN(x64) || x < leastLogprob {
		return leastLogprob
	} else if math.IsInf(x64, 1) {
		return 0
	}
	return x
}

// tokenText is a token's text in a list of log probabilities. A token that is a piece of
// a character is written as OpenAI writes it, so that different ones stay different.
func tokenText(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var s strings.Builder
	s.WriteString("bytes:")
	const hex = "0123456789abcdef"
	for _, c := range b {
		s.WriteString(`\x`)
		s.WriteByte(hex[c>>4])
		s.WriteByte(hex[c&15])
	}
	return s.String()
}
