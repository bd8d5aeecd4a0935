// Package cpu runs the operations of kernels.Backend on the processor.
//
// Weights stay quantised: [backend.LoadMatrix] only reorders them, 16 rows
// beside each other in blocks of 32 columns, so that one vector register holds
// one column group of 16 rows. For quantised weights the activations are
// quantised too, per row and per 32 columns, to int8 with an f32 scale; for
// F32, F16 and BF16 weights they stay f32.
//
// Every kernel exists in plain Go, which is always built and is the oracle, and
// may exist in assembly for a tier of instructions that is chosen once, in
// [New]. The order of every reduction is a function of the row alone, and it is
// the same in all tiers: they agree bit for bit, which the tests demand.
package cpu

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"bulkhead/kernels"
)

// version is raised whenever the bits of any kernel change.
const version = 2

// ErrClosed is returned by a Step on a closed backend.
var ErrClosed = errors.New("cpu: backend is closed")

// ErrTier is returned by New for a tier that does not exist or that this
// processor cannot run.
var ErrTier = errors.New("cpu: unknown or unsupported tier")

// threadsMax bounds Config.Threads: more workers than this is a typing error.
const threadsMax = 1024

// Config chooses threads and instructions. The zero value is the best there is.
type Config struct {
	Threads int    // threads of a step, the caller's included; 0 is GOMAXPROCS
	Tier    string // "avx512vnni", "avxvnni", "avx2", "generic"; "" is the best supported one
}

type backend struct {
	info   kernels.Info
	tier   *tier
	pool   *pool
	memory arena
	closed atomic.Bool
}

// New starts the worker threads. The caller must Close the backend.
func New(c Config) (kernels.Backend, error) {
	t, err := chooseTier(c.Tier)
	if err != nil {
		return nil, err
	}
	threads := c.Threads
	if threads == 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	if threads < 1 || threads > threadsMax {
		return nil, fmt.Errorf("cpu: %d threads: want 1 to %d", threads, threadsMax)
	}
	return &backend{
		info: kernels.Info{Name: "cpu", Tier: t.name, Version: version, Threads: threads},
		tier: t,
		pool: newPool(threads),
	}, nil
}

func (b *backend) Info() kernels.Info { return b.info }

// Close stops the workers and unmaps weights and pages. No Step may be running.
func (b *backend) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	b.pool.close()
	return b.memory.close()
}

// buffer is an activation matrix [rows, cols] f32, row-major.
type buffer struct {
	rows, cols int
	v          []float32
}

func (b *buffer) Rows() int { return b.rows }
func (b *buffer) Cols() int { return b.cols }

func (b *buffer) row(r int) []float32 { return b.v[r*b.cols : (r+1)*b.cols : (r+1)*b.cols] }

type vector []float32

func (v vector) Len() int { return len(v) }

// elementsMax bounds one allocation, so that a product of sizes cannot wrap.
const elementsMax = 1 << 40

func (b *backend) Alloc(rows, cols int) (kernels.Buffer, error) {
	if rows < 1 || cols < 1 || rows > elementsMax/cols {
		return nil, fmt.Errorf("cpu: buffer of %d x %d: want at least 1 x 1 and at most %d elements", rows, cols, elementsMax)
	}
	return &buffer{rows: rows, cols: cols, v: make([]float32, rows*cols)}, nil
}

func (b *backend) Read(dst []float32, src kernels.Buffer, row, n int) {
	s := src.(*buffer)
	if row < 0 || n < 0 || row+n > s.rows || len(dst) < n*s.cols {
		panic(fmt.Sprintf("cpu: read of rows [%d, %d) of %d into %d values", row, row+n, s.rows, len(dst)))
	}
	copy(dst, s.v[row*s.cols:(row+n)*s.cols])
}

func (b *backend) LoadVector(v []float32) (kernels.Vector, error) {
	if len(v) == 0 {
		return nil, errors.New("cpu: empty vector")
	}
	return vector(append([]float32(nil), v...)), nil
}
