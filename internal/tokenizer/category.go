package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// class is what the pre-tokenizers' regular expressions ask about a character.
type class uint8

const (
	other  class = iota // [^\s\p{L}\p{N}]
	letter              // \p{L}
	number              // \p{N}
	space               // \s
)

// The reference splits by Oniguruma with Unicode 16.0 and, for single digits, by Rust's
// char::is_numeric with Unicode 17.0; Go 1.26 knows Unicode 15.0. These tables hold what
// the older one lacks, so that text in a new script gets the same ids. They were found by
// asking the reference about every code point, and a test asks the golden answers again.
var (
	newLetters = &unicode.RangeTable{
		R16: []unicode.Range16{{Lo: 0x1C89, Hi: 0x1C8A, Stride: 1}, {Lo: 0xA7CB, Hi: 0xA7CD, Stride: 1}, {Lo: 0xA7DA, Hi: 0xA7DC, Stride: 1}},
		R32: []unicode.Range32{
			{Lo: 0x105C0, Hi: 0x105F3, Stride: 1}, {Lo: 0x10D4A, Hi: 0x10D65, Stride: 1}, {Lo: 0x10D6F, Hi: 0x10D85, Stride: 1},
			{Lo: 0x10EC2, Hi: 0x10EC4, Stride: 1}, {Lo: 0x11380, Hi: 0x11389, Stride: 1}, {Lo: 0x1138B, Hi: 0x1138B, Stride: 1},
			{Lo: 0x1138E, Hi: 0x1138E, Stride: 1}, {Lo: 0x11390, Hi: 0x113B5, Stride: 1}, {Lo: 0x113B7, Hi: 0x113B7, Stride: 1},
			{Lo: 0x113D1, Hi: 0x113D1, Stride: 1}, {Lo: 0x113D3, Hi: 0x113D3, Stride: 1}, {Lo: 0x11BC0, Hi: 0x11BE0, Stride: 1},
			{Lo: 0x13460, Hi: 0x143FA, Stride: 1}, {Lo: 0x16100, Hi: 0x1611D, Stride: 1}, {Lo: 0x16D40, Hi: 0x16D6C, Stride: 1},
			{Lo: 0x18CFF, Hi: 0x18CFF, Stride: 1}, {Lo: 0x1E5D0, Hi: 0x1E5ED, Stride: 1}, {Lo: 0x1E5F0, Hi: 0x1E5F0, Stride: 1},
			{Lo: 0x2EBF0, Hi: 0x2EE5D, Stride: 1},
		},
	}
	newNumbers = &unicode.RangeTable{
		R32: []unicode.Range32{
			{Lo: 0x10D40, Hi: 0x10D49, Stride: 1}, {Lo: 0x116D0, Hi: 0x116E3, Stride: 1}, {Lo: 0x11BF0, Hi: 0x11BF9, Stride: 1},
			{Lo: 0x16130, Hi: 0x16139, Stride: 1}, {Lo: 0x16D70, Hi: 0x16D79, Stride: 1}, {Lo: 0x1CCF0, Hi: 0x1CCF9, Stride: 1},
			{Lo: 0x1E5F1, Hi: 0x1E5FA, Stride: 1},
		},
	}
	newDigits = &unicode.RangeTable{ // beyond newNumbers
		R32: []unicode.Range32{{Lo: 0x11DE0, Hi: 0x11DE9, Stride: 1}, {Lo: 0x16FF4, Hi: 0x16FF6, Stride: 1}},
	}
)

// classOf returns the class of the character at s[i] and its length in bytes. A byte of
// invalid UTF-8 is a character of class other.
func classOf(s string, i int) (class, int) {
	if c := s[i]; c < utf8.RuneSelf {
		return asciiClass[c], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return classOfRune(r), n
}

func classOfRune(r rune) class {
	switch {
	case r < utf8.RuneSelf:
		return asciiClass[r]
	case unicode.IsLetter(r) || unicode.Is(newLetters, r):
		return letter
	case unicode.IsNumber(r) || unicode.Is(newNumbers, r):
		return number
	case unicode.Is(unicode.White_Space, r):
		return space
	}
	return other
}

// isDigit is Rust's char::is_numeric, by which SmolLM2 splits single digits off.
func isDigit(r rune) bool {
	if r < utf8.RuneSelf {
		return '0' <= r && r <= '9'
	}
	return unicode.IsNumber(r) || unicode.Is(newNumbers, r) || unicode.Is(newDigits, r)
}

var asciiClass = asciiClasses()

func asciiClasses() (t [utf8.RuneSelf]class) {
	for r := range rune(utf8.RuneSelf) {
		switch {
		case unicode.IsLetter(r):
			t[r] = letter
		case unicode.IsNumber(r):
			t[r] = number
		case unicode.Is(unicode.White_Space, r):
			t[r] = space
		}
	}
	return t
}
