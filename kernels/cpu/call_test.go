package cpu

import (
	"sync"
	"testing"

	"bulkhead/internal/gguf"
	"bulkhead/kernels"
)

// goal: no call of a product kernel is longer than its tier allows, whatever the
// shape. method: count the block products of each call, for a narrow matrix, and for
// the widest of an 8B model, of which one group and one tile may be all there is.
func TestCallLength(t *testing.T) {
	for _, name := range tiers() {
		for _, typ := range []gguf.Type{gguf.TypeQ8_0, gguf.TypeQ4_0, gguf.TypeQ6_K, gguf.TypeF16} {
			for _, cols := range []int{256, 14336} {
				b := opener(t, Config{Threads: 2, Tier: name})().(*backend)
				const rows, n = 80, 23
				var mu sync.Mutex
				longest, calls := 0, 0
				for f := range b.tier.gemm {
					for i, kernel := range b.tier.gemm[f] {
						if kernel == nil {
							continue
						}
						b.tier.gemm[f][i] = func(a *gemmArgs) {
							mu.Lock()
							longest, calls = max(longest, a.blocks*a.groups<<i), calls+1
							mu.Unlock()
							kernel(a)
						}
					}
				}
				rowBytes, err := typ.RowBytes(cols)
				if err != nil {
					t.Fatal(err)
				}
				m, err := b.LoadPrecise(typ, rows, cols, make([]byte, rows*rowBytes))
				if err != nil {
					t.Fatal(err)
				}
				x, _ := b.Alloc(n, cols)
				y, _ := b.Alloc(n, rows)
				if err := b.Step(func(o kernels.Ops) error {
					o.MatMul([]kernels.Buffer{y}, x, n, []kernels.Matrix{m}, nil)
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				if calls == 0 || longest > b.tier.call {
					t.Errorf("%s, %s of %d columns: %d calls, the longest of %d block products, want at most %d", name, typ, cols, calls, longest, b.tier.call)
				}
				b.Close()
			}
		}
	}
}
