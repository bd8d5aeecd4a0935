package chaos

import (
	"errors"
	"maps"
	"net"
	"sync"
	"time"
)

// Config makes a Proxy.
type Config struct {
	Upstream string // host:port of the nats-server
	Seed     uint64
	// Observe, if not nil, sees every message before anything happens to it. It runs
	// on the connection's goroutine, for several connections at a time.
	Observe func(d Direction, subject string, payload int)
}

// Direction is where a message goes.
type Direction int

// The directions.
const (
	ToServer Direction = iota
	ToNode
)

// Proxy is the faulty network of one node. It is safe for concurrent use.
type Proxy struct {
	cfg Config
	ln  net.Listener
	wg  sync.WaitGroup

	mu     sync.Mutex
	faults Faults                // guarded by mu, as the rest; a Faults is never changed
	held   chan struct{}         // closed when the cable is back; nil: it is in
	cut    bool                  // connections are refused
	closed bool                  // for good
	conns  map[net.Conn]struct{} // both ends of each
	count  uint64                // of connections
	past   [2]past               // by direction
	done   map[Kind]int64
	seen   int64
}

// past remembers messages of a direction, over connections.
type past struct {
	ring [512]op
	n    int
}

// rememberMax bounds what a message may hold of memory by being remembered.
const rememberMax = 256 << 10

func (p *past) add(o op) {
	if len(o.payload) > rememberMax {
		return
	}
	p.ring[p.n%len(p.ring)] = o
	p.n++
}

func (p *past) len() int { return min(p.n, len(p.ring)) }

// back returns the message i back, 1 is the last.
func (p *past) back(i int) op { return p.ring[(p.n-i)%len(p.ring)] }

// New listens on loopback. Close must be called.
func New(cfg Config) (*Proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{cfg: cfg, ln: ln, conns: map[net.Conn]struct{}{}, done: map[Kind]int64{}}
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is where the node connects.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Set replaces what happens to messages from now on; nil is nothing.
func (p *Proxy) Set(f Faults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = maps.Clone(f)
}

// Hold pulls the cable: nothing passes in either direction and no connection is made, but
// none ends either, as far as TCP goes. False puts it back, and what waited goes on.
func (p *Proxy) Hold(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case on && p.held == nil:
		p.held = make(chan struct{})
	case !on && p.held != nil:
		close(p.held)
		p.held = nil
	}
}

// Sever ends all connections and refuses new ones, until it is called with false.
func (p *Proxy) Sever(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut = on; on {
		p.endLocked()
	}
}

func (p *Proxy) endLocked() {
	for c := range p.conns {
		c.Close()
	}
}

// Close ends everything.
func (p *Proxy) Close() {
	p.ln.Close()
	p.mu.Lock()
	p.closed = true
	if p.held != nil {
		close(p.held)
		p.held = nil
	}
	p.endLocked()
	p.mu.Unlock()
	p.wg.Wait()
}

// Stats says how many messages passed by, and how many met each kind of fault.
func (p *Proxy) Stats() (seen int64, done map[Kind]int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen, maps.Clone(p.done)
}

// wait returns when the cable is in.
func (p *Proxy) wait() {
	for {
		p.mu.Lock()
		held := p.held
		p.mu.Unlock()
		if held == nil {
			return
		}
		<-held
	}
}

func (p *Proxy) accept() {
	for {
		node, err := p.ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // out of descriptors, perhaps
			continue
		}
		p.wg.Go(func() { p.serve(node) })
	}
}

// enter registers a connection, unless none may be.
func (p *Proxy) enter(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.cut {
		c.Close()
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) leave(c net.Conn) {
	c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

func (p *Proxy) serve(node net.Conn) {
	if !p.enter(node) {
		return
	}
	defer p.leave(node)
	p.wait()
	server, err := net.DialTimeout("tcp", p.cfg.Upstream, 5*time.Second)
	if err != nil {
		return
	}
	if !p.enter(server) {
		return
	}
	defer p.leave(server)
	p.mu.Lock()
	p.count++
	n := p.count
	p.mu.Unlock()
	end := func() { node.Close(); server.Close() }
	var both sync.WaitGroup
	both.Go(func() { defer end(); newPump(p, ToServer, 2*n, node, server, end).run() })
	both.Go(func() { defer end(); newPump(p, ToNode, 2*n+1, server, node, end).run() })
	both.Wait()
}
