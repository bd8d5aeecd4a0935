package transfer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// A decode node that runs its own KV server announces its URL. A prefill node
// dials that server when the first job for the node comes, and keeps the one
// connection for all attempts of this boot of the node: a KVLink, owned by the KVSender.
//
// Only the KV stream's messages travel there. Credits, cancellations, jobs and output
// stay on the cluster's bus: they are small, prefill hears them there already from nodes of either kind,
// and so the KV server needs no right for anybody but "publish to this node's stream".
//
// The server is another node's, and is not believed: it gets a login that no other server
// takes ([identity.KVLogin]), ciphertext as the broker does, and one dial for a job that a router sent.
// What it says is bounded ([strict]); its word that a frame was stored only helps or harms its own node.
//
// It may not be there, or stop answering: then attempts end with ErrKVServer, within
// kvLinkDial of their start or about kvLinkGrace of the loss, and the router chooses another
// decode node. After a failure the next attempt dials anew, once in kvLinkRest.

const (
	kvLinkMax       = 64              // connections of one node to KV servers, without those that are being closed
	kvLinkDial      = 2 * time.Second // each of: to connect, to log in, to subscribe
	kvLinkGrace     = 2 * time.Second // without a connection until attempts are given up
	kvLinkRest      = time.Second     // between a failure and the next dial
	kvLinkPing      = time.Second     // two without an answer are a lost connection
	kvLinkReconnect = 20              // tries
	kvLinkSilent    = 3               // acknowledgements in a row that one message waits for in vain

	kvLinkPayload = 64 << 10 // of a message from a KV server: acknowledgements are small
)

// KVLink is a connection to one decode node's KV server. A KVSender has its own.
type KVLink struct {
	url    string
	dialed chan struct{}      // closed when conn or err is set
	cancel context.CancelFunc // of the dial
	gave   func()             // gives the place of kvLinkMax back

	err error // set before dialed is closed: ErrKVServer, or nil and conn is set

	mu    sync.Mutex
	conn  *Conn         // set once, with mu held; read by whoever has seen dialed closed
	ended chan struct{} // nil until Close is called
	down  time.Time     // since when there is no connection; zero: there is one
	died  time.Time     // when it was given up; zero: not yet
}

// LinkKV connects to a decode node's KV server. Close must be called.
func (p *Peer) LinkKV(ctx context.Context, decode Announce) (*KVLink, error) {
	l, err := p.linkKV(decode)
	if err != nil {
		return nil, err
	}
	if err := l.wait(ctx); err != nil {
		<-l.Close()
		return nil, err
	}
	return l, nil
}

// linkKV begins to dial a decode node's KV server.
func (p *Peer) linkKV(a Announce) (*KVLink, error) {
	if _, _, err := CheckKVURL(a.KVURL); err != nil {
		return nil, err
	}
	if n := p.links.Add(1); n > kvLinkMax {
		p.links.Add(-1)
		return nil, fmt.Errorf("%w: of %s: %d connections to such servers, limit %d", ErrKVServer, a.Node, n-1, kvLinkMax)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &KVLink{url: a.KVURL, dialed: make(chan struct{}), cancel: cancel, gave: func() { p.links.Add(-1) }}
	go l.dial(ctx, p, a)
	return l, nil
}

func (l *KVLink) dial(ctx context.Context, p *Peer, a Announce) {
	defer close(l.dialed)
	defer l.cancel()
	conn, err := Connect(ctx, Config{
		URL: a.KVURL, Name: p.node.Name, Identity: p.node.KVLogin(a.Node, a.Epoch),
		Log: p.log.With("kv_server", a.Node), Counters: p.counters, OnConnection: l.connection,
		link: &strict{loopback: p.loopback},
	})
	if err != nil {
		p.counters.add(CountKVServer)
		p.log.Warn("bus: cannot reach a decode node's KV server", "decode", a.Node, "url", a.KVURL, "err", err)
		l.mu.Lock()
		l.died = time.Now()
		l.mu.Unlock()
		l.err = fmt.Errorf("%w: of %s at %s: %w", ErrKVServer, a.Node, a.KVURL, err)
		return
	}
	l.mu.Lock()
	l.conn = conn
	ended := l.ended != nil
	l.mu.Unlock()
	if ended {
		conn.Close()
	}
}

func (l *KVLink) connection(up bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if up {
		l.down, l.died = time.Time{}, time.Time{}
	} else {
		l.down = time.Now()
	}
}

// wait returns when the server was reached, or why not.
func (l *KVLink) wait(ctx context.Context) error {
	select {
	case <-l.dialed:
	case <-ctx.Done():
		return ctx.Err()
	}
	return l.err
}

// PublishKV is [Bus.PublishKV], to the decode node's stream only.
func (l *KVLink) PublishKV(subject string, data []byte, done func(error)) error {
	select {
	case <-l.dialed:
	default:
		return fmt.Errorf("%w: not yet connected to %s", ErrKVServer, l.url)
	}
	if l.err != nil {
		return l.err
	}
	return l.judge(l.conn.PublishKV(subject, data, func(err error) { done(l.judge(err)) }))
}

// judge says what an error means here: what the stream says as it is, a connection that is lost for a
// moment too, anything else as ErrKVServer.
func (l *KVLink) judge(err error) error {
	switch {
	case err == nil, errors.Is(err, ErrStreamFull), errors.Is(err, ErrOverflow), errors.Is(err, ErrNoStream), errors.Is(err, ErrAckTimeout):
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(err, ErrDisconnected) && (l.down.IsZero() || time.Since(l.down) < kvLinkGrace) {
		return err
	}
	if l.died.IsZero() {
		l.died = time.Now()
	}
	return fmt.Errorf("%w: at %s: %w", ErrKVServer, l.url, err)
}

// spent reports whether the link is of no more use and another may be dialled.
func (l *KVLink) spent() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil && l.conn.nc.IsClosed() {
		return true // lost while nobody used it
	}
	return !l.died.IsZero() && time.Since(l.died) >= kvLinkRest
}

// Close ends the link. Its place among kvLinkMax is free on return; what it returns is closed when nothing of
// it is left, after kvLinkDial or so where a dial is under way or a server holds up a write.
func (l *KVLink) Close() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		return l.ended
	}
	l.ended = make(chan struct{})
	l.gave()
	l.cancel()
	go func(conn *Conn, ended chan struct{}) {
		defer close(ended)
		if conn != nil {
			conn.Close()
		}
		<-l.dialed
	}(l.conn, l.ended)
	return l.ended
}

// strict is how a connection to a server is kept that is not the cluster's own.
type strict struct {
	loopback bool // this machine may be dialled
}

// options are instead of those of a connection to the cluster's bus.
func (s *strict) options(b *bulk) []nats.Option {
	return []nats.Option{
		nats.MaxReconnects(kvLinkReconnect),
		nats.Timeout(kvLinkDial),
		nats.FlusherTimeout(kvLinkDial), // of a write: a server that does not read holds nobody up
		nats.PingInterval(kvLinkPing),
		nats.IgnoreDiscoveredServers(), // it does not say where else to dial
		nats.SkipHostLookup(),          // the dialer looks at where a name leads
		nats.SetCustomDialer(&bulkDialer{net.Dialer{Timeout: kvLinkDial, Control: controlKV(s.loopback)}, b, true}),
	}
}
