package decode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/internal/kv"
	"bulkhead/internal/model"
	"bulkhead/kernels"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// Config makes a Node. Fields without a default must be set.
type Config struct {
	Peer   *transfer.Peer
	Engine model.Engine
	Key    transfer.BootKey // nil: a new *seal.Key

	Capacity    int  // tokens the pool holds
	Window      int  // longest prompt + max_new; 0: the model's own
	ClampWindow bool // advertise the capacity where the window exceeds it
	MaxBatch    int  // sequences in one step; 0: 64

	KVURL   string // where this node's KV stream lives; "": the cluster's broker
	Version string

	DrainTimeout time.Duration // for running sequences at shutdown; 0: 30 s
	Metrics      *Metrics
	Log          *slog.Logger
}

// DefaultMaxBatch is how many sequences a step takes unless told otherwise.
const DefaultMaxBatch = 64

// tickEvery is the pause between looks at deadlines.
const tickEvery = 200 * time.Millisecond

// Node is a decode node. New makes it, Run runs it.
type Node struct {
	cfg    Config
	window int
	key    transfer.BootKey
	pool   *kv.Pool
	pages  kernels.Pages
	recv   *receiver
	worker *worker
	log    *slog.Logger

	kvReady  atomic.Bool
	draining atomic.Bool
	wake     chan struct{}
}

// New checks the configuration and takes the memory. A window over the
// capacity is a *kv.WindowError unless ClampWindow is set; a window over the
// model's own is refused always.
func New(cfg Config) (*Node, error) {
	facts := cfg.Engine.Facts()
	if cfg.Window == 0 {
		cfg.Window = facts.Window
	}
	if cfg.Window > facts.Window {
		return nil, fmt.Errorf("decode: the configured window of %d tokens exceeds the model's own of %d", cfg.Window, facts.Window)
	}
	window, err := kv.Window(cfg.Window, cfg.Capacity, cfg.ClampWindow)
	if err != nil {
		return nil, err
	}
	if cfg.MaxBatch == 0 {
		cfg.MaxBatch = DefaultMaxBatch
	}
	if cfg.DrainTimeout == 0 {
		cfg.DrainTimeout = 30 * time.Second
	}
	pages, err := cfg.Engine.NewPages((cfg.Capacity + kernels.BlockTokens - 1) / kernels.BlockTokens)
	if err != nil {
		return nil, fmt.Errorf("decode: KV pages: %w", err)
	}
	pool, err := kv.NewPool(pages, cfg.Capacity)
	if err != nil {
		return nil, err
	}
	key := cfg.Key
	if key == nil {
		if key, err = seal.NewKey(); err != nil {
			return nil, err
		}
	}
	n := &Node{cfg: cfg, window: window, key: key, pool: pool, pages: pages, log: cfg.Log.With("node", cfg.Peer.Name()), wake: make(chan struct{}, 1)}
	n.recv = &receiver{
		self: transfer.Self{Role: transfer.RoleDecode, Node: cfg.Peer.Name(), Epoch: cfg.Peer.Epoch(), Model: facts.Fingerprint, Vocab: facts.Vocab},
		peer: cfg.Peer, key: key, pool: pool, pages: pages,
		layout: facts.Layout.Fingerprint(), window: window,
		now: cfg.Peer.Now, log: n.log, stats: cfg.Metrics,
		attempts: map[transfer.ID]*attempt{}, current: map[sequenceKey]*attempt{},
		staging: make([]byte, 0, min(seal.MaxPayload, facts.Layout.PageBytes())), // no frame is more than a block
	}
	if n.worker, err = newWorker(n, cfg.MaxBatch); err != nil {
		return nil, err
	}
	n.recv.engine = n.worker
	return n, nil
}

// Window is what the node advertises.
func (n *Node) Window() int { return n.window }

// Stats is the state of its pages.
func (n *Node) Stats() kv.Stats { return n.pool.Stats() }

// Idle says that no attempt is in work.
func (n *Node) Idle() bool {
	running, waiting := n.recv.load()
	return running+waiting == 0
}

// Ready says why the node takes no work, or nil.
func (n *Node) Ready() error {
	switch {
	case n.draining.Load():
		return errors.New("decode: draining")
	case !n.kvReady.Load():
		return errors.New("decode: the KV stream is not there yet (a router makes it)")
	}
	return nil
}

// Run serves until ctx ends, then drains: nothing new is taken, running
// sequences are finished within DrainTimeout, the rest ends with an error that
// their routers hear.
func (n *Node) Run(ctx context.Context) error {
	p := n.cfg.Peer
	// The parts live longer than ctx: a drain needs them.
	live, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { n.worker.run(live) })

	unserve, err := n.serve()
	defer unserve()
	if err != nil {
		return err
	}
	wg.Go(func() { p.Heartbeat(live, n.wake, n.announce) })
	wg.Go(func() { n.tick(live) })

	<-ctx.Done()
	n.drain()
	return nil
}

// serve begins to hear what the bus has for this node. stop is to be called also
// after an error.
func (n *Node) serve() (stop func(), err error) {
	p := n.cfg.Peer
	var stops []func()
	stop = func() {
		for _, f := range stops {
			f()
		}
	}
	serve := func(stop func(), err error) error {
		if err == nil {
			stops = append(stops, stop)
		}
		return err
	}
	if err := errors.Join(
		serve(p.ServeCancel(func(c transfer.Cancel, from identity.Peer, done func()) {
			n.recv.cancel(c.TokenHash, from.Name, c.Reason, done)
		})),
		serve(p.ServePing(func() transfer.Pong {
			running, waiting := n.recv.load()
			return transfer.Pong{Epoch: p.Epoch(), Attempts: running + waiting}
		})),
		serve(p.ConsumeKV(n.recv.take, func(ok bool) { n.kvReady.Store(ok); n.poke() })),
		serve(p.ServeJobs(n.key, func(_ context.Context, job transfer.Job, from identity.Peer, answer func(*transfer.Accept, *transfer.Reject)) {
			accept, no := n.recv.reserve(job, from)
			if no != nil {
				n.cfg.Metrics.refused(string(no.Reason))
				n.log.Info("job refused", "reason", no.Reason, "limit", no.Limit, "value", no.Value, "detail", no.Detail)
			}
			answer(accept, no)
		})),
	); err != nil {
		return stop, fmt.Errorf("decode: %w", err)
	}
	return stop, nil
}

// announce is what the node says of itself now.
func (n *Node) announce() transfer.Announce {
	facts := n.cfg.Engine.Facts()
	stats := n.pool.Stats()
	running, waiting := n.recv.load()
	name := n.cfg.Peer.Name()
	n.cfg.Metrics.running.Set(float64(running), name)
	n.cfg.Metrics.free.Set(float64(stats.FreeTokens), name)
	n.cfg.Metrics.quarantined.Set(float64(stats.Quarantined), name)
	return transfer.Announce{
		HPKE: n.key.Public(), Model: facts.Fingerprint, Layout: n.recv.layout,
		Metadata: facts.Metadata, File: facts.File, ModelName: facts.Name,
		Capacity: n.cfg.Capacity, Window: n.window, Vocab: facts.Vocab, KVURL: n.cfg.KVURL,
		Ready: n.kvReady.Load(), Draining: n.draining.Load(),
		FreeTokens: stats.FreeTokens, Running: running, Waiting: waiting,
		Version: n.cfg.Version,
	}
}

// poke announces now rather than at the next beat.
func (n *Node) poke() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *Node) tick(ctx context.Context) {
	t := time.NewTicker(tickEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			n.recv.tick()
		}
	}
}

// drain waits for what is running.
func (n *Node) drain() {
	n.draining.Store(true)
	n.recv.drain()
	n.poke()
	deadline := time.After(n.cfg.DrainTimeout)
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for {
		running, waiting := n.recv.load()
		if running+waiting == 0 {
			n.log.Info("drained")
			return
		}
		select {
		case <-deadline:
			n.log.Warn("drain timed out", "running", running, "waiting", waiting)
			n.recv.abandonAll()
			time.Sleep(100 * time.Millisecond) // lets the step in flight end and say so
			return
		case <-t.C:
		}
	}
}
