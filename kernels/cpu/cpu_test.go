package cpu

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"go.uber.org/goleak"

	"bulkhead/kernels"
	"bulkhead/kernels/kerneltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tiers gives the names of what this processor runs.
func tiers() []string {
	var names []string
	for _, t := range append(archTiers(), generic()) {
		if t.supported() {
			names = append(names, t.name)
		}
	}
	return names
}

func opener(t *testing.T, c Config) func() kernels.Backend {
	return func() kernels.Backend {
		b, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

func TestConformance(t *testing.T) {
	for _, tier := range tiers() {
		t.Run(tier, func(t *testing.T) { kerneltest.Run(t, opener(t, Config{Threads: 3, Tier: tier})) })
	}
}

// TestTiersAgree: each tier has the bits of plain Go.
func TestTiersAgree(t *testing.T) {
	for _, tier := range tiers() {
		if tier == "generic" {
			continue
		}
		t.Run(tier, func(t *testing.T) {
			kerneltest.Same(t, opener(t, Config{Threads: 1, Tier: "generic"}), opener(t, Config{Threads: 1, Tier: tier}))
		})
	}
}

// TestThreadsAgree: the bits do not depend on the number of threads.
func TestThreadsAgree(t *testing.T) {
	for _, threads := range []int{2, 5} {
		kerneltest.Same(t, opener(t, Config{Threads: 1}), opener(t, Config{Threads: threads}))
	}
}

func TestConfig(t *testing.T) {
	if _, err := New(Config{Tier: "abacus"}); !errors.Is(err, ErrTier) {
		t.Errorf("unknown tier: %v", err)
	}
	for _, n := range []int{-1, threadsMax + 1} {
		if _, err := New(Config{Threads: n}); err == nil {
			t.Errorf("%d threads: no error", n)
		}
	}
	b, err := New(Config{Threads: 4, Tier: "generic"})
	if err != nil {
		t.Fatal(err)
	}
	if i := b.Info(); i.Threads != 4 || i.Tier != "generic" || i.Name != "cpu" {
		t.Errorf("info is %+v", i)
	}
	for range 2 {
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if err := b.Step(func(kernels.Ops) error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("step after close: %v", err)
	}
}

// TestClaimUnscrubbed: a page whose bytes were written and not zeroed must not
// get an owner. No call leads there, so the test writes behind the pool's back.
func TestClaimUnscrubbed(t *testing.T) {
	b := opener(t, Config{Threads: 1})()
	defer b.Close()
	p, err := b.NewPages(kernels.PageLayout{Layers: 1, KVHeads: 1, HeadDim: 16}, 1)
	if err != nil {
		t.Fatal(err)
	}
	p.(*pages).state[0].used.Store(true)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	p.Claim(0, kernels.Tag{Owner: 1})
}

// TestRepackAgrees: the planes that assembly lays out are those of plain Go, for
// any bytes, and whatever rows are left.
func TestRepackAgrees(t *testing.T) {
	rng := rand.NewChaCha8([32]byte{7})
	for _, tier := range tiers() {
		a, b := opener(t, Config{Threads: 1, Tier: "generic"})().(*backend), opener(t, Config{Threads: 2, Tier: tier})().(*backend)
		for typ := range b.tier.repack {
			for _, rows := range []int{1, 16, 47, 130} {
				const cols = 1280
				rowBytes, err := typ.RowBytes(cols)
				if err != nil {
					t.Fatal(err)
				}
				data := make([]byte, rows*rowBytes)
				rng.Read(data)
				load := func(b *backend) *matrix {
					m, err := b.LoadMatrix(typ, rows, cols, data)
					if err != nil {
						t.Fatal(err)
					}
					return m.(*matrix)
				}
				want, got := load(a), load(b)
				if !bytes.Equal(want.w, got.w) || !bytes.Equal(want.d, got.d) || !bytes.Equal(want.m, got.m) {
					t.Errorf("%s, %s, %d rows: planes differ", tier, typ, rows)
				}
			}
		}
		a.Close()
		b.Close()
	}
}
