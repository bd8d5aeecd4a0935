package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"bulkhead/internal/identity"
	"bulkhead/internal/sample"
	"bulkhead/transfer"
	"bulkhead/transfer/membus"
	"bulkhead/transfer/seal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what should take milliseconds.
const patience = 30 * time.Second

// world is a cluster's keys and a bus in memory. Tests set fault to interfere.
type world struct {
	t    *testing.T
	bus  *membus.Bus
	keys *identity.Keys

	mu    sync.Mutex
	fault func(membus.Message) membus.Verdict
	now   func() time.Time
}

func newWorld(t *testing.T) *world {
	t.Helper()
	keys, err := identity.NewMemory("test")
	must(t, err)
	w := &world{t: t, keys: keys, now: time.Now}
	w.bus = membus.New(membus.Options{Faults: func(m membus.Message) membus.Verdict {
		w.mu.Lock()
		f := w.fault
		w.mu.Unlock()
		if f == nil {
			return membus.Verdict{}
		}
		return f(m)
	}})
	t.Cleanup(w.bus.Close)
	return w
}

func (w *world) interfere(f func(membus.Message) membus.Verdict) {
	w.mu.Lock()
	w.fault = f
	w.mu.Unlock()
}

// hold stops the bus's deliveries until release.
func (w *world) hold(n *node) (release func()) {
	gate := make(chan struct{})
	stop, err := n.bus.Subscribe("gate", func(transfer.Msg) { <-gate })
	must(w.t, err)
	must(w.t, n.bus.Publish("gate", nil))
	return func() { close(gate); stop() }
}

type node struct {
	*transfer.Peer
	bus    *membus.Client
	id     *identity.Node
	key    *seal.Key
	counts *transfer.Counters
}

func (w *world) node(role identity.Role, name string) *node {
	w.t.Helper()
	m, err := w.keys.Minter(role)
	must(w.t, err)
	id, err := m.NewNode(name)
	must(w.t, err)
	n := &node{id: id, bus: w.bus.Client(name), counts: new(transfer.Counters)}
	n.key, err = seal.NewKey()
	must(w.t, err)
	n.Peer = transfer.NewPeer(transfer.Options{
		Bus: n.bus, Node: id, Authority: id.Authority(), Cluster: "test", Counters: n.counts,
		Clock: func() time.Time { return w.now() },
	})
	return n
}

func (n *node) announcement() transfer.Announce {
	return transfer.Announce{Node: n.Name(), Role: n.Role(), Epoch: n.Epoch(), HPKE: n.key.Public()}
}

func job(router, token string) transfer.Job {
	reply := transfer.OutSubject{Router: router, Request: transfer.ID{1, 2, 3}, Token: transfer.Fingerprint(transfer.TokenHash(token))}
	return transfer.Job{
		Token: token, Prompt: []int32{1, 2, 3}, Params: sample.Params{MaxNew: 5},
		Reply: reply.String(), ReplyKey: [32]byte{7}, Deadline: time.Now().Add(time.Minute),
	}
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

func recv[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}

func accept(_ context.Context, _ transfer.Job, _ identity.Peer, answer func(*transfer.Accept, *transfer.Reject)) {
	answer(&transfer.Accept{Pages: 3}, nil)
}

// A job gets there, a yes and a no come back, bound to the attempt; a second
// answer is not sent.
func TestJobs(t *testing.T) {
	w := newWorld(t)
	r, d := w.node(identity.Router, "r0"), w.node(identity.Decode, "d0")
	stop, err := d.ServeJobs(d.key, func(ctx context.Context, j transfer.Job, from identity.Peer, answer func(*transfer.Accept, *transfer.Reject)) {
		if from.Name != "r0" || ctx.Err() != nil {
			t.Errorf("job from %s, %v", from.Name, ctx.Err())
		}
		if j.Token == "no" {
			answer(nil, &transfer.Reject{Reason: transfer.ReasonNoPages, Limit: 5, Value: 6, Detail: strings.Repeat("ä", 1000)})
		}
		answer(&transfer.Accept{Pages: len(j.Prompt)}, nil)
	})
	must(t, err)
	a, err := r.SubmitJob(t.Context(), d.announcement(), job("r0", "yes"))
	must(t, err)
	if a.Pages != 3 || a.TokenHash != transfer.TokenHash("yes") {
		t.Errorf("accepted %+v", a)
	}
	_, err = r.SubmitJob(t.Context(), d.announcement(), job("r0", "no"))
	var no *transfer.Rejected
	if !errors.As(err, &no) || no.Reason != transfer.ReasonNoPages || no.Limit != 5 || no.Value != 6 || no.Node != "d0" || no.Role != transfer.RoleDecode {
		t.Errorf("rejected with %v", err)
	}
	stop()
	_, err = r.SubmitJob(t.Context(), d.announcement(), job("r0", "yes"))
	wantErr(t, err, transfer.ErrNodeLost)
}

// Goal: no job reaches a handler but the one that was sent. Method: every byte
// of the message on its way is changed in turn.
func TestJobTampered(t *testing.T) {
	w := newWorld(t)
	r, d := w.node(identity.Router, "r0"), w.node(identity.Decode, "d0")
	var seen int
	stop, err := d.ServeJobs(d.key, func(_ context.Context, _ transfer.Job, _ identity.Peer, answer func(*transfer.Accept, *transfer.Reject)) {
		seen++
		answer(&transfer.Accept{}, nil)
	})
	must(t, err)
	defer stop()
	// Catch one good message on its way.
	caught := make(chan []byte, 1)
	w.interfere(func(m membus.Message) membus.Verdict {
		caught <- m.Data
		return membus.Verdict{Drop: true}
	})
	ctx, cancel := context.WithCancel(t.Context())
	var good []byte
	go func() { good = <-caught; cancel() }()
	_, err = r.SubmitJob(ctx, d.announcement(), job("r0", "tok"))
	wantErr(t, err, context.Canceled)
	w.interfere(nil)
	subject := transfer.JobSubject(transfer.RoleDecode, "d0")
	send := func(data []byte) { must(t, r.bus.Publish(subject, data)) }
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x10
		send(bad)
	}
	send(good[:len(good)-1])
	send(append(bytes.Clone(good), 0))
	send(nil)
	refused := func() uint64 {
		return d.counts.Get(transfer.CountBadMessage) + d.counts.Get(transfer.CountBadEnvelope) + d.counts.Get(transfer.CountBadSeal)
	}
	eventually(t, "all changed jobs refused", func() bool { return refused() == uint64(len(good)+3) })
	if seen != 0 {
		t.Fatalf("%d changed jobs reached the handler", seen)
	}
	send(good) // the control: unchanged it is taken
	eventually(t, "the good job taken", func() bool { return w.bus.Pending() == 0 })
	must(t, r.bus.Publish(subject, nil))
	eventually(t, "the next refused", func() bool { return refused() == uint64(len(good)+4) })
	if seen != 1 {
		t.Errorf("the unchanged job was seen %d times", seen)
	}
}

// A job for another node, another boot, another key, or sent by a node that is
// no router, is not opened.
func TestJobMisdirected(t *testing.T) {
	w := newWorld(t)
	r, r1 := w.node(identity.Router, "r0"), w.node(identity.Router, "r1")
	d0, d1, p := w.node(identity.Decode, "d0"), w.node(identity.Decode, "d1"), w.node(identity.Prefill, "p0")
	for _, d := range []*node{d0, d1} {
		stop, err := d.ServeJobs(d.key, accept)
		must(t, err)
		defer stop()
	}
	send := func(from *node, change func(*transfer.Announce), j transfer.Job, redirect string, into *node, count transfer.Count) {
		t.Helper()
		a := d0.announcement()
		change(&a)
		w.interfere(func(m membus.Message) membus.Verdict {
			if m.Kind == membus.Request && redirect != "" {
				return membus.Verdict{Subject: redirect}
			}
			return membus.Verdict{}
		})
		before := into.counts.Get(count)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			eventually(t, "refused as "+count.String(), func() bool { return into.counts.Get(count) == before+1 })
			cancel()
		}()
		if _, err := from.SubmitJob(ctx, a, j); !errors.Is(err, context.Canceled) {
			t.Errorf("answered: %v", err)
		}
	}
	same := func(*transfer.Announce) {}
	send(r, same, job("r0", "t"), "job.decode.d1", d1, transfer.CountBadEnvelope)
	send(r, func(a *transfer.Announce) { a.Epoch++ }, job("r0", "t"), "", d0, transfer.CountBadEnvelope)
	send(r, func(a *transfer.Announce) { a.HPKE = d1.key.Public() }, job("r0", "t"), "", d0, transfer.CountBadSeal)
	send(p, same, job("p0", "t"), "", d0, transfer.CountBadEnvelope)
	send(d1, same, job("d1", "t"), "", d0, transfer.CountBadEnvelope)
	send(r, same, job("r1", "t"), "", d0, transfer.CountBadMessage) // output to another router
	j := job("r0", "t")
	j.Token = "u" // reply subject of another token
	send(r, same, j, "", d0, transfer.CountBadMessage)
	j = job("r0", "t")
	j.Reply = "kv.d1.x"
	send(r, same, j, "", d0, transfer.CountBadMessage)
	w.interfere(nil)
	_, err := r1.SubmitJob(t.Context(), d0.announcement(), job("r1", "t"))
	must(t, err) // the control
}

// A router's body signed over by another router does not open: the seal names its sender.
func TestJobSignedOver(t *testing.T) {
	w := newWorld(t)
	d := w.node(identity.Decode, "d0")
	r1 := w.node(identity.Router, "r1")
	var opened int
	stop, err := d.ServeJobs(d.key, func(_ context.Context, _ transfer.Job, _ identity.Peer, answer func(*transfer.Accept, *transfer.Reject)) {
		opened++
		answer(&transfer.Accept{}, nil)
	})
	must(t, err)
	defer stop()
	// r1 takes r0's sealed body. SealTo is used as SubmitJob does for r0.
	plain := []byte("whatever: it must not even be opened")
	dest := fmt.Sprintf("job.decode.d0#%x", d.Epoch())
	body, err := seal.SealTo(d.key.Public(), "job", []byte("test|"+dest+"|r0"), plain)
	must(t, err)
	must(t, r1.bus.Publish("job.decode.d0", transfer.SignForTest(r1.Peer, "job", dest, body)))
	eventually(t, "refused", func() bool { return d.counts.Get(transfer.CountBadSeal) == 1 })
	body, err = seal.SealTo(d.key.Public(), "job", []byte("test|"+dest+"|r1"), plain)
	must(t, err)
	must(t, r1.bus.Publish("job.decode.d0", transfer.SignForTest(r1.Peer, "job", dest, body)))
	eventually(t, "opened, and no job", func() bool { return d.counts.Get(transfer.CountBadMessage) == 1 }) // the control
	if opened != 0 {
		t.Error("handler was called")
	}
}

// An answer counts only from the node that was asked, in its role, to this very
// request, about this attempt.
func TestJobAnswers(t *testing.T) {
	w := newWorld(t)
	r, d0, d1, p := w.node(identity.Router, "r0"), w.node(identity.Decode, "d0"), w.node(identity.Decode, "d1"), w.node(identity.Prefill, "d0")
	yes := func(token string) []byte {
		return transfer.EncodeForTest(transfer.Accept{TokenHash: transfer.TokenHash(token)})
	}
	var old []byte
	for what, answer := range map[string]func(m transfer.Msg) []byte{
		"another node":    func(m transfer.Msg) []byte { return transfer.AnswerForTest(d1.Peer, "accept", m.Data, yes("t")) },
		"another role":    func(m transfer.Msg) []byte { return transfer.AnswerForTest(p.Peer, "accept", m.Data, yes("t")) },
		"a router":        func(m transfer.Msg) []byte { return transfer.AnswerForTest(r.Peer, "accept", m.Data, yes("t")) },
		"another request": func(m transfer.Msg) []byte { return transfer.AnswerForTest(d0.Peer, "accept", []byte("old"), yes("t")) },
		"another attempt": func(m transfer.Msg) []byte { return transfer.AnswerForTest(d0.Peer, "accept", m.Data, yes("u")) },
		"reject of another attempt": func(m transfer.Msg) []byte {
			return transfer.AnswerForTest(d0.Peer, "reject", m.Data, transfer.EncodeForTest(transfer.Reject{TokenHash: transfer.TokenHash("u"), Reason: transfer.ReasonBusy}))
		},
		"another kind":         func(m transfer.Msg) []byte { return transfer.AnswerForTest(d0.Peer, "cancelled", m.Data, yes("t")) },
		"a pong":               func(m transfer.Msg) []byte { return transfer.AnswerForTest(d0.Peer, "pong", m.Data, yes("t")) },
		"reject for an accept": func(m transfer.Msg) []byte { return transfer.AnswerForTest(d0.Peer, "reject", m.Data, yes("t")) },
		"nothing":              func(m transfer.Msg) []byte { return nil },
		"the question":         func(m transfer.Msg) []byte { return m.Data },
		"good": func(m transfer.Msg) []byte {
			old = transfer.AnswerForTest(d0.Peer, "accept", m.Data, yes("t"))
			return old
		},
	} {
		stop, err := d0.bus.Subscribe("job.decode.d0", func(m transfer.Msg) {
			if err := m.Respond(answer(m)); err != nil {
				t.Error(err)
			}
		})
		must(t, err)
		_, err = r.SubmitJob(t.Context(), d0.announcement(), job("r0", "t"))
		if what == "good" && err != nil || what != "good" && !errors.Is(err, transfer.ErrEnvelope) && !errors.Is(err, transfer.ErrMessage) {
			t.Errorf("answer of %s: %v", what, err)
		}
		stop()
	}
	// A good answer replayed to the same job asked again.
	stop, err := d0.bus.Subscribe("job.decode.d0", func(m transfer.Msg) {
		if err := m.Respond(old); err != nil {
			t.Error(err)
		}
	})
	must(t, err)
	defer stop()
	_, err = r.SubmitJob(t.Context(), d0.announcement(), job("r0", "t"))
	wantErr(t, err, transfer.ErrEnvelope)
}

// Cancel, ping and credit: they arrive, and only from who may.
func TestControl(t *testing.T) {
	w := newWorld(t)
	r, p, d, d1 := w.node(identity.Router, "r0"), w.node(identity.Prefill, "p0"), w.node(identity.Decode, "d0"), w.node(identity.Decode, "d1")
	cancels, creds := make(chan transfer.Cancel, 10), make(chan transfer.Credit, 10)
	stop, err := p.ServeCancel(func(c transfer.Cancel, from identity.Peer, done func()) {
		cancels <- c
		go done()
	})
	must(t, err)
	defer stop()
	stop, err = p.ServePing(func() transfer.Pong { return transfer.Pong{Epoch: p.Epoch(), Attempts: 7} })
	must(t, err)
	defer stop()
	stop, err = p.ServeCredit(func(c transfer.Credit, from identity.Peer) {
		if from.Name != "d0" {
			t.Errorf("credit from %s", from.Name)
		}
		creds <- c
	})
	must(t, err)
	defer stop()

	c := transfer.Cancel{TokenHash: transfer.Hash{5}, Reason: transfer.ReasonTimeout}
	must(t, r.SendCancel(t.Context(), "p0", c))
	if got := recv(t, cancels); got != c {
		t.Errorf("cancelled %+v", got)
	}
	pong, err := r.Ping(t.Context(), "p0")
	must(t, err)
	if pong.Epoch != p.Epoch() || pong.Attempts != 7 {
		t.Errorf("pong %+v", pong)
	}
	want := transfer.Credit{TokenHash: transfer.Hash{6}, Limit: 1 << 40, MAC: make([]byte, 32)}
	must(t, d.SendCredit("p0", want))
	if got := recv(t, creds); got.Limit != want.Limit || got.TokenHash != want.TokenHash {
		t.Errorf("credit %+v", got)
	}

	// d1's credit on d0's subject; credits of roles that have none to give.
	w.interfere(func(m membus.Message) membus.Verdict {
		if m.Subject == "credit.p0.d1" {
			return membus.Verdict{Subject: "credit.p0.d0"}
		}
		return membus.Verdict{}
	})
	must(t, d1.SendCredit("p0", want))
	w.interfere(nil)
	body := transfer.EncodeForTest(want)
	must(t, d1.bus.Publish("credit.p0.d0", transfer.SignForTest(d1.Peer, "credit", "credit.p0.d0", body)))
	must(t, r.bus.Publish("credit.p0.r0", transfer.SignForTest(r.Peer, "credit", "credit.p0.r0", body)))
	must(t, d.bus.Publish("credit.p0.d0", transfer.SignForTest(d.Peer, "credit", "credit.p0.d0", []byte{1})))
	// Cancels and pings of nodes that are no routers; a cancel that is none.
	for _, n := range []*node{p, d} {
		must(t, n.bus.Publish("cancel.p0", transfer.SignForTest(n.Peer, "cancel", "cancel.p0", transfer.EncodeForTest(c))))
		must(t, n.bus.Publish("ping.p0", transfer.SignForTest(n.Peer, "ping", "ping.p0", nil)))
	}
	must(t, r.bus.Publish("cancel.p0", transfer.SignForTest(r.Peer, "cancel", "cancel.p0", []byte{1})))
	must(t, r.bus.Publish("cancel.p0", transfer.SignForTest(r.Peer, "cancel", "cancel.d0", transfer.EncodeForTest(c))))
	eventually(t, "8 bad envelopes and 2 bad messages", func() bool {
		return p.counts.Get(transfer.CountBadEnvelope) == 8 && p.counts.Get(transfer.CountBadMessage) == 2
	})
	if len(cancels)+len(creds) != 0 {
		t.Error("a refused message reached its handler")
	}
}

// The directory: who is there, what they say, and when they are gone.
func TestDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r, d := w.node(identity.Router, "r0"), w.node(identity.Decode, "d0")
		dir, err := r.WatchPeers(transfer.RoleDecode, transfer.RoleRouter)
		must(t, err)
		defer dir.Close()
		var changes atomic.Int32
		dir.OnChange(func() { changes.Add(1) })
		say := func(n *node, a transfer.Announce) {
			must(t, n.Announce(a))
			synctest.Wait()
		}
		say(d, transfer.Announce{Capacity: 100, Window: 100, FreeTokens: 7})
		a, peer, ok := dir.Get(transfer.RoleDecode, "d0")
		if !ok || a.FreeTokens != 7 || a.Epoch != d.Epoch() || peer.Name != "d0" || !bytes.Equal(peer.Public, d.id.Public()) {
			t.Fatalf("%+v %+v %t", a, peer, ok)
		}
		if _, _, ok := dir.Get(transfer.RolePrefill, "d0"); ok {
			t.Error("d0 is a decode node")
		}
		time.Sleep(transfer.AnnounceEvery)
		say(d, transfer.Announce{Capacity: 100, Window: 100, FreeTokens: 6})
		if a, _, _ := dir.Get(transfer.RoleDecode, "d0"); a.FreeTokens != 6 {
			t.Errorf("still %d tokens free", a.FreeTokens)
		}
		say(w.node(identity.Decode, "a"), transfer.Announce{})
		say(w.node(identity.Router, "r1"), transfer.Announce{})
		say(w.node(identity.Prefill, "p0"), transfer.Announce{}) // not watched
		var names []string
		for _, a := range dir.List(transfer.RoleDecode) {
			names = append(names, a.Node)
		}
		if !slices.Equal(names, []string{"a", "d0"}) || len(dir.List(transfer.RoleRouter)) != 1 || len(dir.List(transfer.RolePrefill)) != 0 {
			t.Errorf("decode nodes %v", names)
		}
		if n := changes.Load(); n != 4 {
			t.Errorf("%d changes told, want 4", n)
		}
		// Silence: gone, and that is told.
		time.Sleep(transfer.AnnounceTTL + time.Millisecond)
		synctest.Wait()
		if l, n := dir.List(transfer.RoleDecode), changes.Load(); len(l) != 0 || n <= 4 {
			t.Errorf("%d nodes after their time, %d changes told", len(l), n)
		}
		// Back again, then forgotten by the one who found it dead, then back.
		say(d, transfer.Announce{})
		dir.Forget(transfer.RoleDecode, "d0")
		if _, _, ok := dir.Get(transfer.RoleDecode, "d0"); ok {
			t.Error("forgotten and still there")
		}
		time.Sleep(time.Millisecond)
		say(d, transfer.Announce{})
		if _, _, ok := dir.Get(transfer.RoleDecode, "d0"); !ok {
			t.Error("not there again")
		}
	})
}

// Goal: what the bus kept back cannot make the directory believe the past.
func TestAnnouncementsReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r, old := w.node(identity.Router, "r0"), w.node(identity.Decode, "d0")
		dir, err := r.WatchPeers(transfer.RoleDecode, transfer.RolePrefill)
		must(t, err)
		defer dir.Close()
		const subject = "announce.decode.d0"
		var recorded [][]byte
		w.interfere(func(m membus.Message) membus.Verdict {
			recorded = append(recorded, m.Data)
			return membus.Verdict{}
		})
		say := func(n *node, free int) {
			must(t, n.Announce(transfer.Announce{FreeTokens: free}))
			synctest.Wait()
			time.Sleep(time.Second)
		}
		now := func() (epoch uint64, free int) {
			a, _, _ := dir.Get(transfer.RoleDecode, "d0")
			return a.Epoch, a.FreeTokens
		}
		replay := func(data []byte, on string) {
			t.Helper()
			before, beforeFree := now()
			total := func() uint64 {
				return r.counts.Get(transfer.CountReplay) + r.counts.Get(transfer.CountBadEnvelope)
			}
			n := total()
			must(t, old.bus.Publish(on, data))
			synctest.Wait()
			if e, f := now(); e != before || f != beforeFree {
				t.Errorf("replay changed epoch %x to %x, free %d to %d", before, e, beforeFree, f)
			}
			if total() != n+1 {
				t.Error("replay was not counted")
			}
		}
		say(old, 1)
		say(old, 2)
		w.interfere(func(m membus.Message) membus.Verdict { // the bus keeps this one back
			recorded = append(recorded, m.Data)
			return membus.Verdict{Drop: true}
		})
		say(old, 3)
		w.interfere(nil)
		if _, f := now(); f != 2 {
			t.Fatalf("free %d, want 2", f)
		}
		replay(recorded[0], subject)           // older than held
		replay(recorded[1], subject)           // the one held
		again := w.node(identity.Decode, "d0") // a new boot
		say(again, 10)
		if e, f := now(); e != again.Epoch() || f != 10 || e == old.Epoch() {
			t.Fatalf("epoch %x, free %d after the new boot", e, f)
		}
		replay(recorded[2], subject)               // never seen, of the old boot
		replay(recorded[2], "announce.decode.d1")  // as another node's
		replay(recorded[2], "announce.prefill.d0") // as another role's
		time.Sleep(time.Minute)                    // nothing is remembered any more; too old on its own account
		for _, data := range recorded {
			replay(data, subject)
		}
		if l := dir.List(transfer.RoleDecode); len(l) != 0 {
			t.Errorf("%d nodes from replays", len(l))
		}
	})
}

// A node speaks for itself alone: name and role of subject, body and key are one.
func TestAnnouncementOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r, d0, d1, p := w.node(identity.Router, "r0"), w.node(identity.Decode, "d0"), w.node(identity.Decode, "d1"), w.node(identity.Prefill, "d0")
		dir, err := r.WatchPeers()
		must(t, err)
		defer dir.Close()
		const subject = "announce.decode.d0"
		say := func(by *node, name string, role transfer.Role) bool {
			a := transfer.Announce{Node: name, Role: role, Expires: time.Now().Add(transfer.AnnounceTTL)}
			must(t, by.bus.Publish(subject, transfer.SignForTest(by.Peer, "announce", subject, transfer.EncodeForTest(a))))
			synctest.Wait()
			time.Sleep(time.Second)
			return len(dir.List(transfer.RoleDecode))+len(dir.List(transfer.RolePrefill)) > 0
		}
		for what, believed := range map[string]bool{
			"signed by another node":    say(d1, "d0", transfer.RoleDecode),
			"signed in another role":    say(p, "d0", transfer.RoleDecode),
			"another name in the body":  say(d0, "d1", transfer.RoleDecode),
			"another role in the body":  say(d0, "d0", transfer.RolePrefill),
			"another name, role in all": say(p, "d1", transfer.RolePrefill),
		} {
			if believed {
				t.Error(what, "was believed")
			}
		}
		if !say(d0, "d0", transfer.RoleDecode) {
			t.Error("the control was refused")
		}
	})
}

// Clocks: up to ClockSkew apart a node is believed, beyond it is refused.
func TestAnnouncementClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r, d := w.node(identity.Router, "r0"), w.node(identity.Decode, "d0")
		dir, err := r.WatchPeers()
		must(t, err)
		defer dir.Close()
		for _, c := range []struct {
			off  time.Duration
			want bool
		}{
			{-transfer.AnnounceTTL - transfer.ClockSkew - time.Second, false},
			{-transfer.AnnounceTTL - transfer.ClockSkew + time.Second, true},
			{0, true},
			{transfer.ClockSkew - time.Second, true},
			{transfer.ClockSkew + time.Second, false},
			{24 * time.Hour, false},
		} {
			must(t, d.Announce(transfer.Announce{Expires: time.Now().Add(c.off + transfer.AnnounceTTL)}))
			synctest.Wait()
			if _, _, ok := dir.Get(transfer.RoleDecode, "d0"); ok != c.want {
				t.Errorf("clock off by %s: believed %t", c.off, ok)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
		}
	})
}
