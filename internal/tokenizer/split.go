package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// splitter cuts text into the words that BPE works on and hands them to word in order.
// The words, concatenated, are the text.
//
// The pre-tokenizers are published as regular expressions with a look-ahead. Here they
// are loops that look at each character a bounded number of times, so no text makes them
// slow; each loop names the alternative of its expression that it stands for, and golden
// files hold them equal to the reference.
type splitter func(s string, word func(string))

// splitSmolLM is HF's Sequence[Digits(individual_digits), ByteLevel(use_regex)]: every
// digit stands alone, and what lies between two digits is split by GPT-2's expression as
// if it were a text of its own (so the look-ahead does not see the digit behind it).
func splitSmolLM(s string, word func(string)) {
	from := 0
	for i := 0; i < len(s); {
		r, n := rune(s[i]), 1
		if r >= utf8.RuneSelf {
			r, n = utf8.DecodeRuneInString(s[i:])
		}
		if isDigit(r) {
			splitGPT2(s[from:i], word)
			word(s[i : i+n])
			from = i + n
		}
		i += n
	}
	splitGPT2(s[from:], word)
}

// splitGPT2 is
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func splitGPT2(s string, word func(string)) {
	for i := 0; i < len(s); {
		end := i
		c, n := classOf(s, i)
		switch {
		case s[i] == '\'' && contraction(s, i) > 0: // 's|'t|...
			end = i + contraction(s, i)
		case c != space: // \p{L}+|\p{N}+|[^\s\p{L}\p{N}]+ without the space
			end = runEnd(s, i, c)
		case s[i] == ' ' && i+1 < len(s) && first(s, i+n) != space: // ... with it
			end = runEnd(s, i+n, first(s, i+n))
		default: // \s+(?!\S)|\s+
			end = spaces(s, i)
		}
		word(s[i:end])
		i = end
	}
}

// splitLlama3 is
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
func splitLlama3(s string, word func(string)) { splitTiktoken(s, 3, word) }

// splitQwen2 is the same with \p{N} for \p{N}{1,3}.
func splitQwen2(s string, word func(string)) { splitTiktoken(s, 1, word) }

func splitTiktoken(s string, digits int, word func(string)) {
	for i := 0; i < len(s); {
		end := i
		c, n := classOf(s, i)
		switch {
		case s[i] == '\'' && contractionFold(s, i) > 0: // (?i:'s|'t|...)
			end = i + contractionFold(s, i)
		case c == letter: // \p{L}+
			end = runEnd(s, i, letter)
		case c != number && s[i] != '\r' && s[i] != '\n' && i+n < len(s) && first(s, i+n) == letter:
			end = runEnd(s, i+n, letter) // [^\r\n\p{L}\p{N}]\p{L}+
		case c == number: // \p{N}{1,3}
			end = i + n
			for k := 1; k < digits && end < len(s); k++ {
				c, n := classOf(s, end)
				if c != number {
					break
				}
				end += n
			}
		case c == other: // [^\s\p{L}\p{N}]+[\r\n]*
			end = newlines(s, runEnd(s, i, other))
		case s[i] == ' ' && i+1 < len(s) && first(s, i+1) == other: // the same after a space
			end = newlines(s, runEnd(s, i+1, other))
		default:
			end = runEnd(s, i, space)
			if k := strings.LastIndexAny(s[i:end], "\r\n"); k >= 0 { // \s*[\r\n]+
				end = i + k + 1
			} else { // \s+(?!\S)|\s+
				end = spaces(s, i)
			}
		}
		word(s[i:end])
		i = end
	}
}

func first(s string, i int) class {
	c, _ := classOf(s, i)
	return c
}

// runEnd returns the end of the characters of class c that begin at s[i].
func runEnd(s string, i int, c class) int {
	for i < len(s) {
		k, n := classOf(s, i)
		if k != c {
			break
		}
		i += n
	}
	return i
}

func newlines(s string, i int) int {
	for i < len(s) && (s[i] == '\r' || s[i] == '\n') {
		i++
	}
	return i
}

// spaces is \s+(?!\S)|\s+ at a space: the whole run at the end of the text; else the run
// without its last character, which goes with the next word; else the one character.
func spaces(s string, i int) int {
	last, end := i, i // start of the run's last character; end of the run
	for end < len(s) {
		c, n := classOf(s, end)
		if c != space {
			break
		}
		last, end = end, end+n
	}
	if end < len(s) && last > i {
		return last
	}
	return end
}

// contraction returns the length of 's|'t|'re|'ve|'m|'ll|'d at s[i], 0 if none is there.
func contraction(s string, i int) int {
	if i+1 < len(s) {
		switch s[i+1] {
		case 's', 't', 'm', 'd':
			return 2
		}
	}
	if i+2 < len(s) {
		switch s[i+1 : i+3] {
		case "re", "ve", "ll":
			return 3
		}
	}
	return 0
}

// contractionFold is contraction in any case. Folding is Unicode's, in which the long s
// (U+017F) is an s.
func contractionFold(s string, i int) int {
	var low [2]byte
	n := copy(low[:], s[i+1:])
	for k := range n {
		if 'A' <= low[k] && low[k] <= 'Z' {
			low[k] += 'a' - 'A'
		}
	}
	if n := contraction("'"+string(low[:n]), 0); n > 0 {
		return n
	}
	if strings.HasPrefix(s[i+1:], "\u017f") {
		return 1 + len("\u017f")
	}
	return 0
}
