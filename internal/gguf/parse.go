package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// Limits. Each is far above what published models use and bounds what a hostile
// file can make this package do; the file's own size bounds the rest.
const (
	// headerBytesMax bounds everything in front of the tensor data. The largest
	// published vocabularies (about 260,000 tokens and as many merges) take under
	// 20 MiB; Strs on one array can therefore never build more than 3 x 256 MiB.
	headerBytesMax = 256 << 20
	// metadataCountMax: published files carry 20 to 60 keys.
	metadataCountMax = 1 << 16
	// tensorCountMax: the largest published models have about 2,000 tensors
	// (experts of one layer are stacked into one tensor).
	tensorCountMax = 1 << 16
	// keyBytesMax is the format's own limit (docs/gguf.md: at most 2^16-1 bytes).
	keyBytesMax = 1<<16 - 1
	// nameBytesMax is the format's own limit for tensor names.
	nameBytesMax = 64
	// stringBytesMax: the longest strings in use are chat templates of some 100 KiB.
	stringBytesMax = 16 << 20
	// arrayElemsMax: the longest arrays in use are vocabularies and merges.
	arrayElemsMax = 1 << 24
	// arrayDepthMax bounds the recursion over arrays of arrays; no published key nests at all.
	arrayDepthMax = 4
	// dimsMax is ggml's GGML_MAX_DIMS.
	dimsMax = 4
	// alignmentDefault, and the bounds of general.alignment: the format wants a
	// multiple of 8, and nothing aligns beyond the largest page (64 KiB on arm64).
	alignmentDefault = 32
	alignmentMin     = 8
	alignmentMax     = 64 << 10
)

// Smallest sizes in bytes, used to compare a count with the bytes left before
// anything is allocated for it.
const (
	headerBytes      = 4 + 4 + 8 + 8
	metadataBytesMin = 8 + 1 + 4 + 1         // key length, key, type, a one-byte value
	tensorBytesMin   = 8 + 1 + 4 + 8 + 4 + 8 // name length, name, dims, one dim, type, offset
	stringBytesMin   = 8                     // length of an empty string
	arrayBytesMin    = 4 + 8                 // element type and length of an empty array
)

// The metadata keys that this package itself obeys.
const (
	alignmentKey = "general.alignment"
	splitKey     = "split.count" // of a model cut into several files
)

// Parse checks data as a whole GGUF file and returns its index. data is kept, not
// copied: it must not change while the File is in use. Every error is an *Error.
func Parse(data []byte) (*File, error) {
	r := newReader(data, 0)
	f := &File{data: data, align: alignmentDefault}

	tensorCount, metaCount, err := f.parseHeader(r)
	if err != nil {
		return nil, err
	}
	if err := f.parseMetadata(r, metaCount); err != nil {
		return nil, err
	}
	if err := f.parseAlignment(); err != nil {
		return nil, err
	}
	if err := f.refuseSplit(); err != nil {
		return nil, err
	}
	places, err := f.parseIndex(r, tensorCount)
	if err != nil {
		return nil, err
	}
	if err := f.placeTensors(r.pos, places); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *File) parseHeader(r *reader) (tensorCount, metaCount int, err error) {
	r.within("header")
	magic, err := r.bytes("magic", 4)
	if err != nil {
		return 0, 0, err
	}
	if string(magic) != "GGUF" {
		return 0, 0, &Error{Field: "magic", Err: ErrMagic, Msg: fmt.Sprintf("found %q, want \"GGUF\"", magic)}
	}
	version, err := r.u32("version")
	if err != nil {
		return 0, 0, err
	}
	switch {
	case version == 2 || version == 3:
		f.version = version
	case version&0xffff == 0 && version != 0:
		// A version below 65,536 written the other way round.
		return 0, 0, &Error{Field: "version", Offset: 4, Err: ErrBigEndian, Msg: "only little endian files are read; convert the model again for little endian"}
	default:
		return 0, 0, &Error{Field: "version", Offset: 4, Err: ErrVersion, Msg: fmt.Sprintf("found %d, want 2 or 3", version)}
	}
	if tensorCount, err = r.count("tensor count", tensorCountMax, tensorBytesMin); err != nil {
		return 0, 0, err
	}
	if metaCount, err = r.count("metadata count", metadataCountMax, metadataBytesMin); err != nil {
		return 0, 0, err
	}
	return tensorCount, metaCount, nil
}

// parseAlignment takes general.alignment from the metadata. Only a u32 will do, as in ggml:
// two readers that disagree on the alignment would read different weights.
func (f *File) parseAlignment() error {
	v, ok := f.meta[alignmentKey]
	if !ok {
		return nil
	}
	fail := func(err error, msg string) error {
		return &Error{Field: "metadata " + quote(alignmentKey), Offset: int64(v.off), Err: err, Msg: msg}
	}
	if v.typ != typeUint32 {
		return fail(ErrType, fmt.Sprintf("want u32, found %s", v.describe()))
	}
	a := binary.LittleEndian.Uint32(f.data[v.off:])
	if a < alignmentMin || a > alignmentMax || a&(a-1) != 0 {
		return fail(ErrValue, fmt.Sprintf("found %d, want a power of two from %d to %d", a, alignmentMin, alignmentMax))
	}
	f.align = int(a)
	return nil
}

// refuseSplit refuses one file of a split model, which would otherwise only show
// later, as tensors that are missing.
func (f *File) refuseSplit() error {
	n, ok, err := f.Uint(splitKey)
	if err != nil {
		return err
	}
	if ok && n > 1 {
		return f.keyError(splitKey, f.meta[splitKey], ErrValue, "the model is split over %d files; join them first (llama-gguf-split --merge)", n)
	}
	return nil
}

// place is where the index says a tensor's data lies.
type place struct {
	index  int    // into File.tensors
	offset uint64 // from the start of the data section; checked by placeTensors
	bytes  int
	pos    int // of the offset field itself, for errors
}

func (f *File) parseIndex(r *reader, count int) ([]place, error) {
	f.tensors = make([]Tensor, 0, count)
	f.byName = make(map[string]int, count)
	places := make([]place, 0, count)
	for i := range count {
		r.withinEntry("tensor", i)
		t, p, err := parseTensor(r)
		if err != nil {
			return nil, err
		}
		if _, ok := f.byName[t.Name]; ok {
			return nil, r.fail("name", r.entry, ErrDuplicate, "")
		}
		p.index = i
		f.byName[t.Name] = i
		f.tensors = append(f.tensors, t)
		places = append(places, p)
	}
	return places, nil
}

func parseTensor(r *reader) (t Tensor, p place, err error) {
	name, err := r.str("name", 1, nameBytesMax)
	if err != nil {
		return t, p, err
	}
	t.Name = string(name)
	r.name = t.Name

	pos := r.pos
	n, err := r.u32("dimension count")
	if err != nil {
		return t, p, err
	}
	if n < 1 || n > dimsMax {
		return t, p, r.fail("dimension count", pos, ErrValue, "found %d, want 1 to %d", n, dimsMax)
	}
	t.Dims = make([]int, n)
	dimsPos := r.pos
	elems := uint64(1)
	for i := range t.Dims {
		pos := r.pos
		d, err := r.u64("dimension")
		if err != nil {
			return t, p, err
		}
		// elems <= MaxInt always holds here, so the division cannot wrap.
		if d == 0 || d > math.MaxInt/elems {
			return t, p, r.fail("dimension", pos, ErrValue, "dimension %d is %d, want 1 or more and a product below 2^63", i, d)
		}
		elems *= d
		t.Dims[i] = int(d)
	}
	pos = r.pos
	typ, err := r.u32("type")
	if err != nil {
		return t, p, err
	}
	t.Type = Type(typ)
	shape, ok := t.Type.shape()
	if !ok {
		return t, p, r.fail("type", pos, ErrType, "tensor type %s (number %d) is not supported", t.Type, typ)
	}
	if t.Dims[0]%shape.elems != 0 {
		return t, p, r.fail("dimension", dimsPos, ErrValue, "row of %d elements, want a multiple of %d for type %s", t.Dims[0], shape.elems, t.Type)
	}
	blocks := int(elems) / shape.elems
	if blocks > math.MaxInt/shape.bytes {
		return t, p, r.fail("dimension", dimsPos, ErrTruncated, "the tensor's size overflows")
	}
	p.bytes = blocks * shape.bytes
	p.pos = r.pos
	p.offset, err = r.u64("offset")
	return t, p, err
}

// placeTensors checks where each tensor's data lies and sets Data. headerEnd is
// the position behind the tensor index.
func (f *File) placeTensors(headerEnd int, places []place) error {
	if len(places) == 0 {
		return nil // a vocabulary-only file may end without padding
	}
	// headerEnd is at most headerBytesMax, so the sum cannot overflow.
	start := (headerEnd + f.align - 1) &^ (f.align - 1)
	if start > len(f.data) {
		return &Error{Field: "tensor data", Offset: int64(headerEnd), Err: ErrTruncated,
			Msg: fmt.Sprintf("starts at byte %d, the file has %d", start, len(f.data))}
	}
	f.dataStart = start
	size := len(f.data) - start
	for _, p := range places {
		t := &f.tensors[p.index]
		fail := func(err error, format string, args ...any) error {
			return &Error{Field: fmt.Sprintf("tensor %d (%s) offset", p.index, quote(t.Name)), Offset: int64(p.pos), Err: err, Msg: fmt.Sprintf(format, args...)}
		}
		if p.offset%uint64(f.align) != 0 {
			return fail(ErrValue, "offset %d, want a multiple of the alignment %d", p.offset, f.align)
		}
		if p.offset > uint64(size) || p.bytes > size-int(p.offset) {
			return fail(ErrTruncated, "%d bytes at offset %d of %d bytes of tensor data", p.bytes, p.offset, size)
		}
		from := start + int(p.offset)
		t.Data = f.data[from : from+p.bytes : from+p.bytes]
	}
	return f.checkOverlap(places)
}

// checkOverlap refuses tensors that share bytes: no writer makes such a file, and
// weights that alias would make one tensor's digest speak for another. It sorts places.
func (f *File) checkOverlap(places []place) error {
	slices.SortFunc(places, func(a, b place) int {
		switch {
		case a.offset < b.offset:
			return -1
		case a.offset > b.offset:
			return 1
		}
		return a.index - b.index
	})
	for i := 1; i < len(places); i++ {
		before, p := places[i-1], places[i]
		// Both ends lie inside the file (placeTensors), so the sum cannot overflow.
		if before.offset+uint64(before.bytes) > p.offset {
			return &Error{Field: fmt.Sprintf("tensor %d (%s) offset", p.index, quote(f.tensors[p.index].Name)), Offset: int64(p.pos), Err: ErrOverlap,
				Msg: fmt.Sprintf("starts at offset %d inside tensor %d (%s)", p.offset, before.index, quote(f.tensors[before.index].Name))}
		}
	}
	return nil
}
