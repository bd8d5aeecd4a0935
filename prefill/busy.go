package prefill

import (
	"errors"
	"fmt"
)

// ErrBusy: the queue is full. Match with errors.Is; it is a *BusyError.
var ErrBusy = errors.New("prefill: busy")

// BusyError is ErrBusy with its facts.
type BusyError struct {
	What         string // "jobs" or "tokens"
	Limit, Value int
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("%v: %d %s with this one, limit %d", ErrBusy, e.Value, e.What, e.Limit)
}

// Is matches ErrBusy.
func (e *BusyError) Is(err error) bool { return err == ErrBusy }
