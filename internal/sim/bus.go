package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"bulkhead/transfer"
)

// bus carries messages as the seed says. Everything on its way is a flight; the
// world chooses which one lands next.
type bus struct {
	w       *world
	clients []*client
	flights []flight
	streams []*stream
	hearers []*subscription   // scratch
	tape    []taped           // of earlier messages, for replays
	taken   map[[32]byte]bool // jobs that a node said yes to, by their bytes
	made    int               // clients and streams so far
	heard   carry             // delivers what wants no answer
}

func newBus(w *world) *bus {
	b := &bus{w: w, taken: map[[32]byte]bool{}, flights: w.kit.flights, tape: w.kit.tape}
	b.heard = func(subject string, data []byte) { b.deliver(subject, data, nil) }
	return b
}

// flight is one message, or one word about it, on its way. What goes in one lane
// lands in the order in which it was sent, as on one connection; lane 0 has no order.
type flight struct {
	from int // not before this step
	lane int
	land func()

	// Or, instead of land: a message and who takes it.
	to   carry
	subj string
	data []byte
}

// carry takes a copy of a message where it lands.
type carry func(subject string, data []byte)

// The lanes of a client, and of a stream.
const (
	laneOut    = iota + 1 // what it publishes
	laneKV                // what it publishes into streams
	laneStream            // what a stream delivers
	laneCount
)

// taped is a message as it was sent.
type taped struct {
	subject string
	data    []byte
}

const tapeMax = 48

// client is one node's view of the bus, in one boot.
type client struct {
	b    *bus
	name string
	id   int
	subs []*subscription
	dead bool
	cut  int // partitioned until this step
}

var _ transfer.Bus = (*client)(nil)

type subscription struct {
	c       *client
	subject string // without its star
	any     bool   // any one token may follow
	handler func(transfer.Msg)
	gone    bool
}

func (s *subscription) hears(subject string) bool {
	if !s.any {
		return s.subject == subject
	}
	return strings.HasPrefix(subject, s.subject) && strings.IndexByte(subject[len(s.subject):], '.') < 0
}

func (s *subscription) stop() {
	s.gone = true
	if i := slices.Index(s.c.subs, s); i >= 0 {
		s.c.subs = slices.Delete(s.c.subs, i, i+1)
	}
}

// stream is one decode node's KV stream.
type stream struct {
	w        *world
	node     string
	id       int
	max      int
	bytes    int
	msgs     []*stored
	consumer *consumer
}

type stored struct {
	subject string
	data    []byte
	out     bool // delivered, not acknowledged
	gone    bool
}

type consumer struct {
	c       *client
	handler func(transfer.KVMsg)
}

func (b *bus) client(name string) *client {
	b.made++
	c := &client{b: b, name: name, id: b.made * laneCount, subs: make([]*subscription, 0, 8)}
	b.clients = append(b.clients, c)
	return c
}

// Close is also how a node dies: what is on its way to it is lost.
func (c *client) Close() {
	c.dead, c.subs = true, nil
	for _, s := range c.b.streams {
		if s.consumer != nil && s.consumer.c == c {
			s.consumer = nil
		}
	}
	c.b.clients = slices.DeleteFunc(c.b.clients, func(x *client) bool { return x == c })
}

func (c *client) cutOff() bool { return c.dead || c.cut > c.b.w.step }

// later puts something on its way.
func (b *bus) later(delay, lane int, land func()) {
	b.flights = append(b.flights, flight{from: b.w.step + delay, lane: lane, land: land})
}

// land lets one flight land, any of those whose time has come; it reports whether
// there was one.
func (b *bus) land() bool {
	n := len(b.flights)
	if n == 0 {
		return false
	}
	start := b.w.rng.IntN(n)
	for i := range n {
		at := (start + i) % n
		if lane := b.flights[at].lane; lane != 0 {
			for at = 0; b.flights[at].lane != lane; at++ { // the first that was sent in it
			}
		}
		if b.flights[at].from <= b.w.step {
			f := b.flights[at]
			b.flights = slices.Delete(b.flights, at, at+1)
			if f.to != nil {
				f.to(f.subj, f.data)
			} else {
				f.land()
			}
			return true
		}
	}
	return false
}

// send lets the faults decide about a message. deliver is called for each copy
// that lands, lost if there is none.
func (b *bus) send(from *client, lane int, subject string, data []byte, deliver carry, lost func()) {
	w := b.w
	b.listen(subject, data)
	if lane == laneKV { // its sender uses the bytes again
		data = w.kit.bytes.clone(data)
	} else {
		deliver = b.kept(data, deliver)
	}
	f := &w.f
	rarely := 1 // an output that is lost or comes twice ends its request: not in every schedule
	if class(subject) == "out" {
		rarely = 8
	}
	drop := from != nil && from.cutOff() || w.chance(f.drop/rarely)
	copies := 1
	if w.chance(f.duplicate / rarely) {
		copies++
	}
	if len(b.tape) < tapeMax {
		b.tape = append(b.tape, taped{subject, data})
	} else if w.rng.IntN(8) == 0 {
		b.tape[w.rng.IntN(tapeMax)] = taped{subject, data}
	}
	if drop {
		if w.out != nil {
			w.logf("lost       %s", short(subject))
		}
		if lost != nil {
			b.later(1+w.rng.IntN(20), 0, lost)
		}
		return
	}
	for range copies {
		delay, to, bytes, in := 0, subject, data, 0
		if from != nil {
			in = from.id + lane
		}
		if w.chance(f.reorder/rarely) || copies > 1 {
			in = 0
		}
		if w.chance(f.delay / rarely) {
			delay, in = w.rng.IntN(300), 0
		}
		if w.chance(f.corrupt/rarely) && len(data) > 0 {
			bytes = slices.Clone(data)
			bytes[w.rng.IntN(len(bytes))] ^= 1 << w.rng.IntN(8)
			w.logf("corrupted  %s", short(subject))
		}
		if w.chance(f.misroute / rarely) {
			if other := b.likeIt(subject); other != "" {
				to = other
				w.logf("misrouted  %s to %s", short(subject), short(to))
			}
		}
		b.flights = append(b.flights, flight{from: w.step + delay, lane: in, to: deliver, subj: to, data: bytes})
	}
}

// listen is the reader of the bus: it must not learn anything.
func (b *bus) listen(subject string, data []byte) {
	for i, needle := range secrets {
		if strings.Contains(subject, needle) || bytes.Contains(data, needles[i]) {
			b.w.violate("plaintext on the bus: %q in a message on %s", needle, short(subject))
		}
	}
}

// yes watches what nodes answer: one token is taken once, or its keys are used twice.
func (b *bus) yes(asked, reply []byte) {
	if !bytes.Contains(reply[:min(len(reply), 32)], []byte("accept")) {
		return
	}
	d := b.w.auth.digest()
	d.bytes(asked)
	h := d.sum()
	if b.taken[h] {
		b.w.violate("one job was taken twice: its token, and the keys that hang on it")
	}
	b.taken[h] = true
}

// likeIt is the subject of another message of the same kind.
func (b *bus) likeIt(subject string) string {
	for range 4 {
		if len(b.tape) == 0 {
			return ""
		}
		if t := b.tape[b.w.rng.IntN(len(b.tape))]; t.subject != subject && class(t.subject) == class(subject) {
			return t.subject
		}
	}
	return ""
}

// replay sends a message of the past again, to where it went or to where another
// of its kind went.
func (b *bus) replay() {
	if len(b.tape) == 0 {
		return
	}
	t := b.tape[b.w.rng.IntN(len(b.tape))]
	to := t.subject
	if b.w.rng.IntN(3) == 0 {
		if other := b.likeIt(to); other != "" {
			to = other
		}
	}
	b.w.logf("replayed   %s on %s", short(t.subject), short(to))
	data := t.data
	b.later(0, 0, func() {
		if class(to) == "kv" {
			_ = b.store(to, data) // a full stream refuses a replay too
			return
		}
		b.deliver(to, data, func(reply []byte) error { b.yes(data, reply); return nil })
	})
}

// deliver hands a message to who listens at this moment; it reports whether
// anybody did.
func (b *bus) deliver(subject string, data []byte, respond func([]byte) error) bool {
	to := b.hearers[:0]
	for _, c := range b.clients {
		for _, s := range c.subs {
			if s.hears(subject) {
				to = append(to, s)
			}
		}
	}
	b.hearers = nil // a handler may deliver in turn
	for _, s := range to {
		if !s.gone && !s.c.cutOff() {
			if b.w.out != nil {
				b.w.logf("           %s hears %s", s.c.name, short(subject))
			}
			if !b.w.kit.suspicious {
				s.handler(transfer.Msg{Subject: subject, Data: data, Respond: respond})
				continue
			}
			same := b.unchanged(data)
			s.handler(transfer.Msg{Subject: subject, Data: data, Respond: respond})
			same(subject)
		}
	}
	b.hearers = to
	return len(to) > 0
}

// kept is deliver, which finds out, in a world that was asked to, whether a sender
// changed bytes that it had handed over.
func (b *bus) kept(data []byte, deliver carry) carry {
	if !b.w.kit.suspicious {
		return deliver
	}
	before := slices.Clone(data)
	return func(subject string, landed []byte) {
		if !bytes.Equal(before, data) {
			b.w.violate("a message was changed by its sender on its way: %s", short(subject))
		}
		deliver(subject, landed)
	}
}

// unchanged returns what finds out whether bytes were changed since, in a world
// that was asked to.
func (b *bus) unchanged(data []byte) func(subject string) {
	if !b.w.kit.suspicious {
		return func(string) {}
	}
	before := slices.Clone(data)
	return func(subject string) {
		if !bytes.Equal(before, data) {
			b.w.violate("a message that others hear too was changed by a hearer: %s", short(subject))
		}
	}
}

func (c *client) Publish(subject string, data []byte) error {
	if c.dead {
		return transfer.ErrClosed
	}
	c.b.send(c, laneOut, subject, data, c.b.heard, nil)
	return nil
}

// Request waits, and nothing here may: the roles ask through world.ask.
func (c *client) Request(context.Context, string, []byte) ([]byte, error) {
	return nil, errors.New("sim: a request that waits")
}

// ask is Request with a callback.
func (c *client) ask(q *transfer.Question, done func([]byte, error)) {
	b := c.b
	once := func(reply []byte, err error) {
		if done != nil && !c.dead {
			f := done
			done = nil
			f(reply, err)
		}
	}
	b.send(c, laneOut, q.Subject, q.Data, func(subject string, data []byte) {
		heard := b.deliver(subject, data, func(reply []byte) error {
			b.yes(data, reply)
			b.send(nil, 0, "reply."+subject, reply, func(_ string, reply []byte) {
				if !c.cutOff() {
					once(reply, nil)
				}
			}, nil)
			return nil
		})
		if !heard {
			b.later(0, 0, func() { once(nil, fmt.Errorf("%w: nobody listens", transfer.ErrNodeLost)) })
		}
	}, nil)
}

func (c *client) Subscribe(subject string, handler func(transfer.Msg)) (func(), error) {
	if c.dead {
		return nil, transfer.ErrClosed
	}
	name, star := strings.CutSuffix(subject, "*")
	s := &subscription{c: c, subject: name, any: star, handler: handler}
	c.subs = append(c.subs, s)
	return s.stop, nil
}

func (b *bus) stream(node string) *stream {
	for _, s := range b.streams {
		if s.node == node {
			return s
		}
	}
	return nil
}

func (c *client) PublishKV(subject string, data []byte, done func(error)) error {
	if c.dead {
		return transfer.ErrClosed
	}
	b, told := c.b, false
	tell := func(err error) {
		if !told && !c.dead {
			told = true
			done(err)
		}
	}
	b.send(c, laneKV, subject, data, func(subject string, data []byte) {
		err := b.store(subject, data)
		if b.w.chance(b.w.f.drop) { // stored, and the sender does not hear of it
			err = transfer.ErrAckTimeout
		}
		b.later(0, 0, func() { tell(err) })
	}, func() { tell(transfer.ErrAckTimeout) })
	return nil
}

func (b *bus) store(subject string, data []byte) error {
	_, node, _ := strings.Cut(subject, ".")
	node, _, ok := strings.Cut(node, ".")
	if !ok {
		return transfer.ErrNoStream
	}
	s := b.stream(node)
	if s == nil {
		return transfer.ErrNoStream
	}
	if s.bytes+len(data) > s.max {
		if b.w.out != nil {
			b.w.logf("full       %s", short(subject))
		}
		return transfer.ErrStreamFull
	}
	s.bytes += len(data)
	s.msgs = append(s.msgs, &stored{subject: subject, data: data})
	b.pump(s)
	return nil
}

// lane is the stream's own, unless what it delivers changes places.
func (s *stream) lane() int {
	if s.w.chance(s.w.f.reorder) {
		return 0
	}
	return s.id + laneStream
}

// pump puts what is not yet delivered on its way to the consumer.
func (b *bus) pump(s *stream) {
	if s.consumer == nil {
		return
	}
	for _, m := range s.msgs {
		if !m.out {
			m.out = true
			b.later(0, s.lane(), func() { b.hand(s, m) })
		}
	}
}

func (b *bus) hand(s *stream, m *stored) {
	k := s.consumer
	switch {
	case m.gone:
		return
	case k == nil || k.c.cutOff():
		m.out = false
		return
	}
	if b.w.out != nil {
		b.w.logf("           %s takes %s %s", s.node, short(m.subject), what(m.data))
	}
	end := func() {
		if b.w.chance(b.w.f.drop) { // the acknowledgement is lost: it comes again
			return
		}
		if !m.gone {
			m.gone = true
			s.bytes -= len(m.data)
			s.msgs = slices.DeleteFunc(s.msgs, func(x *stored) bool { return x == m })
		}
	}
	same := b.unchanged(m.data)
	k.handler(transfer.KVMsg{Subject: m.subject, Data: m.data, Ack: end, Term: end})
	same(m.subject)
}

// redeliver delivers again what was not acknowledged.
func (b *bus) redeliver(s *stream) {
	for _, m := range s.msgs {
		m.out = false
	}
	b.pump(s)
}

func (c *client) ConsumeKV(node string, handler func(transfer.KVMsg), ready func(bool)) (func(), error) {
	s := c.b.stream(node)
	if s == nil {
		return nil, transfer.ErrNoStream
	}
	k := &consumer{c, handler}
	s.consumer = k
	c.b.redeliver(s)
	ready(true)
	return func() {
		if s.consumer == k {
			s.consumer = nil
		}
	}, nil
}

func (c *client) EnsureKV(context.Context, string, int64) error { return nil }
func (c *client) DropKV(context.Context, string) error          { return nil }
func (c *client) StoredKV(context.Context, string) (int, int64, error) {
	return 0, 0, transfer.ErrNoStream
}

// short is a subject without what differs from seed to seed in no readable way.
func short(subject string) string {
	t := strings.Split(subject, ".")
	for i, w := range t {
		if len(w) == 26 {
			t[i] = w[:5]
		}
	}
	return strings.Join(t, ".")
}

// what a message of a KV stream is.
func what(data []byte) string {
	if bytes.HasPrefix(data, []byte("BKHF")) && len(data) > 64 {
		return fmt.Sprintf("frame %d", data[63])
	}
	for _, k := range []string{"kv.open", "kv.manifest", "kv.reject"} {
		if bytes.Contains(data[:min(len(data), 64)], []byte(k)) {
			return k
		}
	}
	return "?"
}
