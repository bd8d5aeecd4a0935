package seal

import (
	"errors"
	"fmt"
)

// Errors of this package. Match with errors.Is.
var (
	// ErrFormat is the base of every error about the form of a header,
	// manifest or receipt; the error is a *FormatError.
	ErrFormat = errors.New("seal: bad format")
	// ErrOpen is the only error of a failed decryption, whatever was wrong: the
	// key, the tag, the associated data or the encapsulation.
	ErrOpen = errors.New("seal: cannot open")
	// ErrToken is returned where a header, manifest or receipt belongs to
	// another tenant token than the one whose keys these are.
	ErrToken = errors.New("seal: belongs to another tenant token")
	// ErrReuse is returned instead of using a nonce a second time.
	ErrReuse = errors.New("seal: sequence number was sealed before")
	// ErrPlan is returned for a shape that has no plan, and for a frame or a
	// manifest that does not follow it.
	ErrPlan = errors.New("seal: not as planned")
	// ErrChain is returned for a manifest whose chain differs from that of the
	// frames received.
	ErrChain = errors.New("seal: chain of frames differs")
	// ErrMAC is returned for a credit that was not made by the other side.
	ErrMAC = errors.New("seal: bad credit MAC")
	// ErrKey is returned for a public key or encapsulation that does not parse.
	ErrKey = errors.New("seal: bad HPKE key")
	// ErrLimit is returned when asked to seal more than a message may hold.
	ErrLimit = errors.New("seal: too large")
)

// FormatError says which field of which structure is wrong. Value and Limit
// are set where the field is a number; no payload byte is ever in it.
type FormatError struct {
	What  string // "header", "manifest", "receipt"
	Field string
	Value uint64
	Limit uint64
}

// Error implements error.
func (e *FormatError) Error() string {
	return fmt.Sprintf("seal: bad format: %s: %s is %d, limit %d", e.What, e.Field, e.Value, e.Limit)
}

// Unwrap makes every FormatError match ErrFormat.
func (e *FormatError) Unwrap() error { return ErrFormat }

func formatErr(what, field string, value, limit uint64) error {
	return &FormatError{What: what, Field: field, Value: value, Limit: limit}
}
