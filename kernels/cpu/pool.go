package cpu

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// pool runs parallel regions on resident workers. A region is cut into chunks
// that workers and caller claim from one atomic counter: the caller waits only
// for chunks that were claimed, so a worker that the system does not run costs
// nothing but its help.
//
// Workers spin for a short while after a region, because the next one of a step
// follows within microseconds and waking a goroutine costs more than most
// regions take; then they park, so that an idle server uses no processor.
type pool struct {
	workers []*worker
	region  sync.Mutex // held by the caller whose region the workers help
	job     atomic.Pointer[job]
	stop    atomic.Bool
	done    sync.WaitGroup

	// guarded by region: how long to run alone after the last stall, until when
	// that is, and how many regions were run together without a stall.
	backoff time.Duration
	alone   time.Time
	calm    int
}

type worker struct {
	parked atomic.Bool
	wake   chan struct{} // capacity 1
	_      [64]byte
}

type job struct {
	fn   func(chunk int)
	n    int32
	_    [48]byte
	next atomic.Int32
	_    [60]byte
	left atomic.Int32
}

// Spinning: 50 to 150 us, as long as PAUSE takes, between regions before a worker parks, giving way to
// other goroutines on the way.
const (
	spinPauses  = 60  // PAUSE instructions between two looks
	spinYield   = 16  // looks between two calls of Gosched
	spinLooks   = 48  // looks before parking
	waiterLooks = 200 // looks of a waiting caller before it gives way
)

// A stall is a wait for a worker that the system has taken off its processor in
// the middle of a chunk: it costs more than hundreds of regions gain by help.
// After one the caller works alone for a while, twice as long after each. A wait
// counts as one if it takes stallAfter and twice what a chunk took the caller.
const (
	stallAfter  = 300 * time.Microsecond
	stallLook   = 50 * time.Microsecond
	backoffMin  = 3 * time.Millisecond
	backoffMax  = 50 * time.Millisecond
	calmRegions = 512 // without a stall, to halve the next backoff
)

func newPool(threads int) *pool {
	p := &pool{}
	for i := 1; i < threads; i++ {
		w := &worker{wake: make(chan struct{}, 1)}
		p.workers = append(p.workers, w)
		p.done.Add(1)
		go p.work(w)
	}
	return p
}

func (p *pool) close() {
	p.stop.Store(true)
	for _, w := range p.workers {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
	p.done.Wait()
}

func (p *pool) work(w *worker) {
	defer p.done.Done()
	var last *job
	looks := 0
	for !p.stop.Load() {
		if j := p.job.Load(); j != last {
			last, looks = j, 0
			if j != nil {
				j.help()
			}
			continue
		}
		if looks++; looks < spinLooks {
			pause(spinPauses)
			if looks%spinYield == 0 {
				runtime.Gosched()
			}
			continue
		}
		// Announce the parking first and look once more: a caller that stored
		// its job before seeing the flag is seen here, one after it sends.
		w.parked.Store(true)
		if p.job.Load() == last && !p.stop.Load() {
			<-w.wake
		}
		w.parked.Store(false)
		looks = 0
	}
}

// help does chunks while there are any, and says how many.
func (j *job) help() (chunks int) {
	for {
		i := j.next.Add(1) - 1
		if i >= j.n {
			return chunks
		}
		j.fn(int(i))
		j.left.Add(-1)
		chunks++
	}
}

// run calls fn for every chunk in [0, n) and returns when all are done. If the
// workers serve another caller it does the chunks alone: two steps at a time
// then share the processor as the system sees fit.
func (p *pool) run(n int, fn func(chunk int)) {
	if n <= 1 || len(p.workers) == 0 || !p.region.TryLock() {
		runAlone(n, fn)
		return
	}
	defer p.region.Unlock()
	began := time.Now()
	if began.Before(p.alone) {
		runAlone(n, fn)
		return
	}
	j := &job{fn: fn, n: int32(n)}
	j.left.Store(int32(n))
	p.job.Store(j)
	for _, w := range p.workers[:min(len(p.workers), n-1)] {
		if w.parked.Load() {
			select {
			case w.wake <- struct{}{}:
			default:
			}
		}
	}
	began = time.Now()
	chunks := j.help()
	p.wait(j, time.Since(began)/time.Duration(max(chunks, 1)))
}

func runAlone(n int, fn func(chunk int)) {
	for i := range n {
		fn(i)
	}
}

// wait returns when the chunks that workers claimed are done.
func (p *pool) wait(j *job, perChunk time.Duration) {
	for range waiterLooks {
		if j.left.Load() == 0 {
			if p.calm++; p.calm == calmRegions {
				p.calm, p.backoff = 0, p.backoff/2
			}
			return
		}
		pause(spinPauses / 4)
	}
	began := time.Now()
	for time.Since(began) <= stallAfter+2*perChunk {
		if j.left.Load() == 0 {
			return
		}
		runtime.Gosched()
	}
	p.backoff = min(max(2*p.backoff, backoffMin), backoffMax)
	p.calm = 0
	for j.left.Load() != 0 {
		// Sleep: the worker may be waiting for the very processor that spinning
		// would keep from it.
		time.Sleep(stallLook)
	}
	p.alone = time.Now().Add(p.backoff)
}
