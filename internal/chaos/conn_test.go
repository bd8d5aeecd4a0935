package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead/internal/chaos"
	"bulkhead/internal/cluster"
	"bulkhead/internal/identity"
	"bulkhead/transfer"
)

// goal: whoever uses the bus while its connection is lost, cut off or silent, hears just that: a
// router turns it into "come again", and any other error into a fault of its own. method: a node subscribes all the
// time, through a network that is severed again and again, and at last only silent.
func TestLostConnection(t *testing.T) {
	keys, err := identity.NewMemory("test")
	if err != nil {
		t.Fatal(err)
	}
	n, err := cluster.StartNATS(cluster.NATSConfig{Port: -1, StoreDir: t.TempDir(), Auth: keys.ServerAuth()})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Shutdown()
	p, err := chaos.New(chaos.Config{Upstream: n.ClientURL()[len("nats://"):]})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	m, err := keys.Minter(identity.Router)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	j, err := cluster.Join{Minter: m, Name: "r1", URL: "nats://" + p.Addr()}.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Conn.Close()

	var done atomic.Bool
	var good, lost atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := 0; !done.Load(); k++ {
				stop, err := j.Conn.Subscribe(fmt.Sprintf("out.r1.%d.%d", i, k), func(transfer.Msg) {})
				switch {
				case err == nil:
					good.Add(1)
					stop()
				case errors.Is(err, transfer.ErrDisconnected):
					lost.Add(1)
					time.Sleep(time.Millisecond)
				default:
					t.Errorf("subscribe: %v", err)
				}
			}
		})
	}
	for range 20 {
		before := good.Load()
		for ctx.Err() == nil && good.Load() < before+50 {
			time.Sleep(time.Millisecond)
		}
		p.Sever(true)
		time.Sleep(2 * time.Millisecond)
		p.Sever(false)
	}
	before := lost.Load()
	p.Hold(true)
	for ctx.Err() == nil && lost.Load() < before+8 {
		time.Sleep(10 * time.Millisecond)
	}
	p.Hold(false)
	done.Store(true)
	wg.Wait()
	if ctx.Err() != nil {
		t.Error("it hangs")
	}
	if lost.Load() == 0 {
		t.Error("nothing was lost: the test showed nothing")
	}
}
