package router

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain: no test may leave a goroutine behind: each would be an attempt that nobody ends.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
