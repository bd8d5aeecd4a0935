// Package gguf reads a GGUF model file's metadata and tensor index, trusting
// nothing in it, and turns quantised tensor data back into float32.
//
// Open maps a file and checks it whole: afterwards every metadata value and
// every tensor is known to lie inside the file, and the getters and Tensor only
// look things up.
//
//	f, err := gguf.Open("model.gguf")
//	if err != nil { ... }
//	defer f.Close()
//	layers, ok, err := f.Uint("llama.block_count")
//	w, ok := f.Tensor("token_embd.weight")
//	row := make([]float32, w.Dims[0])
//	n, err := w.Type.RowBytes(w.Dims[0])
//	err = gguf.Dequantize(row, w.Type, w.Data[:n])
//
// # Format
//
// GGUF versions 2 and 3, little endian, as ggml's docs/gguf.md describes them.
// All integers are little endian; a string is a u64 byte length and that many bytes.
//
//	offset  size  field
//	0       4     magic "GGUF"
//	4       4     version, u32: 2 or 3 (the two have the same layout)
//	8       8     tensor count, u64
//	16      8     metadata count, u64
//	24      ...   metadata: key string, value type u32, value; an array value is
//	              its element type u32, its length u64 and its elements
//	...     ...   tensor index: name string, dimension count u32, each dimension
//	              u64 (fastest first), tensor type u32, data offset u64
//	...     ...   padding to general.alignment (32 where the key is absent)
//	...     ...   tensor data; offsets count from here and are multiples of the alignment
//
// # Promises
//
// A hostile file costs an *Error that names the field, and nothing more: no
// panic, and memory bounded by a small multiple of the header's own bytes. Every
// length, count and offset is compared with the bytes that are really there
// before anything is allocated for it. Keys and tensor names are unique; tensors
// lie inside the file, aligned, and do not overlap; Data is exactly as long as
// type and dimensions say.
//
// A File may be read by many goroutines at once. Close must not run beside them.
//
// # The file must stay as it is
//
// The size is taken once, from the open descriptor. Rewriting the file in place
// while it is open can only make a getter return an error or weights change (the
// getters check their bounds again), but truncating it makes the kernel raise
// SIGBUS on the next touch of a lost page, which ends the process: Go offers no
// safe way to carry on with half a model. Serve models from a place that only
// replaces files by rename, which leaves an open mapping intact. scripts/get-model
// does so.
//
// # Not for
//
// Big endian files, version 1, split files, and tensor types whose
// Supported is false: each is refused by name.
package gguf

import (
	"crypto/sha256"
	"slices"
)

// Tensor is one entry of the tensor index.
type Tensor struct {
	Name string
	Type Type
	// Dims are the extents in ggml order, 1 to 4 of them: Dims[0] is the fastest
	// and counts the elements of a row, Dims[1] counts rows. All are positive.
	Dims []int
	// Data holds the tensor's bytes, rows one after another without padding. It
	// points into the mapping: read-only (a write faults), dead after File.Close.
	// It starts at a multiple of general.alignment (8 or more) from the start of
	// the file, so for a file from Open it is aligned in memory too.
	Data []byte
}

// Rows returns the product of all dimensions but the first: the number of rows
// of Dims[0] elements.
func (t Tensor) Rows() int {
	rows := 1
	for _, d := range t.Dims[1:] {
		rows *= d // cannot overflow: parse bounded the whole product
	}
	return rows
}

// Elems returns the product of all dimensions.
func (t Tensor) Elems() int { return t.Dims[0] * t.Rows() }

// File is a checked GGUF file. It comes from Open or Parse.
type File struct {
	data    []byte
	mapped  bool
	closed  bool
	version uint32
	align   int
	// dataStart is where tensor data begins: all before it is the header.
	dataStart int
	keys      []string
	meta      map[string]value
	tensors   []Tensor
	byName    map[string]int
}

// Open maps the file at path read-only and checks it as Parse does. The error is
// an *Error where the content is at fault and an *fs.PathError where the file
// cannot be opened or mapped.
func Open(path string) (*File, error) {
	data, err := mapFile(path)
	if err != nil {
		return nil, err
	}
	f, err := Parse(data)
	if err != nil {
		unmap(data) // the parse error is the one worth reporting
		return nil, err
	}
	f.mapped = true
	return f, nil
}

// Close unmaps the file. Data, and the Data of every tensor, are dead afterwards:
// touching them ends the process. Getters return ErrClosed. A second Close does
// nothing.
func (f *File) Close() error {
	if f.closed {
		return nil
	}
	f.closed = true
	data := f.data
	f.data, f.tensors = nil, nil
	clear(f.byName)
	if !f.mapped {
		return nil
	}
	return unmap(data)
}

// Data returns the whole file, read-only, for fingerprints. It dies with Close.
func (f *File) Data() []byte { return f.data }

// HeaderDigest is the SHA-256 of everything before the tensor data: metadata
// (tokenizer, template, architecture) and the tensor index, without the weights.
// Nodes that hold the weights announce it, so that a router, which holds only
// the tokenizer, knows that it is theirs.
func (f *File) HeaderDigest() [sha256.Size]byte { return sha256.Sum256(f.data[:f.dataStart]) }

// Version returns the format version, 2 or 3.
func (f *File) Version() int { return int(f.version) }

// Tensors returns the tensor index in file order. The slice is the caller's; Dims
// and Data are shared and must not be changed.
func (f *File) Tensors() []Tensor { return slices.Clone(f.tensors) }

// Tensor returns the tensor called name.
func (f *File) Tensor(name string) (Tensor, bool) {
	i, ok := f.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// DropPages tells the kernel that the mapping will not be read soon, so that its
// pages stop counting as this process's resident memory. Call it when the weights
// have been repacked elsewhere. The content stays valid: a later read brings the
// page back from the page cache or the disk. It does nothing for a File from Parse.
func (f *File) DropPages() error {
	if f.closed {
		return ErrClosed
	}
	if !f.mapped {
		return nil
	}
	return dropPages(f.data)
}
