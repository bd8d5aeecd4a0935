package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/nats-io/nats.go"

	"bulkhead/internal/identity"
	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// raw is a hostile client with a node's own credentials: everything that a role may
// do, and none of what the product would do.
func (w *world) raw(role identity.Role, name string) (*nats.Conn, *identity.Node) {
	w.t.Helper()
	m, err := w.keys.Minter(role)
	must(w.t, err)
	id, err := m.NewNode(name)
	must(w.t, err)
	c, err := nats.Connect(w.nats.ClientURL(), nats.UserJWT(id.JWT, id.NATSSign), nats.CustomInboxPrefix("_INBOX."+name),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	must(w.t, err)
	w.t.Cleanup(c.Close)
	return c, id
}

// pulls listens, with a client that sees everything, for where a node's consumer is told to
// deliver: what a hostile node has no way to know, and is told here all the same.
func pulls(t *testing.T, god *nats.Conn, node string) <-chan string {
	t.Helper()
	inbox := make(chan string, 1000)
	_, err := god.Subscribe("$JS.API.CONSUMER.MSG.NEXT.KV_"+node+"."+node, func(m *nats.Msg) { inbox <- m.Reply })
	must(t, err)
	must(t, god.Flush())
	return inbox
}

// TestReplyHole: the server does not check the reply subject of a pull, so a hostile decode node can
// have its own stream's messages delivered anywhere. Goal: it does no harm. Method: d0 sends what
// lies in its stream, an honest frame and whatever else it may get there, to d1's secret inbox, into
// d1's stream, to a prefill node's jobs, cancels, pings and credits and to a router's output and
// announcements. Each is refused and counted, and none reaches a handler.
func TestReplyHole(t *testing.T) {
	w := newWorld(t)
	r, p, d1 := w.node(identity.Router, "r0"), w.node(identity.Prefill, "p0"), w.node(identity.Decode, "d1")
	for _, d := range []string{"d0", "d1"} {
		must(t, r.bus.EnsureKV(within(t), d, 1<<20))
	}
	god := newForger(t, w.keys).everything(w.nats.ClientURL())
	inboxes := pulls(t, god, "d1")
	handled := make(chan string, 100)
	stop, err := d1.ConsumeKV(func(m transfer.KVMsg) { handled <- m.Subject; m.Ack() }, nil)
	must(t, err)
	defer stop()
	inbox := recv(t, inboxes)

	// Honest ears at each place.
	stop, err = p.ServeJobs(p.key, func(_ context.Context, _ transfer.Job, _ identity.Peer, _ func(*transfer.Accept, *transfer.Reject)) {
		handled <- "job"
	})
	must(t, err)
	defer stop()
	stop, err = p.ServeCancel(func(transfer.Cancel, identity.Peer, func()) { handled <- "cancel" })
	must(t, err)
	defer stop()
	stop, err = p.ServePing(func() transfer.Pong { handled <- "ping"; return transfer.Pong{} })
	must(t, err)
	defer stop()
	stop, err = p.ServeCredit(func(transfer.Credit, identity.Peer) { handled <- "credit" })
	must(t, err)
	defer stop()
	dir, err := r.WatchPeers()
	must(t, err)
	defer dir.Close()
	hash := transfer.TokenHash("token")
	out := transfer.OutSubject{Router: "r0", Token: transfer.Fingerprint(hash)}.String()
	broken := make(chan error, 10)
	stop, err = r.ReceiveOutput(out, [32]byte{1}, hash, func(transfer.Role, transfer.OutputBody) { handled <- "output" }, func(err error) { broken <- err })
	must(t, err)
	defer stop()

	refused := func(n *node) (sum uint64) {
		for _, c := range []transfer.Count{transfer.CountBadMessage, transfer.CountBadEnvelope, transfer.CountBadSubject, transfer.CountForeignKV, transfer.CountBadOutput, transfer.CountBadSeal} {
			sum += n.counts.Get(c)
		}
		return sum
	}
	hostile, _ := w.raw(identity.Decode, "d0")
	frame := append([]byte("BKHF"), bytes.Repeat([]byte{7}, 400)...)
	own := transfer.KVSubject{Decode: "d0", Attempt: 1, Token: transfer.Fingerprint(hash)}.String()
	for _, to := range []struct {
		reply string
		at    *node
	}{
		{inbox, d1},
		{transfer.KVSubject{Decode: "d1", Attempt: 1, Token: transfer.Fingerprint(hash)}.String(), d1}, // stored in d1's stream under its old subject
		{"job.prefill.p0", p}, {"cancel.p0", p}, {"ping.p0", p}, {"credit.p0.d0", p}, {"credit.p0.d1", p},
		{"announce.decode.d1", r}, {"announce.router.r0", r}, {out, r},
	} {
		before := refused(to.at)
		done := make(chan error, 1)
		must(t, p.bus.PublishKV(own, frame, func(err error) { done <- err }))
		must(t, recv(t, done))
		must(t, hostile.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.KV_d0.d0", to.reply, []byte(`{"batch":1,"expires":5000000000}`)))
		eventually(t, "refused at "+to.reply, func() bool { return refused(to.at) > before })
	}
	wantErr(t, recv(t, broken), transfer.ErrOutput)
	// What was put into d1's stream is out again, and does not take its room.
	eventually(t, "d1's stream is empty", func() bool { n, _, err := r.bus.StoredKV(within(t), "d1"); return err == nil && n == 0 })
	select {
	case what := <-handled:
		t.Errorf("%s was handled", what)
	default:
	}
	// d1 still works: what is its own reaches it.
	done := make(chan error, 1)
	must(t, p.bus.PublishKV(kvOfNode("d1"), frame, func(err error) { done <- err }))
	must(t, recv(t, done))
	if got := recv(t, handled); got != kvOfNode("d1") {
		t.Errorf("%s was handled", got)
	}
}

// TestStolenName: a second decode node of the same name, made with the pool's own key. Goal: it gets
// ciphertext and a wrong end, never a prompt, never a word into an answer. Method: the thief
// takes over an attempt's job, stream and output as far as the server lets it; what it holds does not
// open, what it says is refused, and what it announces is another boot, which no running attempt knows.
func TestStolenName(t *testing.T) {
	a := newArena(t) // with an honest d1
	x := a.try(arenaPrompt)
	a.stop() // the thief wins every race for the stream
	thief, id := a.w.raw(identity.Decode, "d1")
	key, err := seal.NewKey()
	must(t, err)

	// The stream: the server gives it to whoever has the name.
	a.send(a.p1, a.craft(x, recipe{}))
	got := []*nats.Msg{}
	sub, err := thief.SubscribeSync("_INBOX.d1.thief")
	must(t, err)
	must(t, thief.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.KV_d1.d1", sub.Subject, []byte(`{"batch":100,"expires":10000000000}`)))
	for !sawManifest(got) {
		m, err := sub.NextMsg(waitMax)
		must(t, err)
		got = append(got, m)
	}
	peer := transfer.NewPeer(transfer.Options{Node: id, Authority: a.w.auth, Cluster: "test"})
	frames := 0
	var receiver *seal.Receiver
	for _, m := range got {
		km, err := peer.ParseKVMessage(transfer.KVMsg{Subject: m.Subject, Data: m.Data})
		must(t, err)
		switch km.Kind {
		case transfer.KVOpen:
			o, _, err := peer.VerifyOpen(km)
			must(t, err)
			receiver, err = key.NewReceiver(o.Enc, x.hash) // takes any encapsulation, and makes keys that open nothing
			must(t, err)
		case transfer.KVFrame:
			frames++
			if _, plain, err := receiver.OpenFrame(nil, km.Frame); !errors.Is(err, seal.ErrOpen) || len(plain) != 0 {
				t.Fatalf("a frame opens for the thief: %d bytes, %v", len(plain), err)
			}
		case transfer.KVManifest:
			s, _, err := peer.VerifyManifest(km)
			must(t, err)
			m, err := seal.ParseManifest(s)
			must(t, err)
			if plain, err := receiver.OpenFirst(m.First); !errors.Is(err, seal.ErrOpen) {
				t.Fatalf("the first token opens for the thief: %d bytes, %v", len(plain), err)
			}
		}
	}
	if frames == 0 {
		t.Fatal("the thief got no frame: the test shows nothing")
	}

	// The job is sealed to the boot key of the node that the router chose.
	if job, err := seal.SealTo(a.q.HPKE, "job", nil, []byte("prompt")); err != nil {
		t.Fatal(err)
	} else if _, err := key.OpenFrom("job", nil, job); !errors.Is(err, seal.ErrOpen) {
		t.Errorf("a job opens for the thief: %v", err)
	}

	// The output: all that is public is right, the receipt's signature too, and the reply key is not known.
	receipt, err := seal.Receipt{TokenHash: x.hash, ManifestHash: [32]byte{1}, Pages: tenant.Blocks(len(arenaPrompt)), Decode: "d1", Epoch: a.q.Epoch}.Append(nil)
	must(t, err)
	signed, err := peer.SignReceipt(receipt, x.job.Reply, 0)
	must(t, err)
	words, broken := make(chan transfer.OutputBody, 10), make(chan error, 10)
	stop, err := a.ReceiveOutput(x.job.Reply, x.job.ReplyKey, x.hash, func(_ transfer.Role, b transfer.OutputBody) { words <- b }, func(err error) { broken <- err })
	must(t, err) // an ear that has heard nothing yet, as if d1 had said nothing
	defer stop()
	bus := &silent{publish: thief.Publish}
	forgery := transfer.NewPeer(transfer.Options{Bus: bus, Node: id, Authority: a.w.auth, Cluster: "test"}).NewOutput(transfer.Job{Reply: x.job.Reply, ReplyKey: [32]byte{1}}, x.hash)
	must(t, forgery.Send(transfer.OutputBody{Receipt: signed}))
	must(t, forgery.Send(transfer.OutputBody{Tokens: []sample.Token{{ID: 1}}}))
	if err := recv(t, broken); !errors.Is(err, transfer.ErrOutput) || !errors.Is(err, transfer.ErrSeal) {
		t.Errorf("the thief's words end the attempt with %v", err)
	}
	if len(words) != 0 {
		t.Errorf("LEAK: the thief's words were taken: %+v", <-words)
	}

	// The name back with its owner, everything works again.
	thief.Close()
	a.stop = nil
	a.boot()
	must(t, a.honest())
	must(t, a.baseline())
}

// silent is a bus for a client that only publishes.
type silent struct {
	transfer.Bus
	publish func(subject string, data []byte) error
}

func (s *silent) Publish(subject string, data []byte) error { return s.publish(subject, data) }

// sawManifest says whether an attempt's last message is there.
func sawManifest(got []*nats.Msg) bool {
	return len(got) > 0 && bytes.Contains(got[len(got)-1].Data, []byte("kv.manifest"))
}
