package kv

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Many requests of two tenants at once over a pool that is too small for all:
// each computes, is cancelled at some point while its writer is live, or
// publishes; somebody checks the books all the while. Run with -race, which
// also turns on the checks after every change. In the end the pool is back at
// its baseline. Nobody may ever read another tenant's slot.
func TestConcurrentRequests(t *testing.T) {
	const goroutines, requests, pages = 8, 150, 12
	p, f := testPool(t, pages)
	var wg, checker sync.WaitGroup
	var stop atomic.Bool
	var served, refused, hits atomic.Int64
	checker.Go(func() {
		for !stop.Load() {
			if err := p.CheckIntegrity(); err != nil {
				t.Error(err)
				return
			}
			if s := p.Stats(); s.Free+s.Held+s.Cached+s.Dirty+s.Quarantined != pages {
				t.Errorf("pages do not add up: %+v", s)
				return
			}
			time.Sleep(100 * time.Microsecond)
		}
	})
	for g := range goroutines {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(g)))
			for n := range requests {
				l := Lease{Tenant: string("ab"[g%2]), Request: [16]byte{byte(g), byte(n)}}
				prompt := make([]int32, 1+rnd.IntN(200)) // all alike: prefixes meet
				x, cached, err := p.ReserveWithPrefix(l, [32]byte{1}, prompt, len(prompt)+rnd.IntN(60))
				if errors.Is(err, ErrNoPages) {
					refused.Add(1)
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				hits.Add(int64(cached / 64))
				if err := serve(f, x, cached, len(prompt), rnd); err != nil {
					t.Errorf("tenant %s request %d.%d: %v", l.Tenant, g, n, err)
					return
				}
				served.Add(1)
			}
		})
	}
	wg.Wait()
	stop.Store(true)
	checker.Wait()
	p.PurgeAll()
	check(t, p, f)
	if s := p.Stats(); s.Free != pages || s.Tables != 0 {
		t.Fatalf("pages leaked: %+v", s)
	}
	t.Logf("%d served, %d refused, %d blocks shared", served.Load(), refused.Load(), hits.Load())
	if served.Load() == 0 || hits.Load() == 0 {
		t.Fatal("too little happened")
	}
}

// serve is one request: a writer computes the prompt, another goroutine may
// cancel meanwhile.
func serve(f *fakePages, x *Table, cached, prompt int, rnd *rand.Rand) error {
	w, err := x.BeginWrite()
	if err != nil {
		return err
	}
	var cancel sync.WaitGroup
	cancelled := rnd.IntN(3) == 0
	if cancelled {
		cancel.Go(x.Release)
	}
	for pos := cached; pos < prompt; {
		to := min(pos+1+rnd.IntN(100), prompt)
		if err := f.compute(x, pos, to); err != nil { // pages stay ours as long as the writer lives
			return err
		}
		pos = to
	}
	marks, err := f.read(x, prompt)
	if err != nil {
		return err
	}
	for _, m := range marks {
		if tenant, _, _ := unmark(m); tenant != x.lease.Tenant {
			return errors.New("reads tenant " + tenant)
		}
	}
	w.Done()
	err = x.MarkReady(prompt)
	if err == nil {
		err = x.Publish()
	}
	cancel.Wait()
	x.Release()
	if cancelled && errors.Is(err, ErrEnded) {
		return nil
	}
	return err
}
