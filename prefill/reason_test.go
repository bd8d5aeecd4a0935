package prefill

import (
	"errors"
	"fmt"
	"testing"

	"bulkhead/transfer"
)

// goal: a node that lost the bus says that, not that it is broken: the router tells
// the client to come again. method: the reasons of both.
func TestReasonOfBus(t *testing.T) {
	for err, want := range map[error]transfer.Reason{
		fmt.Errorf("frame 3: %w", transfer.ErrDisconnected): transfer.ReasonNodeLost,
		fmt.Errorf("frame 3: %w", transfer.ErrAckTimeout):   transfer.ReasonNodeLost,
		errors.New("a bug"): transfer.ReasonInternal,
	} {
		if got := reasonOf(err); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}
