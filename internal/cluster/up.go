package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"bulkhead/decode"
	"bulkhead/internal/identity"
	"bulkhead/internal/metrics"
	"bulkhead/internal/model"
	"bulkhead/prefill"
	"bulkhead/router"
	"bulkhead/transfer"
)

// StreamBytes is the hard bound of one decode node's KV stream unless told
// otherwise: sixteen prefill nodes' windows.
const StreamBytes = 256 << 20

// Config is a whole cluster in one process.
type Config struct {
	Engine          model.Engine // shared by all nodes
	Prefill, Decode int          // nodes
	PrefillNode     prefill.Config
	DecodeNode      decode.Config
	// Router is the router's configuration; identity, bus and Metadata are
	// filled in.
	Router   router.Config
	Listener net.Listener // of the router

	Metrics *metrics.Registry
	Log     *slog.Logger
}

// Cluster is a running one.
type Cluster struct {
	cfg    Config
	nats   *NATS
	store  string
	router *router.Router
	dir    *transfer.Directory
	parts  []part
}

// part is one role with its connection.
type part struct {
	name string
	run  func(context.Context) error
	idle func() bool
	conn *transfer.Conn
}

// New starts the embedded server and joins all nodes to it. Run must be called.
func New(ctx context.Context, cfg Config) (c *Cluster, err error) {
	if cfg.Prefill < 1 || cfg.Decode < 1 {
		return nil, fmt.Errorf("cluster: %d prefill and %d decode nodes, want at least one each", cfg.Prefill, cfg.Decode)
	}
	keys, err := identity.NewMemory("up")
	if err != nil {
		return nil, err
	}
	made := &Cluster{cfg: cfg}
	c = made
	defer func() {
		if err != nil {
			made.close() // a failing return has cleared c
		}
	}()
	if c.store, err = os.MkdirTemp("", "bulkhead-nats-"); err != nil {
		return nil, err
	}
	if c.nats, err = StartNATS(NATSConfig{NoListen: true, StoreDir: c.store, Auth: keys.ServerAuth(), Log: cfg.Log}); err != nil {
		return nil, err
	}
	counters := new(transfer.Counters)
	CountBus(cfg.Metrics, counters)
	join := func(role, name string) (*Joined, error) {
		m, err := keys.Minter(role)
		if err != nil {
			return nil, err
		}
		return Join{Minter: m, Name: name, Server: c.nats, Log: cfg.Log, Counters: counters}.Connect(ctx)
	}
	pm, dm := prefill.NewMetrics(cfg.Metrics), decode.NewMetrics(cfg.Metrics)
	for i := range cfg.Prefill {
		j, err := join(identity.Prefill, fmt.Sprintf("prefill-%d", i+1))
		if err != nil {
			return nil, err
		}
		nc := cfg.PrefillNode
		nc.Peer, nc.Engine, nc.Metrics, nc.Log = j.Peer, cfg.Engine, pm, cfg.Log.With("role", "prefill")
		c.parts = append(c.parts, part{name: j.Node.Name, conn: j.Conn})
		n, err := prefill.New(nc)
		if err != nil {
			return nil, err
		}
		c.parts[len(c.parts)-1].run, c.parts[len(c.parts)-1].idle = n.Run, n.Idle
	}
	for i := range cfg.Decode {
		j, err := join(identity.Decode, fmt.Sprintf("decode-%d", i+1))
		if err != nil {
			return nil, err
		}
		nc := cfg.DecodeNode
		nc.Peer, nc.Engine, nc.Metrics, nc.Log = j.Peer, cfg.Engine, dm, cfg.Log.With("role", "decode")
		c.parts = append(c.parts, part{name: j.Node.Name, conn: j.Conn})
		n, err := decode.New(nc)
		if err != nil {
			return nil, err
		}
		c.parts[len(c.parts)-1].run, c.parts[len(c.parts)-1].idle = n.Run, n.Idle
	}
	j, err := join(identity.Router, "router-1")
	if err != nil {
		return nil, err
	}
	c.parts = append(c.parts, part{name: j.Node.Name, conn: j.Conn})
	rc := cfg.Router
	rc.Metadata, rc.Metrics = cfg.Engine.Facts().Metadata, cfg.Metrics
	if rc.Log == nil {
		rc.Log = cfg.Log.With("role", "router")
	}
	c.router, c.dir, err = NewRouter(j, rc)
	if err != nil {
		return nil, err
	}
	keeper := Keeper{Bus: j.Conn, Dir: c.dir, MaxBytes: StreamBytes, Log: cfg.Log}
	last := &c.parts[len(c.parts)-1]
	last.idle = c.router.Idle
	last.run = func(ctx context.Context) error { return RunRouter(ctx, c.router, keeper, cfg.Listener) }
	return c, nil
}

// NewRouter makes a router of a node on the bus, and its directory of the others.
func NewRouter(j *Joined, cfg router.Config) (*router.Router, *transfer.Directory, error) {
	dir, err := j.Peer.WatchPeers(transfer.RolePrefill, transfer.RoleDecode)
	if err != nil {
		return nil, nil, err
	}
	cfg.Name, cfg.Key, cfg.ClusterID = j.Node.Name, j.Node.Private(), j.Node.Authority().ClusterID()
	cfg.Cluster = router.Bus{Peer: j.Peer, Directory: dir}
	r, err := router.New(cfg)
	if err != nil {
		dir.Close()
		return nil, nil, err
	}
	j.Conn.OnReconnect(r.BusLost)
	return r, dir, nil
}

// RunRouter serves until ctx ends and drains; the keeper goes on meanwhile.
func RunRouter(ctx context.Context, r *router.Router, k Keeper, l net.Listener) error {
	keep, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { k.Run(keep) })
	defer wg.Wait()
	defer stop()
	defer k.Dir.Close()
	return r.Run(ctx, l)
}

// Ready waits until the router takes requests.
func (c *Cluster) Ready(ctx context.Context) error {
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for {
		ready := 0
		for _, role := range []transfer.Role{transfer.RolePrefill, transfer.RoleDecode} {
			for _, a := range c.dir.List(role) {
				if a.Ready && !a.Draining {
					ready++
				}
			}
		}
		if ready == c.cfg.Prefill+c.cfg.Decode {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cluster: %d of %d nodes are ready: %w", ready, c.cfg.Prefill+c.cfg.Decode, ctx.Err())
		case <-t.C:
		}
	}
}

// Run serves until ctx ends, then drains: the router first, which takes
// nothing new and finishes what it has, then the nodes.
func (c *Cluster) Run(ctx context.Context) error {
	defer c.close()
	nodes, stopNodes := context.WithCancel(context.WithoutCancel(ctx))
	defer stopNodes()
	errs := make(chan error, len(c.parts))
	var wg sync.WaitGroup
	start := func(ctx context.Context, p part) {
		wg.Go(func() {
			if err := p.run(ctx); err != nil {
				errs <- fmt.Errorf("%s: %w", p.name, err)
			}
		})
	}
	last := len(c.parts) - 1
	for _, p := range c.parts {
		wg.Go(func() { p.conn.Refresh(nodes, identity.UserLifetime/2, p.idle) })
	}
	for _, p := range c.parts[:last] {
		start(nodes, p)
	}
	err := c.parts[last].run(ctx)
	stopNodes()
	wg.Wait()
	close(errs)
	for e := range errs {
		err = errors.Join(err, e)
	}
	return err
}

func (c *Cluster) close() {
	for _, p := range c.parts {
		p.conn.Close()
	}
	if c.nats != nil {
		c.nats.Shutdown()
	}
	if c.store != "" {
		os.RemoveAll(c.store)
	}
}
