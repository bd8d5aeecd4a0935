package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"bulkhead/internal/identity"
)

// ServerVersion is the oldest nats-server that the protocol has been tried on.
const ServerVersion = "2.15.0"

// dialTimeout is of one try to reach one address.
const dialTimeout = 2 * time.Second

// Identity is what a connection shows of its node: an *identity.Node, or at a decode node's own KV
// server an identity.KVLogin.
type Identity interface {
	JWT() (string, error)                  // a user JWT valid now
	NATSSign(nonce []byte) ([]byte, error) // proof of its key
}

// Config says how to connect to a NATS server.
type Config struct {
	URL       string                     // "nats://host:port", several with commas
	InProcess nats.InProcessConnProvider // an embedded server; URL is then only a name

	Name     string   // the node's name; its inboxes are "_INBOX.<name>.>"
	Identity Identity // who connects

	Log      *slog.Logger // nil: silent
	Counters *Counters    // nil: not counted
	// OnConnection, if not nil, is told when the connection is lost and made again.
	OnConnection func(up bool)
	// AckTimeout is how long a KV publish waits to be confirmed. 0: 3 s.
	AckTimeout time.Duration

	link *strict // to another node's KV server; nil: to the cluster's own
}

// Conn is a [Bus] over one NATS connection. It reconnects for ever.
type Conn struct {
	nc     *nats.Conn
	cfg    Config
	log    *slog.Logger
	prefix string // of inboxes
	bulk   *bulk

	mu       sync.Mutex
	requests map[string]map[*request]struct{} // by subject: see watch
	pubs     map[string]*kvPublish            // by ack inbox
	pubSeq   uint64
	watchers map[chan struct{}]struct{} // closed-over by KV consumers: poked on reconnect
	// reconnected are called, without mu held, when a lost connection is there again.
	reconnected []func()
	closed      bool
}

type request struct{ cancel context.CancelCauseFunc }

// Connect connects and makes sure that the server can carry the protocol. It
// tries again until ctx ends.
func Connect(ctx context.Context, cfg Config) (*Conn, error) {
	if err := CheckName(cfg.Name); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.AckTimeout == 0 {
		cfg.AckTimeout = 3 * time.Second
	}
	c := &Conn{
		cfg: cfg, log: cfg.Log, prefix: "_INBOX." + cfg.Name, bulk: newBulk(),
		requests: map[string]map[*request]struct{}{},
		pubs:     map[string]*kvPublish{},
		watchers: map[chan struct{}]struct{}{},
	}
	opts := []nats.Option{
		nats.Name(cfg.Name),
		nats.CustomInboxPrefix(c.prefix),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(200*time.Millisecond, 200*time.Millisecond),
		nats.ReconnectBufSize(-1),   // see ErrDisconnected
		nats.IgnoreAuthErrorAbort(), // a JWT that ran out is minted anew at the next try
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.ErrorHandler(c.onError),
		nats.DisconnectErrHandler(c.onDisconnect),
		nats.ReconnectHandler(c.onReconnect),
	}
	if kv, ok := cfg.Identity.(identity.KVLogin); ok {
		opts = append(opts, nats.Nkey(kv.User(), kv.NATSSign), nats.TokenHandler(kv.Token))
	} else {
		opts = append(opts, nats.UserJWT(cfg.Identity.JWT, cfg.Identity.NATSSign))
	}
	if cfg.InProcess != nil {
		opts = append(opts, nats.InProcessServer(bulkInProcess{cfg.InProcess, c.bulk}))
	} else {
		opts = append(opts, nats.SetCustomDialer(&bulkDialer{net.Dialer{Timeout: dialTimeout}, c.bulk, false}))
	}
	if cfg.link != nil {
		opts = append(opts, cfg.link.options(c.bulk)...)
	}
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		nc, err := nats.Connect(cfg.URL, opts...)
		if err == nil {
			c.nc = nc
			break
		}
		if cfg.link != nil {
			return nil, fmt.Errorf("transfer: connect to %s: %w", cfg.URL, err)
		}
		c.log.Warn("nats: cannot connect, trying again", "url", cfg.URL, "err", err)
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("transfer: connect to %s: %w (%w)", cfg.URL, err, ctx.Err())
		case <-time.After(wait):
		}
	}
	if err := c.checkServer(); err != nil {
		c.Close()
		return nil, err
	}
	acks := c.prefix + ".kvack.*"
	_, err := c.nc.Subscribe(acks, c.onKVAck)
	if err == nil {
		err = c.settle(acks)
	}
	if err != nil {
		c.Close()
		return nil, c.wrap("subscribe", acks, err)
	}
	return c, nil
}

// checkServer refuses a server whose settings or age the protocol would trip over later.
func (c *Conn) checkServer() error {
	if have := c.nc.MaxPayload(); have < MaxPayload {
		return fmt.Errorf("%w: max_payload is %d bytes, needs at least %d: set max_payload in the server's configuration", ErrServer, have, MaxPayload)
	}
	if v := c.nc.ConnectedServerVersion(); !atLeast(v, ServerVersion) {
		return fmt.Errorf("%w: version %q, needs at least %s", ErrServer, v, ServerVersion)
	}
	if on, _ := c.nc.ConnectedServerJetStream(); !on {
		return fmt.Errorf("%w: JetStream is off: set jetstream in the server's configuration", ErrServer)
	}
	return nil
}

// atLeast compares "2.15.3-beta.1" with "2.15.0" by their three numbers.
func atLeast(version, floor string) bool {
	a, okA := versionNumbers(version)
	b, _ := versionNumbers(floor)
	if !okA {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return a[i] > b[i]
		}
	}
	return true
}

func versionNumbers(v string) (n [3]int, ok bool) {
	v, _, _ = strings.Cut(strings.TrimPrefix(v, "v"), "-")
	parts := strings.Split(v, ".")
	if len(parts) != 3 {
		return n, false
	}
	for i, p := range parts {
		x, err := strconv.Atoi(p)
		if err != nil || x < 0 {
			return n, false
		}
		n[i] = x
	}
	return n, true
}

// Publish implements [Bus].
func (c *Conn) Publish(subject string, data []byte) error {
	return c.wrap("publish", subject, c.nc.Publish(subject, data))
}

// Request implements [Bus].
func (c *Conn) Request(ctx context.Context, subject string, data []byte) ([]byte, error) {
	ctx, stop := c.watch(ctx, subject)
	defer stop()
	m, err := c.nc.RequestWithContext(ctx, subject, data)
	if err != nil {
		return nil, c.wrap("request", subject, causeOf(ctx, err))
	}
	return m.Data, nil
}

// watch returns a context that ends early, with its cause, when the server
// denies a publish to one of subjects or the connection is lost: in both cases
// no answer will come.
func (c *Conn) watch(ctx context.Context, subjects ...string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	r := &request{cancel}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range subjects {
		if c.requests[s] == nil {
			c.requests[s] = map[*request]struct{}{}
		}
		c.requests[s][r] = struct{}{}
	}
	return ctx, func() {
		cancel(nil)
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, s := range subjects {
			delete(c.requests[s], r)
			if len(c.requests[s]) == 0 {
				delete(c.requests, s)
			}
		}
	}
}

// causeOf returns why ctx ended, if it did, else err.
func causeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// flushWait is how long a new subscription may take to reach the server.
const flushWait = 5 * time.Second

// Subscribe implements [Bus].
func (c *Conn) Subscribe(subject string, handler func(Msg)) (func(), error) {
	sub, err := c.nc.Subscribe(subject, func(m *nats.Msg) {
		msg := Msg{Subject: m.Subject, Data: m.Data}
		if m.Reply != "" {
			msg.Respond = func(answer []byte) error { return c.Publish(m.Reply, answer) }
		}
		handler(msg)
	})
	if err != nil {
		return nil, c.wrap("subscribe", subject, err)
	}
	if err := c.settle(subject); err != nil {
		sub.Unsubscribe() //nolint:errcheck // it is already refused
		return nil, err
	}
	return func() { sub.Unsubscribe() }, nil //nolint:errcheck // fails only on a closed connection
}

// settle returns once the server has seen a subscription, with its refusal if it refused.
func (c *Conn) settle(subject string) error {
	wait := flushWait
	if c.cfg.link != nil {
		wait = kvLinkDial
	}
	if err := c.nc.FlushTimeout(wait); errors.Is(err, nats.ErrTimeout) {
		return fmt.Errorf("%w: the server did not answer within %s: subscribe %s", ErrDisconnected, wait, subject)
	} else if err != nil {
		return c.wrap("subscribe", subject, err)
	}
	// A denial travels in front of the flush's answer on the same connection.
	if err := c.nc.LastError(); errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `"`+subject+`"`) {
		return fmt.Errorf("%w: subscribe to %s", ErrPermission, subject)
	}
	return nil
}

// OnReconnect registers f, to be called each time a lost connection was made
// again. Messages to this client that were sent meanwhile are gone.
func (c *Conn) OnReconnect(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reconnected = append(c.reconnected, f)
}

// Loopback reports whether the server is on this machine: in this process, or behind a loopback address.
func (c *Conn) Loopback() bool {
	if c.cfg.InProcess != nil {
		return true
	}
	at, err := netip.ParseAddrPort(c.nc.ConnectedAddr())
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// LocalHost is the address of this machine from which the server is reached; "" while there is no
// connection, or it is in this process.
func (c *Conn) LocalHost() string {
	at, err := netip.ParseAddrPort(c.nc.LocalAddr())
	if err != nil {
		return ""
	}
	return at.Addr().Unmap().WithZone("").String()
}

// Close implements [Bus].
func (c *Conn) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.failPublishes(ErrClosed, nil)
	c.nc.Close()
}

// wrap turns an error of the client into one of this package's.
func (c *Conn) wrap(op, subject string, err error) error {
	var mine error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrPermission), errors.Is(err, ErrDisconnected):
		return err // ours already
	case errors.Is(err, nats.ErrNoResponders):
		mine = ErrNoResponders
	case errors.Is(err, nats.ErrConnectionClosed) && !c.nc.IsClosed():
		mine = ErrDisconnected // what the client calls a flush whose connection was lost on the way
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining):
		mine = ErrClosed
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrDisconnected),
		errors.Is(err, nats.ErrConnectionReconnecting), errors.Is(err, nats.ErrNoServers):
		mine = ErrDisconnected
	case network(err):
		return fmt.Errorf("%w: %s %s: %w", ErrDisconnected, op, subject, err)
	default:
		return fmt.Errorf("transfer: %s %s: %w", op, subject, err)
	}
	return fmt.Errorf("%w: %s %s", mine, op, subject)
}

// network reports whether err is of the connection's bytes rather than of what was asked for: the client
// hands such errors on as they are where a connection breaks in the middle of a call.
func network(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, nats.ErrStaleConnection)
}

var deniedRe = regexp.MustCompile(`(?i)permissions violation for (publish|subscription) to "([^"]*)"`)

// onError hears what the server says without being asked. A denied publish is
// only told here; whoever waits for its answer is told at once.
func (c *Conn) onError(_ *nats.Conn, _ *nats.Subscription, err error) {
	switch {
	case errors.Is(err, nats.ErrSlowConsumer):
		c.cfg.Counters.add(CountSlow)
	case errors.Is(err, nats.ErrPermissionViolation):
		c.cfg.Counters.add(CountPermission)
		if m := deniedRe.FindStringSubmatch(err.Error()); m != nil && strings.EqualFold(m[1], "publish") {
			denied := fmt.Errorf("%w: publish to %s", ErrPermission, m[2])
			c.mu.Lock()
			for r := range c.requests[m[2]] {
				r.cancel(denied)
			}
			c.mu.Unlock()
			c.failPublishes(denied, func(p *kvPublish) bool { return p.subject == m[2] })
		}
	}
	c.log.Error("nats: server or client error", "err", err)
}

func (c *Conn) onDisconnect(_ *nats.Conn, err error) {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return
	}
	c.log.Warn("nats: connection lost", "err", err)
	lost := fmt.Errorf("%w: connection lost before the answer", ErrDisconnected)
	c.failPublishes(lost, nil)
	c.mu.Lock()
	for _, rs := range c.requests {
		for r := range rs {
			r.cancel(lost)
		}
	}
	c.mu.Unlock()
	if c.cfg.OnConnection != nil {
		c.cfg.OnConnection(false)
	}
}

func (c *Conn) onReconnect(*nats.Conn) {
	c.cfg.Counters.add(CountReconnect)
	c.log.Info("nats: connected again", "server", c.nc.ConnectedServerName())
	if err := c.checkServer(); err != nil {
		c.log.Error("nats: the server changed", "err", err)
	}
	c.mu.Lock()
	for w := range c.watchers {
		select {
		case w <- struct{}{}:
		default:
		}
	}
	told := slices.Clone(c.reconnected)
	c.mu.Unlock()
	for _, f := range told {
		f()
	}
	if c.cfg.OnConnection != nil {
		c.cfg.OnConnection(true)
	}
}
