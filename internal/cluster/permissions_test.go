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

// Goal: the server itself holds every role to its own subjects. Method: on a
// cluster where streams and consumers of d0 and d1 exist, each role asks on
// each subject. A request that may be sent is answered or has no responders; one
// that may not comes back as ErrPermission. Likewise with subscriptions.
func TestPermissions(t *testing.T) {
	w := newWorld(t)
	nodes := map[string]*node{"r0": w.node(identity.Router, "r0"), "p0": w.node(identity.Prefill, "p0"), "d0": w.node(identity.Decode, "d0")}
	for _, d := range []string{"d0", "d1"} {
		must(t, nodes["r0"].bus.EnsureKV(within(t), d, 1<<20))
	}
	const id = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	kv := func(d string) string { return "kv." + d + "." + id + ".1." + id }

	publish := map[string]struct{ allowed, denied []string }{
		"r0": {
			allowed: []string{"job.prefill.p0", "job.decode.d1", "cancel.p0", "ping.d0", "announce.router.r0", "$JS.API.STREAM.INFO.KV_d0"},
			denied: []string{
				kv("d0"), "out.r0." + id + "." + id, "credit.p0.r0", "announce.router.r1", "announce.decode.d0", "announce.prefill.p0",
				"$JS.API.CONSUMER.MSG.NEXT.KV_d0.d0", "$JS.API.STREAM.MSG.GET.KV_d0", "$JS.API.DIRECT.GET.KV_d0", "$JS.API.DIRECT.GET.KV_d0." + kv("d0"),
				"$JS.API.STREAM.MSG.DELETE.KV_d0", "$JS.API.STREAM.SNAPSHOT.KV_d0", "$JS.API.STREAM.RESTORE.KV_d2", "$JS.ACK.KV_d0.d0.1.1.1.1.1",
				"$SYS.REQ.SERVER.PING", "_INBOX.d0.x", "anything",
			},
		},
		"p0": {
			allowed: []string{kv("d0"), kv("d1"), "out.r0." + id + "." + id, "announce.prefill.p0"},
			denied: []string{
				"job.decode.d0", "job.prefill.p1", "cancel.d0", "ping.d0", "announce.prefill.p1", "announce.decode.p0", "announce.router.p0", "credit.p0.d0",
				"$JS.API.CONSUMER.MSG.NEXT.KV_d0.d0", "$JS.API.STREAM.MSG.GET.KV_d0", "$JS.API.DIRECT.GET.KV_d0", "$JS.API.DIRECT.GET.KV_d0." + kv("d0"),
				"$JS.API.CONSUMER.CREATE.KV_d0", "$JS.API.CONSUMER.CREATE.KV_d0.p0", "$JS.API.CONSUMER.CREATE.KV_d0.p0.kv.d0.>", "$JS.API.CONSUMER.DURABLE.CREATE.KV_d0.p0",
				"$JS.API.CONSUMER.INFO.KV_d0.d0", "$JS.API.CONSUMER.DELETE.KV_d0.d0", "$JS.API.STREAM.PURGE.KV_d0", "$JS.API.STREAM.DELETE.KV_d0",
				"$JS.API.STREAM.CREATE.KV_p0", "$JS.API.STREAM.UPDATE.KV_d0", "$JS.API.STREAM.INFO.KV_d0", "$JS.API.STREAM.LIST", "$JS.API.INFO",
				"$JS.ACK.KV_d0.d0.1.1.1.1.1", "$JS.ACK._.acc.KV_d0.d0.1.1.1.1.1.x", "$SYS.REQ.SERVER.PING", "_INBOX.r0.x", "anything",
			},
		},
		"d0": {
			allowed: []string{"out.r0." + id + "." + id, "credit.p0.d0", "announce.decode.d0", "$JS.API.CONSUMER.INFO.KV_d0.d0"},
			denied: []string{
				kv("d0"), kv("d1"), "job.decode.d0", "job.prefill.p0", "cancel.d0", "ping.p0", "credit.p0.d1", "announce.decode.d1", "announce.prefill.d0", "announce.router.d0",
				"$JS.API.CONSUMER.MSG.NEXT.KV_d1.d1", "$JS.API.CONSUMER.MSG.NEXT.KV_d0.d1", "$JS.API.CONSUMER.MSG.NEXT.KV_d1.d0",
				"$JS.API.STREAM.MSG.GET.KV_d0", "$JS.API.STREAM.MSG.GET.KV_d1", "$JS.API.DIRECT.GET.KV_d0", "$JS.API.DIRECT.GET.KV_d1." + kv("d1"),
				"$JS.API.CONSUMER.CREATE.KV_d0", "$JS.API.CONSUMER.CREATE.KV_d1.d0", "$JS.API.CONSUMER.CREATE.KV_d1.d0.kv.d1.>", "$JS.API.CONSUMER.DURABLE.CREATE.KV_d1.d0",
				"$JS.API.CONSUMER.INFO.KV_d1.d1", "$JS.API.CONSUMER.DELETE.KV_d1.d1", "$JS.API.STREAM.PURGE.KV_d1", "$JS.API.STREAM.DELETE.KV_d0", "$JS.API.STREAM.DELETE.KV_d1",
				"$JS.API.STREAM.CREATE.KV_d2", "$JS.API.STREAM.UPDATE.KV_d1", "$JS.API.STREAM.INFO.KV_d1", "$JS.API.INFO",
				"$JS.ACK.KV_d1.d1.1.1.1.1.1", "$JS.ACK._.acc.KV_d1.d1.1.1.1.1.1.x", "$SYS.REQ.SERVER.PING", "_INBOX.d1.x", "_INBOX.r0.x", "anything",
			},
		},
	}
	for name, s := range publish {
		n := nodes[name]
		for _, subject := range s.allowed {
			_, err := n.bus.Request(within(t), subject, nil)
			if err != nil && !errors.Is(err, transfer.ErrNoResponders) {
				t.Errorf("%s may publish to %s: %v", name, subject, err)
			}
		}
		before := n.counts.Get(transfer.CountPermission)
		for _, subject := range s.denied {
			if _, err := n.bus.Request(within(t), subject, nil); !errors.Is(err, transfer.ErrPermission) {
				t.Errorf("%s must not publish to %s: %v", name, subject, err)
			}
		}
		if got := n.counts.Get(transfer.CountPermission) - before; got < uint64(len(s.denied)) {
			t.Errorf("%s: %d denials counted of %d", name, got, len(s.denied))
		}
	}

	subscribe := map[string]struct{ allowed, denied []string }{
		"r0": {
			allowed: []string{"announce.>", "announce.decode.*", "out.r0.>", "_INBOX.r0.x"},
			denied:  []string{"kv.>", "kv.d0.>", "out.>", "out.r1.>", "job.>", "job.decode.d0", "cancel.>", "credit.>", "_INBOX.>", "_INBOX.d0.>", "$JS.API.>", "$JS.>", "$SYS.>", ">"},
		},
		"p0": {
			allowed: []string{"job.prefill.p0", "cancel.p0", "ping.p0", "credit.p0.*", "announce.decode.*", "announce.router.*", "_INBOX.p0.x"},
			denied:  []string{"kv.>", "kv.d0.>", "out.>", "out.r0.>", "job.>", "job.prefill.p1", "job.prefill.*", "job.decode.d0", "cancel.p1", "credit.>", "credit.p1.d0", "announce.>", "_INBOX.>", "_INBOX.d0.>", "_INBOX.p1.x", "$JS.>", "$SYS.>", ">"},
		},
		"d0": {
			allowed: []string{"job.decode.d0", "cancel.d0", "ping.d0", "announce.prefill.*", "announce.router.*", "_INBOX.d0.x"},
			denied:  []string{"kv.>", "kv.d0.>", "kv.d1.>", "out.>", "out.r0.>", "job.>", "job.decode.d1", "job.decode.*", "job.prefill.p0", "cancel.d1", "credit.>", "announce.>", "_INBOX.>", "_INBOX.d1.>", "_INBOX.r0.>", "$JS.ACK.>", "$JS.>", "$SYS.>", ">"},
		},
	}
	for name, s := range subscribe {
		for _, subject := range s.allowed {
			stop, err := nodes[name].bus.Subscribe(subject, func(transfer.Msg) {})
			if err != nil {
				t.Errorf("%s may subscribe to %s: %v", name, subject, err)
				continue
			}
			stop()
		}
		for _, subject := range s.denied {
			if _, err := nodes[name].bus.Subscribe(subject, func(transfer.Msg) {}); !errors.Is(err, transfer.ErrPermission) {
				t.Errorf("%s must not subscribe to %s: %v", name, subject, err)
			}
		}
	}

	// A KV publish that is denied tells its sender at once.
	done := make(chan error, 1)
	must(t, nodes["d0"].bus.PublishKV(kv("d1"), nil, func(err error) { done <- err }))
	wantErr(t, recv(t, done), transfer.ErrPermission)
	// Only a router makes streams.
	for _, name := range []string{"p0", "d0"} {
		wantErr(t, nodes[name].bus.EnsureKV(within(t), "d2", 1<<20), transfer.ErrPermission)
		wantErr(t, nodes[name].bus.DropKV(within(t), "d0"), transfer.ErrPermission)
	}
	// What arrived is what p0 was allowed to send.
	if n, _, err := nodes["r0"].bus.StoredKV(within(t), "d0"); err != nil || n != 1 {
		t.Errorf("stream of d0 afterwards: %d messages, %v", n, err)
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
