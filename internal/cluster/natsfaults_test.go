package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"bulkhead/internal/cluster"
	"bulkhead/internal/identity"
	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
	"bulkhead/transfer"
)

// A server off the network serves the nodes of its own process.
func TestInProcess(t *testing.T) {
	keys, err := identity.NewMemory("test")
	must(t, err)
	n, err := cluster.StartNATS(cluster.NATSConfig{NoListen: true, StoreDir: t.TempDir(), Auth: keys.ServerAuth()})
	must(t, err)
	defer n.Shutdown()
	connect := func(role identity.Role, name string) *transfer.Conn {
		m, err := keys.Minter(role)
		must(t, err)
		id, err := m.NewNode(name)
		must(t, err)
		c, err := transfer.Connect(within(t), transfer.Config{InProcess: n, Name: name, Identity: id})
		must(t, err)
		t.Cleanup(c.Close)
		return c
	}
	r, d := connect(identity.Router, "r0"), connect(identity.Decode, "d0")
	stop, err := d.Subscribe("ping.d0", func(m transfer.Msg) {
		if err := m.Respond([]byte("yes")); err != nil {
			t.Error(err)
		}
	})
	must(t, err)
	defer stop()
	if a, err := r.Request(within(t), "ping.d0", nil); err != nil || string(a) != "yes" {
		t.Errorf("%q, %v", a, err)
	}
	must(t, r.EnsureKV(within(t), "d0", 1<<20))
}

// A server that cannot carry the protocol is refused before any work, with the
// name of the setting.
func TestUnsuitableServer(t *testing.T) {
	keys, err := identity.NewMemory("test")
	must(t, err)
	auth := keys.ServerAuth()
	for _, cfg := range []cluster.NATSConfig{
		{Port: -1, StoreDir: t.TempDir(), Auth: auth, MaxPayload: 1 << 20},
		{Port: -1, Auth: auth},
		{Port: -1, StoreDir: t.TempDir()},
	} {
		if n, err := cluster.StartNATS(cfg); err == nil {
			n.Shutdown()
			t.Errorf("started with %+v", cfg)
		}
	}
	for setting, change := range map[string]func(*server.Options){
		"max_payload": func(o *server.Options) { o.MaxPayload = 1 << 20 },
		"jetstream":   func(o *server.Options) { o.JetStream = false },
	} {
		ops, err := auth.Operators()
		must(t, err)
		resolver := &server.MemAccResolver{}
		must(t, resolver.Store(auth.Account, auth.AccountJWT))
		must(t, resolver.Store(auth.System, auth.SystemJWT))
		o := &server.Options{
			Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true, JetStream: true, StoreDir: t.TempDir(), MaxPayload: 8 << 20,
			TrustedOperators: ops, AccountResolver: resolver, SystemAccount: auth.System,
		}
		change(o)
		s, err := server.NewServer(o)
		must(t, err)
		s.Start()
		if !s.ReadyForConnections(waitMax) {
			t.Fatal("server does not start")
		}
		m, err := keys.Minter(identity.Router)
		must(t, err)
		id, err := m.NewNode("r0")
		must(t, err)
		c, err := transfer.Connect(within(t), transfer.Config{URL: s.ClientURL(), Name: "r0", Identity: id})
		if err == nil {
			c.Close()
		}
		if !errors.Is(err, transfer.ErrServer) || !strings.Contains(err.Error(), setting) {
			t.Errorf("%s: %v", setting, err)
		}
		s.Shutdown()
		s.WaitForShutdown()
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer ln.Close()
	if n, err := cluster.StartNATS(cluster.NATSConfig{Port: ln.Addr().(*net.TCPAddr).Port, StoreDir: t.TempDir(), Auth: auth}); err == nil {
		n.Shutdown()
		t.Error("started on a port that is taken")
	}
}

// Who waits for an answer when the connection goes learns it then, not at a deadline.
func TestRequestEndsWithConnection(t *testing.T) {
	w := newWorld(t)
	r, d := w.node(identity.Router, "r0"), w.node(identity.Decode, "d0")
	heard := make(chan struct{}, 1)
	stop, err := d.bus.Subscribe("ping.d0", func(transfer.Msg) { heard <- struct{}{} })
	must(t, err)
	defer stop()
	result := make(chan error, 1)
	go func() {
		_, err := r.Ping(context.Background(), "d0")
		result <- err
	}()
	recv(t, heard)
	w.restart()
	wantErr(t, recv(t, result), transfer.ErrDisconnected)
	// The nodes come back, and with them their subscriptions.
	eventually(t, "ping again", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		go r.Ping(ctx, "d0") //nolint:errcheck // nobody answers; being heard is what counts
		select {
		case <-heard:
			return true
		case <-ctx.Done():
			return false
		}
	})
	if r.counts.Get(transfer.CountReconnect) == 0 {
		t.Error("reconnection not counted")
	}
}

// fickle is an identity whose JWT the server refuses a few times.
type fickle struct {
	*identity.Node
	minted, bad atomic.Int32
}

func (f *fickle) JWT() (string, error) {
	f.minted.Add(1)
	jwt, err := f.Node.JWT()
	if f.bad.Add(-1) >= 0 {
		jwt = jwt[:len(jwt)-8] + "AAAAAAAA"
	}
	return jwt, err
}

// Every connection is made with the JWT of that moment, and a node whose JWT is
// refused, as one that ran out would be, goes on trying.
func TestReconnectMintsJWT(t *testing.T) {
	w := newWorld(t)
	m, err := w.keys.Minter(identity.Decode)
	must(t, err)
	id, err := m.NewNode("d0")
	must(t, err)
	f := &fickle{Node: id}
	up := make(chan bool, 100)
	c, err := transfer.Connect(within(t), transfer.Config{URL: w.nats.ClientURL(), Name: "d0", Identity: f, OnConnection: func(ok bool) { up <- ok }})
	must(t, err)
	defer c.Close()
	again := make(chan bool, 100)
	c.OnReconnect(func() { again <- true })
	before := f.minted.Load()
	f.bad.Store(3)
	w.restart()
	if recv(t, up) {
		t.Error("first up, then down?")
	}
	for !recv(t, up) {
	}
	recv(t, again) // who else has to know is told too
	if n := f.minted.Load() - before; n < 4 {
		t.Errorf("%d JWTs for 3 refusals and a success", n)
	}
	must(t, c.Publish("announce.decode.d0", nil))
}

// Output over the real bus keeps its order.
func TestOutputOverNATS(t *testing.T) {
	w := newWorld(t)
	r, d := w.node(identity.Router, "r0"), w.node(identity.Decode, "d0")
	j := job("r0", "tok")
	hash := transfer.TokenHash(j.Token)
	got, broken := make(chan int32, 1000), make(chan error, 10)
	stop, err := r.ReceiveOutput(j.Reply, j.ReplyKey, hash, func(_ transfer.Role, b transfer.OutputBody) { got <- b.Tokens[0].ID }, func(err error) { broken <- err })
	must(t, err)
	defer stop()
	sent := j
	sent.ReplyKey = tenant.ReplyKey(j.ReplyKey, "decode") // as the node gets it
	out := d.NewOutput(sent, hash)
	for i := range int32(500) {
		must(t, out.Send(transfer.OutputBody{Tokens: []sample.Token{{ID: i}}}))
	}
	for i := range int32(500) {
		if id := recv(t, got); id != i {
			t.Fatalf("token %d in place of %d", id, i)
		}
	}
	if len(broken) != 0 {
		t.Error(<-broken)
	}
}

// A full stream on a real server: the sender is told, tries again, and all
// arrives once somebody consumes.
func TestKVFullOverNATS(t *testing.T) {
	w := newWorld(t)
	r, p, d := w.node(identity.Router, "r0"), w.node(identity.Prefill, "p0"), w.node(identity.Decode, "d0")
	must(t, r.bus.EnsureKV(within(t), "d0", 1<<20))
	hash := transfer.TokenHash("tok")
	sub := transfer.KVSubject{Decode: "d0", Attempt: 1, Token: transfer.Fingerprint(hash)}
	a, err := p.NewKVSender("d0", nil).Attempt(sub, hash, 0)
	must(t, err)
	defer a.Close()
	for i := range 20 {
		f := make([]byte, 300<<10)
		copy(f, "BKHF")
		f[4] = byte(i)
		must(t, a.Frame(within(t), f))
	}
	eventually(t, "refused by a full stream", func() bool {
		return p.counts.Get(transfer.CountKVFull) > 0 && p.counts.Get(transfer.CountKVRetry) > 0
	})
	seen := make(chan byte, 100)
	stop, err := d.ConsumeKV(func(m transfer.KVMsg) { seen <- m.Data[4]; m.Ack() }, nil)
	must(t, err)
	defer stop()
	must(t, a.Flush(within(t)))
	all := map[byte]bool{}
	for range 20 {
		all[recv(t, seen)] = true
	}
	if len(all) != 20 {
		t.Errorf("%d different frames of 20", len(all))
	}
}

// What lies in a node's own stream under a subject outside the grammar is taken out and
// counted, and never handed on.
func TestKVBadSubject(t *testing.T) {
	w := newWorld(t)
	r, p, d := w.node(identity.Router, "r0"), w.node(identity.Prefill, "p0"), w.node(identity.Decode, "d0")
	must(t, r.bus.EnsureKV(within(t), "d0", 1<<20))
	const bad = 5
	for i := range bad {
		done := make(chan error, 1)
		must(t, p.bus.PublishKV("kv.d0.garbage."+strconv.Itoa(i), []byte("BKHF"), func(err error) { done <- err }))
		must(t, recv(t, done))
	}
	stop, err := d.ConsumeKV(func(m transfer.KVMsg) { t.Errorf("handed on: %s", m.Subject) }, nil)
	must(t, err)
	defer stop()
	eventually(t, "stream empty", func() bool { n, _, err := r.bus.StoredKV(within(t), "d0"); return err == nil && n == 0 })
	if n := d.counts.Get(transfer.CountForeignKV); n != bad {
		t.Errorf("%d counted, want %d", n, bad)
	}
}

// A stream has its hard bound and one reader: a second consumer is refused even
// to a router, and EnsureKV changes the bound of what is there.
func TestKVStreamIsBounded(t *testing.T) {
	w := newWorld(t)
	r, p := w.node(identity.Router, "r0"), w.node(identity.Prefill, "p0")
	must(t, r.bus.EnsureKV(within(t), "d0", 1<<20))
	answer, err := r.bus.Request(within(t), "$JS.API.CONSUMER.CREATE.KV_d0.spy", []byte(`{"stream_name":"KV_d0","config":{"durable_name":"spy","ack_policy":"explicit","filter_subject":"kv.d0.spy"}}`))
	if err != nil || !strings.Contains(string(answer), "maximum consumers limit") {
		t.Errorf("second consumer: %s, %v", answer, err)
	}
	put := func() error {
		done := make(chan error, 1)
		if err := p.bus.PublishKV(fmt.Sprintf("kv.d0.%s.1.%s", transfer.ID{}, transfer.ID{}), make([]byte, 900<<10), func(err error) { done <- err }); err != nil {
			return err
		}
		return recv(t, done)
	}
	must(t, put())
	wantErr(t, put(), transfer.ErrStreamFull)
	must(t, r.bus.EnsureKV(within(t), "d0", 2<<20))
	must(t, put())
}
