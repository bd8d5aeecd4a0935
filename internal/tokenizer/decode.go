package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Decoder turns the tokens of one answer into text as they come. It is not safe for
// concurrent use.
type Decoder struct {
	t    *Tokenizer
	held []byte // the start of a character whose end has not come, at most 3 bytes
}

// NewDecoder returns a decoder at the start of an answer.
func (t *Tokenizer) NewDecoder() *Decoder { return &Decoder{t: t} }

// Push adds a token and returns the text that is now certain: whole characters, with
// U+FFFD for each run of bytes that can never become one. Control tokens and ids outside
// the vocabulary add nothing. All results and that of Flush, concatenated, are the bytes
// of the tokens decoded at once as Python's bytes.decode("utf-8", "replace") does; NUL
// bytes are kept.
func (d *Decoder) Push(id int32) string {
	if !d.t.known(id) || d.t.kind[id].control() {
		return ""
	}
	text, rest := decodeUTF8(append(d.held, d.t.piece[id]...))
	d.held = append(d.held[:0], rest...)
	return text
}

// Flush ends the answer: it returns U+FFFD for a character left unfinished, else "".
// The decoder can then begin a new answer.
func (d *Decoder) Flush() string {
	if len(d.held) == 0 {
		return ""
	}
	d.held = d.held[:0]
	return string(utf8.RuneError)
}

// decodeUTF8 returns the text of b up to an unfinished character at its end, and that
// rest. Invalid bytes become one U+FFFD for each maximal subpart (Unicode Standard
// section 3.9, "U+FFFD Substitution of Maximal Subparts"), as in Python and Rust; Go's
// own conversions count differently.
func decodeUTF8(b []byte) (text string, rest []byte) {
	var out strings.Builder
	for i := 0; i < len(b); {
		if b[i] < utf8.RuneSelf {
			out.WriteByte(b[i])
			i++
			continue
		}
		n, whole := subpart(b[i:])
		switch {
		case whole:
			out.Write(b[i : i+n])
		case i+n == len(b) && !utf8.FullRune(b[i:]):
			return out.String(), b[i:]
		default:
			out.WriteRune(utf8.RuneError)
		}
		i += n
	}
	return out.String(), nil
}

// subpart returns the length of the longest prefix of b that begins a well-formed
// sequence (at least 1), and whether it is one. b[0] is not ASCII.
func subpart(b []byte) (n int, whole bool) {
	if _, n := utf8.DecodeRune(b); n > 1 {
		return n, true
	}
	n = 1
	for n < len(b) && n < utf8.UTFMax && !utf8.FullRune(b[:n]) {
		// b[:n] can still become a character; it can with b[n] too if that is again
		// unfinished. A whole one was returned above.
		if utf8.FullRune(b[:n+1]) {
			break
		}
		n++
	}
	return n, false
}
