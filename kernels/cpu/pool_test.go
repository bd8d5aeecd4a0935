package cpu

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// each runs a region and demands that every chunk ran once.
func each(t *testing.T, p *pool, n int) {
	t.Helper()
	ran := make([]atomic.Int32, n)
	p.run(n, func(chunk int) { ran[chunk].Add(1) })
	for i := range ran {
		if c := ran[i].Load(); c != 1 {
			t.Fatalf("chunk %d of %d ran %d times", i, n, c)
		}
	}
}

func TestPoolRunsEachChunkOnce(t *testing.T) {
	for _, threads := range []int{1, 2, 5} {
		p := newPool(threads)
		for n := range 40 {
			each(t, p, n)
		}
		p.close()
	}
}

// TestPoolAlone: after a stall the caller works alone, for a time and not for good.
func TestPoolAlone(t *testing.T) {
	p := newPool(2)
	defer p.close()
	p.alone = time.Now().Add(time.Hour)
	before := p.job.Load()
	each(t, p, 17)
	if p.job.Load() != before {
		t.Error("a job was handed out")
	}
	p.alone = time.Now()
	each(t, p, 17)
	if p.job.Load() == before {
		t.Error("no job was handed out")
	}
}

// TestPoolCallers: regions of several goroutines, one of which has the workers.
func TestPoolCallers(t *testing.T) {
	p := newPool(3)
	defer p.close()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				each(t, p, 9)
			}
		})
	}
	wg.Wait()
}

// TestPoolParks: idle workers stop to spin, and a region wakes them again. A
// chunk that waits for another can only end if a worker takes one of them.
func TestPoolParks(t *testing.T) {
	p := newPool(2)
	defer p.close()
	for range 3 {
		for !p.workers[0].parked.Load() {
			runtime.Gosched()
		}
		var arrived atomic.Int32
		p.run(2, func(int) {
			arrived.Add(1)
			for arrived.Load() != 2 {
				runtime.Gosched()
			}
		})
	}
}
