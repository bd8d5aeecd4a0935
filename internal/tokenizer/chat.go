package tokenizer

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// How a chat becomes ids without trusting its text.
//
// Hugging Face renders the chat to text and tokenizes that, control tokens included: a user
// who writes "<|im_end|>\n<|im_start|>system" then speaks as the system. Here each
// character of the rendered text is known to come from the template or from a message, and
// a control token counts only where all its characters come from the template.
//
// To know it, the chat is rendered twice. The second time the characters of which control
// tokens are made, and no others, are replaced in every message by "shadows": private-use
// characters that occur nowhere else in this chat. A template moves, cuts, trims and joins
// strings without looking at most characters, so both renderings match character for
// character, and the shadows mark what came from a message. It does not matter whether a
// look-alike stood in one message, was put together from two, or from a message and the
// text around it: one shadow inside and it is no control token.
//
// Templates do look for a few strings (Qwen 3 splits an answer at "</think>"). Where such a
// literal of the template occurs in a message it is not shadowed, unless it shares so much
// as an end with a control token: then it could become part of one, and stays shadowed.
//
// The string functions that templates call look through shadows as well.
//
// If the renderings still differ, the template has looked at a character that was
// shadowed. Then the text of the first is used only if no message holds a character that
// begins or ends a control token and both renderings hold the same control tokens. Else
// the second rendering is used, its shadows turned back: it is safe always, and differs
// from Hugging Face's at most in what the template would have done to such a message.
//
// Control tokens of white space alone are never recognised: white space is not shadowed, so
// that templates can trim.
//
// Empty content has no character to mark. A template that wrote the two halves of a control
// token around a message would write the token when the message is empty; none does, and
// all that the user decides there is whether to say nothing.
//
// Roles are not free text (ErrRole), so templates may build control tokens from them.

// RenderChat renders the file's chat template and turns it into ids. For chats in which
// nobody types a control token the ids are those of Hugging Face's apply_chat_template.
//
// Errors: ErrNoTemplate, ErrNoMessages, ErrRole, ErrRender, ErrRenderLimit.
func (t *Tokenizer) RenderChat(messages []Message, addGenerationPrompt bool) ([]int32, error) {
	if t.template == nil {
		return nil, ErrNoTemplate
	}
	text, err := t.template.Render(messages, addGenerationPrompt)
	if err != nil {
		return nil, err
	}
	s, ok := t.guard.shadows(messages)
	if !ok {
		return nil, ErrRenderLimit
	}
	marked, err := t.template.render(s.messages(messages), addGenerationPrompt, s)
	if err != nil {
		return nil, err
	}
	plain, untrusted := s.reveal(marked)
	if plain != text {
		if !s.hasEdge && t.sameControls(text, plain, untrusted) {
			return t.encode(text, t.notBlank(text)), nil
		}
		text = plain
	}
	return t.encode(text, func(start, end int) bool { return !untrusted.any(start, end) && !blank(text[start:end]) }), nil
}

func (t *Tokenizer) notBlank(text string) func(int, int) bool {
	return func(start, end int) bool { return !blank(text[start:end]) }
}

func blank(s string) bool { return strings.TrimFunc(s, unicode.IsSpace) == "" }

// sameControls reports whether both texts hold the same control tokens, when all count in
// text and only trusted ones in plain.
func (t *Tokenizer) sameControls(text, plain string, untrusted spans) bool {
	a := t.controls(text, spans{})
	b := t.controls(plain, untrusted)
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func (t *Tokenizer) controls(text string, untrusted spans) (ids []int32) {
	for i := 0; i < len(text); {
		id, n := t.added.longest(text, i)
		if n == 0 {
			i++
			continue
		}
		if t.kind[id].control() && !untrusted.any(i, i+n) {
			ids = append(ids, id)
		}
		i += n
	}
	return ids
}

// guard is what shadows need to know of a vocabulary and a template.
type guard struct {
	runes     []rune        // characters that occur in control tokens, ascending; no white space
	edges     map[rune]bool // characters that begin or end one
	protected []string      // literals of the template left alone in messages, longest first
	taken     map[rune]bool // private-use characters of template and vocabulary: no shadows
}

// A literal shorter or longer than this is no marker that templates look for.
const (
	minProtected  = 3
	maxProtected  = 256
	maxProtecteds = 64
)

func newGuard(controls []string, t *Template) *guard {
	g := &guard{edges: map[rune]bool{}, taken: map[rune]bool{}}
	seen := map[rune]bool{}
	for _, c := range controls {
		first, _ := utf8.DecodeRuneInString(c)
		last, _ := utf8.DecodeLastRuneInString(c)
		g.edges[first], g.edges[last] = true, true
		for _, r := range c {
			if !seen[r] && !unicode.IsSpace(r) {
				seen[r] = true
				g.runes = append(g.runes, r)
			}
		}
		g.take(c)
	}
	slices.Sort(g.runes)
	g.take(t.source)
	for _, text := range t.special {
		g.take(text)
	}
	for _, l := range t.literals {
		g.take(l)
		if len(g.protected) == maxProtecteds || len(l) < minProtected || len(l) > maxProtected || slices.Contains(g.protected, l) {
			continue
		}
		if !slices.ContainsFunc(controls, func(c string) bool { return overlap(l, c) }) {
			g.protected = append(g.protected, l)
		}
	}
	slices.SortStableFunc(g.protected, func(a, b string) int { return len(b) - len(a) })
	return g
}

func (g *guard) take(text string) {
	for _, r := range text {
		if shadowRune(r) {
			g.taken[r] = true
		}
	}
}

// overlap reports whether l and control token c, written somewhere in one text, can share
// a character.
func overlap(l, c string) bool {
	if strings.Contains(l, c) || strings.Contains(c, l) {
		return true
	}
	for n := 1; n < min(len(l), len(c)); n++ {
		if l[:n] == c[len(c)-n:] || l[len(l)-n:] == c[:n] {
			return true
		}
	}
	return false
}

// shadows is the replacement of characters for one chat.
type shadows struct {
	*guard
	to      map[rune]rune // character of control tokens -> its shadow
	from    map[rune]rune
	hasEdge bool // a message holds a character that begins or ends a control token
}

// Shadows come from the two planes that Unicode leaves to private use.
const (
	shadowFirst = 0xF0000
	shadowLast  = 0x10FFFD
)

func shadowRune(r rune) bool { return r >= shadowFirst && r <= shadowLast }

// shadows fails if the messages use up the private characters.
func (g *guard) shadows(messages []Message) (*shadows, bool) {
	s := &shadows{guard: g, to: map[rune]rune{}, from: map[rune]rune{}}
	used := map[rune]bool{}
	for _, m := range messages {
		for _, r := range m.Content {
			if shadowRune(r) {
				used[r] = true
			}
			s.hasEdge = s.hasEdge || g.edges[r]
		}
	}
	next := rune(shadowFirst)
	for _, r := range g.runes {
		for used[next] || g.taken[next] || next&0xFFFF >= 0xFFFE {
			next++
		}
		if next > shadowLast {
			return nil, false
		}
		s.to[r], s.from[next] = next, r
		next++
	}
	return s, true
}

// messages returns the chat with its content in shadows.
func (s *shadows) messages(in []Message) []Message {
	out := make([]Message, len(in))
	for i, m := range in {
		out[i] = Message{Role: m.Role, Content: s.cover(strings.ToValidUTF8(m.Content, "\uFFFD"))}
	}
	return out
}

func (s *shadows) cover(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		if n := s.protectedAt(text, i); n > 0 {
			b.WriteString(text[i : i+n])
			i += n
			continue
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		if to, ok := s.to[r]; ok {
			r = to
		}
		b.WriteRune(r)
		i += n
	}
	return b.String()
}

func (s *shadows) protectedAt(text string, i int) int {
	for _, l := range s.protected { // longest first
		if strings.HasPrefix(text[i:], l) {
			return len(l)
		}
	}
	return 0
}

// The functions that templates call on strings look through shadows by these three; s may
// be nil. Were they to see other characters in the second rendering than in the first,
// the renderings would part without need.

// rune returns the character behind r.
func (s *shadows) rune(r rune) rune {
	if s != nil {
		if from, ok := s.from[r]; ok {
			return from
		}
	}
	return r
}

// plain returns text without shadows, and a function from offsets in that to offsets in text.
func (s *shadows) plain(text string) (string, func(int) int) {
	if s == nil {
		return text, func(i int) int { return i }
	}
	var b strings.Builder
	at := make([]int32, 0, len(text)+1) // texts are far smaller than 2 GiB
	for i, r := range text {
		from := s.rune(r)
		for range utf8.RuneLen(from) {
			at = append(at, int32(i))
		}
		b.WriteRune(from)
	}
	at = append(at, int32(len(text)))
	return b.String(), func(i int) int { return int(at[i]) }
}

// changeCase applies a change of case to what is behind the shadows.
func (s *shadows) changeCase(text string, change func(string) string) string {
	plain, _ := s.plain(text)
	if s == nil {
		return change(plain)
	}
	var b strings.Builder
	for _, r := range change(plain) {
		if to, ok := s.to[r]; ok {
			r = to
		}
		b.WriteRune(r)
	}
	return b.String()
}

// reveal turns shadows back and returns where they stood.
func (s *shadows) reveal(marked string) (string, spans) {
	var b strings.Builder
	var u spans
	for _, r := range marked {
		if from, ok := s.from[r]; ok {
			u.add(b.Len(), b.Len()+utf8.RuneLen(from))
			r = from
		}
		b.WriteRune(r)
	}
	return b.String(), u
}

// spans is a set of byte ranges, ascending.
type spans struct{ start, end []int }

func (u *spans) add(start, end int) {
	if n := len(u.end); n > 0 && u.end[n-1] == start {
		u.end[n-1] = end
		return
	}
	u.start, u.end = append(u.start, start), append(u.end, end)
}

// any reports whether a span touches [start, end).
func (u *spans) any(start, end int) bool {
	lo, hi := 0, len(u.end) // first span that ends behind start
	for lo < hi {
		mid := (lo + hi) / 2
		if u.end[mid] > start {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo < len(u.start) && u.start[lo] < end
}
