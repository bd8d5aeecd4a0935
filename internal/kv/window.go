package kv

import (
	"fmt"

	"bulkhead/internal/mutant"
)

// WindowError says that a node was told to advertise more than its pool holds.
type WindowError struct{ Window, Capacity int } // tokens

func (e *WindowError) Error() string {
	return fmt.Sprintf("kv: the configured window of %d tokens exceeds this node's own capacity of %d tokens: "+
		"give it more capacity, a smaller --window, or --clamp-window to advertise %d", e.Window, e.Capacity, e.Capacity)
}

// Window is the longest sequence (prompt + max_new, tokens) that a node
// advertises and takes. A window over the pool's capacity is how the leak of
// 2026 began, so it is a *WindowError, and the node does not start; with clamp
// the smaller number is advertised instead.
func Window(window, capacity int, clamp bool) (int, error) {
	switch {
	case window < 1 || capacity < 1:
		return 0, fmt.Errorf("kv: window of %d and capacity of %d tokens must both be positive", window, capacity)
	case window <= capacity || mutant.Off(mutant.NodeWindow):
		return window, nil
	case clamp:
		return capacity, nil
	}
	return 0, &WindowError{Window: window, Capacity: capacity}
}
