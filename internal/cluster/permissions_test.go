package cluster_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/transfer"
)

// rights is what a node may do and, of what others may, what it may not.
type rights struct {
	role, name                                 string
	publish, subscribe, noPublish, noSubscribe []string
	destroys                                   []string // it may publish these too, and a test that does so ends the streams
}

const someID = "aaaaaaaaaaaaaaaaaaaaaaaaaa"

func kvOfNode(d string) string { return "kv." + d + "." + someID + ".1." + someID }

// permissions is the whole table, read by TestPermissions and by TestScopes. The
// nodes are r0, p0 and d0; there are streams of d0 and of d1.
func permissions() []rights {
	const out = "out.r0." + someID + "." + someID
	// What nobody may publish: reading what is stored, other inboxes, the server itself.
	nobody := []string{
		"$JS.API.STREAM.MSG.GET.KV_d0", "$JS.API.STREAM.MSG.GET.KV_d1", "$JS.API.DIRECT.GET.KV_d0", "$JS.API.DIRECT.GET.KV_d0." + kvOfNode("d0"), "$JS.API.DIRECT.GET.KV_d1." + kvOfNode("d1"),
		"$JS.API.STREAM.MSG.DELETE.KV_d0", "$JS.API.STREAM.SNAPSHOT.KV_d0", "$JS.API.STREAM.RESTORE.KV_d2", "$JS.API.STREAM.PEER.REMOVE.KV_d0", "$JS.API.STREAM.LEADER.STEPDOWN.KV_d0",
		"$JS.API.STREAM.LIST", "$JS.API.STREAM.NAMES", "$JS.API.CONSUMER.LIST.KV_d0", "$JS.API.CONSUMER.NAMES.KV_d0", "$JS.API.CONSUMER.PAUSE.KV_d0.d0", "$JS.API.CONSUMER.DURABLE.CREATE.KV_d0.x", "$JS.API.ACCOUNT.PURGE.A",
		"$JS.FC.KV_d0.d0.x", "$JS.EVENT.ADVISORY.API", "$SYS.REQ.SERVER.PING", "$SYS.ACCOUNT.A.CONNECT", "_INBOX.r1.x", "_INBOX.p1.x", "_INBOX.d1.x", "_R_.x", "anything",
	}
	// What only a router may: streams and consumers, and speaking to nodes.
	routers := []string{
		"$JS.API.STREAM.CREATE.KV_d0", "$JS.API.STREAM.CREATE.KV_x", "$JS.API.STREAM.UPDATE.KV_d0", "$JS.API.STREAM.DELETE.KV_d0", "$JS.API.STREAM.DELETE.KV_d1", "$JS.API.STREAM.PURGE.KV_d0", "$JS.API.STREAM.PURGE.KV_d1",
		"$JS.API.STREAM.INFO.KV_d0", "$JS.API.STREAM.INFO.KV_d1", "$JS.API.CONSUMER.CREATE.KV_d0", "$JS.API.CONSUMER.CREATE.KV_d0.d0", "$JS.API.CONSUMER.CREATE.KV_d0.x.kv.d0.>", "$JS.API.CONSUMER.CREATE.KV_d1.d0.kv.d1.>",
		"$JS.API.CONSUMER.DELETE.KV_d0.d0", "$JS.API.CONSUMER.DELETE.KV_d1.d1", "$JS.API.INFO", "job.decode.d0", "job.decode.d1", "job.prefill.p0", "job.prefill.p1", "cancel.p0", "cancel.d0", "cancel.d1", "ping.p0", "ping.d0", "announce.router.r0",
	}
	everybody := []string{">", "*", "*.>", "$JS.>", "$JS.API.>", "$JS.ACK.>", "$SYS.>", "_INBOX.>", "_INBOX.*.>", "kv.>", "kv.*.>", "kv.d0.>", "kv.d1.>", "job.>", "job.*.*", "cancel.>", "credit.>", "out.>", "ping.>"}
	with := func(lists ...[]string) (all []string) {
		for _, l := range lists {
			all = append(all, l...)
		}
		return all
	}
	return []rights{
		{
			role: identity.Router, name: "r0",
			publish:  []string{"job.prefill.p0", "job.decode.d1", "cancel.p0", "ping.d0", "announce.router.r0", "$JS.API.STREAM.INFO.KV_d0"},
			destroys: []string{"$JS.API.STREAM.PURGE.KV_d0", "$JS.API.CONSUMER.DELETE.KV_d0.d0", "$JS.API.STREAM.DELETE.KV_d1"},
			noPublish: with(nobody, []string{
				kvOfNode("d0"), out, "credit.p0.r0", "credit.p0.d0", "announce.router.r1", "announce.decode.d0", "announce.decode.r0", "announce.prefill.p0",
				"$JS.API.CONSUMER.MSG.NEXT.KV_d0.d0", "$JS.ACK.KV_d0.d0.1.1.1.1.1", "_INBOX.d0.x", "_INBOX.p0.x",
			}),
			subscribe:   []string{"announce.>", "announce.decode.*", "out.r0.>", "_INBOX.r0.x", "_INBOX.r0.>"},
			noSubscribe: with(everybody, []string{"out.r1.>", "job.decode.d0", "job.prefill.p0", "cancel.d0", "credit.p0.d0", "_INBOX.d0.>"}),
		},
		{
			role: identity.Prefill, name: "p0",
			publish: []string{kvOfNode("d0"), kvOfNode("d1"), out, "announce.prefill.p0"},
			noPublish: with(nobody, routers, []string{
				"announce.prefill.p1", "announce.decode.p0", "announce.router.p0", "credit.p0.d0", "credit.p1.p0", "$JS.API.CONSUMER.MSG.NEXT.KV_d0.d0", "$JS.API.CONSUMER.INFO.KV_d0.d0",
				"$JS.ACK.KV_d0.d0.1.1.1.1.1", "$JS.ACK._.acc.KV_d0.d0.1.1.1.1.1.x", "_INBOX.r0.x", "_INBOX.d0.x",
			}),
			subscribe:   []string{"job.prefill.p0", "cancel.p0", "ping.p0", "credit.p0.*", "credit.p0.>", "announce.decode.*", "announce.router.*", "_INBOX.p0.x", "_INBOX.p0.>"},
			noSubscribe: with(everybody, []string{"out.r0.>", "job.prefill.p1", "job.prefill.*", "job.decode.d0", "cancel.p1", "cancel.d0", "credit.p1.d0", "credit.p1.>", "announce.>", "announce.prefill.*", "_INBOX.d0.>", "_INBOX.p1.x"}),
		},
		{
			role: identity.Decode, name: "d0",
			publish: []string{out, "credit.p0.d0", "announce.decode.d0", "$JS.API.CONSUMER.INFO.KV_d0.d0"},
			noPublish: with(nobody, routers, []string{
				kvOfNode("d0"), kvOfNode("d1"), "credit.p0.d1", "announce.decode.d1", "announce.prefill.d0", "announce.router.d0", "_INBOX.r0.x", "_INBOX.p0.x",
				"$JS.API.CONSUMER.MSG.NEXT.KV_d1.d1", "$JS.API.CONSUMER.MSG.NEXT.KV_d0.d1", "$JS.API.CONSUMER.MSG.NEXT.KV_d1.d0", "$JS.API.CONSUMER.INFO.KV_d1.d1",
				// Acknowledgements of another node's messages, in each form the server knows.
				"$JS.ACK.KV_d1.d1.1.1.1.1.1", "$JS.ACK._.acc.KV_d1.d1.1.1.1.1.1.x", "$JS.ACK.KV_d1.d1.KV_d0.d0.1.1.0", "$JS.ACK.KV_d0.d0.KV_d1.d1.1.1.1.1.0",
			}),
			subscribe:   []string{"job.decode.d0", "cancel.d0", "ping.d0", "announce.prefill.*", "announce.router.*", "_INBOX.d0.x", "_INBOX.d0.>"},
			noSubscribe: with(everybody, []string{"out.r0.>", "job.decode.d1", "job.decode.*", "job.prefill.p0", "cancel.d1", "credit.p0.d0", "announce.>", "announce.decode.*", "_INBOX.d1.>", "_INBOX.r0.>"}),
		},
	}
}

// Goal: the server holds every role to its own subjects, and the product tells each denial to its
// caller and counts it. Method: on a cluster where streams and consumers of d0 and d1 exist, each
// role asks on each subject of the table. A request that may be sent is answered or has no
// responders; one that may not comes back as ErrPermission. Likewise with subscriptions.
// TestScopes tries the same table with a client that is not the product's.
func TestPermissions(t *testing.T) {
	w := newWorld(t)
	nodes := map[string]*node{}
	for _, r := range permissions() {
		nodes[r.name] = w.node(r.role, r.name)
	}
	for _, d := range []string{"d0", "d1"} {
		must(t, nodes["r0"].bus.EnsureKV(within(t), d, 1<<20))
	}
	for _, r := range permissions() {
		n := nodes[r.name]
		for _, subject := range r.publish {
			if _, err := n.bus.Request(within(t), subject, nil); err != nil && !errors.Is(err, transfer.ErrNoResponders) {
				t.Errorf("%s may publish to %s: %v", r.name, subject, err)
			}
		}
		before := n.counts.Get(transfer.CountPermission)
		for _, subject := range r.noPublish {
			if _, err := n.bus.Request(within(t), subject, nil); !errors.Is(err, transfer.ErrPermission) {
				t.Errorf("%s must not publish to %s: %v", r.name, subject, err)
			}
		}
		if got := n.counts.Get(transfer.CountPermission) - before; got < uint64(len(r.noPublish)) {
			t.Errorf("%s: %d denials counted of %d", r.name, got, len(r.noPublish))
		}
		for _, subject := range r.subscribe {
			stop, err := n.bus.Subscribe(subject, func(transfer.Msg) {})
			if err != nil {
				t.Errorf("%s may subscribe to %s: %v", r.name, subject, err)
				continue
			}
			stop()
		}
		for _, subject := range r.noSubscribe {
			if _, err := n.bus.Subscribe(subject, func(transfer.Msg) {}); !errors.Is(err, transfer.ErrPermission) {
				t.Errorf("%s must not subscribe to %s: %v", r.name, subject, err)
			}
		}
	}

	// A KV publish that is denied tells its sender at once.
	done := make(chan error, 1)
	must(t, nodes["d0"].bus.PublishKV(kvOfNode("d1"), nil, func(err error) { done <- err }))
	wantErr(t, recv(t, done), transfer.ErrPermission)
	// Only a router makes streams.
	for _, name := range []string{"p0", "d0"} {
		wantErr(t, nodes[name].bus.EnsureKV(within(t), "d2", 1<<20), transfer.ErrPermission)
		wantErr(t, nodes[name].bus.DropKV(within(t), "d0"), transfer.ErrPermission)
	}
	// What arrived is what p0 was allowed to send.
	for _, d := range []string{"d0", "d1"} {
		if n, _, err := nodes["r0"].bus.StoredKV(within(t), d); err != nil || n != 1 {
			t.Errorf("stream of %s afterwards: %d messages, %v", d, n, err)
		}
	}
}

// A node that holds no key of this cluster is not let in.
func TestStrangersAreNotLetIn(t *testing.T) {
	w := newWorld(t)
	foreign, err := identity.NewMemory("test")
	must(t, err)
	m, err := foreign.Minter(identity.Router)
	must(t, err)
	id, err := m.NewNode("r0")
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond) // of trying
	defer cancel()
	c, err := transfer.Connect(ctx, transfer.Config{URL: w.nats.ClientURL(), Name: "r0", Identity: id})
	if err == nil {
		c.Close()
		t.Fatal("a node of another cluster was let in")
	}
	if !strings.Contains(err.Error(), "uthorization") {
		t.Errorf("refused with %v", err)
	}
	// It also cannot speak from inside: see TestEnvelopeTampered of package transfer.
	ours, err := w.keys.Minter(identity.Router)
	must(t, err)
	id, err = ours.NewNode("r0")
	must(t, err)
	ctx, cancel = context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	// The name that counts is the JWT's: another one has no inbox of its own.
	c, err = transfer.Connect(ctx, transfer.Config{URL: w.nats.ClientURL(), Name: "r1", Identity: id})
	if err == nil {
		c.Close()
	}
	wantErr(t, err, transfer.ErrPermission)
}
