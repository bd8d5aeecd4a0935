package gguf

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"

	"bulkhead/internal/negative"
)

var _ = flag.Bool("rewrite", false, "write testdata/negative anew")

var gaps = regexp.MustCompile(`[^a-z0-9]+`)

// TestNegativeVectors: the hostile files as files, with others that are cuts and
// small changes of a good one.
func TestNegativeVectors(t *testing.T) {
	good, _ := sample(t)
	classes := map[string]error{
		"magic": ErrMagic, "version": ErrVersion, "big endian": ErrBigEndian, "truncated": ErrTruncated, "limit": ErrLimit,
		"duplicate": ErrDuplicate, "type": ErrType, "value": ErrValue, "overlap": ErrOverlap,
	}
	classOf := func(err error) string {
		for name, e := range classes {
			if errors.Is(err, e) {
				return name
			}
		}
		return ""
	}
	s := negative.Set{
		Dir: "testdata/negative",
		Decoders: map[string]negative.Decoder{
			"gguf": {Honest: good, Decode: func(b []byte) error { _, err := Parse(b); return err }},
		},
		Classify: func(err error) string {
			var e *Error
			if !errors.As(err, &e) {
				return ""
			}
			return classOf(err)
		},
	}
	for name := range classes {
		s.Classes = append(s.Classes, name)
	}
	add := func(name, expect, says string, data []byte) {
		s.Made = append(s.Made, negative.Vector{
			Name: strings.Trim(gaps.ReplaceAllString(strings.ToLower(name), "-"), "-"), What: "gguf", Expect: expect, Says: says, Comment: name, Data: data,
		})
	}
	for _, c := range hostileFiles {
		says := c.msg
		if says == "" {
			says = c.field
		}
		add(c.name, classOf(c.err), says, c.file)
	}
	index := len(header(3, 0, 0))
	for _, n := range []int{1, 4, 8, 12, 16, index, index + 8, index + 20, len(good) / 4, len(good) / 2, len(good) - 64} {
		add(fmt.Sprintf("good file cut to %d bytes", n), "truncated", "", good[:n])
	}
	change := func(at int, b ...byte) []byte {
		out := append([]byte{}, good...)
		copy(out[at:], b)
		return out
	}
	add("good file with a tensor count of 2^32", "limit", "tensor count", change(8, u64(1<<32)...))
	add("good file with a metadata count of 2^63", "limit", "metadata count", change(16, u64(1<<63)...))
	add("good file under the magic of GGJT", "magic", "magic", change(0, 'G', 'G', 'J', 'T'))
	add("good file of version 2^32-1", "version", "version", change(4, u32(math.MaxUint32)...))
	add("good file with a first key of 2^32 bytes", "limit", "key length", change(index, u64(1<<32)...))
	negative.Run(t, s, 80)
}
