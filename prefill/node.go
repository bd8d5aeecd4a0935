package prefill

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
	Chunk       int  // prompt tokens in one step; 0: 512

	Version string

	DrainTimeout time.Duration // for accepted prompts at shutdown; 0: 30 s
	Metrics      *Metrics
	Log          *slog.Logger
}

// DefaultChunk is how many prompt tokens a step computes unless told otherwise.
const DefaultChunk = 512

// tickEvery is the pause between looks at deadlines.
const tickEvery = 200 * time.Millisecond

// Node is a prefill node. New makes it, Run runs it.
type Node struct {
	cfg     Config
	self    transfer.Self
	layout  transfer.Hash
	window  int
	private bool // nothing goes into the prefix cache
	key     transfer.BootKey
	pool    *kv.Pool
	pages   kernels.Pages
	dir     *transfer.Directory
	worker  *worker
	begin   func(*attempt) // ships an accepted attempt
	once    transfer.Once
	gone    transfer.Once // attempts that were cancelled before their job came
	stats   *Metrics
	log     *slog.Logger

	draining atomic.Bool
	wake     chan struct{}

	mu      sync.Mutex
	senders map[boot]*transfer.KVSender // guarded by mu: by decode node and epoch
	closing sync.WaitGroup              // of senders that are not there any more
	jobs    map[transfer.Hash]*attempt  // guarded by mu

	// Apart from the node: the runtime knows every pool in use for two collections, and
	// would hold whatever a pool lies in as long.
	free   *sync.Pool // plaintext buffers of one frame
	frames *sync.Pool // sealed frames, stored
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
		return nil, fmt.Errorf("prefill: the configured window of %d tokens exceeds the model's own of %d", cfg.Window, facts.Window)
	}
	window, err := kv.Window(cfg.Window, cfg.Capacity, cfg.ClampWindow)
	if err != nil {
		return nil, err
	}
	if cfg.Chunk == 0 {
		cfg.Chunk = DefaultChunk
	}
	if cfg.Chunk < 1 {
		return nil, fmt.Errorf("prefill: a chunk of %d tokens, want at least 1", cfg.Chunk)
	}
	if cfg.DrainTimeout == 0 {
		cfg.DrainTimeout = 30 * time.Second
	}
	pages, err := cfg.Engine.NewPages((cfg.Capacity + kernels.BlockTokens - 1) / kernels.BlockTokens)
	if err != nil {
		return nil, fmt.Errorf("prefill: KV pages: %w", err)
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
	n := &Node{
		cfg:    cfg,
		self:   transfer.Self{Role: transfer.RolePrefill, Node: cfg.Peer.Name(), Epoch: cfg.Peer.Epoch(), Model: facts.Fingerprint, Vocab: facts.Vocab},
		layout: facts.Layout.Fingerprint(), window: window, private: facts.Private,
		key: key, pool: pool, pages: pages, stats: cfg.Metrics,
		log:  cfg.Log.With("node", cfg.Peer.Name()),
		wake: make(chan struct{}, 1), senders: map[boot]*transfer.KVSender{}, jobs: map[transfer.Hash]*attempt{},
		free: &sync.Pool{}, frames: &sync.Pool{},
	}
	n.worker, err = newWorker(n)
	return n, err
}

// Window is what the node advertises.
func (n *Node) Window() int { return n.window }

// Stats is the state of its pages.
func (n *Node) Stats() kv.Stats { return n.pool.Stats() }

// Ready says why the node takes no work, or nil.
func (n *Node) Ready() error {
	if n.draining.Load() {
		return errors.New("prefill: draining")
	}
	return nil
}

// Run serves until ctx ends, then drains: nothing new is taken, accepted
// prompts are finished within DrainTimeout, the rest ends with an error that
// their routers hear.
func (n *Node) Run(ctx context.Context) error {
	p := n.cfg.Peer
	// The parts live longer than ctx: a drain needs them.
	live, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	n.begin = func(a *attempt) { go n.ship(a) }
	unserve, err := n.serve()
	defer unserve()
	if err != nil {
		return err
	}
	wg.Go(func() { n.worker.run(live) })
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
	if n.dir, err = p.WatchPeers(transfer.RoleDecode); err != nil {
		return stop, fmt.Errorf("prefill: %w", err)
	}
	stops = append(stops, n.dir.Close, n.closeSenders)
	n.dir.OnChange(n.forgetSenders)
	serve := func(stop func(), err error) error {
		if err == nil {
			stops = append(stops, stop)
		}
		return err
	}
	if err := errors.Join(
		serve(p.ServeCancel(n.cancel)),
		serve(p.ServePing(func() transfer.Pong {
			return transfer.Pong{Epoch: p.Epoch(), Attempts: n.working()}
		})),
		serve(p.ServeCredit(n.credit)),
		serve(p.ServeJobs(n.key, func(_ context.Context, job transfer.Job, from identity.Peer, answer func(*transfer.Accept, *transfer.Reject)) {
			accept, no := n.take(job, from)
			if no != nil {
				n.stats.refused(string(no.Reason))
				n.log.Info("job refused", "reason", no.Reason, "limit", no.Limit, "value", no.Value, "detail", no.Detail)
			}
			answer(accept, no)
		})),
	); err != nil {
		return stop, fmt.Errorf("prefill: %w", err)
	}
	return stop, nil
}

// announce is what the node says of itself now.
func (n *Node) announce() transfer.Announce {
	facts := n.cfg.Engine.Facts()
	stats := n.pool.Stats()
	running, waiting := n.worker.load()
	n.stats.waiting.Set(float64(waiting), n.self.Node)
	n.stats.free.Set(float64(stats.FreeTokens), n.self.Node)
	n.stats.quarantined.Set(float64(stats.Quarantined), n.self.Node)
	return transfer.Announce{
		HPKE: n.key.Public(), Model: facts.Fingerprint, Layout: n.layout,
		Metadata: facts.Metadata, File: facts.File, ModelName: facts.Name,
		Capacity: n.cfg.Capacity, Window: n.window, Vocab: facts.Vocab,
		Ready: true, Draining: n.draining.Load(),
		FreeTokens: stats.FreeTokens, Running: running, Waiting: waiting,
		Version: n.cfg.Version,
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
			now := n.cfg.Peer.Now()
			n.once.Prune(now)
			n.gone.Prune(now)
			n.worker.tick(now)
		}
	}
}

// Idle says that no attempt is in work.
func (n *Node) Idle() bool { return n.working() == 0 }

// working counts the attempts whose pages are not back.
func (n *Node) working() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.jobs)
}

// drain waits for what was accepted.
func (n *Node) drain() {
	n.draining.Store(true)
	select {
	case n.wake <- struct{}{}:
	default:
	}
	deadline := time.After(n.cfg.DrainTimeout)
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for n.working() > 0 {
		select {
		case <-deadline:
			n.log.Warn("drain timed out", "attempts", n.working())
			n.endAll(&refusal{transfer.ReasonDraining, errors.New("the node is shutting down")})
			deadline = nil
		case <-t.C:
		}
	}
	n.log.Info("drained")
}

// buffer and recycle lend plaintext buffers; they come back zeroed.
func (n *Node) buffer(bytes int) []byte {
	if b, ok := n.free.Get().(*[]byte); ok && cap(*b) >= bytes {
		return (*b)[:bytes]
	}
	return make([]byte, bytes, max(bytes, min(seal.MaxPayload, n.pages.Layout().PageBytes()))) // no frame is more than a block
}

// frameBuffer is empty and has room for a frame of so many bytes of payload.
func (n *Node) frameBuffer(bytes int) []byte {
	need := seal.HeaderSize + bytes + seal.TagSize
	if b, ok := n.frames.Get().(*[]byte); ok && cap(*b) >= need {
		return (*b)[:0]
	}
	return make([]byte, 0, need)
}

func (n *Node) recycleFrame(b []byte) { n.frames.Put(&b) }

func (n *Node) recycle(b []byte) {
	clear(b)
	n.free.Put(&b)
}
