package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/identity"
	"bulkhead/internal/tenant"
	"bulkhead/kernels"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// benchWindow is what each way may have in flight, in bytes.
const benchWindow = transfer.WindowBytes

// benchLimit ends a way that has stalled.
const benchLimit = 2 * time.Minute

// TransferResult is one way of moving KV from one node to another, all ends
// and the server in one process, over TCP on loopback. "embedded" is "sealed" with the server on the
// decode node's side, as `bulkhead decode --kv-server embedded` runs it: the bytes cross one socket instead of
// two. "local" is "sealed" without sockets, as `bulkhead up` runs it.
type TransferResult struct {
	Way     string  `json:"way"`
	Payload int     `json:"payload_bytes"`
	GBs     float64 `json:"gb_s"`     // GB = 1e9 bytes of payload
	CPU     float64 `json:"cpu_s_gb"` // CPU seconds of the process for a GB
	P50     float64 `json:"p50_ms"`   // one message on an idle path, from publish to consumed
	P99     float64 `json:"p99_ms"`
}

// BenchTransfer measures, back to back, a bare TCP connection, core NATS,
// JetStream, and the product's own path: sealed, published within the window,
// verified, opened into staging, and copied into a zeroed, tagged page.
func BenchTransfer(ctx context.Context, payload int, total int64, pages func(kernels.PageLayout, int) (kernels.Pages, error)) ([]TransferResult, error) {
	b := &transferBench{payload: payload, count: max(int(total/int64(payload)), 16), news: make(chan struct{}, 1)}
	if err := b.setUp(ctx, pages); err != nil {
		return nil, err
	}
	defer b.close()
	var out []TransferResult
	for _, way := range []struct {
		name string
		path func() (*path, error)
	}{
		{"tcp", b.tcp}, {"core", b.core}, {"jetstream", b.jetstream},
		{"sealed", func() (*path, error) { return b.sealed(b.prefill, b.prefill.Conn, b.decode.Peer) }},
		{"embedded", func() (*path, error) { return b.sealed(b.prefill, b.kvLink, b.kvServer.Peer()) }},
		{"local", func() (*path, error) { return b.sealed(b.localPrefill, b.localPrefill.Conn, b.localDecode.Peer) }},
	} {
		r, err := b.measure(ctx, way.name, way.path)
		if err != nil {
			return out, fmt.Errorf("cluster: bench transfer: %s: %w", way.name, err)
		}
		out = append(out, r)
	}
	return out, nil
}

// path is one way: send hands message i over, got is told by the other end.
type path struct {
	send  func(i int) error
	close func()
}

type transferBench struct {
	payload, count  int
	pool            int // pages
	store           string
	nats            *NATS
	prefill, decode *Joined
	router          *Joined
	pages           kernels.Pages
	lives           []uint32 // of each page so far
	layout          kernels.PageLayout
	plain           []byte

	// As prefill and decode, without a socket.
	localPrefill, localDecode *Joined

	kvServer *KVServer        // of decode
	kvLink   *transfer.KVLink // of prefill to it

	got  atomic.Int64
	bad  atomic.Pointer[error]
	news chan struct{} // size 1: got or bad has changed

	stalled <-chan time.Time // fires when the way in measurement has had its time
}

func (b *transferBench) fail(err error) {
	b.bad.CompareAndSwap(nil, &err)
	b.tell()
}

// arrived counts a message at the other end.
func (b *transferBench) arrived() {
	b.got.Add(1)
	b.tell()
}

func (b *transferBench) tell() {
	select {
	case b.news <- struct{}{}:
	default:
	}
}

func (b *transferBench) setUp(ctx context.Context, pages func(kernels.PageLayout, int) (kernels.Pages, error)) (err error) {
	// One layer of one block is one frame.
	heads := b.payload / (kernels.BlockTokens * 2 * 64 * 2)
	b.layout = kernels.PageLayout{Layers: 1, KVHeads: heads, HeadDim: 64}
	if heads < 1 || b.layout.PageBytes() != b.payload {
		return fmt.Errorf("cluster: bench transfer: payload of %d bytes, want a multiple of %d", b.payload, kernels.BlockTokens*2*64*2)
	}
	b.plain = make([]byte, b.payload)
	rand.Read(b.plain)
	// Few pages, used again and again: in service a pool's memory is warm.
	b.pool = min(b.count, max(2*benchWindow/b.payload, 4))
	if b.pages, err = pages(b.layout, b.pool); err != nil {
		return err
	}
	b.lives = make([]uint32, b.pool)
	keys, err := identity.NewMemory("bench")
	if err != nil {
		return err
	}
	if b.store, err = os.MkdirTemp("", "bulkhead-bench-"); err != nil {
		return err
	}
	if b.nats, err = StartNATS(NATSConfig{Port: -1, StoreDir: b.store, Auth: keys.ServerAuth()}); err != nil {
		return err
	}
	for _, n := range []struct {
		role  string
		local *NATS
		at    **Joined
	}{
		{identity.Prefill, nil, &b.prefill}, {identity.Decode, nil, &b.decode}, {identity.Router, nil, &b.router},
		{identity.Prefill, b.nats, &b.localPrefill}, {identity.Decode, b.nats, &b.localDecode},
	} {
		m, err := keys.Minter(n.role)
		if err != nil {
			return err
		}
		if *n.at, err = (Join{Minter: m, Name: n.role, URL: b.nats.ClientURL(), Server: n.local, Log: slog.New(slog.DiscardHandler)}).Connect(ctx); err != nil {
			return err
		}
	}
	if b.kvServer, err = StartKVServer(ctx, KVServerConfig{Node: b.decode, MaxBytes: 4 * benchWindow}); err != nil {
		return err
	}
	at := transfer.Announce{Node: b.decode.Node.Name, Epoch: b.decode.Node.Epoch, KVURL: b.kvServer.URL()}
	if b.kvLink, err = b.prefill.Peer.LinkKV(ctx, at); err != nil {
		return err
	}
	return b.router.Conn.EnsureKV(ctx, b.decode.Node.Name, 4*benchWindow)
}

func (b *transferBench) close() {
	if b.kvLink != nil {
		<-b.kvLink.Close()
	}
	if b.kvServer != nil {
		b.kvServer.Close()
	}
	for _, j := range []*Joined{b.prefill, b.decode, b.router, b.localPrefill, b.localDecode} {
		if j != nil {
			j.Conn.Close()
		}
	}
	b.nats.Shutdown()
	os.RemoveAll(b.store)
}

// measure runs one way: first one message at a time, then all it can.
func (b *transferBench) measure(ctx context.Context, name string, make_ func() (*path, error)) (TransferResult, error) {
	r := TransferResult{Way: name, Payload: b.payload}
	b.got.Store(0)
	b.stalled = time.After(benchLimit)
	p, err := make_()
	if err != nil {
		return r, err
	}
	defer p.close()
	singles := min(b.count/4, 200)
	var lat []time.Duration
	for i := range singles {
		at := time.Now()
		if err := b.sendAndWait(ctx, p, i, int64(i)+1); err != nil {
			return r, err
		}
		lat = append(lat, time.Since(at))
	}
	slices.Sort(lat)
	ms := func(q float64) float64 {
		return float64(lat[min(len(lat)-1, int(q*float64(len(lat))))]) / float64(time.Millisecond)
	}
	r.P50, r.P99 = ms(0.50), ms(0.99)

	cpu, at := cpuSeconds(), time.Now()
	inFlight := int64(max(benchWindow/b.payload, 2))
	for i := singles; i < b.count; i++ {
		if err := b.waitFor(ctx, int64(i)-inFlight+1); err != nil {
			return r, err
		}
		if err := p.send(i); err != nil {
			return r, err
		}
	}
	if err := b.waitFor(ctx, int64(b.count)); err != nil {
		return r, err
	}
	gb := float64(b.count-singles) * float64(b.payload) / 1e9
	r.GBs, r.CPU = gb/time.Since(at).Seconds(), (cpuSeconds()-cpu)/gb
	return r, nil
}

func (b *transferBench) sendAndWait(ctx context.Context, p *path, i int, n int64) error {
	if err := p.send(i); err != nil {
		return err
	}
	return b.waitFor(ctx, n)
}

// waitFor returns when n messages have arrived.
func (b *transferBench) waitFor(ctx context.Context, n int64) error {
	for b.got.Load() < n {
		select {
		case <-b.news:
			if e := b.bad.Load(); e != nil {
				return *e
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-b.stalled:
			return fmt.Errorf("%d of %d messages after %s", b.got.Load(), n, benchLimit)
		}
	}
	return nil
}

func cpuSeconds() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

func (b *transferBench) tcp() (*path, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	out, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	in, err := l.Accept()
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, b.payload)
		for {
			if _, err := io.ReadFull(in, buf); err != nil {
				return // closed
			}
			b.arrived()
		}
	})
	return &path{
		send:  func(int) error { _, err := out.Write(b.plain); return err },
		close: func() { out.Close(); in.Close(); wg.Wait() },
	}, nil
}

func (b *transferBench) core() (*path, error) {
	subject := transfer.OutSubject{Router: b.router.Node.Name}.String()
	stop, err := b.router.Conn.Subscribe(subject, func(m transfer.Msg) {
		if len(m.Data) != b.payload {
			b.fail(fmt.Errorf("message of %d bytes", len(m.Data)))
		}
		b.arrived()
	})
	if err != nil {
		return nil, err
	}
	return &path{send: func(int) error { return b.prefill.Conn.Publish(subject, b.plain) }, close: stop}, nil
}

// kvSubject is the subject of the bench's one attempt.
func (b *transferBench) kvSubject(token transfer.Hash) transfer.KVSubject {
	return transfer.KVSubject{Decode: b.decode.Node.Name, Attempt: 1, Token: transfer.Fingerprint(token)}
}

// publisher is a bus, or a link to a KV server.
type publisher interface {
	PublishKV(subject string, data []byte, done func(error)) error
}

func (b *transferBench) publish(to publisher, subject string, data []byte) error {
	return to.PublishKV(subject, data, func(err error) {
		if err != nil {
			b.fail(err)
		}
	})
}

func (b *transferBench) consume(at *transfer.Peer, handle func(transfer.KVMsg) error) (stop func(), err error) {
	ready := make(chan struct{})
	var once sync.Once
	stop, err = at.ConsumeKV(func(m transfer.KVMsg) {
		if err := handle(m); err != nil {
			b.fail(err)
			m.Term()
			return
		}
		m.Ack()
		b.arrived()
	}, func(ok bool) {
		if ok {
			once.Do(func() { close(ready) })
		}
	})
	if err != nil {
		return nil, err
	}
	select {
	case <-ready:
		return stop, nil
	case <-time.After(benchLimit):
		stop()
		return nil, errors.New("the KV consumer did not start")
	}
}

func (b *transferBench) jetstream() (*path, error) {
	subject := b.kvSubject(transfer.Hash{1}).String()
	stop, err := b.consume(b.decode.Peer, func(m transfer.KVMsg) error {
		if len(m.Data) != b.payload {
			return fmt.Errorf("message of %d bytes", len(m.Data))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &path{send: func(int) error { return b.publish(b.prefill.Conn, subject, b.plain) }, close: stop}, nil
}

// sealed is the product's own path, with the checks of decode's receiver.
func (b *transferBench) sealed(prefill *Joined, to publisher, decode *transfer.Peer) (*path, error) {
	key, err := seal.NewKey()
	if err != nil {
		return nil, err
	}
	token := transfer.Hash{2}
	sender, enc, err := seal.NewSender(key.Public(), token)
	if err != nil {
		return nil, err
	}
	receiver, err := key.NewReceiver(enc, token)
	if err != nil {
		return nil, err
	}
	plan, err := seal.NewPlan(b.count*kernels.BlockTokens, b.layout.Layers, b.layout.TokenLayerBytes())
	if err != nil {
		return nil, err
	}
	grant := &transfer.Grant{
		Hash:   token,
		Claims: tenant.Claims{Attempt: 1, Prefill: prefill.Node.Name, Decode: decode.Name(), DecodeEpoch: decode.Epoch()},
		Prefix: make([][32]byte, plan.Blocks()),
	}
	// take is the page of block i with its life before: zeroed, tagged anew.
	take := func(i int) kernels.Entry {
		p := i % b.pool
		if b.lives[p] > 0 {
			b.pages.Scrub(kernels.PageID(p))
		}
		b.lives[p]++
		e := kernels.Entry{Page: kernels.PageID(p), Owner: 1, Generation: b.lives[p]}
		b.pages.Claim(e.Page, kernels.Tag{Owner: e.Owner, Generation: e.Generation, Index: uint32(i)})
		return e
	}
	staging := make([]byte, 0, seal.MaxPayload)
	chain := seal.NewChain()
	stop, err := b.consume(decode, func(m transfer.KVMsg) error {
		msg, err := decode.ParseKVMessage(m)
		if err != nil {
			return err
		}
		h, err := seal.ParseFrame(msg.Frame)
		if err != nil {
			return err
		}
		if h != grant.Header(plan, int(h.Seq), prefill.Node.Epoch) {
			return errors.New("unexpected header")
		}
		if err := chain.Add(msg.Frame); err != nil {
			return err
		}
		_, plain, err := receiver.OpenFrame(staging[:0], msg.Frame)
		if err != nil {
			return err
		}
		i := int(h.Block)
		return b.pages.Import(take(i), i, 0, 1, kernels.BlockTokens, plain)
	})
	if err != nil {
		return nil, err
	}
	subject := b.kvSubject(token).String()
	frame := make([]byte, 0, seal.MaxFrame)
	return &path{
		send: func(i int) error {
			sealed, err := sender.SealFrame(frame[:0], grant.Header(plan, i, prefill.Node.Epoch), b.plain)
			if err != nil {
				return err
			}
			return b.publish(to, subject, sealed)
		},
		close: stop,
	}, nil
}
