package kernels

import "bulkhead/internal/gguf"

// Info says what a backend is. Name and Tier enter the model fingerprint:
// nodes whose kernels could differ in the last bit refuse each other's blocks.
type Info struct {
	Name    string // "cpu", "cuda"
	Tier    string // the instruction set chosen at start: "avx512vnni", "avxvnni", "avx2", "generic"
	Version int    // raised whenever a kernel's bits change
	Threads int
}

// Backend runs the operations of a forward pass. All methods are safe for
// concurrent use; Buffers belong to one caller at a time.
type Backend interface {
	Info() Info

	// LoadMatrix takes a weight matrix W [rows, cols] in GGUF block format,
	// row-major (one row is gguf.Type.RowBytes(cols) bytes). data is only read
	// during the call: the backend keeps its own, possibly repacked, copy.
	// It returns an error for a type it cannot multiply or a wrong length.
	LoadMatrix(t gguf.Type, rows, cols int, data []byte) (Matrix, error)
	// LoadPrecise is LoadMatrix for a matrix whose inputs have outliers: where a
	// backend rounds the inputs of quantised matrices to 8 bits, it keeps 15 bits of
	// those groups of a row's inputs that are far larger than the others.
	LoadPrecise(t gguf.Type, rows, cols int, data []byte) (Matrix, error)
	// LoadVector takes a norm weight or a bias, [n] f32.
	LoadVector(v []float32) (Vector, error)

	// Alloc gives a zeroed activation buffer [rows, cols] f32, row-major.
	Alloc(rows, cols int) (Buffer, error)
	// Read copies rows [row, row+n) of src into dst (n*cols values). Only
	// after Step has returned.
	Read(dst []float32, src Buffer, row, n int)

	// NewPages makes a KV pool of count zeroed pages without owner.
	NewPages(l PageLayout, count int) (Pages, error)

	// Step runs f; operations may be used only inside it. Operations are
	// ordered as they are called. If a sequence read or wrote a page that is
	// not its own, Step returns a *FaultError that names every such sequence;
	// the rows of the others are valid.
	Step(f func(Ops) error) error

	// Close stops the worker threads and frees the memory.
	Close() error
}

// Matrix is a weight matrix [Rows, Cols] in the backend's layout.
type Matrix interface {
	Rows() int
	Cols() int
}

// Vector is a f32 vector in the backend's memory.
type Vector interface{ Len() int }

// Buffer is an activation matrix [Rows, Cols] f32, row-major.
type Buffer interface {
	Rows() int
	Cols() int
}

// Ops are the operations of one step. rows is always the count of leading rows
// that take part. Shapes that disagree are a programming error and panic.
type Ops interface {
	// Embed writes dequantised row tokens[i] of table into row i of dst.
	Embed(dst Buffer, table Matrix, tokens []int32)
	// RMSNorm: dst[r] = src[r] / sqrt(mean(src[r]^2) + eps) * w, per row. With
	// heads > 1 each row is cut into heads pieces that are normed apart (w has
	// the length of one piece): the per-head norm of Qwen 3. dst may be src.
	RMSNorm(dst, src Buffer, rows, heads int, w Vector, eps float32)
	// MatMul: dst[i][r] = W[i] · src[r] (+ bias[i] where it is not nil), for
	// several matrices that share their input, which is quantised once.
	MatMul(dst []Buffer, src Buffer, rows int, w []Matrix, bias []Vector)
	// MatMulRows is MatMul of one matrix for the picked rows of src only: row
	// i of dst is W · src[pick[i]].
	MatMulRows(dst, src Buffer, pick []int, w Matrix)
	// RoPE rotates x [rows, heads*headDim] in place; row r stands at pos[r].
	RoPE(x Buffer, rows, heads int, pos []int32, p RoPE)
	// SiLUMul: dst = silu(gate) * up, elementwise. dst may be gate.
	SiLUMul(dst, gate, up Buffer, rows int)
	// Add: dst += src, elementwise.
	Add(dst, src Buffer, rows int)

	// AppendKV writes K and V rows of the spans into their pages at the given
	// layer, converted to f16. Each span's slots must follow exactly on what
	// the page's layer already holds; tags are checked before the write.
	AppendKV(p Pages, layer int, k, v Buffer, spans []Span)
	// PagedAttention: for each query row, softmax(q·K^T * scale) V over
	// positions 0..its own, grouped-query. q and dst are [rows, heads*headDim].
	// Tags and filled counts of every entry read are checked.
	PagedAttention(dst, q Buffer, p Pages, layer int, spans []Span, heads int, scale float32)
}

// RoPE is rotary position embedding. Pairing is "norm" (dimension 2i with
// 2i+1, as in GGUF files of the llama family) or "neox" (i with i+d/2: qwen).
type RoPE struct {
	HeadDim int
	Dims    int       // rotated dimensions, <= HeadDim
	NeoX    bool      // pairing
	InvFreq []float32 // [Dims/2] f32: base^(-2i/Dims), with scaling and factors folded in
	Scale   float32   // magnitude scale of cos and sin; 1 if unused
}

// Span is the rows of one sequence in a step: rows [Row, Row+Len) stand at
// positions [Pos, Pos+Len) of the sequence that owns Table.
type Span struct {
	Row, Len int
	Pos      int
	Table    []Entry // pages in logical order; covers at least Pos+Len tokens
}
