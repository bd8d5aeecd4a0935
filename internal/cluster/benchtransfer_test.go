package cluster_test

import (
	"context"
	"testing"

	"bulkhead/internal/cluster"
	"bulkhead/kernels/cpu"
)

// goal: every way of the transfer benchmark carries every message, and the
// sealed one verifies each. method: a small run; no figure is judged.
func TestBenchTransfer(t *testing.T) {
	b, err := cpu.New(cpu.Config{Threads: 1})
	must(t, err)
	defer b.Close()
	r, err := cluster.BenchTransfer(context.Background(), 256<<10, benchBytes, b.NewPages)
	must(t, err)
	if len(r) != 6 {
		t.Fatalf("%d ways, want 6", len(r))
	}
	for _, w := range r {
		if w.GBs <= 0 || w.P50 <= 0 || w.P99 < w.P50 {
			t.Errorf("%+v", w)
		}
	}
}

var benchBytes int64 = 16 << 20
