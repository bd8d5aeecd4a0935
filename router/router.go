// Package router is the HTTP edge: it turns an OpenAI-compatible request into an admitted, placed
// and streamed generation by one prefill and one decode node.
//
// The main type is [Router]. A request is answered by exchange.serve in seven steps
// (authenticate, decode, tokenize, admit, place, submit, stream); each of its
// sequences is driven by a flow, a pure state machine with transcripts in testdata.
//
// What it promises:
//
//   - Admission is decided once, before anything is sent to any node, by the smaller limit of a
//     pair: over it the answer is 400 context_length_exceeded.
//   - Nothing of a request body chooses a tenant, a cache salt or an internal id. Bodies are
//     read strictly, in bounded memory: duplicate and case-variant members, broken UTF-8 and
//     fields that would be silently without effect are refused.
//   - The HTTP status is held until decode's receipt has been verified. Every failure before it is a proper
//     4xx or 5xx; after it, a stream gets an error event and never [DONE].
//   - A client that leaves, streaming or not, ends its attempts at both nodes at once.
//   - One retry on other nodes when a node dies before the first token, none after.
//   - Logs, metrics and the audit record hold no prompt, no text and no key.
//
// It holds no weights and no KV, keeps nothing that another router would need, and
// terminates no TLS: put it behind something that does.
package router

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"bulkhead/internal/metrics"
	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
	"bulkhead/internal/tokenizer"
	"bulkhead/transfer"
)

// Config is what a router needs. Fields without "if zero" must be set.
type Config struct {
	Name      string             // this node's name; it signs with Key
	Key       ed25519.PrivateKey // the node's own
	ClusterID string             // identity.Authority.ClusterID
	Cluster   Cluster
	Tenants   *tenant.Registry
	Tokenizer *tokenizer.Tokenizer
	Metadata  transfer.Hash // digest of the GGUF header that Tokenizer comes from; nodes must have the same
	ModelID   string        // the name that clients ask for
	Version   string        // if empty, "dev"

	Log     *slog.Logger      // if nil, nothing is logged
	Metrics *metrics.Registry // if nil, a registry of its own
	Audit   io.Writer         // append-only; if nil, no record is kept

	DefaultMaxNew     int           // tokens, for requests that name no maximum; if zero, up to the context limit
	BodyMax           int64         // bytes of a request body; if zero, 8 MiB
	BodyTimeout       time.Duration // for a whole body; if zero, 30 s
	QueueMax          int           // sequences that wait for a pair; if zero, 256
	QueueTimeout      time.Duration // of one such wait; if zero, 30 s
	AcceptTimeout     time.Duration // for a node's answer to a job; if zero, 3 s
	FirstTokenTimeout time.Duration // queue, prefill and transfer together; if zero, 110 s (a token lives 120)
	StallTimeout      time.Duration // between two messages of tokens; if zero, 30 s
	WriteTimeout      time.Duration // of one write to a client; if zero, 15 s
	StreamBuffer      int           // tokens held for a client that reads a stream slowly; if zero, 16384
	SSEHeartbeatAfter time.Duration // a comment after so long without an event, which commits the status; if zero, never
	DrainTimeout      time.Duration // for requests in work at shutdown; if zero, 30 s
	ConnMax           int           // open connections; if zero, 1024
}

// withDefaults fills in what is zero and refuses what cannot work.
func (c Config) withDefaults() (Config, error) {
	for _, d := range []struct {
		at    *time.Duration
		value time.Duration
	}{
		{&c.BodyTimeout, 30 * time.Second}, {&c.QueueTimeout, 30 * time.Second}, {&c.AcceptTimeout, 3 * time.Second},
		{&c.FirstTokenTimeout, 110 * time.Second}, {&c.StallTimeout, 30 * time.Second},
		{&c.WriteTimeout, 15 * time.Second}, {&c.DrainTimeout, 30 * time.Second},
	} {
		if *d.at == 0 {
			*d.at = d.value
		}
		if *d.at < 0 {
			return c, fmt.Errorf("router: a timeout of %s", *d.at)
		}
	}
	for _, d := range []struct {
		at    *int
		value int
	}{{&c.QueueMax, 256}, {&c.StreamBuffer, 16 << 10}, {&c.ConnMax, 1024}} {
		if *d.at == 0 {
			*d.at = d.value
		}
	}
	if c.BodyMax == 0 {
		c.BodyMax = 8 << 20
	}
	if c.Version == "" {
		c.Version = "dev"
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = metrics.New()
	}
	switch {
	case c.Cluster == nil || c.Tenants == nil || c.Tokenizer == nil:
		return c, errors.New("router: Config needs Cluster, Tenants and Tokenizer")
	case c.ModelID == "":
		return c, errors.New("router: Config needs a ModelID")
	case len(c.Key) != ed25519.PrivateKeySize:
		return c, errors.New("router: Config needs the node's Key")
	}
	return c, tenant.CheckNode(c.Name)
}

// Router answers HTTP requests. Make one with New, then Run it, or serve its Handler and Drain it.
type Router struct {
	cfg     Config
	cluster Cluster
	tok     *tokenizer.Tokenizer
	eog     []int32
	log     *slog.Logger
	metrics *routerMetrics
	audit   *audit
	desk    *desk
	watch   *watch
	started time.Time

	fieldLabel, tenantLabel metrics.Bounded

	draining  atomic.Bool
	large     chan struct{} // held while a large prompt is tokenized: one at a time
	exchanges exchanges
	work      sync.WaitGroup // jobs and cancellations on their way
}

// New makes a router.
func New(cfg Config) (*Router, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Router{
		cfg: cfg, cluster: cfg.Cluster, tok: cfg.Tokenizer, log: cfg.Log,
		audit: newAudit(cfg.Audit, cfg.Log), watch: newWatch(cfg.Cluster.Ping), started: time.Now(),
		large: make(chan struct{}, 1),
	}
	r.fieldLabel.Max, r.tenantLabel.Max = 64, 64
	r.desk = newDesk(cfg, cfg.Cluster.List)
	r.metrics = newRouterMetrics(cfg.Metrics,
		func() float64 { return float64(r.desk.waiting()) },
		func() float64 {
			best, _ := r.desk.best()
			return float64(best.limit())
		},
		func() float64 { return float64(r.desk.refused()) })
	for id := range int32(cfg.Tokenizer.VocabSize()) {
		if cfg.Tokenizer.EOG(id) {
			r.eog = append(r.eog, id)
		}
	}
	if len(r.eog) > sample.MaxEOG {
		return nil, fmt.Errorf("router: the model file has %d end-of-generation tokens, at most %d", len(r.eog), sample.MaxEOG)
	}
	return r, nil
}

// Handler returns the router's HTTP handler.
func (r *Router) Handler() http.Handler {
	scrape := r.cfg.Metrics.Handler()
	routes := map[string]struct {
		method string
		handle http.HandlerFunc
	}{
		"/v1/chat/completions": {http.MethodPost, r.handleChat},
		"/v1/completions":      {http.MethodPost, r.handleCompletions},
		"/v1/models":           {http.MethodGet, r.handleModels},
		"/health":              {http.MethodGet, r.handleReady},
		"/livez":               {http.MethodGet, r.handleLive},
		"/readyz":              {http.MethodGet, r.handleReady},
		"/version":             {http.MethodGet, r.handleVersion},
		"/metrics":             {http.MethodGet, scrape.ServeHTTP},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		route, ok := routes[req.URL.Path]
		if id, model := strings.CutPrefix(req.URL.Path, "/v1/models/"); model && id != "" {
			route.method, ok = http.MethodGet, true
			route.handle = func(w http.ResponseWriter, req *http.Request) { r.handleModel(w, req, id) }
		}
		switch {
		case !ok:
			writeError(w, fail(kindNoRoute, "", "Unknown request URL. Please check the URL for typos."))
		case req.Method != route.method && !(req.Method == http.MethodHead && route.method == http.MethodGet):
			e := fail(kindMethod, "", "Method not allowed for this URL.")
			e.allow = route.method
			writeError(w, e)
		default:
			route.handle(w, req)
		}
	})
}

// Run serves HTTP on l until ctx ends, then drains and returns. An error is one of
// the listener or of a drain that had to cut requests off.
func (r *Router) Run(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           r.Handler(),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       60 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(r.log.Handler(), slog.LevelWarn),
		// No WriteTimeout: it would cut long streams. Each write has its own deadline.
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(limitListener(l, r.cfg.ConnMax)) }()
	select {
	case err := <-failed:
		return fmt.Errorf("router: serve: %w", err)
	case <-ctx.Done():
	}
	r.log.Info("draining", "in_work", r.exchanges.count(), "timeout", r.cfg.DrainTimeout.String())
	late, cancel := context.WithTimeout(context.Background(), r.cfg.DrainTimeout)
	defer cancel()
	err := r.Drain(late)
	closing, done := context.WithTimeout(context.Background(), r.cfg.WriteTimeout)
	defer done()
	if shut := server.Shutdown(closing); shut != nil {
		err = errors.Join(err, fmt.Errorf("router: shutdown: %w", shut), server.Close())
	}
	return err
}

// BusLost tells the router that its connection to the bus was lost and made again. What nodes
// sent meanwhile is gone, the last word on an attempt perhaps too, and no ping would tell:
// so every attempt in flight is treated as one whose node is lost, at once instead of
// when the time for its next token is over.
func (r *Router) BusLost() { r.watch.loseAll() }

// Drain takes nothing new and waits for the requests in work. When ctx ends, the rest are
// cancelled at their nodes and their clients get an error; Drain returns once that is done.
func (r *Router) Drain(ctx context.Context) error {
	r.draining.Store(true)
	cut := r.exchanges.wait(ctx)
	r.work.Wait()
	if cut > 0 {
		return fmt.Errorf("router: %d requests were cut off at the end of the drain timeout", cut)
	}
	return nil
}
