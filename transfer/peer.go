package transfer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/internal/mutant"
	"bulkhead/internal/tenant"
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
	// Loopback: the cluster's bus is on this machine (Conn.Loopback), so that decode nodes' own KV
	// servers may be, too.
	Loopback bool
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
	last     *lastToken
	scratch  *sync.Pool // *[]byte: bodies that an envelope or a seal is about to copy

	kv       Bus           // where this node's own KV stream is heard
	links    *atomic.Int32 // connections to other nodes' KV servers
	loopback bool
}

// lastToken is the token that was hashed last: a job's is looked at several times in a row.
type lastToken struct {
	mu    sync.Mutex
	token string // guarded by mu, as hash
	hash  Hash
}

// TokenHash is the function of that name, which remembers its last token.
func (p *Peer) TokenHash(token string) Hash {
	l := p.last
	l.mu.Lock()
	defer l.mu.Unlock()
	if token != l.token || token == "" {
		l.token, l.hash = token, TokenHash(token)
	}
	return l.hash
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
		clock: o.Clock, after: o.After, timers: timers, log: o.Log, counters: o.Counters, last: &lastToken{}, scratch: &sync.Pool{},
		kv: o.Bus, links: new(atomic.Int32), loopback: o.Loopback,
	}
}

// WithKV is the same node, with its own KV stream on a server in its process instead of the cluster's bus.
func (p *Peer) WithKV(kv Bus) *Peer {
	q := *p
	q.kv = kv
	return &q
}

// withBody encodes a message into memory that is used again, and wiped, when use returns.
func withBody[T any](p *Peer, c *codec[T], v *T, use func(body []byte) error) error {
	const most = 64 << 10 // what is kept: no long prompt
	room, _ := p.scratch.Get().(*[]byte)
	if room == nil {
		room = new([]byte)
	}
	body, err := c.append((*room)[:0], v)
	if err != nil {
		return err
	}
	err = use(body)
	clear(body)
	if cap(body) <= most {
		*room = body
		p.scratch.Put(room)
	}
	return err
}

// signBody is sign for a message.
func signBody[T any](p *Peer, c *codec[T], v *T, k kind, dest string) (data []byte, err error) {
	err = withBody(p, c, v, func(body []byte) error {
		data, err = p.sign(k, dest, body)
		return err
	})
	return data, err
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
func TokenHash(token string) Hash { return tenant.HashToken(token) }

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
	if from.Name != node && !mutant.Off(mutant.AnswerNode) {
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
