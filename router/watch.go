package router

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"bulkhead/transfer"
)

// How nodes with work in flight are watched. A node that nobody listens for is lost at
// the first ping; one that is silent is lost after pingMisses of them.
const (
	pingEvery   = 500 * time.Millisecond
	pingTimeout = time.Second
	pingMisses  = 3
)

// watch pings the nodes that have attempts in flight, each once however many there are, and tells
// those attempts when a node is gone or has started anew.
type watch struct {
	ping func(ctx context.Context, node string) (transfer.Pong, error)

	mu    sync.Mutex
	nodes map[boot]*watched // guarded by mu
}

// boot is one life of a node.
type boot struct {
	node  string
	epoch uint64
}

type watched struct {
	lost map[*func()]bool // guarded by watch.mu
	stop context.CancelFunc
}

func newWatch(ping func(context.Context, string) (transfer.Pong, error)) *watch {
	return &watch{ping: ping, nodes: make(map[boot]*watched)}
}

// add calls lost, once and from another goroutine, when the node is lost before
// the returned stop is called.
func (w *watch) add(node string, epoch uint64, lost func()) (stop func()) {
	b := boot{node, epoch}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.nodes[b]
	if n == nil {
		ctx, cancel := context.WithCancel(context.Background())
		n = &watched{lost: make(map[*func()]bool), stop: cancel}
		w.nodes[b] = n
		go w.run(ctx, b)
	}
	key := &lost
	n.lost[key] = true
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if delete(n.lost, key); len(n.lost) == 0 && w.nodes[b] == n {
			delete(w.nodes, b)
			n.stop()
		}
	}
}

// loseAll tells all attempts that their nodes are lost. They may well be alive; what
// they sent is not certain to have come.
func (w *watch) loseAll() {
	w.mu.Lock()
	var lost []*func()
	for b, n := range w.nodes {
		delete(w.nodes, b)
		n.stop()
		lost = slices.AppendSeq(lost, maps.Keys(n.lost))
	}
	w.mu.Unlock()
	for _, lost := range lost {
		(*lost)()
	}
}

// run pings one node until nobody asks any more or it is lost.
func (w *watch) run(ctx context.Context, b boot) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for misses := 0; misses < pingMisses; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if ctx.Err() != nil {
			return
		}
		once, cancel := context.WithTimeout(ctx, pingTimeout)
		pong, err := w.ping(once, b.node)
		cancel()
		switch {
		case err == nil && pong.Epoch == b.epoch:
			misses = 0
		case err == nil || errors.Is(err, transfer.ErrNodeLost):
			misses = pingMisses
		default:
			misses++
		}
	}
	w.mu.Lock()
	n := w.nodes[b]
	if n == nil || ctx.Err() != nil {
		w.mu.Unlock()
		return
	}
	delete(w.nodes, b)
	n.stop()
	lost := slices.Collect(maps.Keys(n.lost))
	w.mu.Unlock()
	for _, lost := range lost {
		(*lost)()
	}
}
