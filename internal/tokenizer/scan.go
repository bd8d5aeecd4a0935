package tokenizer

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A template is cut into segments as Jinja2's lexer does with trim_blocks and
// lstrip_blocks on (jinja2/lexer.py, Lexer.tokeniter), and the inside of a tag into tokens.

type segmentKind uint8

const (
	segText segmentKind = iota
	segOutput
	segStatement
)

type segment struct {
	kind segmentKind
	body string // text, or what stands between the delimiters
}

// scanTemplate returns the segments of source with whitespace control applied and
// comments and raw blocks resolved.
func scanTemplate(source string) ([]segment, error) {
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	source = strings.TrimSuffix(source, "\n") // keep_trailing_newline is off
	var out []segment
	lineStart := true // the text ahead begins a line
	for len(source) > 0 {
		at := tagStart(source)
		if at < 0 {
			return append(out, segment{segText, source}), nil
		}
		text, open := source[:at], source[at+1]
		rest := source[at+2:]
		sign := byte(0)
		if rest != "" && (rest[0] == '-' || rest[0] == '+' && open != '{') {
			sign, rest = rest[0], rest[1:]
		}
		out = appendText(out, trimBefore(text, sign, open, lineStart))
		body, after, endSign, err := tagBody(rest, open)
		if err != nil {
			return nil, err
		}
		if open == '%' && strings.TrimSpace(body) == "raw" {
			end, resume, rawSign, beforeSign, ok := rawEnd(after)
			if !ok {
				return nil, fmt.Errorf("raw block without an end")
			}
			raw, _ := trimAfter(after[:end], endSign, '%')
			out = appendText(out, trimBefore(raw, beforeSign, '%', false))
			source, lineStart = trimAfter(after[resume:], rawSign, '%')
			continue
		}
		switch open {
		case '{':
			out = append(out, segment{segOutput, body})
		case '%':
			out = append(out, segment{segStatement, body})
		}
		source, lineStart = trimAfter(after, endSign, open)
	}
	return out, nil
}

func appendText(out []segment, text string) []segment {
	if text == "" {
		return out
	}
	return append(out, segment{segText, text})
}

func tagStart(s string) int {
	for i := 0; i+1 < len(s); i++ {
		if s[i] == '{' && (s[i+1] == '{' || s[i+1] == '%' || s[i+1] == '#') {
			return i
		}
	}
	return -1
}

// trimBefore applies "-" or lstrip_blocks to the text in front of a tag.
func trimBefore(text string, sign, open byte, lineStart bool) string {
	switch {
	case sign == '-':
		return strings.TrimRightFunc(text, pySpace)
	case sign == '+' || open == '{':
		return text
	}
	line := strings.LastIndexByte(text, '\n') + 1
	if (line > 0 || lineStart) && strings.TrimFunc(text[line:], pySpace) == "" {
		return text[:line]
	}
	return text
}

// trimAfter applies "-" or trim_blocks to what follows a tag, and reports whether a line
// begins there.
func trimAfter(s string, sign, open byte) (string, bool) {
	switch {
	case sign == '-':
		t := strings.TrimLeftFunc(s, pySpace)
		return t, len(t) < len(s) && s[len(s)-len(t)-1] == '\n'
	case sign == 0 && open != '{' && strings.HasPrefix(s, "\n"):
		return s[1:], true
	}
	return s, false
}

// tagBody returns the inside of a tag that begins at s, what follows it, and the sign in
// front of its closing delimiter. Delimiters inside quotes do not count, except in
// comments.
func tagBody(s string, open byte) (body, after string, sign byte, err error) {
	closer := map[byte]string{'{': "}}", '%': "%}", '#': "#}"}[open]
	depth := 0 // of braces: a dict may end right before the tag
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case open != '#' && (c == '\'' || c == '"'):
			end := quoteEnd(s, i)
			if end < 0 {
				return "", "", 0, fmt.Errorf("string without an end")
			}
			i = end
		case open != '#' && c == '{':
			depth++
		case open == '{' && c == '}' && depth > 0:
			depth--
		case strings.HasPrefix(s[i:], closer):
			body, after = s[:i], s[i+2:]
			if i > 0 && (s[i-1] == '-' || s[i-1] == '+' && open != '{') {
				sign, body = s[i-1], s[:i-1]
			}
			return body, after, sign, nil
		}
	}
	return "", "", 0, fmt.Errorf("tag without an end")
}

func quoteEnd(s string, i int) int {
	for j := i + 1; j < len(s); j++ {
		switch s[j] {
		case '\\':
			j++
		case s[i]:
			return j
		}
	}
	return -1
}

// rawEnd finds {% endraw %} and its signs.
func rawEnd(s string) (end, resume int, after, before byte, ok bool) {
	for i := 0; i+1 < len(s); i++ {
		if s[i] != '{' || s[i+1] != '%' {
			continue
		}
		rest, sign := s[i+2:], byte(0)
		if rest != "" && (rest[0] == '-' || rest[0] == '+') {
			sign, rest = rest[0], rest[1:]
		}
		body, tail, endSign, err := tagBody(rest, '%')
		if err == nil && strings.TrimSpace(body) == "endraw" {
			return i, len(s) - len(tail), endSign, sign, true
		}
	}
	return 0, 0, 0, 0, false
}

// pySpace is Python's str.isspace.
func pySpace(r rune) bool {
	return unicode.Is(unicode.White_Space, r) || r >= 0x1C && r <= 0x1F
}

type tokenKind uint8

const (
	tokName tokenKind = iota
	tokNumber
	tokString // val is the string itself, unescaped
	tokPunct
)

type token struct {
	kind tokenKind
	val  string
}

// tagTokens cuts the inside of a tag into tokens. It refuses characters that mean nothing
// there: the library skips them, and then it and this package would read different programs.
func tagTokens(s string) ([]token, error) {
	var out []token
	for i := 0; i < len(s); {
		c := s[i]
		start := i
		switch {
		case c == ' ' || c == '\t' || c == '\n':
			i++
		case c == '\'' || c == '"':
			end := quoteEnd(s, i)
			if end < 0 {
				return nil, fmt.Errorf("string without an end")
			}
			val, err := unescape(s[i+1 : end])
			if err != nil {
				return nil, err
			}
			i = end + 1
			if n := len(out); n > 0 && out[n-1].kind == tokString { // 'a' 'b' is 'ab'
				out[n-1].val += val
				continue
			}
			out = append(out, token{tokString, val})
		case nameByte(c) && !digitByte(c):
			for i < len(s) && nameByte(s[i]) {
				i++
			}
			out = append(out, token{tokName, s[start:i]})
		case digitByte(c):
			for i < len(s) && digitByte(s[i]) {
				i++
			}
			if i+1 < len(s) && s[i] == '.' && digitByte(s[i+1]) {
				for i++; i < len(s) && digitByte(s[i]); i++ {
				}
			}
			out = append(out, token{tokNumber, s[start:i]})
		case i+1 < len(s) && strings.Contains("** // == != <= >=", s[i:i+2]) && s[i+1] != ' ' && c != ' ':
			i += 2
			out = append(out, token{tokPunct, s[start:i]})
		case strings.IndexByte("+-*/%<>=,.:()[]{}|~", c) >= 0:
			i++
			out = append(out, token{tokPunct, s[start:i]})
		default:
			return nil, fmt.Errorf("character %q in a tag", c)
		}
	}
	return out, nil
}

func digitByte(c byte) bool { return '0' <= c && c <= '9' }

func nameByte(c byte) bool {
	return c == '_' || digitByte(c) || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// unescape reads a string literal's escapes as Python does.
func unescape(s string) (string, error) {
	if strings.IndexByte(s, '\\') < 0 {
		return s, nil
	}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			out.WriteByte(s[i])
			continue
		}
		i++
		if k := strings.IndexByte("abfnrtv\\'\"", s[i]); k >= 0 {
			out.WriteByte("\a\b\f\n\r\t\v\\'\""[k])
			continue
		}
		digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[i]]
		switch {
		case digits > 0:
			if i+digits >= len(s) {
				return "", fmt.Errorf("unfinished escape in a string")
			}
			n, err := strconv.ParseUint(s[i+1:i+1+digits], 16, 32)
			if err != nil || !utf8.ValidRune(rune(n)) {
				return "", fmt.Errorf("bad escape in a string")
			}
			out.WriteRune(rune(n))
			i += digits
		case s[i] == '\n': // a continued line
		case '0' <= s[i] && s[i] <= '7':
			return "", fmt.Errorf("octal escape in a string")
		default:
			out.WriteByte('\\')
			out.WriteByte(s[i])
		}
	}
	return out.String(), nil
}
