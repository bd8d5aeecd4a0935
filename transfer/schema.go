package transfer

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"
)

// A schema is what one message, or one part of it, may look like on the wire.
// It is compiled from the Go type, and [schema.walk] holds bytes against it
// before anything is decoded: the decoder then only sees bytes whose every
// length, count, key and range is known to be right, so a hostile message
// costs no memory beyond its own.
type schema struct {
	path   string // for errors: "job.params.logit_bias"
	shape  shape
	max    int     // text, blob: bytes; list: elements; array: exactly so many bytes
	lo     int64   // integer range
	hi     uint64  //
	elem   *schema // list, pointer
	fields []field // record
}

type field struct {
	key string
	*schema
}

type shape uint8

const (
	boolean shape = iota
	integer
	float32bits
	text    // string, at most max bytes
	blob    // []byte, at most max bytes
	array   // [N]byte, exactly max bytes
	list    // slice, at most max elements
	instant // time.Time, 1970 to 2514
	pointer // nil or elem
	record  // struct: each field exactly once
)

// fieldsMax bounds the members of a struct, so that the walk remembers which
// ones it has seen in one word.
const fieldsMax = 64

var timeType = reflect.TypeFor[time.Time]()

// compile makes the schema of t. limits gives the bound of every text, blob
// and list by its path; one without a bound is a bug, found when the package's
// codecs are made.
func compile(t reflect.Type, path string, limits map[string]int) *schema {
	s := &schema{path: path}
	bound := func() {
		n, ok := limits[path]
		if !ok {
			panic("transfer: internal error: no limit for " + path)
		}
		s.max = n
	}
	switch k := t.Kind(); {
	case t == timeType:
		s.shape = instant
	case k == reflect.Bool:
		s.shape = boolean
	case k >= reflect.Int && k <= reflect.Int64:
		s.shape, s.lo, s.hi = integer, -1<<(t.Bits()-1), 1<<(t.Bits()-1)-1
	case k >= reflect.Uint && k <= reflect.Uint64:
		s.shape, s.hi = integer, math.MaxUint64>>(64-t.Bits())
	case k == reflect.Float32:
		s.shape = float32bits
	case k == reflect.String:
		s.shape = text
		bound()
	case k == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		s.shape = blob
		bound()
	case k == reflect.Array && t.Elem().Kind() == reflect.Uint8:
		s.shape, s.max = array, t.Len()
	case k == reflect.Slice:
		s.shape = list
		bound()
		s.elem = compile(t.Elem(), path, limits)
	case k == reflect.Pointer:
		s.shape = pointer
		s.elem = compile(t.Elem(), path, limits)
	case k == reflect.Struct:
		s.shape = record
		for i := range t.NumField() {
			f := t.Field(i)
			key := f.Name
			if tag, ok := f.Tag.Lookup("msgpack"); ok {
				key = tag
			}
			if strings.Contains(key, ",") || !f.IsExported() {
				panic("transfer: internal error: field " + f.Name + " of " + path + " cannot travel")
			}
			s.fields = append(s.fields, field{key, compile(f.Type, path+"."+key, limits)})
		}
		if len(s.fields) > fieldsMax {
			panic("transfer: internal error: too many fields in " + path)
		}
	default:
		panic("transfer: internal error: " + path + " has a type that cannot travel: " + t.String())
	}
	return s
}

// walk holds the start of b against s and returns what follows.
func (s *schema) walk(b []byte) ([]byte, error) {
	switch s.shape {
	case boolean:
		if len(b) > 0 && (b[0] == 0xc2 || b[0] == 0xc3) {
			return b[1:], nil
		}
		return nil, s.bad("is not a boolean")
	case integer:
		return s.walkInteger(b)
	case float32bits:
		if len(b) >= 5 && b[0] == 0xca {
			return b[5:], nil
		}
		return nil, s.bad("is not a float32")
	case text:
		n, at, ok := head(b, 0xa0, 0x1f, 0xd9)
		rest, err := s.skip(n, at, ok, "a string")
		if err == nil && !utf8.Valid(at[:n]) {
			return nil, s.bad("is not UTF-8")
		}
		return rest, err
	case blob:
		if len(b) > 0 && b[0] == 0xc0 {
			return b[1:], nil
		}
		n, rest, ok := head(b, 0, 0, 0xc4)
		return s.skip(n, rest, ok, "bytes")
	case array:
		n, rest, ok := head(b, 0, 0, 0xc4)
		if ok && n != uint64(s.max) {
			return nil, s.bad(fmt.Sprintf("has %d bytes, want %d", n, s.max))
		}
		return s.skip(n, rest, ok, "bytes")
	case list:
		return s.walkList(b)
	case instant:
		return s.walkInstant(b)
	case pointer:
		if len(b) > 0 && b[0] == 0xc0 {
			return b[1:], nil
		}
		return s.elem.walk(b)
	case record:
		return s.walkRecord(b)
	}
	panic("transfer: internal error: a schema without a shape")
}

func (s *schema) walkInteger(b []byte) ([]byte, error) {
	if len(b) == 0 {
		return nil, s.bad("is missing")
	}
	c := b[0]
	var u uint64 // the value when it is not negative
	var i int64  // the value when it is
	width := 0
	switch {
	case c <= 0x7f:
		u = uint64(c)
	case c >= 0xe0:
		i = int64(int8(c))
	case c >= 0xcc && c <= 0xcf:
		width = 1 << (c - 0xcc)
	case c >= 0xd0 && c <= 0xd3:
		width = 1 << (c - 0xd0)
	default:
		return nil, s.bad("is not an integer")
	}
	if len(b) < 1+width {
		return nil, s.bad("is cut off")
	}
	if width > 0 {
		var raw [8]byte
		copy(raw[8-width:], b[1:1+width])
		u = binary.BigEndian.Uint64(raw[:])
		if c >= 0xd0 { // signed: extend the sign
			if v := int64(u<<(64-8*width)) >> (64 - 8*width); v < 0 {
				u, i = 0, v
			}
		}
	}
	if i < s.lo || u > s.hi {
		return nil, s.bad("is out of range")
	}
	return b[1+width:], nil
}

func (s *schema) walkList(b []byte) ([]byte, error) {
	if len(b) > 0 && b[0] == 0xc0 {
		return b[1:], nil
	}
	n, rest, ok := count(b, 0x90, 0xdc)
	switch {
	case !ok:
		return nil, s.bad("is not a list")
	case n > uint64(s.max):
		return nil, s.bad(fmt.Sprintf("has %d elements, limit %d", n, s.max))
	case n > uint64(len(rest)): // an element has at least one byte
		return nil, s.bad("is cut off")
	}
	var err error
	for range n {
		if rest, err = s.elem.walk(rest); err != nil {
			return nil, err
		}
	}
	return rest, nil
}

func (s *schema) walkInstant(b []byte) ([]byte, error) {
	// Timestamp extension: 4 bytes of seconds, or 30 bits of nanoseconds and 34 of seconds.
	switch {
	case len(b) >= 6 && b[0] == 0xd6 && b[1] == 0xff:
		return b[6:], nil
	case len(b) >= 10 && b[0] == 0xd7 && b[1] == 0xff:
		if ns := binary.BigEndian.Uint64(b[2:]) >> 34; ns >= 1e9 {
			return nil, s.bad("has more than a second of nanoseconds")
		}
		return b[10:], nil
	}
	return nil, s.bad("is not a time between 1970 and 2514")
}

func (s *schema) walkRecord(b []byte) ([]byte, error) {
	n, rest, ok := count(b, 0x80, 0xde)
	if !ok {
		return nil, s.bad("is not a map")
	}
	if n != uint64(len(s.fields)) {
		return nil, s.bad(fmt.Sprintf("has %d members, want %d", n, len(s.fields)))
	}
	var seen uint64
	for range n {
		size, at, ok := head(rest, 0xa0, 0x1f, 0xd9)
		if !ok || size > uint64(len(at)) {
			return nil, s.bad("has a member whose key is not a string")
		}
		i := s.index(at[:size])
		if i < 0 {
			return nil, s.bad("has an unknown member")
		}
		if seen>>i&1 != 0 {
			return nil, s.bad("has member " + s.fields[i].key + " twice")
		}
		seen |= 1 << i
		var err error
		if rest, err = s.fields[i].walk(at[size:]); err != nil {
			return nil, err
		}
	}
	return rest, nil
}

func (s *schema) index(key []byte) int {
	for i := range s.fields {
		if s.fields[i].key == string(key) {
			return i
		}
	}
	return -1
}

// skip moves over n bytes of a text or blob.
func (s *schema) skip(n uint64, rest []byte, ok bool, what string) ([]byte, error) {
	switch {
	case !ok:
		return nil, s.bad("is not " + what)
	case n > uint64(s.max):
		return nil, s.bad(fmt.Sprintf("has %d bytes, limit %d", n, s.max))
	case n > uint64(len(rest)):
		return nil, s.bad("is cut off")
	}
	return rest[n:], nil
}

func (s *schema) bad(what string) error { return fmt.Errorf("%w: %s %s", ErrMessage, s.path, what) }

// head reads the length of a string or of bytes: the short form fix with its
// length in mask (mask 0: there is none), or one, two or four bytes after wide, wide+1, wide+2.
func head(b []byte, fix, mask, wide byte) (n uint64, rest []byte, ok bool) {
	if len(b) == 0 {
		return 0, nil, false
	}
	c := b[0]
	switch {
	case mask != 0 && c&^mask == fix:
		return uint64(c & mask), b[1:], true
	case c == wide && len(b) >= 2:
		return uint64(b[1]), b[2:], true
	case c == wide+1 && len(b) >= 3:
		return uint64(binary.BigEndian.Uint16(b[1:])), b[3:], true
	case c == wide+2 && len(b) >= 5:
		return uint64(binary.BigEndian.Uint32(b[1:])), b[5:], true
	}
	return 0, nil, false
}

// count reads the number of elements of a list or members of a map: the short
// form fix, or two or four bytes after wide, wide+1.
func count(b []byte, fix, wide byte) (n uint64, rest []byte, ok bool) {
	if len(b) == 0 {
		return 0, nil, false
	}
	c := b[0]
	switch {
	case c&^0x0f == fix:
		return uint64(c & 0x0f), b[1:], true
	case c == wide && len(b) >= 3:
		return uint64(binary.BigEndian.Uint16(b[1:])), b[3:], true
	case c == wide+1 && len(b) >= 5:
		return uint64(binary.BigEndian.Uint32(b[1:])), b[5:], true
	}
	return 0, nil, false
}
