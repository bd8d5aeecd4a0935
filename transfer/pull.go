package transfer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// ConsumeKV implements [Bus]. One goroutine owns the pull: it probes until the
// durable consumer answers, keeps at most kvPullBatch frames on their way, and
// probes again when the consumer falls silent, is deleted, or the connection
// was lost. It needs one right only, to ask its own consumer for messages.
//
// The server does not check the reply subject of such a request: another
// node's consumer can be made to deliver into this one's inbox. Those messages
// bear their own subject, are dropped, and counted as CountForeignKV.
func (c *Conn) ConsumeKV(node string, handler func(KVMsg), ready func(bool)) (func(), error) {
	if err := CheckName(node); err != nil {
		return nil, err
	}
	inbox := c.nc.NewInbox()
	sub, err := c.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, c.wrap("subscribe", inbox, err)
	}
	// Bounded by the pull: at most two batches are ever on their way.
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, c.wrap("subscribe", inbox, err)
	}
	if err := c.settle(inbox); err != nil {
		return nil, err
	}
	if ready == nil {
		ready = func(bool) {}
	}
	p := &puller{c: c, node: node, inbox: inbox, sub: sub, handler: handler, ready: ready, again: make(chan struct{}, 1)}
	c.mu.Lock()
	c.watchers[p.again] = struct{}{}
	c.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.run(ctx)
	}()
	var once sync.Once
	return func() {
		once.Do(func() {
			c.mu.Lock()
			delete(c.watchers, p.again)
			c.mu.Unlock()
			cancel()
			sub.Unsubscribe() //nolint:errcheck // fails only on a closed connection
		})
		<-ended
	}, nil
}

type puller struct {
	c       *Conn
	node    string
	inbox   string
	sub     *nats.Subscription
	handler func(KVMsg)
	ready   func(bool)
	again   chan struct{} // the connection was made again

	// Owned by run.
	pulling     bool      // the consumer answered; false: probing
	outstanding int       // frames asked for and not yet here
	heard       time.Time // when the consumer last said anything
}

func (p *puller) run(ctx context.Context) {
	p.probe()
	for {
		m, err := p.next(ctx)
		if ctx.Err() != nil {
			return
		}
		select {
		case <-p.again:
			p.broken("connection lost")
			p.probe()
		default:
		}
		switch {
		case err == nil:
			p.take(m)
		case errors.Is(err, nats.ErrTimeout):
			if p.pulling && time.Since(p.heard) < kvSilence {
				continue
			}
			p.broken("no heartbeat")
			p.probe()
		default: // closed
			return
		}
	}
}

func (p *puller) next(ctx context.Context) (*nats.Msg, error) {
	m, err := p.sub.NextMsg(kvRetry)
	if err != nil && ctx.Err() == nil && !errors.Is(err, nats.ErrTimeout) && !p.c.nc.IsClosed() && p.sub.IsValid() {
		err = nats.ErrTimeout // slow consumer and the like: go on
	}
	return m, err
}

// probe asks for one message without waiting: an existing consumer answers at
// once, with a message or with 404; a missing one is 503.
func (p *puller) probe() {
	p.request(`{"batch":1,"no_wait":true}`)
}

func (p *puller) refill() {
	if n := kvPullBatch - p.outstanding; n >= kvPullBatch/2 {
		p.outstanding += n
		p.request(fmt.Sprintf(`{"batch":%d,"expires":%d,"idle_heartbeat":%d}`, n, kvExpires, kvHeartbeat))
	}
}

func (p *puller) request(body string) {
	subject := "$JS.API.CONSUMER.MSG.NEXT." + KVStreamName(p.node) + "." + p.node
	if err := p.c.nc.PublishRequest(subject, p.inbox, []byte(body)); err != nil {
		p.c.log.Debug("nats: cannot ask for KV frames", "err", err)
	}
}

func (p *puller) take(m *nats.Msg) {
	if status := m.Header.Get("Status"); status != "" && len(m.Data) == 0 {
		p.status(status, m)
		return
	}
	p.alive()
	p.outstanding = max(0, p.outstanding-1)
	data, recycle := m.Data, func() {}
	if payload, isNote := p.c.bulk.take(m.Data); isNote {
		if payload == nil {
			p.answer(m, "-NAK") // it comes again
			p.heard = time.Now()
			p.refill()
			return
		}
		var once sync.Once
		data, recycle = payload, func() { once.Do(func() { p.c.bulk.recycle(payload) }) }
	}
	if s, err := ParseKV(m.Subject); err != nil || s.Decode != p.node {
		p.c.cfg.Counters.add(CountForeignKV)
		p.c.log.Error("nats: a message that is not of this node's KV stream was delivered to it", "subject", m.Subject)
		if strings.HasPrefix(m.Reply, "$JS.ACK."+KVStreamName(p.node)+".") {
			p.answer(m, "+TERM")
		}
		recycle()
	} else {
		end := func(what string) func() {
			return func() { p.answer(m, what); recycle() }
		}
		p.handler(KVMsg{Subject: m.Subject, Data: data, Ack: end("+ACK"), Term: end("+TERM")})
	}
	p.heard = time.Now()
	p.refill()
}

func (p *puller) answer(m *nats.Msg, what string) {
	if m.Reply == "" {
		return
	}
	if err := p.c.nc.Publish(m.Reply, []byte(what)); err != nil {
		p.c.log.Warn("nats: cannot acknowledge a KV frame; it will come again", "err", err)
	}
}

// status reads what the consumer says when it has no message to give.
func (p *puller) status(status string, m *nats.Msg) {
	switch status {
	case "100": // heartbeat
		p.alive()
	case "404": // the probe found nothing
		p.alive()
		p.refill()
	case "408": // a pull ran out with so many messages undelivered
		p.alive()
		left, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages"))
		if err != nil || left < 0 {
			left = p.outstanding
		}
		p.outstanding = max(0, p.outstanding-left)
		p.refill()
	case "503": // no consumer
		p.broken("no consumer")
	default: // 409: deleted, server shutting down, leader changed, too many pulls
		p.broken(m.Header.Get("Description"))
	}
}

func (p *puller) alive() {
	p.heard = time.Now()
	if !p.pulling {
		p.pulling = true
		p.c.log.Info("nats: KV consumer is there", "node", p.node)
		p.ready(true)
	}
}

func (p *puller) broken(why string) {
	p.outstanding = 0
	if p.pulling {
		p.pulling = false
		p.c.log.Warn("nats: KV consumer is gone", "node", p.node, "why", why)
		p.ready(false)
	}
}
