package cluster

import (
	"context"
	"log/slog"
	"time"

	"bulkhead/transfer"
)

// Times of a keeper.
const (
	keepEvery  = 500 * time.Millisecond // between looks
	keepCall   = 5 * time.Second        // for one call to the server
	keepGone   = time.Minute            // after which a dead node's stream is removed
	keepAtOnce = 64                     // nodes remembered beyond those that are there
)

// Keeper makes the KV stream of every decode node that announces itself
// without one and has no server of its own, and removes the streams of those that are gone. It runs beside
// a router, the one role with rights over streams. Several may run at a time:
// each call is idempotent.
type Keeper struct {
	Bus      transfer.Bus
	Dir      *transfer.Directory
	MaxBytes int64 // of one stream, hard
	Log      *slog.Logger
}

// Run keeps until ctx ends.
func (k Keeper) Run(ctx context.Context) {
	wake := make(chan struct{}, 1)
	k.Dir.OnChange(func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	t := time.NewTicker(keepEvery)
	defer t.Stop()
	made := map[string]time.Time{} // by node: when its stream was last made
	seen := map[string]time.Time{} // by node: when it was last there
	for {
		now := time.Now()
		for _, a := range k.Dir.List(transfer.RoleDecode) {
			if a.KVURL != "" {
				continue // it keeps its stream itself
			}
			seen[a.Node] = now
			if a.Ready || now.Sub(made[a.Node]) < keepEvery {
				continue
			}
			made[a.Node] = now
			k.call(ctx, "make", a.Node, func(ctx context.Context) error { return k.Bus.EnsureKV(ctx, a.Node, k.MaxBytes) })
		}
		for node, last := range seen {
			if now.Sub(last) > keepGone || len(seen) > keepAtOnce && now.Sub(last) > transfer.AnnounceTTL {
				delete(seen, node)
				delete(made, node)
				k.call(ctx, "remove", node, func(ctx context.Context) error { return k.Bus.DropKV(ctx, node) })
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-t.C:
		}
	}
}

func (k Keeper) call(ctx context.Context, what, node string, f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, keepCall)
	defer cancel()
	if err := f(ctx); err != nil && ctx.Err() == nil {
		k.Log.Warn("KV stream: cannot "+what, "decode", node, "err", err)
		return
	}
	k.Log.Debug("KV stream: "+what, "decode", node)
}
