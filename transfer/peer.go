package transfer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/transfer/seal"
)

// Options makes a [Peer].
type Options struct {
	Bus       Bus
	Node      *identity.Node
	Authority *identity.Authority
	Suite     Suite            // nil: that of Node and Authority
	Cluster   string           // part of what jobs are sealed to
	Clock     func() time.Time // nil: time.Now
	// After calls f when d has passed; nil: time.AfterFunc. With one given, a
	// Directory forgets only when it is asked.
	After    func(d time.Duration, f func())
	Log      *slog.Logger // nil: silent
	Counters *Counters    // nil: not counted
}

// Peer is a node on the bus: what it sends is signed, what it hears is
// verified before anyone sees it. Its methods may be called from any goroutine.
// Handlers are called one after another per subscription and must not wait.
type Peer struct {
	bus      Bus
	node     *identity.Node
	suite    Suite
	cluster  string
	clock    func() time.Time
	after    func(time.Duration, func())
	timers   bool // after is the system's
	log      *slog.Logger
	counters *Counters
}

// NewPeer makes a Peer.
func NewPeer(o Options) *Peer {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Suite == nil {
		o.Suite = nodeSuite{o.Node, o.Authority}
	}
	timers := o.After == nil
	if timers {
		o.After = func(d time.Duration, f func()) { time.AfterFunc(d, f) }
	}
	return &Peer{
		bus: o.Bus, node: o.Node, suite: o.Suite, cluster: o.Cluster,
		clock: o.Clock, after: o.After, timers: timers, log: o.Log, counters: o.Counters,
	}
}

// Name, Role and Epoch are the node's own.
func (p *Peer) Name() string  { return p.node.Name }
func (p *Peer) Role() Role    { return Role(p.node.Role) }
func (p *Peer) Epoch() uint64 { return p.node.Epoch }

// Now is the node's clock.
func (p *Peer) Now() time.Time { return p.clock() }

// NewSender makes the keys of an attempt towards the holder of a boot key. See
// seal.NewSender.
func (p *Peer) NewSender(pub []byte, tokenHash Hash) (*seal.Sender, []byte, error) {
	return p.suite.NewSender(pub, tokenHash)
}

// TokenHash names an attempt: the SHA-256 of its tenant token.
func TokenHash(token string) Hash { return sha256.Sum256([]byte(token)) }

// refuse logs a message that is dropped.
func (p *Peer) refuse(subject string, err error) {
	p.log.Warn("bus: message refused", "subject", subject, "err", err)
}

// ask sends a signed request and returns the verified answer, which must come
// from the node that was asked.
func (p *Peer) ask(ctx context.Context, subject, node string, k kind, dest string, body []byte, answers ...kind) (envelope, identity.Peer, error) {
	q, err := p.question(subject, node, k, dest, body, answers...)
	if err != nil {
		return envelope{}, identity.Peer{}, err
	}
	reply, err := p.bus.Request(ctx, subject, q.Data)
	if errors.Is(err, ErrNoResponders) {
		return envelope{}, identity.Peer{}, fmt.Errorf("%w: nobody listens on %s", ErrNodeLost, subject)
	}
	if err != nil {
		return envelope{}, identity.Peer{}, err
	}
	return q.read(reply)
}

// Question is a signed request: what is to be sent, and how its answer is read.
type Question struct {
	Subject string
	Data    []byte

	p       *Peer
	node    string // who must answer
	answers []kind
}

func (p *Peer) question(subject, node string, k kind, dest string, body []byte, answers ...kind) (*Question, error) {
	data, err := p.sign(k, dest, body)
	if err != nil {
		return nil, err
	}
	return &Question{Subject: subject, Data: data, p: p, node: node, answers: answers}, nil
}

// read verifies an answer.
func (q *Question) read(reply []byte) (envelope, identity.Peer, error) {
	p, node := q.p, q.node
	e, from, err := p.verify(reply, answerDest(q.Data), q.answers...)
	if err != nil {
		return envelope{}, identity.Peer{}, err
	}
	if from.Name != node {
		p.counters.add(CountBadEnvelope)
		return envelope{}, identity.Peer{}, fmt.Errorf("%w: %s %s answered for %s", ErrEnvelope, from.Role, from.Name, node)
	}
	return e, from, nil
}

// answer signs and sends the answer to a request.
func (p *Peer) answer(m Msg, k kind, body []byte) {
	if m.Respond == nil {
		return
	}
	data, err := p.sign(k, answerDest(m.Data), body)
	if err == nil {
		err = m.Respond(data)
	}
	if err != nil {
		p.log.Warn("bus: cannot answer", "subject", m.Subject, "kind", k, "err", err)
	}
}
