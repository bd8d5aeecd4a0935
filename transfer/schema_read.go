package transfer

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"time"
	"unicode/utf8"
	"unsafe"
)

// read makes the value of s at p, which is zero, from the start of b, and returns
// what follows. Whatever it allocates is bounded before by what b really holds:
// a list has no more elements than its bytes could be, a text no more bytes than
// are there. With alias, byte strings are parts of b instead of copies.
//
// Where a value is follows from the Go type alone, never from the bytes: p is at
// each call the address of a variable of the type that s was compiled from.
func (s *schema) read(b []byte, p unsafe.Pointer, alias bool) ([]byte, error) {
	switch s.shape {
	case boolean:
		if len(b) > 0 && (b[0] == 0xc2 || b[0] == 0xc3) {
			*(*bool)(p) = b[0] == 0xc3
			return b[1:], nil
		}
		return nil, s.bad("is not a boolean")
	case integer:
		return s.readInteger(b, p)
	case float32bits:
		if len(b) >= 5 && b[0] == 0xca {
			*(*float32)(p) = math.Float32frombits(binary.BigEndian.Uint32(b[1:]))
			return b[5:], nil
		}
		return nil, s.bad("is not a float32")
	case text:
		n, at, ok := head(b, 0xa0, 0x1f, 0xd9)
		rest, err := s.skip(n, at, ok, "a string")
		if err != nil {
			return nil, err
		}
		if !utf8.Valid(at[:n]) {
			return nil, s.bad("is not UTF-8")
		}
		if word, ok := words[string(at[:min(n, wordMax+1)])]; ok { // the map's own: no copy
			*(*string)(p) = word
		} else {
			*(*string)(p) = string(at[:n])
		}
		return rest, nil
	case blob:
		if len(b) > 0 && b[0] == 0xc0 {
			return b[1:], nil
		}
		n, at, ok := head(b, 0, 0, 0xc4)
		rest, err := s.skip(n, at, ok, "bytes")
		if err != nil {
			return nil, err
		}
		if alias {
			*(*[]byte)(p) = at[:n:n]
		} else {
			*(*[]byte)(p) = append(make([]byte, 0, n), at[:n]...)
		}
		return rest, nil
	case array:
		n, at, ok := head(b, 0, 0, 0xc4)
		if ok && n != uint64(s.max) {
			return nil, s.bad(fmt.Sprintf("has %d bytes, want %d", n, s.max))
		}
		rest, err := s.skip(n, at, ok, "bytes")
		if err != nil {
			return nil, err
		}
		copy(unsafe.Slice((*byte)(p), s.max), at)
		return rest, nil
	case list:
		return s.readList(b, p, alias)
	case instant:
		return s.readInstant(b, p)
	case pointer:
		if len(b) > 0 && b[0] == 0xc0 {
			return b[1:], nil
		}
		to := reflect.New(s.typ).UnsafePointer()
		*(*unsafe.Pointer)(p) = to
		return s.elem.read(b, to, alias)
	case record:
		return s.readRecord(b, p, alias)
	}
	panic("transfer: internal error: a schema without a shape")
}

// wordMax is the length of the longest of words.
const wordMax = 24

// words are the texts that come in most messages.
var words = func() map[string]string {
	m := map[string]string{}
	for k := range senders {
		m[string(k)] = string(k)
	}
	for r := range reasons {
		m[string(r)] = string(r)
	}
	for _, r := range []Role{RoleRouter, RolePrefill, RoleDecode} {
		m[string(r)] = string(r)
	}
	return m
}()

func (s *schema) readInteger(b []byte, p unsafe.Pointer) ([]byte, error) {
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
		switch width {
		case 1:
			u = uint64(b[1])
		case 2:
			u = uint64(binary.BigEndian.Uint16(b[1:]))
		case 4:
			u = uint64(binary.BigEndian.Uint32(b[1:]))
		case 8:
			u = binary.BigEndian.Uint64(b[1:])
		}
		if c >= 0xd0 { // signed: extend the sign
			if v := int64(u<<(64-8*width)) >> (64 - 8*width); v < 0 {
				u, i = 0, v
			}
		}
	}
	if i < s.lo || u > s.hi {
		return nil, s.bad("is out of range")
	}
	u |= uint64(i) // one of them is 0
	switch s.bytes {
	case 1:
		*(*uint8)(p) = uint8(u)
	case 2:
		*(*uint16)(p) = uint16(u)
	case 4:
		*(*uint32)(p) = uint32(u)
	case 8:
		*(*uint64)(p) = u
	}
	return b[1+width:], nil
}

func (s *schema) readList(b []byte, p unsafe.Pointer, alias bool) ([]byte, error) {
	if len(b) > 0 && b[0] == 0xc0 {
		return b[1:], nil
	}
	n, rest, ok := count(b, 0x90, 0xdc)
	switch {
	case !ok:
		return nil, s.bad("is not a list")
	case n > uint64(s.max):
		return nil, s.bad(fmt.Sprintf("has %d elements, limit %d", n, s.max))
	case n > uint64(len(rest)/s.elem.least):
		return nil, s.bad("is cut off")
	}
	var at unsafe.Pointer
	var tokens []int32
	if s.elem.shape == integer && s.elem.bytes == 4 { // token ids, signed or not: by far the most
		tokens = make([]int32, n)
		*(*[]int32)(p), at = tokens, unsafe.Pointer(unsafe.SliceData(tokens))
	} else {
		at = reflect.MakeSlice(s.typ, int(n), int(n)).UnsafePointer()
		*(*slice)(p) = slice{at, int(n), int(n)}
	}
	var err error
	for i := range uintptr(n) {
		if tokens != nil && len(rest) > 1 { // most of them are short
			if c := rest[0]; c <= 0x7f {
				tokens[i], rest = int32(c), rest[1:]
				continue
			} else if c == 0xcc {
				tokens[i], rest = int32(rest[1]), rest[2:]
				continue
			}
		}
		if rest, err = s.elem.read(rest, unsafe.Add(at, i*s.step), alias); err != nil {
			return nil, err
		}
	}
	return rest, nil
}

// slice is how a slice lies in memory. Written as one, p stays where it is: package
// reflect would have the message moved to the heap.
type slice struct {
	first    unsafe.Pointer
	len, cap int
}

func (s *schema) readInstant(b []byte, p unsafe.Pointer) ([]byte, error) {
	// Timestamp extension: 4 bytes of seconds, or 30 bits of nanoseconds and 34 of seconds.
	switch {
	case len(b) >= 6 && b[0] == 0xd6 && b[1] == 0xff:
		*(*time.Time)(p) = time.Unix(int64(binary.BigEndian.Uint32(b[2:])), 0)
		return b[6:], nil
	case len(b) >= 10 && b[0] == 0xd7 && b[1] == 0xff:
		x := binary.BigEndian.Uint64(b[2:])
		ns := x >> 34
		if ns >= 1e9 {
			return nil, s.bad("has more than a second of nanoseconds")
		}
		*(*time.Time)(p) = time.Unix(int64(x&(1<<34-1)), int64(ns))
		return b[10:], nil
	}
	return nil, s.bad("is not a time between 1970 and 2514")
}

func (s *schema) readRecord(b []byte, p unsafe.Pointer, alias bool) ([]byte, error) {
	n, rest, ok := count(b, 0x80, 0xde)
	if !ok {
		return nil, s.bad("is not a map")
	}
	if n != uint64(len(s.fields)) {
		return nil, s.bad(fmt.Sprintf("has %d members, want %d", n, len(s.fields)))
	}
	var seen uint64
	for i := range len(s.fields) {
		// Members come in the order of the type, as they are written; any other is allowed.
		if h := s.fields[i].head; len(rest) >= len(h) && string(rest[:len(h)]) == h {
			rest = rest[len(h):]
		} else {
			size, at, ok := head(rest, 0xa0, 0x1f, 0xd9)
			if !ok || size > uint64(len(at)) {
				return nil, s.bad("has a member whose key is not a string")
			}
			if i = s.index(at[:size]); i < 0 {
				return nil, s.bad("has an unknown member")
			}
			rest = at[size:]
		}
		f := &s.fields[i]
		if seen>>i&1 != 0 {
			return nil, s.bad("has member " + f.key + " twice")
		}
		seen |= 1 << i
		var err error
		if rest, err = f.read(rest, unsafe.Add(p, f.at), alias); err != nil {
			return nil, err
		}
	}
	return rest, nil
}

// index finds a member by its key, or returns -1.
func (s *schema) index(key []byte) int {
	for i := range s.fields {
		if s.fields[i].key == string(key) {
			return i
		}
	}
	return -1
}
