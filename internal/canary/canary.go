// Package canary looks for leaks between the tenants of a live OpenAI-compatible
// server, from outside, with nothing but keys: it is what `bulkhead canary` runs.
//
// It sends marked prompts of two or more tenants in rounds. In each round every prompt is answered
// once while the canary sends nothing else, and then several times under a load of other
// tenants' requests, cancels, over-length prompts and full pools; then one tenant
// sends prefixes of another's prompts. [Run] returns a [Report] of what cannot be
// right: see the kinds of [Finding].
//
// A clean report is no proof: it says that so many requests showed nothing. The tests
// of this package run it against a server with each fault, and those of
// internal/cluster against Bulkhead with its checks taken out.
//
// Reports hold no key, no prompt and no answer.
package canary

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"bulkhead/internal/openai"
)

// ErrConfig is a Config outside its limits.
var ErrConfig = errors.New("canary: invalid configuration")

// Tenant is one of the server's.
type Tenant struct {
	Name string // shown in the report
	Key  string // never shown
}

// Determinism says how exactly a repeated greedy answer must be the same.
type Determinism string

// The degrees of Determinism.
const (
	Bitwise Determinism = "bitwise" // text and every log probability; what Bulkhead promises
	Text    Determinism = "text"    // text
	Off     Determinism = "off"     // for servers whose answers depend on the batch
)

// Config says what Run sends. Zero values are the defaults in brackets.
type Config struct {
	URL     string
	Tenants []Tenant // 2 to 64
	Model   string   // [the first that the server lists]

	N           int           // requests in all [1000, or without end where there is a Duration]
	Duration    time.Duration // how long to go on [until N]
	Concurrency int           // requests at once under load [8]
	Repeat      int           // answers of each prompt under load [3]
	Timeout     time.Duration // of one request [5 min]
	Window      int           // longest prompt and output in tokens [what the server says]
	Long        int           // tokens of the prompts that fill the pools [4096]
	Boundary    int           // requests exactly at the window are sent up to a window of so many tokens [16384]
	Prefix      int           // tokens of the prompts whose prefix another tenant tries [512]
	Seed        uint64        // of markers and of the order [random]

	Determinism    Determinism // [Bitwise]
	ExpectReceipts bool        // every answer must have one; else only if the server ever sends one
	AllowAnyKey    bool        // the server does not check keys, and that is known

	Progress func(Progress) // called after each request, by one at a time; may be nil
}

// Progress is how far a run is.
type Progress struct {
	Phase    string
	Sent     int
	Of       int // 0: as long as Duration
	Elapsed  time.Duration
	Duration time.Duration // 0: until Of
	Findings int
}

// Bounds of a run.
const (
	tenantsMax     = 64
	requestsMax    = 10_000_000
	concurrencyMax = 1024
	tokensMax      = 4 << 20
)

func (c *Config) check() error {
	set := func(to *int, value int) {
		if *to == 0 {
			*to = value
		}
	}
	if c.N == 0 {
		if c.N = 1000; c.Duration > 0 {
			c.N = requestsMax
		}
	}
	set(&c.Concurrency, 8)
	set(&c.Repeat, 3)
	set(&c.Long, 4096)
	set(&c.Boundary, 16384)
	set(&c.Prefix, 512)
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Minute
	}
	if c.Determinism == "" {
		c.Determinism = Bitwise
	}
	if c.Seed == 0 {
		c.Seed = rand.Uint64()
	}
	switch {
	case len(c.Tenants) < 2 || len(c.Tenants) > tenantsMax:
		return fmt.Errorf("%w: %d tenants, want 2 to %d: a leak needs somebody to leak from", ErrConfig, len(c.Tenants), tenantsMax)
	case c.N < 1 || c.N > requestsMax:
		return fmt.Errorf("%w: %d requests, want 1 to %d", ErrConfig, c.N, requestsMax)
	case c.Concurrency < 1 || c.Concurrency > concurrencyMax:
		return fmt.Errorf("%w: concurrency of %d, want 1 to %d", ErrConfig, c.Concurrency, concurrencyMax)
	case c.Repeat < 1 || c.Repeat > 100:
		return fmt.Errorf("%w: %d repeats, want 1 to 100", ErrConfig, c.Repeat)
	case c.Duration < 0 || c.Timeout < 0:
		return fmt.Errorf("%w: a time under 0", ErrConfig)
	case c.Determinism != Bitwise && c.Determinism != Text && c.Determinism != Off:
		return fmt.Errorf("%w: determinism %q, want bitwise, text or off", ErrConfig, c.Determinism)
	}
	for _, n := range []int{c.Window, c.Long, c.Boundary, c.Prefix} {
		if n < 0 || n > tokensMax {
			return fmt.Errorf("%w: %d tokens, want up to %d", ErrConfig, n, tokensMax)
		}
	}
	keys := map[string]bool{}
	for _, t := range c.Tenants {
		if keys[t.Key] && !c.AllowAnyKey {
			return fmt.Errorf("%w: two tenants with one key", ErrConfig)
		}
		keys[t.Key] = true
	}
	return nil
}

// run is one run of the canary.
type run struct {
	c      Config
	client *openai.Client
	can    openai.Abilities
	start  time.Time
	rng    *rand.Rand // of the goroutine that plans rounds only
	book   *book
	timing timing // of that goroutine as well

	mu      sync.Mutex // guards all below
	left    int
	numbers int // of prompts
	phase   string
	rep     Report
	seen    receipts
	usages  usages
}

// Run looks for leaks until N requests are sent or Duration has passed; what is begun then ends within Timeout.
// When ctx ends it stops at once and reports what it has. The error is for a run that could not be: ErrConfig, those of
// openai.Client.Discover, or a server that answered nothing.
func Run(ctx context.Context, c Config) (*Report, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	client, err := openai.New(c.URL, c.Concurrency)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var seed [8]byte
	binary.LittleEndian.PutUint64(seed[:], c.Seed)
	r := &run{
		c: c, client: client, start: time.Now(), left: c.N,
		rng:  rand.New(rand.NewChaCha8(sha256.Sum256(append([]byte("canary order "), seed[:]...)))),
		book: newBook(rand.New(rand.NewChaCha8(sha256.Sum256(append([]byte("canary markers "), seed[:]...))))),
		seen: receipts{hashes: map[string]bool{}},
	}
	if err := r.discover(ctx); err != nil {
		return nil, err
	}
	r.badKey(ctx)
	for n := 0; r.more(ctx); n++ {
		r.round(ctx, n)
	}
	rep := r.report()
	if rep.OK == 0 {
		return nil, fmt.Errorf("canary: the server answered none of %d requests: %d refused, %d failed", rep.Sent, rep.Refused, rep.Failed)
	}
	return rep, nil
}

// discover asks the first tenant's key what the server takes, and every other if it is good.
func (r *run) discover(ctx context.Context) (err error) {
	if r.can, err = r.client.Discover(ctx, r.c.Tenants[0].Key, r.c.Model); err != nil {
		return err
	}
	if r.c.Window > 0 {
		r.can.Window = r.c.Window
	}
	for _, t := range r.c.Tenants[1:] {
		if _, status, err := r.client.Models(ctx, t.Key); err != nil && status != 404 {
			return fmt.Errorf("tenant %s: %w", t.Name, err)
		}
	}
	return nil
}

// more says whether another round is due.
func (r *run) more(ctx context.Context) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.left > 0 && ctx.Err() == nil && !r.late()
}

func (r *run) late() bool { return r.c.Duration > 0 && time.Since(r.start) >= r.c.Duration }

// take uses up one request of the budget.
func (r *run) take(ctx context.Context) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left == 0 || ctx.Err() != nil || r.late() {
		return false
	}
	r.left--
	r.rep.Sent++
	return true
}

func (r *run) enter(phase string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase = phase
}

// progress tells how far the run is.
func (r *run) progress() {
	if r.c.Progress == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p := Progress{Phase: r.phase, Sent: r.rep.Sent, Of: r.c.N, Elapsed: time.Since(r.start), Duration: r.c.Duration, Findings: r.rep.total()}
	if r.c.N == requestsMax {
		p.Of = 0
	}
	r.c.Progress(p)
}
