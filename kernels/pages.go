package kernels

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"

	"bulkhead/internal/mutant"
)

// BlockTokens is the count of tokens in one block, hence of slots in one page.
const BlockTokens = 64

// PageID is the number of a page in its pool.
type PageID int32

// Owner is a lease: a number never used twice in the life of a pool. It stands
// for tenant + request + attempt, or for tenant + prefix lease. 0 is nobody.
type Owner uint64

// Tag is what a page says of itself. It lies beside the page's bytes, where
// the attention kernel reads it.
type Tag struct {
	Owner      Owner
	Generation uint32 // raised each time the page is freed
	Index      uint32 // logical index of the block within its sequence
}

// Entry is what a block table expects of a page. The logical index is the
// entry's place in the table.
type Entry struct {
	Page       PageID
	Owner      Owner
	Generation uint32
}

// PageLayout is the shape of one block: K and V, [Layers, KVHeads, BlockTokens,
// HeadDim] f16 each.
type PageLayout struct {
	Layers, KVHeads, HeadDim int
}

// TokenLayerBytes is the size of one token's K and V in one layer.
func (l PageLayout) TokenLayerBytes() int { return 2 * l.KVHeads * l.HeadDim * 2 }

// PageBytes is the size of a full block.
func (l PageLayout) PageBytes() int { return l.Layers * BlockTokens * l.TokenLayerBytes() }

// Fingerprint is what nodes compare before they exchange blocks: the shape, the
// block size, the data type and the wire order of [Pages.Export].
func (l PageLayout) Fingerprint() [32]byte {
	var room [160]byte
	b := append(room[:0], "bulkhead kv layout/1: layers="...)
	b = strconv.AppendInt(b, int64(l.Layers), 10)
	b = strconv.AppendInt(append(b, " kv_heads="...), int64(l.KVHeads), 10)
	b = strconv.AppendInt(append(b, " head_dim="...), int64(l.HeadDim), 10)
	b = strconv.AppendInt(append(b, " block="...), BlockTokens, 10)
	return sha256.Sum256(append(b, " dtype=f16 order=layer,kv,head,token,dim"...))
}

// Pages is the bytes of a KV pool with the tags beside them. internal/kv keeps
// the books (who may hold what); Pages holds what the kernels see. Methods on
// different pages may run at the same time; one page has one user at a time,
// which kv guarantees.
type Pages interface {
	Layout() PageLayout
	Count() int
	// Claim gives an empty page its tag. It panics if the page is still
	// claimed or was not scrubbed: the books contradict the memory.
	Claim(p PageID, t Tag)
	// Scrub zeroes the bytes, forgets what was filled and clears the tag.
	Scrub(p PageID)
	// Zeroed reports whether every byte of the page is zero (tests, audits).
	Zeroed(p PageID) bool
	// Tag and Filled read the tag, and how many slots of a layer hold data.
	Tag(p PageID) Tag
	Filled(p PageID, layer int) int
	// Export copies the first tokens slots of layers [lo, hi) into dst in wire
	// order: [layer][K, V][KVHeads][token][HeadDim] f16 little endian. The
	// entry is checked as in attention; index is its place in the table.
	Export(dst []byte, e Entry, index, lo, hi, tokens int) error
	// Import writes such bytes into an empty layer range of a claimed page and
	// marks tokens slots of each layer as filled. Entry checked likewise.
	Import(e Entry, index, lo, hi, tokens int, src []byte) error
}

// The kinds of Fault. Match with errors.Is.
var (
	ErrStalePage     = errors.New("kernels: stale page: generation has moved on")
	ErrForeignPage   = errors.New("kernels: foreign page: owner or index is not the expected one")
	ErrUnwrittenPage = errors.New("kernels: unwritten page: slot beyond what was filled")
	ErrAppendGap     = errors.New("kernels: append does not follow on what the page holds")
	ErrPageRange     = errors.New("kernels: page number outside the pool")
)

// Fault is one refused block-table entry.
type Fault struct {
	Span  int // index into the spans of the step
	Layer int
	Block int // place in the block table
	Page  PageID
	Err   error // one of the kinds above
}

func (f Fault) Error() string {
	return fmt.Sprintf("span %d layer %d block %d page %d: %v", f.Span, f.Layer, f.Block, f.Page, f.Err)
}

// Unwrap gives the kind.
func (f Fault) Unwrap() error { return f.Err }

// FaultError is what Step returns when pages were refused: at least one Fault,
// at most one (the first) per span.
type FaultError struct{ Faults []Fault }

func (e *FaultError) Error() string {
	return fmt.Sprintf("kernels: %d sequence(s) refused; first: %v", len(e.Faults), e.Faults[0])
}

// CheckEntry compares a block-table entry with the tag that the page bears.
// It is the one definition of the check that every backend must match.
func CheckEntry(e Entry, index int, t Tag) error {
	switch {
	case e.Owner == 0:
		return ErrForeignPage
	case t.Owner == 0 && !mutant.Off(mutant.EntryFreed):
		return ErrStalePage // freed since the table was built
	case t.Owner != e.Owner && !mutant.Off(mutant.EntryOwner):
		return ErrForeignPage
	case t.Generation != e.Generation && !mutant.Off(mutant.EntryGeneration):
		return ErrStalePage
	case t.Index != uint32(index) && !mutant.Off(mutant.EntryIndex):
		return ErrForeignPage
	}
	return nil
}
