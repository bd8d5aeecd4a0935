package gguf

import (
	"encoding/binary"
	"fmt"
)

// reader walks the header of a file. Each read checks that its bytes are there
// and says in its error which field wanted them. It never allocates on behalf of
// a length it has not compared with the bytes left.
type reader struct {
	data []byte // at most headerBytesMax bytes of the file
	size int    // of the whole file, to tell ErrLimit from ErrTruncated
	pos  int

	// Where the reader is, for errors only.
	section string
	index   int    // of the entry in its section; -1 outside a list
	name    string // of the entry, once read
	entry   int    // where the entry starts
}

// newReader reads data, a whole file, from pos on.
func newReader(data []byte, pos int) *reader {
	return &reader{data: data[:min(len(data), headerBytesMax)], size: len(data), pos: pos, index: -1}
}

// within and withinEntry set what errors will call the place.
func (r *reader) within(section string) {
	r.section, r.index, r.name, r.entry = section, -1, "", r.pos
}

func (r *reader) withinEntry(section string, index int) {
	r.section, r.index, r.name, r.entry = section, index, "", r.pos
}

// fail makes the error for a field that starts at byte pos.
func (r *reader) fail(field string, pos int, err error, format string, args ...any) error {
	where := r.section
	if r.index >= 0 {
		where = fmt.Sprintf("%s %d", where, r.index)
	}
	if r.name != "" {
		where += " (" + quote(r.name) + ")"
	}
	return &Error{Field: where + " " + field, Offset: int64(pos), Err: err, Msg: fmt.Sprintf(format, args...)}
}

// left returns the number of header bytes not read yet.
func (r *reader) left() int { return len(r.data) - r.pos }

// short is the error for a field that wants more bytes than are left.
func (r *reader) short(field string, pos int, want uint64) error {
	if want <= uint64(r.size-r.pos) {
		return r.fail(field, pos, ErrLimit, "the header ends beyond byte %d", headerBytesMax)
	}
	return r.fail(field, pos, ErrTruncated, "needs %d more bytes, the file has %d", want, r.size-r.pos)
}

// bytes returns the next n bytes, which stay part of the file.
func (r *reader) bytes(field string, n int) ([]byte, error) {
	if n > r.left() {
		return nil, r.short(field, r.pos, uint64(n))
	}
	b := r.data[r.pos : r.pos+n]
	r.pos += n
	return b, nil
}

func (r *reader) u32(field string) (uint32, error) {
	b, err := r.bytes(field, 4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (r *reader) u64(field string) (uint64, error) {
	b, err := r.bytes(field, 8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

// count reads a u64 count of things that take at least bytesMin bytes each, and
// refuses it unless it is at most limit and so many things can still follow.
func (r *reader) count(field string, limit, bytesMin int) (int, error) {
	pos := r.pos
	n, err := r.u64(field)
	if err != nil {
		return 0, err
	}
	if n > uint64(limit) {
		return 0, r.fail(field, pos, ErrLimit, "found %d, at most %d", n, limit)
	}
	if n > uint64(r.left()/bytesMin) {
		return 0, r.short(field, pos, n*uint64(bytesMin)) // cannot wrap: n <= limit
	}
	return int(n), nil
}

// str reads a string of lengthMin to lengthMax bytes, which stay part of the file.
func (r *reader) str(field string, lengthMin, lengthMax int) ([]byte, error) {
	pos := r.pos
	if r.left() < 8 {
		return nil, r.short(field+" length", pos, 8)
	}
	n := binary.LittleEndian.Uint64(r.data[pos:])
	r.pos += 8
	if n > uint64(lengthMax) {
		return nil, r.fail(field+" length", pos, ErrLimit, "found %d, at most %d", n, lengthMax)
	}
	if n < uint64(lengthMin) {
		return nil, r.fail(field+" length", pos, ErrValue, "found %d, at least %d", n, lengthMin)
	}
	if n > uint64(r.left()) {
		return nil, r.short(field+" length", pos, n)
	}
	return r.bytes(field, int(n))
}
