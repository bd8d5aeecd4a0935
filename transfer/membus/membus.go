// Package membus is a [transfer.Bus] in memory, for tests and the simulator.
//
// One [Bus] stands for the server; each node has its [Client]. Everything that
// the bus does for a client (deliver a message, store a frame, confirm it) is an
// event in one queue. Events run one at a time, in the order in which they were
// caused, either on the bus's own goroutine or, with Manual, when the caller
// says [Bus.Step]. The same inputs give the same order, always.
//
// Options.Faults sees every message before it is delivered and may lose it,
// repeat it, hold it back, change its bytes, or send it elsewhere.
//
// What differs from NATS: handlers of all subscriptions share one goroutine, so
// one that waits for the bus waits for ever; nobody's permissions are checked; messages
// of a KV stream do not age; one that is not acknowledged comes again only
// when [Bus.Redeliver] says so.
package membus

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"bulkhead/transfer"
)

// Kind says at which step of its way a message meets Faults.
type Kind uint8

// The kinds.
const (
	Publish Kind = iota // to its subscribers
	Request             // to its one listener
	Reply               // back to who asked
	KV                  // into a stream
	Deliver             // out of a stream, to its consumer
	Ack                 // an acknowledgement to a stream; lost, the message stays in it
)

// Message is what Faults decides about. Data must not be changed.
type Message struct {
	Kind    Kind
	From    string // the client that sent it; "" for Deliver
	Subject string
	Data    []byte
}

// Verdict is what happens to a message. The zero value lets it pass.
type Verdict struct {
	Drop    bool   // it is lost
	Repeat  int    // it comes so many times more
	Delay   int    // so many events that come after it go in front
	Subject string // if not "", it is sent here
	Data    []byte // if not nil, these are its bytes
}

// Options makes a [Bus].
type Options struct {
	Faults func(Message) Verdict // nil: nothing happens to messages
	Manual bool                  // events run only in Step
}

// Bus is the server of a cluster in memory.
type Bus struct {
	faults func(Message) Verdict
	wake   chan struct{}
	ended  chan struct{}

	mu      sync.Mutex
	queue   []func()
	clients []*Client
	streams map[string]*stream // by node
	closed  bool
}

// New makes a bus. Close must be called.
func New(o Options) *Bus {
	b := &Bus{faults: o.Faults, wake: make(chan struct{}, 1), ended: make(chan struct{}), streams: map[string]*stream{}}
	if b.faults == nil {
		b.faults = func(Message) Verdict { return Verdict{} }
	}
	if o.Manual {
		close(b.ended)
	} else {
		go b.run()
	}
	return b
}

// Close ends the bus; events that are left do not happen.
func (b *Bus) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.poke()
	<-b.ended
}

// Step runs the next event and reports whether there was one.
func (b *Bus) Step() bool {
	b.mu.Lock()
	if len(b.queue) == 0 || b.closed {
		b.mu.Unlock()
		return false
	}
	f := b.queue[0]
	b.queue = b.queue[1:]
	b.mu.Unlock()
	f()
	return true
}

// Pending returns how many events wait.
func (b *Bus) Pending() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue)
}

func (b *Bus) run() {
	defer close(b.ended)
	for range b.wake {
		for b.Step() {
		}
		b.mu.Lock()
		closed := b.closed
		b.mu.Unlock()
		if closed {
			return
		}
	}
}

func (b *Bus) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// later queues an event. mu is held.
func (b *Bus) later(f func()) {
	b.queue = append(b.queue, f)
	b.poke()
}

// send lets Faults decide about a message, then queues its delivery: deliver
// is called for each copy, lost once if there is none. Both run as events, without locks. mu is not held.
func (b *Bus) send(m Message, deliver func(subject string, data []byte), lost func()) {
	v := b.faults(m)
	if v.Subject != "" {
		m.Subject = v.Subject
	}
	if v.Data != nil {
		m.Data = v.Data
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if v.Drop {
		if lost != nil {
			b.later(lost)
		}
		return
	}
	event := func() { deliver(m.Subject, slices.Clone(m.Data)) }
	if v.Delay > 0 {
		b.delay(v.Delay, event)
	} else {
		b.later(event)
	}
	for range v.Repeat {
		b.later(event)
	}
}

// delay queues an event that lets n others pass, as long as there are others. mu is held.
func (b *Bus) delay(n int, f func()) {
	b.later(func() {
		b.mu.Lock()
		if n > 0 && len(b.queue) > 0 {
			defer b.mu.Unlock()
			b.delay(n-1, f)
			return
		}
		b.mu.Unlock()
		f()
	})
}

// A Client is one node's view of the bus.
type Client struct {
	b    *Bus
	name string

	// Guarded by b.mu.
	subs []*subscription
	dead bool
}

var _ transfer.Bus = (*Client)(nil)

type subscription struct {
	c       *Client
	subject []string
	handler func(transfer.Msg)
}

// Client makes a node's view of the bus.
func (b *Bus) Client(name string) *Client {
	c := &Client{b: b, name: name}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clients = append(b.clients, c)
	return c
}

// Close implements [transfer.Bus]. It is also how a node dies: what is on its
// way to the client is lost.
func (c *Client) Close() {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	c.dead = true
	c.subs = nil
	c.b.clients = slices.DeleteFunc(c.b.clients, func(x *Client) bool { return x == c })
	for _, s := range c.b.streams {
		if s.consumer != nil && s.consumer.c == c {
			s.consumer = nil
		}
	}
}

func (c *Client) alive() error {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.dead || c.b.closed {
		return transfer.ErrClosed
	}
	return nil
}

// listeners returns who listens on a subject now. mu is not held.
func (b *Bus) listeners(subject string) []*subscription {
	tokens := strings.Split(subject, ".")
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []*subscription
	for _, c := range b.clients {
		for _, s := range c.subs {
			if match(s.subject, tokens) {
				out = append(out, s)
			}
		}
	}
	return out
}

// match reports whether a subject matches a pattern with "*" and ">".
func match(pattern, subject []string) bool {
	for i, p := range pattern {
		switch {
		case p == ">":
			return i < len(subject)
		case i >= len(subject) || p != "*" && p != subject[i]:
			return false
		}
	}
	return len(pattern) == len(subject)
}

// deliver hands a message to who listens at this moment.
func (b *Bus) deliver(subject string, data []byte, respond func([]byte) error) {
	for _, s := range b.listeners(subject) {
		b.mu.Lock()
		gone := !slices.Contains(s.c.subs, s)
		b.mu.Unlock()
		if !gone {
			s.handler(transfer.Msg{Subject: subject, Data: slices.Clone(data), Respond: respond})
		}
	}
}

// Publish implements [transfer.Bus].
func (c *Client) Publish(subject string, data []byte) error {
	if err := c.alive(); err != nil {
		return err
	}
	c.b.send(Message{Publish, c.name, subject, slices.Clone(data)}, func(subject string, data []byte) {
		c.b.deliver(subject, data, nil)
	}, nil)
	return nil
}

// Request implements [transfer.Bus].
func (c *Client) Request(ctx context.Context, subject string, data []byte) ([]byte, error) {
	if err := c.alive(); err != nil {
		return nil, err
	}
	if len(c.b.listeners(subject)) == 0 {
		return nil, fmt.Errorf("%w: request %s", transfer.ErrNoResponders, subject)
	}
	answers := make(chan []byte, 1)
	respond := func(answer []byte) error {
		c.b.send(Message{Reply, "", subject, slices.Clone(answer)}, func(_ string, answer []byte) {
			select {
			case answers <- answer:
			default: // the first answer counts
			}
		}, nil)
		return nil
	}
	c.b.send(Message{Request, c.name, subject, slices.Clone(data)}, func(subject string, data []byte) {
		c.b.deliver(subject, data, respond)
	}, nil)
	select {
	case a := <-answers:
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Subscribe implements [transfer.Bus].
func (c *Client) Subscribe(subject string, handler func(transfer.Msg)) (func(), error) {
	s := &subscription{c: c, subject: strings.Split(subject, "."), handler: handler}
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.dead || c.b.closed {
		return nil, transfer.ErrClosed
	}
	c.subs = append(c.subs, s)
	return func() {
		c.b.mu.Lock()
		defer c.b.mu.Unlock()
		c.subs = slices.DeleteFunc(c.subs, func(x *subscription) bool { return x == s })
	}, nil
}
