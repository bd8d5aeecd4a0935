package transfer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"bulkhead/internal/identity"
	"bulkhead/internal/mutant"
)

// SendCancel ends an attempt on a node and returns when the node has confirmed
// that its pages are on their way back. A node that is not there is ErrNodeLost.
func (p *Peer) SendCancel(ctx context.Context, node string, c Cancel) error {
	q, err := p.NewCancelQuestion(node, c)
	if err != nil {
		return err
	}
	reply, err := p.bus.Request(ctx, q.Subject, q.Data)
	if errors.Is(err, ErrNoResponders) {
		return fmt.Errorf("%w: nobody listens on %s", ErrNodeLost, q.Subject)
	}
	if err != nil {
		return err
	}
	return q.Confirmed(reply)
}

// CancelQuestion is a cancellation on its way: SendCancel for a caller that
// waits for the answer itself.
type CancelQuestion struct {
	*Question
	hash Hash
}

// NewCancelQuestion signs a cancellation.
func (p *Peer) NewCancelQuestion(node string, c Cancel) (*CancelQuestion, error) {
	body, err := cancels.encode(&c)
	if err != nil {
		return nil, err
	}
	subject := CancelSubject(node)
	q, err := p.question(subject, node, kindCancel, subject, body, kindCancelled)
	if err != nil {
		return nil, err
	}
	return &CancelQuestion{q, c.TokenHash}, nil
}

// Confirmed returns nil if an answer says that the attempt ended.
func (q *CancelQuestion) Confirmed(reply []byte) error {
	e, _, err := q.read(reply)
	if err != nil {
		return err
	}
	back, err := cancels.decode(e.Body)
	if err != nil {
		return err
	}
	if back.TokenHash != q.hash && !mutant.Off(mutant.CancelToken) {
		return fmt.Errorf("%w: cancellation of another attempt confirmed", ErrEnvelope)
	}
	return nil
}

// ServeCancel hears cancellations. The handler calls done, from any goroutine, once the
// attempt's pages are on their way back, or at once for an attempt it does not know.
func (p *Peer) ServeCancel(handler func(c Cancel, from identity.Peer, done func())) (stop func(), err error) {
	subject := CancelSubject(p.node.Name)
	return p.bus.Subscribe(subject, func(m Msg) {
		e, from, err := p.verify(m.Data, subject, kindCancel)
		if err != nil {
			p.refuse(m.Subject, err)
			return
		}
		c, err := cancels.decode(e.Body)
		if err != nil {
			p.counters.add(CountBadMessage)
			p.refuse(m.Subject, err)
			return
		}
		handler(c, from, func() { p.answer(m, kindCancelled, e.Body) })
	})
}

// ping is a question that no earlier answer fits.
type ping struct {
	Nonce [16]byte `msgpack:"nonce"`
}

// Ping asks whether a node is alive, and in which boot. A node that is not
// there is ErrNodeLost at once.
func (p *Peer) Ping(ctx context.Context, node string) (Pong, error) {
	var q ping
	rand.Read(q.Nonce[:])
	body, err := pings.encode(&q)
	if err != nil {
		return Pong{}, err
	}
	subject := PingSubject(node)
	e, _, err := p.ask(ctx, subject, node, kindPing, subject, body, kindPong)
	if err != nil {
		return Pong{}, err
	}
	return pongs.decode(e.Body)
}

// ServePing answers pings with what state returns.
func (p *Peer) ServePing(state func() Pong) (stop func(), err error) {
	subject := PingSubject(p.node.Name)
	return p.bus.Subscribe(subject, func(m Msg) {
		if _, _, err := p.verify(m.Data, subject, kindPing); err != nil {
			p.refuse(m.Subject, err)
			return
		}
		now := state()
		body, err := pongs.encode(&now)
		if err != nil {
			p.refuse(m.Subject, err)
			return
		}
		p.answer(m, kindPong, body)
	})
}

// SendCredit lets a prefill node publish more of an attempt. It may get lost;
// the next one says everything again.
func (p *Peer) SendCredit(prefill string, c Credit) error {
	subject := CreditSubject(prefill, p.node.Name)
	data, err := signBody(p, &credits, &c, kindCredit, subject)
	if err != nil {
		return err
	}
	return p.bus.Publish(subject, data)
}

// ServeCredit hears the credits of decode nodes. The caller still checks the
// MAC with the attempt's credit key, and that the attempt is with this decode node.
func (p *Peer) ServeCredit(handler func(c Credit, from identity.Peer)) (stop func(), err error) {
	return p.bus.Subscribe(CreditSubject(p.node.Name, "*"), func(m Msg) {
		prefill, decode, err := ParseCredit(m.Subject)
		if err != nil || prefill != p.node.Name {
			p.counters.add(CountBadSubject)
			p.refuse(m.Subject, err)
			return
		}
		e, from, err := p.verify(m.Data, m.Subject, kindCredit)
		if err != nil {
			p.refuse(m.Subject, err)
			return
		}
		if from.Name != decode && !mutant.Off(mutant.CreditName) {
			p.counters.add(CountBadEnvelope)
			p.refuse(m.Subject, fmt.Errorf("%w: %s sent a credit as %s", ErrEnvelope, from.Name, decode))
			return
		}
		c, err := credits.decode(e.Body)
		if err != nil {
			p.counters.add(CountBadMessage)
			p.refuse(m.Subject, err)
			return
		}
		handler(c, from)
	})
}
