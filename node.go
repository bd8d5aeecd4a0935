package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"bulkhead/decode"
	"bulkhead/internal/cluster"
	"bulkhead/internal/gguf"
	"bulkhead/internal/identity"
	"bulkhead/internal/kv"
	"bulkhead/internal/metrics"
	"bulkhead/internal/model"
	"bulkhead/internal/provenance"
	"bulkhead/internal/tokenizer"
	"bulkhead/kernels/cpu"
	"bulkhead/prefill"
	"bulkhead/transfer"
)

// modelFlags choose and load a model.
type modelFlags struct {
	sourceFlags `embed:""`
	cpuFlags    `embed:""`
}

// cpuFlags choose how the CPU computes.
type cpuFlags struct {
	Threads int    `help:"Threads of the engine; 0 is one per core." default:"0"`
	CPUTier string `help:"Instruction set of the kernels (avx512vnni, avxvnni, avx2, generic); empty is the best there is." default:""`
}

// engineOf makes the engine that the flags name.
func (f modelFlags) engineOf(log *slog.Logger) (model.Engine, error) {
	if f.Engine == engineProvenance {
		log.Warn("this is the provenance engine: a test instrument that computes no language")
		return provenance.New(provenance.Config{Window: f.ProvenanceWindow})
	}
	return f.engine(log)
}

func (f modelFlags) engine(log *slog.Logger) (*model.Model, error) {
	if f.Model == "" {
		return nil, errNoModel
	}
	backend, err := cpu.New(cpu.Config{Threads: f.Threads, Tier: f.CPUTier})
	if err != nil {
		return nil, err
	}
	started := time.Now()
	m, err := model.Open(f.Model, backend)
	if err != nil {
		backend.Close()
		return nil, err
	}
	facts, info := m.Facts(), backend.Info()
	log.Info("model loaded", "model", facts.Name, "arch", facts.Arch, "window", facts.Window, "fingerprint", fmt.Sprintf("%x", facts.Fingerprint[:8]),
		"backend", info.Name, "tier", info.Tier, "threads", info.Threads, "dur_ms", time.Since(started).Milliseconds())
	return m, nil
}

// sourceFlags say what the cluster serves.
type sourceFlags struct {
	Model            string `help:"The model, a GGUF file; a router reads only its header (tokenizer, template)." type:"existingfile"`
	Engine           string `help:"What computes: the model, or provenance, a test engine without a model whose answers show which KV pages were read." enum:"model,provenance" default:"model"`
	ProvenanceWindow int    `help:"Window of the provenance engine in tokens." default:"1048576"`
}

const engineProvenance = "provenance"

var errNoModel = errors.New("--model is missing")

// tokenizer gives what a router needs of a model: no weights.
func (f sourceFlags) tokenizer() (*tokenizer.Tokenizer, [32]byte, error) {
	switch {
	case f.Engine == engineProvenance:
		return provenance.NewTokenizer()
	case f.Model == "":
		return nil, [32]byte{}, errNoModel
	}
	return readTokenizer(f.Model)
}

// modelID is the name that clients ask for: the file's, without its ending.
func (f sourceFlags) modelID() string {
	if f.Engine == engineProvenance {
		return engineProvenance
	}
	return strings.TrimSuffix(filepath.Base(f.Model), filepath.Ext(f.Model))
}

// readTokenizer reads what a router needs of a model file: no weights.
func readTokenizer(path string) (tok *tokenizer.Tokenizer, header [32]byte, err error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, header, err
	}
	defer f.Close()
	if tok, err = tokenizer.New(f); err != nil {
		return nil, header, err
	}
	return tok, f.HeaderDigest(), nil
}

// nodeFlags are shared by the roles that join a bus.
type nodeFlags struct {
	Nats         string        `help:"The NATS server, nats://host:port; several with commas." default:"nats://127.0.0.1:4222"`
	Keys         string        `help:"Folder made by keys init; the role reads its own folder in it." required:"" type:"existingdir"`
	Name         string        `help:"This node's name, unique in the cluster; empty makes one from the host name and random letters."`
	Admin        string        `help:"Address of health checks and metrics; empty is none." default:"127.0.0.1:9090"`
	DrainTimeout time.Duration `help:"How long a shutdown waits for the work in hand." default:"30s"`
	logFlags     `embed:""`
}

// poolFlags size a node's KV pool.
type poolFlags struct {
	Capacity    int  `help:"Tokens that the KV pool holds; 0 sizes it from free memory." default:"0"`
	Window      int  `help:"Longest prompt + max_new that this node takes, in tokens; 0 is the model's own." default:"0"`
	ClampWindow bool `help:"Where the window exceeds the capacity, start all the same and advertise the capacity."`
}

// size fills in a capacity that was not given, and judges it.
func (f *poolFlags) size(m model.Engine, windows int) (err error) {
	window := f.Window
	if window == 0 {
		window = m.Facts().Window
	}
	if window < 0 || f.Capacity < 0 {
		return fmt.Errorf("window of %d and capacity of %d tokens: neither can be negative", f.Window, f.Capacity)
	}
	if f.Capacity == 0 {
		if f.Capacity, err = capacityTokens(freeMemory()/kvShare, m.Facts().Layout, window, windows); err != nil {
			return err
		}
	}
	_, err = kv.Window(window, f.Capacity, f.ClampWindow)
	return err
}

// service is what every role on a bus has around it.
type service struct {
	*cluster.Joined
	admin    net.Listener // nil: none
	log      *slog.Logger
	metrics  *metrics.Registry
	counters *transfer.Counters // of the bus
	wg       sync.WaitGroup
}

// join connects a role to the bus.
func (f nodeFlags) join(ctx context.Context, role identity.Role, log *slog.Logger) (*service, error) {
	minter, err := identity.LoadMinter(filepath.Join(f.Keys, role), role)
	if err != nil {
		return nil, err
	}
	s := &service{log: log, metrics: metrics.New(), counters: new(transfer.Counters)}
	if f.Admin != "" {
		if s.admin, err = cluster.ListenAdmin(f.Admin); err != nil {
			return nil, err
		}
	}
	cluster.CountBus(s.metrics, s.counters)
	s.Joined, err = cluster.Join{Minter: minter, Name: f.Name, URL: f.Nats, Log: log, Counters: s.counters}.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// serve runs a role beside its admin listener until ctx ends.
func (s *service) serve(ctx context.Context, ready func() error, idle func() bool, run func(context.Context) error) error {
	defer s.Conn.Close()
	defer s.wg.Wait()
	s.wg.Go(func() { s.Conn.Refresh(ctx, identity.UserLifetime/2, idle) })
	if s.admin != nil {
		admin, stop := context.WithCancel(context.WithoutCancel(ctx)) // it answers while the role drains
		defer stop()
		s.wg.Go(func() {
			a := cluster.Admin{Version: version, Metrics: s.metrics, Ready: ready, Log: s.log}
			if err := a.Serve(admin, s.admin); err != nil {
				s.log.Error("admin listener", "err", err)
			}
		})
	}
	s.log.Info("started", "node", s.Node.Name, "version", version, "epoch", fmt.Sprintf("%016x", s.Node.Epoch))
	err := run(ctx)
	s.log.Info("stopped", "err", err)
	return err
}

type prefillCmd struct {
	nodeFlags  `embed:""`
	modelFlags `embed:""`
	poolFlags  `embed:""`
	Chunk      int `help:"Prompt tokens computed in one step." default:"512"`
}

func (c prefillCmd) Run(ctx context.Context) error {
	// What can be wrong with the node itself is said before the bus is dialled.
	log, err := c.logger(identity.Prefill)
	if err != nil {
		return err
	}
	m, err := c.engineOf(log)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := c.size(m, prefillWindows); err != nil {
		return err
	}
	s, err := c.join(ctx, identity.Prefill, log)
	if err != nil {
		return err
	}
	n, err := prefill.New(prefill.Config{
		Peer: s.Peer, Engine: m, Capacity: c.Capacity, Window: c.Window, ClampWindow: c.ClampWindow, Chunk: c.Chunk,
		Version: version, DrainTimeout: c.DrainTimeout, Metrics: prefill.NewMetrics(s.metrics), Log: s.log,
	})
	if err != nil {
		return err
	}
	s.log.Info("prefill node", "capacity", c.Capacity, "window", n.Window())
	return s.serve(ctx, n.Ready, n.Idle, n.Run)
}

type decodeCmd struct {
	nodeFlags     `embed:""`
	modelFlags    `embed:""`
	poolFlags     `embed:""`
	kvServerFlags `embed:""`
	MaxBatch      int `help:"Sequences in one step." default:"64"`
}

// kvServerFlags say where a decode node's KV stream lives.
type kvServerFlags struct {
	KVServer      string `name:"kv-server" help:"Where this node's KV stream lives: at the cluster's broker, or embedded: on a NATS server in this process, which prefill nodes dial." enum:"broker,embedded" default:"broker"`
	KVListen      string `name:"kv-listen" help:"Address of an embedded KV server, HOST:PORT; port 0 is any free one." default:"127.0.0.1:0"`
	KVAdvertise   string `name:"kv-advertise" help:"Where prefill nodes dial it, nats://HOST:PORT; empty is what it listens on, and where that is every address, the one from which this node reaches the broker."`
	KVStore       string `name:"kv-store" help:"Folder for an embedded KV server's own books (KV is in memory only); empty is a temporary one."`
	KVStreamBytes int64  `name:"kv-stream-bytes" help:"Hard bound of the KV stream on an embedded server, in bytes." default:"268435456"`
}

// check says what is wrong with the flags, before the bus is dialled.
func (f kvServerFlags) check() error {
	if f.KVServer != "embedded" {
		return nil
	}
	if _, _, err := splitAddress(f.KVListen); err != nil {
		return fmt.Errorf("--kv-listen: %w", err)
	}
	if f.KVAdvertise != "" {
		if _, _, err := transfer.CheckKVURL(f.KVAdvertise); err != nil {
			return fmt.Errorf("--kv-advertise: %w", err)
		}
	}
	return nil
}

// start starts the KV server if there is to be one; nil if not.
func (f kvServerFlags) start(ctx context.Context, s *service) (*cluster.KVServer, error) {
	if f.KVServer != "embedded" {
		return nil, nil
	}
	host, port, err := splitAddress(f.KVListen)
	if err != nil {
		return nil, fmt.Errorf("--kv-listen: %w", err)
	}
	return cluster.StartKVServer(ctx, cluster.KVServerConfig{
		Node: s.Joined, Host: host, Port: port, Advertise: f.KVAdvertise, StoreDir: f.KVStore, MaxBytes: f.KVStreamBytes,
		Log: s.log, Counters: s.counters,
	})
}

func (c decodeCmd) Run(ctx context.Context) error {
	// What can be wrong with the node itself is said before the bus is dialled.
	log, err := c.logger(identity.Decode)
	if err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	m, err := c.engineOf(log)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := c.size(m, decodeWindows); err != nil {
		return err
	}
	s, err := c.join(ctx, identity.Decode, log)
	if err != nil {
		return err
	}
	kvServer, err := c.start(ctx, s)
	if err != nil {
		s.Conn.Close()
		return err
	}
	peer, kvURL := s.Peer, ""
	if kvServer != nil {
		defer kvServer.Close()
		peer, kvURL = kvServer.Peer(), kvServer.URL()
		s.log.Info("KV server", "url", kvURL)
	}
	n, err := decode.New(decode.Config{
		Peer: peer, KVURL: kvURL, Engine: m, Capacity: c.Capacity, Window: c.Window, ClampWindow: c.ClampWindow, MaxBatch: c.MaxBatch,
		Version: version, DrainTimeout: c.DrainTimeout, Metrics: decode.NewMetrics(s.metrics), Log: s.log,
	})
	if err != nil {
		return err
	}
	s.log.Info("decode node", "capacity", c.Capacity, "window", n.Window())
	return s.serve(ctx, n.Ready, n.Idle, n.Run)
}

// natsCmd runs the bus.
type natsCmd struct {
	Listen    string `help:"Address for clients." default:"127.0.0.1:4222"`
	Keys      string `help:"Folder made by keys init; its public folder is read." required:"" type:"existingdir"`
	Admin     string `help:"Address of health checks and metrics; empty is none." default:"127.0.0.1:9090"`
	Store     string `help:"Folder for JetStream's files; empty is a temporary one (KV streams are memory only)." default:""`
	MaxMemory int64  `help:"Bytes of all memory streams; 0 leaves it to the server." default:"0"`
	logFlags  `embed:""`
}

func (c natsCmd) Run(ctx context.Context) error {
	log, err := c.logger("nats")
	if err != nil {
		return err
	}
	auth, err := identity.LoadServerAuth(filepath.Join(c.Keys, identity.PublicDir))
	if err != nil {
		return err
	}
	host, port, err := splitAddress(c.Listen)
	if err != nil {
		return err
	}
	if c.Store == "" {
		if c.Store, err = os.MkdirTemp("", "bulkhead-nats-"); err != nil {
			return err
		}
		defer os.RemoveAll(c.Store)
	}
	n, err := cluster.StartNATS(cluster.NATSConfig{Host: host, Port: port, StoreDir: c.Store, Auth: auth, MaxMemory: c.MaxMemory, Log: log})
	if err != nil {
		return err
	}
	defer n.Shutdown()
	log.Info("started", "version", version, "listen", n.ClientURL())
	if c.Admin == "" {
		<-ctx.Done()
		return nil
	}
	ln, err := cluster.ListenAdmin(c.Admin)
	if err != nil {
		return err
	}
	a := cluster.Admin{Version: version, Metrics: metrics.New(), Ready: func() error { return nil }, Log: log}
	return a.Serve(ctx, ln)
}
