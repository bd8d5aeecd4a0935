package sim

import (
	"context"
	"io"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// Config says what Run does.
type Config struct {
	Schedules uint64
	Seed      uint64 // of the first schedule; the others follow
	Cores     int    // goroutines; 0: 1
	KeepGoing bool   // run all schedules, failing ones too
	Progress  func(done uint64)
}

// Report is what Run found. JSON names are those of the command.
type Report struct {
	Schedules   uint64  `json:"schedules"`
	Wrong       uint64  `json:"wrong"`
	Foreign     uint64  `json:"foreign"`
	Unfinished  uint64  `json:"unfinished"`
	LeakedPages uint64  `json:"leaked_pages"`
	PerSecond   float64 `json:"per_second"` // schedules, of all cores together

	Cores      int    `json:"cores"`
	Violations uint64 `json:"violations"` // schedules in which anything broke

	Requests uint64 `json:"requests"`
	Answered uint64 `json:"answered"`
	Readings uint64 `json:"readings"` // sums of attention that were checked

	FirstBad *Verdict `json:"first_bad,omitempty"` // of the lowest seed
}

// collectEvery is how many schedules a goroutine runs between two collections: some 25 MB.
const collectEvery = 192

// Run runs schedules until all are done, ctx ends, or, without KeepGoing, one
// fails.
func Run(ctx context.Context, cfg Config) (Report, error) {
	started := time.Now()
	var (
		mu    sync.Mutex
		total Report
		fail  error
		next  atomic.Uint64
		wg    sync.WaitGroup
	)
	// Memory is collected between schedules, when next to nothing is in use and no write is
	// watched; the percentage is for schedules that take unusually much.
	defer debug.SetGCPercent(debug.SetGCPercent(3200))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for range max(cfg.Cores, 1) {
		wg.Go(func() {
			k, err := newKit()
			var r Report
			for err == nil && ctx.Err() == nil {
				i := next.Add(1) - 1
				if i >= cfg.Schedules {
					break
				}
				var v *Verdict
				if v, err = k.schedule(cfg.Seed+i, nil); err != nil {
					break
				}
				r.add(v)
				if r.Schedules%collectEvery == 0 {
					runtime.GC()
				}
				if v.Bad() && !cfg.KeepGoing {
					stop()
				}
				if cfg.Progress != nil && i%1024 == 1023 {
					cfg.Progress(i + 1)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			total.merge(&r)
			if err != nil {
				fail = err
			}
		})
	}
	wg.Wait()
	total.Cores = max(cfg.Cores, 1)
	total.PerSecond = float64(total.Schedules) / time.Since(started).Seconds()
	return total, fail
}

// Replay runs one schedule and writes what happens, line by line.
func Replay(seed uint64, out io.Writer) (*Verdict, error) {
	k, err := newKit()
	if err != nil {
		return nil, err
	}
	return k.schedule(seed, out)
}

func (k *kit) schedule(seed uint64, out io.Writer) (v *Verdict, err error) {
	w, err := k.newWorld(seed, out)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, p := range w.prefills {
			p.m.Close()
		}
		k.flights, k.tape = emptied(w.bus.flights), emptied(w.bus.tape)
		k.recycle()
	}()
	defer func() { // the product's own contradictions are findings of their seed
		if p := recover(); p != nil {
			w.violate("panic: %v", p)
			v = &w.verdict
		}
	}()
	return w.run(), nil
}

// emptied is s without elements, and without what they point to.
func emptied[T any](s []T) []T {
	clear(s[:cap(s)])
	return s[:0]
}

func (r *Report) add(v *Verdict) {
	r.Schedules++
	r.Wrong += uint64(v.Wrong)
	r.Foreign += uint64(v.Foreign)
	r.Unfinished += uint64(v.Unfinished)
	r.LeakedPages += uint64(v.Leaked)
	r.Requests += uint64(v.Requests)
	r.Answered += uint64(v.Answered)
	r.Readings += uint64(v.Readings)
	if v.Bad() {
		r.Violations++
		if r.FirstBad == nil || v.Seed < r.FirstBad.Seed {
			bad := *v
			r.FirstBad = &bad
		}
	}
}

func (r *Report) merge(o *Report) {
	r.Schedules += o.Schedules
	r.Wrong += o.Wrong
	r.Foreign += o.Foreign
	r.Unfinished += o.Unfinished
	r.LeakedPages += o.LeakedPages
	r.Requests += o.Requests
	r.Answered += o.Answered
	r.Readings += o.Readings
	r.Violations += o.Violations
	if o.FirstBad != nil && (r.FirstBad == nil || o.FirstBad.Seed < r.FirstBad.Seed) {
		r.FirstBad = o.FirstBad
	}
}
