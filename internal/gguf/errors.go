package gguf

import (
	"errors"
	"fmt"
)

// What can be wrong with a file: each *Error wraps exactly one of these.
var (
	ErrMagic     = errors.New("not a GGUF file")
	ErrVersion   = errors.New("unsupported GGUF version")
	ErrBigEndian = errors.New("big endian GGUF file")
	ErrTruncated = errors.New("reaches beyond the end of the file")
	ErrLimit     = errors.New("over the limit")
	ErrDuplicate = errors.New("used twice")
	ErrType      = errors.New("wrong or unsupported type")
	ErrValue     = errors.New("invalid value")
	ErrOverlap   = errors.New("overlaps another tensor")
)

// ErrClosed is returned by the methods of a File after Close.
var ErrClosed = errors.New("gguf: file is closed")

// Error says which field of a file is at fault, where it lies, and why.
type Error struct {
	// Field names the field, for example `metadata 3 ("general.name") length` or
	// `tensor 7 ("blk.0.attn_q.weight") offset`.
	Field string
	// Offset is the field's byte offset in the file; 0 where Field has no one place.
	Offset int64
	// Msg holds the found value and the limit.
	Msg string
	// Err is one of this package's sentinels.
	Err error
}

func (e *Error) Error() string {
	s := "gguf: " + e.Field
	if e.Offset > 0 {
		s = fmt.Sprintf("%s (at byte %d)", s, e.Offset)
	}
	s += ": " + e.Err.Error()
	if e.Msg != "" {
		s += ": " + e.Msg
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// quoteMax bounds how much of a name from the file is repeated in an error, so
// that a hostile file cannot flood a log. Real names are shorter (ggml: 64 bytes).
const quoteMax = 64

// quote renders a name from the file for an error: escaped, and cut at quoteMax.
func quote(name string) string {
	if len(name) > quoteMax {
		return fmt.Sprintf("%q...", name[:quoteMax])
	}
	return fmt.Sprintf("%q", name)
}
