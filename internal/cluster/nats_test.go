package cluster_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/url"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bulkhead/internal/cluster"
	"bulkhead/internal/identity"
	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
	"bulkhead/transfer"
	"bulkhead/transfer/bustest"
	"bulkhead/transfer/seal"
)

// The engine is shared by all tests of the package and lives as long as it.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("bulkhead/kernels/cpu.(*pool).work"))
}

// waitMax bounds what should take milliseconds: reaching it is a failure, never a measurement.
const waitMax = 30 * time.Second

// world is a cluster's keys and one embedded server.
type world struct {
	t    *testing.T
	keys *identity.Keys
	auth *identity.Authority
	nats *cluster.NATS
	dir  string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	keys, err := identity.NewMemory("test")
	must(t, err)
	auth, err := keys.Authority()
	must(t, err)
	w := &world{t: t, keys: keys, auth: auth, dir: t.TempDir()}
	w.start(-1)
	t.Cleanup(func() { w.nats.Shutdown() })
	return w
}

func (w *world) start(port int) {
	w.t.Helper()
	n, err := cluster.StartNATS(cluster.NATSConfig{Port: port, StoreDir: w.dir, Auth: w.keys.ServerAuth(), MaxMemory: 256 << 20, MaxStore: 16 << 20})
	must(w.t, err)
	w.nats = n
}

// restart stops the server and starts it at the same address.
func (w *world) restart() {
	w.t.Helper()
	u, err := url.Parse(w.nats.ClientURL())
	must(w.t, err)
	port, err := strconv.Atoi(u.Port())
	must(w.t, err)
	w.nats.Shutdown()
	w.start(port)
}

// node is one connected node.
type node struct {
	*transfer.Peer
	bus    *transfer.Conn
	id     *identity.Node
	key    *seal.Key
	counts *transfer.Counters
}

func (w *world) node(role identity.Role, name string) *node { return w.nodeOf(w.keys, role, name) }

func (w *world) nodeOf(keys *identity.Keys, role identity.Role, name string) *node {
	w.t.Helper()
	m, err := keys.Minter(role)
	must(w.t, err)
	id, err := m.NewNode(name)
	must(w.t, err)
	n := &node{id: id, counts: new(transfer.Counters)}
	n.key, err = seal.NewKey()
	must(w.t, err)
	ctx, cancel := context.WithTimeout(context.Background(), waitMax)
	defer cancel()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	n.bus, err = transfer.Connect(ctx, transfer.Config{URL: w.nats.ClientURL(), Name: name, Identity: id, Log: log, Counters: n.counts})
	must(w.t, err)
	w.t.Cleanup(n.bus.Close)
	n.Peer = transfer.NewPeer(transfer.Options{Bus: n.bus, Node: id, Authority: w.auth, Cluster: "test", Log: log, Counters: n.counts})
	return n
}

func (n *node) announcement() transfer.Announce {
	return transfer.Announce{Node: n.Name(), Role: n.Role(), Epoch: n.Epoch(), HPKE: n.key.Public(), Expires: time.Now().Add(transfer.AnnounceTTL)}
}

func job(router, token string) transfer.Job {
	reply := transfer.OutSubject{Router: router, Request: transfer.ID{1, 2, 3}, Token: transfer.Fingerprint(transfer.TokenHash(token))}
	return transfer.Job{
		Token: token, Prompt: []int32{1, 2, 3, 128000}, Params: sample.Params{MaxNew: 5, EOG: []int32{2}, LogitBias: []sample.Bias{{ID: 4, Bias: 0.5}}},
		Reply: reply.String(), ReplyKey: [32]byte{7}, Deadline: time.Now().Add(time.Minute),
	}
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), waitMax)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
}

// recv waits for a value.
func recv[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(waitMax):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

// eventually polls until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(waitMax); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}

// The job's way there and the answer's way back, over a real server.
func TestJobRoundTrip(t *testing.T) {
	w := newWorld(t)
	r, d := w.node(identity.Router, "r0"), w.node(identity.Decode, "d0")
	got := make(chan transfer.Job, 1)
	stop, err := d.ServeJobs(d.key, func(ctx context.Context, j transfer.Job, from identity.Peer, answer func(*transfer.Accept, *transfer.Reject)) {
		got <- j
		if from.Name != "r0" || from.Role != identity.Router {
			t.Errorf("job from %s %s", from.Role, from.Name)
		}
		answer(&transfer.Accept{Pages: 3}, nil)
	})
	must(t, err)
	defer stop()
	j := job("r0", "token-one")
	a, err := r.SubmitJob(within(t), d.announcement(), j)
	must(t, err)
	if a.Pages != 3 || a.TokenHash != transfer.TokenHash("token-one") {
		t.Fatalf("accept %+v", a)
	}
	back := recv(t, got)
	if back.Token != j.Token || len(back.Prompt) != 4 || back.Prompt[3] != 128000 || back.Params.LogitBias[0].Bias != 0.5 || !back.Deadline.Equal(j.Deadline) || back.ReplyKey != tenant.ReplyKey(j.ReplyKey, string(d.announcement().Role)) {
		t.Fatalf("job arrived as %+v", back)
	}
}

// A node's no is a typed error with the numbers in it.
func TestJobRejected(t *testing.T) {
	w := newWorld(t)
	r, p := w.node(identity.Router, "r0"), w.node(identity.Prefill, "p0")
	stop, err := p.ServeJobs(p.key, func(_ context.Context, _ transfer.Job, _ identity.Peer, answer func(*transfer.Accept, *transfer.Reject)) {
		answer(nil, &transfer.Reject{Reason: transfer.ReasonContextLength, Limit: 10, Value: 11})
	})
	must(t, err)
	defer stop()
	_, err = r.SubmitJob(within(t), p.announcement(), job("r0", "tok"))
	var no *transfer.Rejected
	if !errors.As(err, &no) || no.Reason != transfer.ReasonContextLength || no.Limit != 10 || no.Value != 11 || no.Node != "p0" {
		t.Fatalf("got %v", err)
	}
}

// A node that is not there is known at once, without waiting for a deadline.
func TestNodeLost(t *testing.T) {
	w := newWorld(t)
	r, d := w.node(identity.Router, "r0"), w.node(identity.Decode, "d0")
	_, err := r.SubmitJob(context.Background(), d.announcement(), job("r0", "tok"))
	wantErr(t, err, transfer.ErrNodeLost)
	wantErr(t, r.SendCancel(context.Background(), "d0", transfer.Cancel{Reason: transfer.ReasonCancelled}), transfer.ErrNodeLost)
	_, err = r.Ping(context.Background(), "d0")
	wantErr(t, err, transfer.ErrNodeLost)
}

// KV: publish, consume, acknowledge, end; the stream is empty afterwards.
func TestKV(t *testing.T) {
	w := newWorld(t)
	r, p, d := w.node(identity.Router, "r0"), w.node(identity.Prefill, "p0"), w.node(identity.Decode, "d0")
	type seen struct {
		m   transfer.KVMessage
		raw transfer.KVMsg
	}
	got := make(chan seen, 100)
	readyC := make(chan bool, 10)
	stop, err := d.ConsumeKV(func(m transfer.KVMsg) {
		km, err := d.ParseKVMessage(m)
		if err != nil {
			t.Error(err)
			m.Term()
			return
		}
		got <- seen{km, m}
	}, func(up bool) { readyC <- up })
	must(t, err)
	defer stop()
	must(t, r.bus.EnsureKV(within(t), "d0", 8<<20))
	must(t, r.bus.EnsureKV(within(t), "d0", 16<<20)) // idempotent, and may grow
	if !recv(t, readyC) {
		t.Fatal("not ready")
	}
	token := "the-token"
	hash := transfer.TokenHash(token)
	sub := transfer.KVSubject{Decode: "d0", Request: transfer.ID{9}, Attempt: 1, Token: transfer.Fingerprint(hash)}
	a, err := p.NewKVSender("d0", nil).Attempt(sub, hash, 0)
	must(t, err)
	defer a.Close()
	must(t, a.Open(within(t), transfer.Open{Token: token, Prefill: "p0", PrefillEpoch: p.Epoch(), Enc: []byte("enc"), Frames: 40}))
	for i := range 40 {
		must(t, a.Frame(within(t), append([]byte("BKHF"), byte(i))))
	}
	must(t, a.Manifest(within(t), []byte("statement")))
	first := recv(t, got)
	o, from, err := d.VerifyOpen(first.m)
	must(t, err)
	if o.Token != token || from.Name != "p0" || first.m.Subject != sub {
		t.Fatalf("open %+v from %s", o, from.Name)
	}
	first.raw.Ack()
	for i := range 40 {
		s := recv(t, got)
		if s.m.Kind != transfer.KVFrame || s.m.Frame[4] != byte(i) {
			t.Fatalf("message %d is %v %v", i, s.m.Kind, s.m.Frame)
		}
		if i%2 == 0 {
			s.raw.Ack()
		} else {
			s.raw.Term()
		}
	}
	last := recv(t, got)
	st, _, err := d.VerifyManifest(last.m)
	must(t, err)
	if string(st) != "statement" {
		t.Fatalf("statement %q", st)
	}
	last.raw.Ack()
}

// The Bus over a real server passes what every Bus passes.
func TestBus(t *testing.T) {
	bustest.Run(t, func(t *testing.T) bustest.Cluster {
		w := newWorld(t)
		return bustest.Cluster{
			Router: w.node(identity.Router, "r0").bus, Prefill: w.node(identity.Prefill, "p0").bus, Decode: w.node(identity.Decode, "d0").bus,
			Restart: w.restart,
		}
	})
}
