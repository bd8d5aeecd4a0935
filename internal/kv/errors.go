package kv

import (
	"errors"
	"fmt"

	"bulkhead/kernels"
)

// Errors that callers branch on. Match with errors.Is.
var (
	// ErrNoPages: the pool cannot hold the sequence now. A *NoPagesError.
	ErrNoPages = errors.New("kv: not enough free pages")
	// ErrTooLong: the sequence can never fit the pool. A *TooLongError.
	ErrTooLong = errors.New("kv: sequence longer than the pool's capacity")
	// ErrLease: the reservation itself makes no sense (no tenant, no tokens).
	ErrLease = errors.New("kv: invalid lease")
	// ErrLeaseHeld: a table for this very attempt is held already, so this is
	// a replay of it.
	ErrLeaseHeld = errors.New("kv: lease is held already")
	// ErrEnded: the table was released or quarantined.
	ErrEnded = errors.New("kv: table has ended")
	// ErrWriterLive: the step needs a table that nobody writes into.
	ErrWriterLive = errors.New("kv: a writer is still live")
	// ErrState: the table is not in the state that this step follows on.
	ErrState = errors.New("kv: step out of order")
	// ErrIncomplete: memory does not hold what the books were told. A
	// *IncompleteError. The table must be quarantined.
	ErrIncomplete = errors.New("kv: pages are not filled as claimed")
	// ErrSuspect: a shared block that the table reads was condemned since by
	// another reader's fault. The request must fail; its next attempt computes
	// everything.
	ErrSuspect = errors.New("kv: shared block was condemned")
	// ErrIntegrity: the books contradict themselves or the memory. An
	// *IntegrityError.
	ErrIntegrity = errors.New("kv: integrity check failed")
)

// NoPagesError is ErrNoPages with its facts, in pages.
type NoPagesError struct{ Need, Free int }

func (e *NoPagesError) Error() string {
	return fmt.Sprintf("%v: need %d, have %d", ErrNoPages, e.Need, e.Free)
}

// Is matches ErrNoPages.
func (e *NoPagesError) Is(err error) bool { return err == ErrNoPages }

// TooLongError is ErrTooLong with its facts, in tokens.
type TooLongError struct{ Limit, Value int }

func (e *TooLongError) Error() string {
	return fmt.Sprintf("%v: %d tokens, limit %d", ErrTooLong, e.Value, e.Limit)
}

// Is matches ErrTooLong.
func (e *TooLongError) Is(err error) bool { return err == ErrTooLong }

// IncompleteError is ErrIncomplete with the first page that disagrees.
type IncompleteError struct {
	Page       kernels.PageID
	Block      int // place in the block table
	Layer      int // -1: the tag disagrees
	Want, Have int // slots filled
	Err        error
}

func (e *IncompleteError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%v: block %d page %d: %v", ErrIncomplete, e.Block, e.Page, e.Err)
	}
	return fmt.Sprintf("%v: block %d page %d layer %d holds %d slots, want %d", ErrIncomplete, e.Block, e.Page, e.Layer, e.Have, e.Want)
}

// Is matches ErrIncomplete; Unwrap gives the tag's fault, if it was one.
func (e *IncompleteError) Is(err error) bool { return err == ErrIncomplete }
func (e *IncompleteError) Unwrap() error     { return e.Err }

// IntegrityError names the invariant that does not hold.
type IntegrityError struct {
	Check  string         // name of the invariant, as in DESIGN.md
	Page   kernels.PageID // -1: not one page
	Detail string
}

func (e *IntegrityError) Error() string {
	if e.Page < 0 {
		return fmt.Sprintf("%v: %s: %s", ErrIntegrity, e.Check, e.Detail)
	}
	return fmt.Sprintf("%v: %s: page %d: %s", ErrIntegrity, e.Check, e.Page, e.Detail)
}

// Is matches ErrIntegrity.
func (e *IntegrityError) Is(err error) bool { return err == ErrIntegrity }
