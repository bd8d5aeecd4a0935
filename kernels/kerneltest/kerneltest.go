// Package kerneltest is the one conformance suite that every kernels.Backend
// passes.
//
// [Run] compares each operation with a float64 reference, demands that a row's
// bits do not depend on what shares its step, and attacks the pool with block
// tables that are stale, foreign or ahead of what was written. [Same] demands
// that two backends agree bit for bit: two thread counts, two tiers.
package kerneltest

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"bulkhead/internal/gguf"
	"bulkhead/kernels"
)

// Run tests the backends that open makes; each test opens and closes its own.
func Run(t *testing.T, open func() kernels.Backend) {
	for _, test := range []struct {
		name string
		fn   func(*fixture)
	}{
		{"Shapes", testShapes},
		{"LoadRefuses", testLoadRefuses},
		{"Embed", testEmbed},
		{"MatMul", testMatMul},
		{"MatMulShared", testMatMulShared},
		{"MatMulRows", testMatMulRows},
		{"MatMulExtremes", testMatMulExtremes},
		{"Precise", testPrecise},
		{"RMSNorm", testRMSNorm},
		{"RoPE", testRoPE},
		{"SiLUMul", testSiLUMul},
		{"Add", testAdd},
		{"Attention", testAttention},
		{"AttentionExtremes", testAttentionExtremes},
		{"BatchInvariance", testBatchInvariance},
		{"ChunkInvariance", testChunkInvariance},
		{"SpanInvariance", testSpanInvariance},
		{"ConcurrentSteps", testConcurrentSteps},
		{"RefusedReads", testRefusedReads},
		{"RefusedAppends", testRefusedAppends},
		{"RefusedOnce", testRefusedOnce},
		{"RefusedStepError", testRefusedStepError},
		{"ClaimPanics", testClaimPanics},
		{"Scrub", testScrub},
		{"WireOrder", testWireOrder},
		{"WireRoundTrip", testWireRoundTrip},
		{"WireRefuses", testWireRefuses},
		{"LateCheck", testLateCheck},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t, open())
			test.fn(f)
		})
	}
}

// fixture is one backend under test. Backends take activations only from their
// own operations, so that rows are uploaded by Embed from an F32 table.
type fixture struct {
	*testing.T
	b   kernels.Backend
	rng *rand.Rand
}

func newFixture(t *testing.T, b kernels.Backend) *fixture {
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &fixture{T: t, b: b, rng: newFixtureRand()}
}

// sub runs fn as a subtest on the same backend, with its own random numbers.
func (f *fixture) sub(name string, fn func(*fixture)) {
	f.Run(name, func(t *testing.T) {
		fn(&fixture{T: t, b: f.b, rng: newFixtureRand()})
	})
}

func (f *fixture) step(fn func(kernels.Ops)) {
	f.Helper()
	if err := f.b.Step(func(o kernels.Ops) error { fn(o); return nil }); err != nil {
		f.Fatalf("step: %v", err)
	}
}

func (f *fixture) alloc(rows, cols int) kernels.Buffer {
	f.Helper()
	b, err := f.b.Alloc(rows, cols)
	if err != nil {
		f.Fatal(err)
	}
	return b
}

// upload gives a buffer that holds v.
func (f *fixture) upload(v []float32, rows, cols int) kernels.Buffer {
	f.Helper()
	b := f.alloc(rows, cols)
	f.store(b, v)
	return b
}

// store overwrites the leading rows of a buffer.
func (f *fixture) store(b kernels.Buffer, v []float32) {
	f.Helper()
	rows := len(v) / b.Cols()
	m := f.matrix(gguf.TypeF32, rows, b.Cols(), bytesOf(v))
	ids := make([]int32, rows)
	for i := range ids {
		ids[i] = int32(i)
	}
	f.step(func(o kernels.Ops) { o.Embed(b, m, ids) })
}

// poisoned gives a buffer full of NaN: an element that an operation does not
// write shows.
func (f *fixture) poisoned(rows, cols int) kernels.Buffer {
	f.Helper()
	v := make([]float32, rows*cols)
	for i := range v {
		v[i] = float32(math.NaN())
	}
	return f.upload(v, rows, cols)
}

func (f *fixture) read(b kernels.Buffer) []float32 {
	v := make([]float32, b.Rows()*b.Cols())
	f.b.Read(v, b, 0, b.Rows())
	return v
}

func (f *fixture) matrix(t gguf.Type, rows, cols int, data []byte) kernels.Matrix {
	f.Helper()
	m, err := f.b.LoadMatrix(t, rows, cols, data)
	if err != nil {
		f.Fatal(err)
	}
	return m
}

func (f *fixture) vector(v []float32) kernels.Vector {
	f.Helper()
	x, err := f.b.LoadVector(v)
	if err != nil {
		f.Fatal(err)
	}
	return x
}

// normal gives n values around 0.
func (f *fixture) normal(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(f.rng.NormFloat64())
	}
	return v
}

func bytesOf(v []float32) []byte {
	b := make([]byte, 4*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(x))
	}
	return b
}

// sameBits compares values as bits; all NaN are one.
func sameBits(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || (a != a && b != b)
}

func (f *fixture) equal(what string, got, want []float32) {
	f.Helper()
	if len(got) != len(want) {
		f.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range got {
		if !sameBits(got[i], want[i]) {
			f.Fatalf("%s: value %d of %d is %v (%08x), want the bits of %v (%08x)", what, i, len(got),
				got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
		}
	}
}

// near demands |got - want| <= tolerance; NaN is never near.
func (f *fixture) near(what string, i int, got float32, want, tolerance float64) {
	f.Helper()
	if d := math.Abs(float64(got) - want); !(d <= tolerance) {
		f.Fatalf("%s: value %d is %v, want %v +- %.3g (off by %.3g)", what, i, got, want, tolerance, d)
	}
}

func (f *fixture) panics(what string, fn func()) {
	f.Helper()
	defer func() {
		if recover() == nil {
			f.Errorf("%s: no panic", what)
		}
	}()
	fn()
}

func newFixtureRand() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }
