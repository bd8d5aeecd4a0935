package transfer

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"
)

// A schema is what one message, or one part of it, may look like on the wire,
// and where in memory its Go value has it. It is compiled from the Go type.
// [schema.read] makes values of bytes and [schema.write] bytes of values, each
// in one pass, by the same rules.
type schema struct {
	path   string // for errors: "job.params.logit_bias"
	shape  shape
	max    int          // text, blob: bytes; list: elements; array: exactly so many bytes
	lo     int64        // integer range; below 0: the type is signed
	hi     uint64       //
	bytes  int          // integer: of the Go value
	elem   *schema      // list, pointer
	typ    reflect.Type // list: of the slice; pointer: of what it points to
	step   uintptr      // list: from one element to the next in memory
	least  int          // on the wire, of anything that fits
	fields []field      // record
}

type field struct {
	key  string
	head string  // the key on the wire, as it is written
	at   uintptr // in the record's Go value
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

// fieldsMax bounds the members of a struct, so that a reader remembers which
// ones it has seen in one word.
const fieldsMax = 64

var timeType = reflect.TypeFor[time.Time]()

// compile makes the schema of t. limits gives the bound of every text, blob
// and list by its path; one without a bound is a bug, found when the package's
// codecs are made.
func compile(t reflect.Type, path string, limits map[string]int) *schema {
	s := &schema{path: path, least: 1}
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
		s.shape, s.lo, s.hi, s.bytes = integer, -1<<(t.Bits()-1), 1<<(t.Bits()-1)-1, t.Bits()/8
	case k >= reflect.Uint && k <= reflect.Uint64:
		s.shape, s.hi, s.bytes = integer, math.MaxUint64>>(64-t.Bits()), t.Bits()/8
	case k == reflect.Float32:
		s.shape, s.least = float32bits, 5
	case k == reflect.String:
		s.shape = text
		bound()
	case k == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		s.shape = blob
		bound()
	case k == reflect.Array && t.Elem().Kind() == reflect.Uint8:
		s.shape, s.max, s.least = array, t.Len(), t.Len()+2
	case k == reflect.Slice:
		s.shape = list
		bound()
		s.elem, s.typ, s.step = compile(t.Elem(), path, limits), t, t.Elem().Size()
	case k == reflect.Pointer:
		s.shape = pointer
		s.elem, s.typ = compile(t.Elem(), path, limits), t.Elem()
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
			e := field{key, string(appendText(nil, key)), f.Offset, compile(f.Type, path+"."+key, limits)}
			s.fields = append(s.fields, e)
			s.least += len(e.head) + e.least
		}
		if len(s.fields) > fieldsMax {
			panic("transfer: internal error: too many fields in " + path)
		}
	default:
		panic("transfer: internal error: " + path + " has a type that cannot travel: " + t.String())
	}
	return s
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
