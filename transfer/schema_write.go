package transfer

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
	"unicode/utf8"
	"unsafe"
)

// write appends the value of s at p to dst, in the one form that is ever
// written: the shortest, members in the order of the type. It refuses what read
// would refuse, so that what is sent can be read.
func (s *schema) write(dst []byte, p unsafe.Pointer) ([]byte, error) {
	switch s.shape {
	case boolean:
		if *(*bool)(p) {
			return append(dst, 0xc3), nil
		}
		return append(dst, 0xc2), nil
	case integer:
		return s.writeInteger(dst, p), nil
	case float32bits:
		return binary.BigEndian.AppendUint32(append(dst, 0xca), math.Float32bits(*(*float32)(p))), nil
	case text:
		v := *(*string)(p)
		switch {
		case len(v) > s.max:
			return nil, s.bad(fmt.Sprintf("has %d bytes, limit %d", len(v), s.max))
		case !utf8.ValidString(v):
			return nil, s.bad("is not UTF-8")
		}
		return appendText(dst, v), nil
	case blob:
		v := *(*[]byte)(p)
		switch {
		case v == nil:
			return append(dst, 0xc0), nil
		case len(v) > s.max:
			return nil, s.bad(fmt.Sprintf("has %d bytes, limit %d", len(v), s.max))
		}
		return append(appendHead(dst, len(v), 0xc4), v...), nil
	case array:
		return append(appendHead(dst, s.max, 0xc4), unsafe.Slice((*byte)(p), s.max)...), nil
	case list:
		return s.writeList(dst, p)
	case instant:
		return s.writeInstant(dst, *(*time.Time)(p))
	case pointer:
		to := *(*unsafe.Pointer)(p)
		if to == nil {
			return append(dst, 0xc0), nil
		}
		return s.elem.write(dst, to)
	case record:
		var err error
		dst = appendCount(dst, len(s.fields), 0x80, 0xde)
		for i := range s.fields {
			f := &s.fields[i]
			dst = append(dst, f.head...)
			if dst, err = f.write(dst, unsafe.Add(p, f.at)); err != nil {
				return nil, err
			}
		}
		return dst, nil
	}
	panic("transfer: internal error: a schema without a shape")
}

func (s *schema) writeInteger(dst []byte, p unsafe.Pointer) []byte {
	var u uint64
	switch s.bytes {
	case 1:
		u = uint64(*(*uint8)(p))
	case 2:
		u = uint64(*(*uint16)(p))
	case 4:
		u = uint64(*(*uint32)(p))
	case 8:
		u = *(*uint64)(p)
	}
	be := binary.BigEndian
	shift := 64 - 8*s.bytes
	if i := int64(u<<shift) >> shift; s.lo < 0 && i < 0 {
		switch {
		case i >= -32:
			return append(dst, byte(i))
		case i >= math.MinInt8:
			return append(dst, 0xd0, byte(i))
		case i >= math.MinInt16:
			return be.AppendUint16(append(dst, 0xd1), uint16(i))
		case i >= math.MinInt32:
			return be.AppendUint32(append(dst, 0xd2), uint32(i))
		}
		return be.AppendUint64(append(dst, 0xd3), uint64(i))
	}
	switch {
	case u <= 0x7f:
		return append(dst, byte(u))
	case u <= math.MaxUint8:
		return append(dst, 0xcc, byte(u))
	case u <= math.MaxUint16:
		return be.AppendUint16(append(dst, 0xcd), uint16(u))
	case u <= math.MaxUint32:
		return be.AppendUint32(append(dst, 0xce), uint32(u))
	}
	return be.AppendUint64(append(dst, 0xcf), u)
}

func (s *schema) writeList(dst []byte, p unsafe.Pointer) ([]byte, error) {
	at, n := s.elements(p)
	switch {
	case at == nil:
		return append(dst, 0xc0), nil
	case n > s.max:
		return nil, s.bad(fmt.Sprintf("has %d elements, limit %d", n, s.max))
	}
	dst = appendCount(dst, n, 0x90, 0xdc)
	var tokens []uint32
	if s.elem.shape == integer && s.elem.bytes == 4 { // token ids
		tokens = unsafe.Slice((*uint32)(at), n)
	}
	var err error
	for i := range uintptr(n) {
		if tokens != nil && tokens[i] <= math.MaxUint8 { // most of them, and in the form that writeInteger has
			if tokens[i] > 0x7f {
				dst = append(dst, 0xcc)
			}
			dst = append(dst, byte(tokens[i]))
			continue
		}
		if dst, err = s.elem.write(dst, unsafe.Add(at, i*s.step)); err != nil {
			return nil, err
		}
	}
	return dst, nil
}

// elements returns the first element and the count of the slice at p; nil for a nil slice.
func (s *schema) elements(p unsafe.Pointer) (unsafe.Pointer, int) {
	v := *(*[]struct{})(p) // every slice has its pointer and its length in the same places
	return unsafe.Pointer(unsafe.SliceData(v)), len(v)
}

func (s *schema) writeInstant(dst []byte, t time.Time) ([]byte, error) {
	sec := uint64(t.Unix())
	if sec>>34 != 0 {
		return nil, s.bad("is not a time between 1970 and 2514")
	}
	x := uint64(t.Nanosecond())<<34 | sec
	if x <= math.MaxUint32 {
		return binary.BigEndian.AppendUint32(append(dst, 0xd6, 0xff), uint32(x)), nil
	}
	return binary.BigEndian.AppendUint64(append(dst, 0xd7, 0xff), x), nil
}

// size is at least what write appends.
func (s *schema) size(p unsafe.Pointer) int {
	const headMax = 5
	switch s.shape {
	case text:
		return headMax + len(*(*string)(p))
	case blob:
		return headMax + len(*(*[]byte)(p))
	case list:
		at, n := s.elements(p)
		if s.elem.shape == integer {
			return headMax + n*(1+s.elem.bytes)
		}
		sum := headMax
		for i := range uintptr(n) {
			sum += s.elem.size(unsafe.Add(at, i*s.step))
		}
		return sum
	case pointer:
		if to := *(*unsafe.Pointer)(p); to != nil {
			return s.elem.size(to)
		}
		return 1
	case record:
		sum := headMax
		for i := range s.fields {
			f := &s.fields[i]
			sum += len(f.head) + f.size(unsafe.Add(p, f.at))
		}
		return sum
	case array:
		return headMax + s.max
	}
	return 10 // the longest time or number
}

// appendText writes a string.
func appendText(dst []byte, v string) []byte {
	if len(v) < 32 {
		return append(append(dst, 0xa0|byte(len(v))), v...)
	}
	return append(appendHead(dst, len(v), 0xd9), v...)
}

// appendHead writes a length in one, two or four bytes after wide, wide+1, wide+2.
func appendHead(dst []byte, n int, wide byte) []byte {
	switch {
	case n <= math.MaxUint8:
		return append(dst, wide, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, wide+1), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, wide+2), uint32(n))
}

// appendCount writes a number of elements or members: the short form fix, or
// two or four bytes after wide, wide+1.
func appendCount(dst []byte, n int, fix, wide byte) []byte {
	switch {
	case n < 16:
		return append(dst, fix|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, wide), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, wide+1), uint32(n))
}
