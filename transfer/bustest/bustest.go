// Package bustest is the one set of tests that every [transfer.Bus] passes: the
// one over NATS and the one in memory mean the same by every call.
package bustest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"bulkhead/transfer"
)

// Cluster is three nodes' buses on one server: router r0, prefill p0, decode d0.
type Cluster struct {
	Router, Prefill, Decode transfer.Bus
	// Restart stops the server and starts it again; memory streams are lost.
	Restart func()
}

// patience bounds what should take milliseconds.
const patience = 30 * time.Second

// Run runs the tests, each on a cluster of its own.
func Run(t *testing.T, make func(t *testing.T) Cluster) {
	for name, f := range map[string]func(*testing.T, Cluster){
		"PublishInOrder": publishInOrder,
		"Wildcards":      wildcards,
		"Unsubscribe":    unsubscribe,
		"Request":        request,
		"NoResponders":   noResponders,
		"RequestEnds":    requestEnds,
		"BuffersAreFree": buffersAreFree,
		"KVInOrder":      kvInOrder,
		"KVNoStream":     kvNoStream,
		"KVFull":         kvFull,
		"KVDrop":         kvDrop,
		"KVTakeover":     kvTakeover,
		"KVRestart":      kvRestart,
		"Closed":         closed,
	} {
		t.Run(name, func(t *testing.T) { f(t, make(t)) })
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
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

func subscribe(t *testing.T, b transfer.Bus, subject string) (<-chan transfer.Msg, func()) {
	t.Helper()
	c := make(chan transfer.Msg, 1000)
	stop, err := b.Subscribe(subject, func(m transfer.Msg) { c <- m })
	must(t, err)
	return c, stop
}

func publishInOrder(t *testing.T, c Cluster) {
	got, stop := subscribe(t, c.Router, "out.r0.x.y")
	defer stop()
	for i := range 200 {
		must(t, c.Decode.Publish("out.r0.x.y", fmt.Append(nil, i)))
	}
	for i := range 200 {
		if m := recv(t, got); string(m.Data) != fmt.Sprint(i) || m.Subject != "out.r0.x.y" || m.Respond != nil {
			t.Fatalf("message %d is %q on %s", i, m.Data, m.Subject)
		}
	}
}

func wildcards(t *testing.T, c Cluster) {
	one, stop := subscribe(t, c.Router, "announce.decode.*")
	defer stop()
	rest, stop := subscribe(t, c.Router, "out.r0.>")
	defer stop()
	must(t, c.Prefill.Publish("announce.prefill.p0", nil))
	must(t, c.Decode.Publish("announce.decode.d0", nil))
	must(t, c.Decode.Publish("out.r0.a.b", nil))
	if m := recv(t, one); m.Subject != "announce.decode.d0" {
		t.Errorf("* heard %s", m.Subject)
	}
	if m := recv(t, rest); m.Subject != "out.r0.a.b" {
		t.Errorf("> heard %s", m.Subject)
	}
}

func unsubscribe(t *testing.T, c Cluster) {
	got, stop := subscribe(t, c.Router, "out.r0.a")
	stop()
	other, stop := subscribe(t, c.Router, "out.r0.b")
	defer stop()
	must(t, c.Decode.Publish("out.r0.a", nil))
	must(t, c.Decode.Publish("out.r0.b", nil))
	recv(t, other)
	if len(got) != 0 {
		t.Error("heard after the end of the subscription")
	}
}

func request(t *testing.T, c Cluster) {
	stop, err := c.Decode.Subscribe("ping.d0", func(m transfer.Msg) {
		go func() { // answers come from any goroutine
			if err := m.Respond(append([]byte("re:"), m.Data...)); err != nil {
				t.Error(err)
			}
		}()
	})
	must(t, err)
	defer stop()
	for i := range 20 {
		a, err := c.Router.Request(t.Context(), "ping.d0", fmt.Append(nil, i))
		must(t, err)
		if string(a) != fmt.Sprintf("re:%d", i) {
			t.Fatalf("answer %q to %d", a, i)
		}
	}
}

func noResponders(t *testing.T, c Cluster) {
	if _, err := c.Router.Request(context.Background(), "ping.d0", nil); !errors.Is(err, transfer.ErrNoResponders) {
		t.Errorf("asked nobody: %v", err)
	}
}

func requestEnds(t *testing.T, c Cluster) {
	heard := make(chan struct{}, 1)
	stop, err := c.Decode.Subscribe("ping.d0", func(transfer.Msg) { heard <- struct{}{} })
	must(t, err)
	defer stop()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-heard; cancel() }()
	if _, err := c.Router.Request(ctx, "ping.d0", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled request: %v", err)
	}
}

func buffersAreFree(t *testing.T, c Cluster) {
	got, stop := subscribe(t, c.Router, "out.r0.a")
	defer stop()
	kv, _ := consume(t, c)
	must(t, c.Router.EnsureKV(t.Context(), "d0", 1<<20))
	buf := []byte("first")
	done := make(chan error, 1)
	must(t, c.Decode.Publish("out.r0.a", buf))
	must(t, c.Prefill.PublishKV(kvSubject(1), buf, func(err error) { done <- err }))
	copy(buf, "XXXXX")
	if m := recv(t, got); string(m.Data) != "first" {
		t.Errorf("published %q", m.Data)
	}
	must(t, recv(t, done))
	if m := recv(t, kv); string(m.Data) != "first" {
		t.Errorf("stored %q", m.Data)
	} else {
		m.Ack()
	}
}

func kvSubject(attempt uint16) string {
	return transfer.KVSubject{Decode: "d0", Request: transfer.ID{1}, Attempt: attempt}.String()
}

// consume consumes d0's stream until the test ends.
func consume(t *testing.T, c Cluster) (<-chan transfer.KVMsg, <-chan bool) {
	t.Helper()
	got, ready := make(chan transfer.KVMsg, 1000), make(chan bool, 1000)
	stop, err := c.Decode.ConsumeKV("d0", func(m transfer.KVMsg) { got <- m }, func(up bool) { ready <- up })
	must(t, err)
	t.Cleanup(stop)
	return got, ready
}

// put stores one message and waits for the confirmation.
func put(t *testing.T, c Cluster, subject string, data []byte) error {
	t.Helper()
	done := make(chan error, 1)
	if err := c.Prefill.PublishKV(subject, data, func(err error) { done <- err }); err != nil {
		return err
	}
	return recv(t, done)
}

// stored waits until d0's stream holds n messages.
func stored(t *testing.T, c Cluster, n int) {
	t.Helper()
	var have int
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		var err error
		if have, _, err = c.Router.StoredKV(t.Context(), "d0"); err == nil && have == n {
			return
		}
	}
	t.Fatalf("stream holds %d messages, want %d", have, n)
}

func kvInOrder(t *testing.T, c Cluster) {
	must(t, c.Router.EnsureKV(t.Context(), "d0", 64<<20))
	got, ready := consume(t, c)
	if !recv(t, ready) {
		t.Fatal("consumer is not there")
	}
	const n = 300
	done := make(chan error, n)
	for i := range n {
		must(t, c.Prefill.PublishKV(kvSubject(1), fmt.Append(nil, i), func(err error) { done <- err }))
	}
	var held []transfer.KVMsg
	for i := range n {
		must(t, recv(t, done))
		m := recv(t, got)
		if string(m.Data) != fmt.Sprint(i) || m.Subject != kvSubject(1) {
			t.Fatalf("message %d is %q on %s", i, m.Data, m.Subject)
		}
		held = append(held, m)
	}
	stored(t, c, n)
	slices.Reverse(held) // any order
	for i, m := range held[1:] {
		if i%2 == 0 {
			m.Ack()
		} else {
			m.Term()
		}
	}
	stored(t, c, 1)
	held[0].Ack()
	stored(t, c, 0)
}

func kvNoStream(t *testing.T, c Cluster) {
	if err := put(t, c, kvSubject(1), nil); !errors.Is(err, transfer.ErrNoStream) || !transfer.Retryable(err) {
		t.Errorf("without a stream: %v", err)
	}
	if _, _, err := c.Router.StoredKV(t.Context(), "d0"); !errors.Is(err, transfer.ErrNoStream) {
		t.Errorf("state without a stream: %v", err)
	}
	must(t, c.Router.DropKV(t.Context(), "d0")) // nothing to drop is no error
	got, ready := consume(t, c)                 // before there is anything to consume
	must(t, c.Router.EnsureKV(t.Context(), "d0", 1<<20))
	must(t, c.Router.EnsureKV(t.Context(), "d0", 1<<20)) // twice is once
	if !recv(t, ready) {
		t.Fatal("consumer is not there")
	}
	must(t, put(t, c, kvSubject(1), []byte("x")))
	recv(t, got).Ack()
	stored(t, c, 0)
}

func kvFull(t *testing.T, c Cluster) {
	must(t, c.Router.EnsureKV(t.Context(), "d0", 1<<20))
	frame := make([]byte, 400<<10)
	must(t, put(t, c, kvSubject(1), frame))
	must(t, put(t, c, kvSubject(1), frame))
	if err := put(t, c, kvSubject(1), frame); !errors.Is(err, transfer.ErrStreamFull) || !transfer.Retryable(err) {
		t.Errorf("a third of 400 KiB in 1 MiB: %v", err)
	}
	got, _ := consume(t, c)
	recv(t, got).Ack() // makes room
	recv(t, got)
	stored(t, c, 1)
	must(t, put(t, c, kvSubject(1), frame))
	stored(t, c, 2)
}

func kvDrop(t *testing.T, c Cluster) {
	must(t, c.Router.EnsureKV(t.Context(), "d0", 1<<20))
	got, ready := consume(t, c)
	if !recv(t, ready) {
		t.Fatal("consumer is not there")
	}
	must(t, put(t, c, kvSubject(1), []byte("old")))
	old := recv(t, got)
	must(t, c.Router.DropKV(t.Context(), "d0"))
	if recv(t, ready) {
		t.Error("dropped stream reported as there")
	}
	old.Ack() // of what is gone: nothing happens
	if err := put(t, c, kvSubject(1), nil); !errors.Is(err, transfer.ErrNoStream) {
		t.Errorf("into a dropped stream: %v", err)
	}
	must(t, c.Router.EnsureKV(t.Context(), "d0", 1<<20))
	if !recv(t, ready) {
		t.Fatal("consumer is not there again")
	}
	must(t, put(t, c, kvSubject(2), []byte("new")))
	if m := recv(t, got); string(m.Data) != "new" {
		t.Errorf("got %q", m.Data)
	}
}

// A decode node that comes back under its name gets what its predecessor was
// not yet given.
func kvTakeover(t *testing.T, c Cluster) {
	must(t, c.Router.EnsureKV(t.Context(), "d0", 1<<20))
	for i := range 3 {
		must(t, put(t, c, kvSubject(1), fmt.Append(nil, i)))
	}
	first := make(chan transfer.KVMsg, 10)
	stop, err := c.Decode.ConsumeKV("d0", func(m transfer.KVMsg) { m.Ack(); first <- m }, nil)
	must(t, err)
	for range 3 {
		recv(t, first)
	}
	stored(t, c, 0)
	stop()
	must(t, put(t, c, kvSubject(2), []byte("later")))
	stored(t, c, 1)
	got, _ := consume(t, c)
	m := recv(t, got)
	if string(m.Data) != "later" || len(first) != 0 {
		t.Errorf("successor got %q, predecessor %d more", m.Data, len(first))
	}
	m.Ack()
	stored(t, c, 0)
}

func kvRestart(t *testing.T, c Cluster) {
	must(t, c.Router.EnsureKV(t.Context(), "d0", 1<<20))
	got, ready := consume(t, c)
	if !recv(t, ready) {
		t.Fatal("consumer is not there")
	}
	ping, stop := subscribe(t, c.Router, "out.r0.a")
	defer stop()
	must(t, put(t, c, kvSubject(1), []byte("x")))
	recv(t, got)
	c.Restart()
	if recv(t, ready) {
		t.Error("after the restart a stream that is gone was reported as there")
	}
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if err = put(t, c, kvSubject(1), nil); !errors.Is(err, transfer.ErrDisconnected) {
			break
		}
	}
	if !errors.Is(err, transfer.ErrNoStream) {
		t.Errorf("into a stream that is gone: %v", err)
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if err = c.Router.EnsureKV(t.Context(), "d0", 1<<20); err == nil {
			break
		}
	}
	must(t, err)
	if !recv(t, ready) {
		t.Fatal("consumer is not there again")
	}
	must(t, put(t, c, kvSubject(2), []byte("new")))
	if m := recv(t, got); string(m.Data) != "new" {
		t.Errorf("got %q", m.Data)
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if err = c.Decode.Publish("out.r0.a", nil); err == nil { // subscriptions live on
			break
		}
	}
	must(t, err)
	recv(t, ping)
}

func closed(t *testing.T, c Cluster) {
	must(t, c.Router.EnsureKV(t.Context(), "d0", 1<<20))
	consume(t, c)
	c.Decode.Close()
	c.Decode.Close() // twice is once
	c.Prefill.Close()
	if err := c.Decode.Publish("out.r0.a", nil); !errors.Is(err, transfer.ErrClosed) {
		t.Errorf("publish: %v", err)
	}
	if _, err := c.Decode.Subscribe("ping.d0", func(transfer.Msg) {}); !errors.Is(err, transfer.ErrClosed) {
		t.Errorf("subscribe: %v", err)
	}
	if err := c.Prefill.PublishKV(kvSubject(1), nil, func(error) { t.Error("done was called") }); !errors.Is(err, transfer.ErrClosed) {
		t.Errorf("publish into a stream: %v", err)
	}
	if _, err := c.Prefill.Request(context.Background(), "ping.d0", nil); !errors.Is(err, transfer.ErrClosed) {
		t.Errorf("request: %v", err)
	}
	if _, err := c.Decode.ConsumeKV("d0", func(transfer.KVMsg) {}, nil); !errors.Is(err, transfer.ErrClosed) {
		t.Errorf("consume: %v", err)
	}
}
