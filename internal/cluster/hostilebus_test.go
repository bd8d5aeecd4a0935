package cluster_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/nats-io/nats.go"

	"bulkhead/internal/identity"
	"bulkhead/transfer"
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
