package attack

import (
	"context"
	"errors"
	"slices"
	"strings"

	"bulkhead/transfer"
)

// network is a bus in memory that delivers at once, on the caller's goroutine, and
// keeps a copy of everything: what an attacker on the bus has.
type network struct {
	subs    []*subscription
	streams map[string]func(transfer.KVMsg)
	sent    []message
	deaf    bool                                          // nothing is delivered, only kept
	answer  func(subject string, data []byte) []byte      // in place of who listens; nil: none
	change  func(subject string, data []byte) []byte      // of what is published
	refuse  func(subject string, data []byte) (err error) // of what goes into a stream
}

type message struct {
	subject string
	data    []byte
}

type subscription struct {
	subject string
	handler func(transfer.Msg)
}

var errNoAnswer = errors.New("attack: no answer")

func (n *network) keep(subject string, data []byte) []byte {
	data = slices.Clone(data)
	n.sent = append(n.sent, message{subject, data})
	return slices.Clone(data)
}

// last is the latest message of a class: the first word of its subject.
func (n *network) last(class string) message {
	for _, m := range slices.Backward(n.sent) {
		if strings.HasPrefix(m.subject, class+".") {
			return m
		}
	}
	panic(rigError("no " + class + " message was sent"))
}

func (n *network) count(class string) (c int) {
	for _, m := range n.sent {
		if strings.HasPrefix(m.subject, class+".") {
			c++
		}
	}
	return c
}

func match(pattern, subject string) bool {
	if p, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(subject, p) && !strings.Contains(subject[len(p):], ".")
	}
	return pattern == subject
}

// deliver hands a message to who listens; respond may be nil.
func (n *network) deliver(subject string, data []byte, respond func([]byte) error) (heard bool) {
	for _, s := range slices.Clone(n.subs) {
		if match(s.subject, subject) {
			heard = true
			s.handler(transfer.Msg{Subject: subject, Data: slices.Clone(data), Respond: respond})
		}
	}
	return heard
}

// ask is a request and its answer, nil if there is none.
func (n *network) ask(subject string, data []byte) (reply []byte) {
	n.deliver(subject, data, func(b []byte) error { reply = slices.Clone(b); return nil })
	return reply
}

// port is one node's view; all see and may do everything.
type port struct{ n *network }

var _ transfer.Bus = port{}

func (p port) Publish(subject string, data []byte) error {
	data = p.n.keep(subject, data)
	if p.n.change != nil {
		data = p.n.change(subject, data)
	}
	if !p.n.deaf && data != nil {
		p.n.deliver(subject, data, nil)
	}
	return nil
}

func (p port) Request(_ context.Context, subject string, data []byte) ([]byte, error) {
	data = p.n.keep(subject, data)
	if p.n.answer != nil {
		return p.n.answer(subject, data), nil
	}
	if p.n.deaf {
		return nil, errNoAnswer
	}
	if reply := p.n.ask(subject, data); reply != nil {
		return reply, nil
	}
	return nil, errNoAnswer
}

func (p port) Subscribe(subject string, handler func(transfer.Msg)) (func(), error) {
	s := &subscription{subject, handler}
	p.n.subs = append(p.n.subs, s)
	return func() { p.n.subs = slices.DeleteFunc(p.n.subs, func(x *subscription) bool { return x == s }) }, nil
}

func (p port) PublishKV(subject string, data []byte, done func(error)) error {
	data = p.n.keep(subject, data)
	if p.n.refuse != nil {
		if err := p.n.refuse(subject, data); err != nil {
			return err
		}
	}
	if !p.n.deaf {
		if h := p.n.streams[strings.Split(subject, ".")[1]]; h != nil {
			h(transfer.KVMsg{Subject: subject, Data: slices.Clone(data), Ack: func() {}, Term: func() {}})
		}
	}
	done(nil)
	return nil
}

func (p port) ConsumeKV(node string, handler func(transfer.KVMsg), ready func(bool)) (func(), error) {
	p.n.streams[node] = handler
	ready(true)
	return func() { delete(p.n.streams, node) }, nil
}

func (p port) EnsureKV(context.Context, string, int64) error { return nil }
func (p port) DropKV(context.Context, string) error          { return nil }
func (p port) StoredKV(context.Context, string) (int, int64, error) {
	return 0, 0, transfer.ErrNoStream
}
func (p port) Close() {}
