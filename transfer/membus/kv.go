package membus

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"bulkhead/transfer"
)

// stream is one node's KV stream. Everything in it is guarded by the bus's mu.
type stream struct {
	exists   bool
	maxBytes int64
	bytes    int64
	msgs     []*stored
	consumer *consumer
}

type stored struct {
	subject string
	data    []byte
	out     bool // delivered and not yet acknowledged
}

type consumer struct {
	c       *Client
	handler func(transfer.KVMsg)
	ready   func(bool)
}

func (b *Bus) stream(node string) *stream {
	s := b.streams[node]
	if s == nil {
		s = &stream{}
		b.streams[node] = s
	}
	return s
}

// EnsureKV implements [transfer.Bus].
func (c *Client) EnsureKV(_ context.Context, node string, maxBytes int64) error {
	if err := transfer.CheckName(node); err != nil {
		return err
	}
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.dead || c.b.closed {
		return transfer.ErrClosed
	}
	s := c.b.stream(node)
	fresh := !s.exists
	s.exists, s.maxBytes = true, maxBytes
	if fresh {
		c.b.announce(s, true)
		c.b.pump(s)
	}
	return nil
}

// DropKV implements [transfer.Bus].
func (c *Client) DropKV(_ context.Context, node string) error {
	if err := transfer.CheckName(node); err != nil {
		return err
	}
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.dead || c.b.closed {
		return transfer.ErrClosed
	}
	c.b.drop(c.b.stream(node))
	return nil
}

// drop removes a stream with all it holds. mu is held.
func (b *Bus) drop(s *stream) {
	if s.exists {
		s.exists, s.bytes, s.msgs = false, 0, nil
		b.announce(s, false)
	}
}

// announce tells the consumer that its stream is there, or gone. mu is held.
func (b *Bus) announce(s *stream, up bool) {
	if k := s.consumer; k != nil {
		b.later(func() { k.ready(up) })
	}
}

// Restart is what a server's restart does: every memory stream is gone.
func (b *Bus) Restart() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, node := range b.nodes() {
		b.drop(b.streams[node])
	}
}

// Redeliver delivers again what a node's consumer holds unacknowledged.
func (b *Bus) Redeliver(node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stream(node)
	for _, m := range s.msgs {
		m.out = false
	}
	b.pump(s)
}

// StoredKV implements [transfer.Bus].
func (c *Client) StoredKV(_ context.Context, node string) (msgs int, bytes int64, err error) {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	s := c.b.streams[node]
	if s == nil || !s.exists {
		return 0, 0, fmt.Errorf("%w: of %s", transfer.ErrNoStream, node)
	}
	return len(s.msgs), s.bytes, nil
}

func (b *Bus) nodes() []string {
	var out []string
	for node := range b.streams {
		out = append(out, node)
	}
	slices.Sort(out)
	return out
}

// PublishKV implements [transfer.Bus].
func (c *Client) PublishKV(subject string, data []byte, done func(error)) error {
	if err := c.alive(); err != nil {
		return err
	}
	told := false // copies of one message are confirmed once
	tell := func(err error) {
		if !told {
			told = true
			done(err)
		}
	}
	c.b.send(Message{KV, c.name, subject, slices.Clone(data)}, func(subject string, data []byte) {
		tell(c.b.store(subject, data))
	}, func() { tell(transfer.ErrAckTimeout) })
	return nil
}

// store puts a message into the stream that listens on its subject.
func (b *Bus) store(subject string, data []byte) error {
	t := strings.Split(subject, ".")
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(t) < 3 || t[0] != "kv" || b.streams[t[1]] == nil || !b.streams[t[1]].exists {
		return transfer.ErrNoStream
	}
	s := b.streams[t[1]]
	size := int64(len(subject) + len(data))
	if s.bytes+size > s.maxBytes {
		return fmt.Errorf("%w: %d bytes, limit %d", transfer.ErrStreamFull, s.bytes+size, s.maxBytes)
	}
	s.bytes += size
	s.msgs = append(s.msgs, &stored{subject: subject, data: data})
	b.pump(s)
	return nil
}

// pump queues the delivery of what is not yet delivered. mu is held.
func (b *Bus) pump(s *stream) {
	if s.consumer == nil || !s.exists {
		return
	}
	for _, m := range s.msgs {
		if !m.out {
			m.out = true
			b.later(func() { b.hand(s, m) })
		}
	}
}

// hand delivers one stored message to the consumer there is.
func (b *Bus) hand(s *stream, m *stored) {
	b.mu.Lock()
	k := s.consumer
	gone := !slices.Contains(s.msgs, m)
	if k == nil {
		m.out = false
	}
	b.mu.Unlock()
	if k == nil || gone {
		return
	}
	end := func() {
		b.send(Message{Ack, k.c.name, m.subject, nil}, func(string, []byte) { b.remove(s, m) }, nil)
	}
	b.send(Message{Deliver, "", m.subject, m.data}, func(subject string, data []byte) {
		b.mu.Lock()
		current := s.consumer == k
		b.mu.Unlock()
		if current {
			k.handler(transfer.KVMsg{Subject: subject, Data: data, Ack: end, Term: end})
		}
	}, nil)
}

func (b *Bus) remove(s *stream, m *stored) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(s.msgs, m); i >= 0 {
		s.msgs = slices.Delete(s.msgs, i, i+1)
		s.bytes -= int64(len(m.subject) + len(m.data))
	}
}

// ConsumeKV implements [transfer.Bus]. A second consumer of a node takes the
// place of the first, and gets all that is not acknowledged.
func (c *Client) ConsumeKV(node string, handler func(transfer.KVMsg), ready func(bool)) (func(), error) {
	if err := transfer.CheckName(node); err != nil {
		return nil, err
	}
	if ready == nil {
		ready = func(bool) {}
	}
	k := &consumer{c, handler, ready}
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.dead || c.b.closed {
		return nil, transfer.ErrClosed
	}
	s := c.b.stream(node)
	s.consumer = k
	if s.exists {
		c.b.announce(s, true)
		for _, m := range s.msgs {
			m.out = false
		}
		c.b.pump(s)
	}
	return func() {
		c.b.mu.Lock()
		defer c.b.mu.Unlock()
		if s.consumer == k {
			s.consumer = nil
		}
	}, nil
}
