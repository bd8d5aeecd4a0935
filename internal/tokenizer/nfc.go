package tokenizer

import (
	"sort"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// toNFC returns s in Unicode normalization form C (UAX 15).
//
// norm.NFC does that, except that it breaks runs of more than 30 combining marks with
// U+034F ("stream-safe text", UAX 15 section 13), which would put a character into the
// prompt that its author never wrote. Text with such a run takes the plain algorithm.
func toNFC(s string) string {
	if n := norm.NFC.QuickSpanString(s); n == len(s) && !longMarks(s) {
		return s
	}
	if !longMarks(s) {
		return norm.NFC.String(s)
	}
	return composeNFC(s)
}

// longMarks reports whether s may hold a run of marks long enough for norm to break.
// One character decomposes to at most 4, so 7 characters that may bear marks cannot
// reach 30 of them.
func longMarks(s string) bool {
	marks := 0
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			marks = 0
			i++
			continue
		}
		p := norm.NFC.PropertiesString(s[i:])
		n := max(p.Size(), 1)
		if p.CCC() != 0 || p.TrailCCC() != 0 {
			if marks++; marks > 6 {
				return true
			}
		} else {
			marks = 0
		}
		i += n
	}
	return false
}

// composeNFC is UAX 15 and chapter 3.11 of the Unicode Standard as written: decompose,
// order the marks of each run by combining class, compose what is not blocked.
func composeNFC(s string) string {
	type mark struct {
		r   rune
		ccc uint8
	}
	var run []mark // one starter (or none, at the start) and the marks behind it
	var out strings.Builder
	flush := func() {
		if len(run) == 0 {
			return
		}
		start := 0
		if run[0].ccc == 0 {
			start = 1
		}
		marks := run[start:]
		sort.SliceStable(marks, func(i, j int) bool { return marks[i].ccc < marks[j].ccc })
		if start == 1 {
			kept := marks[:0]
			last := uint8(0) // class of the mark kept last: it blocks its equals
			for _, m := range marks {
				if m.ccc != last || last == 0 {
					if c, ok := composePair(run[0].r, m.r); ok {
						run[0].r = c
						continue
					}
				}
				kept = append(kept, m)
				last = m.ccc
			}
			run = run[:1+len(kept)]
		}
		for _, m := range run {
			out.WriteRune(m.r)
		}
		run = run[:0]
	}
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 { // keep the invalid byte
			flush()
			out.WriteByte(s[i])
			i++
			continue
		}
		for _, d := range norm.NFD.String(s[i : i+n]) {
			ccc := norm.NFC.PropertiesString(string(d)).CCC()
			if ccc == 0 {
				// Two starters may compose too (Hangul, some Indic vowels).
				if len(run) == 1 && run[0].ccc == 0 {
					if c, ok := composePair(run[0].r, d); ok {
						run[0].r = c
						continue
					}
				}
				flush()
			}
			run = append(run, mark{d, ccc})
		}
		i += n
	}
	flush()
	return out.String()
}

// composePair returns the primary composite of two characters.
func composePair(a, b rune) (rune, bool) {
	c := norm.NFC.String(string(a) + string(b))
	r, n := utf8.DecodeRuneInString(c)
	return r, n == len(c)
}
