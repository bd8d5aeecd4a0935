package rogue

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"

	"bulkhead/internal/cluster"
	"bulkhead/internal/identity"
	"bulkhead/internal/model"
	"bulkhead/internal/provenance"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// Modes of a peer beside the names of bugs.
const (
	Idle   = "idle"   // takes no work
	Honest = "honest" // has no bug
)

// Config says which peer to be.
type Config struct {
	Role    transfer.Role
	Name    string
	Keys    string // folder of keys init
	NATS    string // URL
	Window  int    // of the provenance engine, in tokens
	Tenants []string
	Listen  string // of the router
}

// peer is what the three rogues share.
type peer struct {
	cfg    Config
	node   *identity.Node
	bus    *tap
	Peer   *transfer.Peer
	second *transfer.Peer // another node of the role, on the same connection
	posing *transfer.Peer // one more, that says it is a decode node
	key    *seal.Key
	engine *provenance.Engine
	facts  model.Facts
	log    *slog.Logger
	wake   chan struct{}

	mu   sync.Mutex
	mode string         // guarded by mu
	bug  *Switch        // guarded by mu; nil for Idle and Honest
	met  map[string]int // guarded by mu: requests that met each bug
}

// Main runs a peer until in ends. Each line of in is a mode; the answer to it is how many
// requests have met this bug so far. A line that names no mode ends it with an error.
func Main(cfg Config, in io.Reader, out io.Writer, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p, err := join(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer p.bus.Close()
	var stop func()
	switch cfg.Role {
	case transfer.RolePrefill:
		stop, err = servePrefill(ctx, p)
	case transfer.RoleDecode:
		stop, err = serveDecode(ctx, p)
	default:
		stop, err = serveRouter(ctx, p)
	}
	if err != nil {
		return err
	}
	defer stop()
	fmt.Fprintln(out, 0) // it is up
	for lines := bufio.NewScanner(in); lines.Scan(); {
		met, err := p.set(strings.TrimSpace(lines.Text()))
		if err != nil {
			return err
		}
		fmt.Fprintln(out, met)
	}
	return nil
}

func join(ctx context.Context, cfg Config, log *slog.Logger) (*peer, error) {
	minter, err := identity.LoadMinter(filepath.Join(cfg.Keys, string(cfg.Role)), string(cfg.Role))
	if err != nil {
		return nil, err
	}
	j, err := cluster.Join{Minter: minter, Name: cfg.Name, URL: cfg.NATS, Log: log, Counters: new(transfer.Counters)}.Connect(ctx)
	if err != nil {
		return nil, err
	}
	p := &peer{cfg: cfg, node: j.Node, bus: newTap(j.Conn), log: log, mode: Idle, met: map[string]int{}, wake: make(chan struct{}, 1)}
	other, err := minter.NewNode(cfg.Name + "-2")
	if err != nil {
		return nil, err
	}
	liar, err := minter.NewNode(cfg.Name + "-3")
	if err != nil {
		return nil, err
	}
	liar.Role = identity.Decode // its JWT still says what it is
	on := func(n *identity.Node) *transfer.Peer {
		return transfer.NewPeer(transfer.Options{Bus: p.bus, Node: n, Authority: minter.Authority(), Cluster: minter.Authority().Cluster(), Log: log})
	}
	p.Peer, p.second, p.posing = on(j.Node), on(other), on(liar)
	if p.key, err = seal.NewKey(); err != nil {
		return nil, err
	}
	if p.engine, err = provenance.New(provenance.Config{Window: cfg.Window}); err != nil {
		return nil, err
	}
	p.facts = p.engine.Facts()
	return p, nil
}

// set changes the mode and says how many requests have met it.
func (p *peer) set(mode string) (int, error) {
	s := find(p.cfg.Role, mode)
	if s == nil && mode != Idle && mode != Honest {
		return 0, fmt.Errorf("rogue: a %s has no bug %.64q", p.cfg.Role, mode)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mode != mode {
		p.mode, p.bug = mode, s
		p.poke()
	}
	return p.met[mode], nil
}

// meet is called for each request that reaches the peer: it returns the bug it is to meet.
func (p *peer) meet() *Switch {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.met[p.mode]++
	return p.bug
}

// has says whether the peer has a bug now.
func (p *peer) has(bug string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mode == bug
}

// poke announces at once.
func (p *peer) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Capacity of the rogues' pools in tokens, and what they say where they lie about it.
const (
	capacity = 1 << 18
	boast    = 1 << 21
)

// rogueVersion is what the rogues call themselves.
const rogueVersion = "rogue"

// announcement is what the peer says of itself.
func (p *peer) announcement(ready bool) transfer.Announce {
	a := transfer.Announce{
		HPKE: p.key.Public(), Model: p.facts.Fingerprint, Layout: p.facts.Layout.Fingerprint(),
		Metadata: p.facts.Metadata, File: p.facts.File, ModelName: p.facts.Name,
		Capacity: capacity, Window: min(capacity, p.facts.Window), Vocab: p.facts.Vocab,
		Ready: ready, FreeTokens: capacity, Draining: p.has(Idle), Version: rogueVersion,
	}
	switch {
	case p.has(bugWeights):
		a.File[0] ^= 1
	case p.has(bugBoast):
		a.Capacity, a.FreeTokens = boast, boast
	}
	return a
}

// Bugs that more than one role has, in what it says of itself or answers.
const (
	bugWeights = "other-weights"
	bugBoast   = "more-capacity-than-it-has"
	bugDeaf    = "no-answer-to-the-job"
	bugStale   = "answer-to-another-job"
	bugDead    = "dies-in-mid-stream"
	bugFew     = "holds-too-few-pages"
	bugCredit  = "forged-credit"
)

// answers tampers with the answers to jobs and pings, for the bugs that are in them.
func (p *peer) answers() {
	var mu sync.Mutex
	var last []byte
	p.bus.onAnswer(func(subject string, data []byte, send func([]byte) error) error {
		job := strings.HasPrefix(subject, "job.")
		switch {
		case job && p.has(bugDeaf):
			return nil
		case strings.HasPrefix(subject, "ping.") && (p.has(bugDead) || p.has("dies-before-the-first-token")):
			return nil
		case job:
			mu.Lock()
			before := last
			last = append([]byte(nil), data...)
			mu.Unlock()
			if p.has(bugStale) && before != nil {
				return send(before)
			}
		}
		return send(data)
	})
}

// pong answers a ping.
func (p *peer) pong() transfer.Pong { return transfer.Pong{Epoch: p.Peer.Epoch()} }

// self is what the peer verifies jobs with.
func (p *peer) self() transfer.Self {
	return transfer.Self{Role: p.cfg.Role, Node: p.cfg.Name, Epoch: p.Peer.Epoch(), Model: p.facts.Fingerprint, Vocab: p.facts.Vocab}
}

// noRoom is how a node that has promised too much says no.
func noRoom(g *transfer.Grant) *transfer.Reject {
	return &transfer.Reject{TokenHash: g.Hash, Reason: transfer.ReasonNoPages, Detail: "less than was announced"}
}
