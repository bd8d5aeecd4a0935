package cluster_test

import (
	"context"
	"testing"
	"time"

	"bulkhead/internal/sample"
	"bulkhead/transfer"
)

// goal: a connection can be renewed before its JWT runs out, at an idle moment,
// and the node works on. method: renew very often, between and around requests.
func TestRefreshBetweenRequests(t *testing.T) {
	w := newWorld(t)
	w.prefill("p1", 2048)
	w.decode("d1", 2048)
	d := w.driver("r1")
	p, q := d.pair("p1", "d1")
	params := sample.Params{MaxNew: 4}
	busy := make(chan struct{}, 1)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.bus.Refresh(ctx, 20*time.Millisecond, func() bool {
			select {
			case busy <- struct{}{}:
				<-busy
				return true
			default:
				return false
			}
		})
	}()
	for i := range 20 {
		busy <- struct{}{}
		x := d.grant(p, q, tokens(30+i), params)
		err := d.submit(x)
		for end := time.Now().Add(waitMax); err != nil && time.Now().Before(end); { // the reconnection may not be over
			time.Sleep(5 * time.Millisecond)
			x = d.grant(p, q, tokens(30+i), params)
			err = d.submit(x)
		}
		must(t, err)
		a, err := d.wait(x)
		must(t, err)
		if a.finish == nil {
			t.Fatalf("request %d: %+v", i, a.fail)
		}
		<-busy
		time.Sleep(25 * time.Millisecond)
	}
	stop()
	<-done
	if d.counts.Get(transfer.CountReconnect) == 0 {
		t.Error("the connection was never renewed: the test shows nothing")
	}
}
