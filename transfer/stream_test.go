package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/internal/sample"
	"bulkhead/transfer"
	"bulkhead/transfer/membus"
	"bulkhead/transfer/seal"
)

func tokens(id int32) transfer.OutputBody {
	return transfer.OutputBody{Tokens: []sample.Token{{ID: id}}}
}

// receiver hears one attempt's output.
type receiver struct {
	got    chan string
	broken chan error
}

func receive(t *testing.T, r *node, j transfer.Job) *receiver {
	t.Helper()
	rec := &receiver{make(chan string, 1000), make(chan error, 10)}
	stop, err := r.ReceiveOutput(j.Reply, j.ReplyKey, transfer.TokenHash(j.Token), func(from transfer.Role, b transfer.OutputBody) {
		switch {
		case b.Tokens != nil:
			rec.got <- fmt.Sprintf("%s:%d", from, b.Tokens[0].ID)
		case b.Receipt != nil:
			rec.got <- fmt.Sprintf("%s:receipt %s", from, b.Receipt.Statement)
		case b.Finish != nil:
			rec.got <- fmt.Sprintf("%s:%s", from, b.Finish.Reason)
		case b.Fail != nil:
			rec.got <- fmt.Sprintf("%s:fail %s", from, b.Fail.Reason)
		}
	}, func(err error) { rec.broken <- err })
	must(t, err)
	t.Cleanup(stop)
	return rec
}

// Output comes in order, from both sides, as it was sent.
func TestOutput(t *testing.T) {
	w := newWorld(t)
	r, p, d := w.node(identity.Router, "r0"), w.node(identity.Prefill, "p0"), w.node(identity.Decode, "d0")
	j := job("r0", "tok")
	rec := receive(t, r, j)
	hash := transfer.TokenHash(j.Token)
	out, fail := d.NewOutput(transfer.JobForRole(j, transfer.RoleDecode), hash), p.NewOutput(transfer.JobForRole(j, transfer.RolePrefill), hash)
	must(t, out.Send(transfer.OutputBody{Receipt: &transfer.SignedReceipt{Statement: []byte("r")}}))
	for i := range int32(100) {
		must(t, out.Send(tokens(i)))
	}
	must(t, fail.Send(transfer.OutputBody{Fail: &transfer.Reject{Reason: transfer.ReasonTimeout}}))
	must(t, out.Send(transfer.OutputBody{Finish: &transfer.Finish{Reason: "stop"}}))
	want := []string{"decode:receipt r"}
	for i := range 100 {
		want = append(want, fmt.Sprintf("decode:%d", i))
	}
	want = append(want, "prefill:fail timeout", "decode:stop")
	for _, s := range want {
		if got := recv(t, rec.got); got != s {
			t.Fatalf("got %s, want %s", got, s)
		}
	}
	if len(rec.broken) != 0 {
		t.Error(<-rec.broken)
	}
	// Prefill has nothing to say but no.
	wantErr(t, fail.Send(tokens(1)), transfer.ErrMessage)
	wantErr(t, out.Send(transfer.OutputBody{}), transfer.ErrMessage)
	if _, err := r.ReceiveOutput("out.r1.x.y", j.ReplyKey, hash, nil, nil); !errors.Is(err, transfer.ErrSubject) {
		t.Errorf("bad reply subject: %v", err)
	}
	other := job("r1", "tok")
	if _, err := r.ReceiveOutput(other.Reply, j.ReplyKey, hash, nil, nil); !errors.Is(err, transfer.ErrSubject) {
		t.Errorf("reply subject of another router: %v", err)
	}
	if _, err := r.ReceiveOutput(j.Reply, j.ReplyKey, transfer.Hash{1}, nil, nil); !errors.Is(err, transfer.ErrSubject) {
		t.Errorf("reply subject of another token: %v", err)
	}
}

// Goal: whatever is not exactly the next message ends the stream, and nothing
// of it or after it is heard. Method: ten messages, something happens to the fourth.
func TestOutputBroken(t *testing.T) {
	hash := transfer.TokenHash("tok")
	forged := func(o transfer.Output) []byte { return transfer.EncodeForTest(o) }
	for what, c := range map[string]struct {
		verdict func(n int, data []byte) membus.Verdict
		heard   int
		also    error
	}{
		"nothing":  {func(int, []byte) membus.Verdict { return membus.Verdict{} }, 10, nil},
		"lost":     {func(n int, _ []byte) membus.Verdict { return membus.Verdict{Drop: n == 3} }, 3, nil},
		"repeated": {func(n int, _ []byte) membus.Verdict { return membus.Verdict{Repeat: btoi(n == 3)} }, 4, transfer.ErrReplay},
		"late":     {func(n int, _ []byte) membus.Verdict { return membus.Verdict{Delay: btoi(n == 3) * 3} }, 3, nil},
		"a flipped bit": {func(n int, data []byte) membus.Verdict {
			if n != 3 {
				return membus.Verdict{}
			}
			bad := bytes.Clone(data)
			bad[len(bad)-1] ^= 1
			return membus.Verdict{Data: bad}
		}, 3, transfer.ErrSeal},
		"another token": {func(n int, data []byte) membus.Verdict {
			if n != 3 {
				return membus.Verdict{}
			}
			other := hash
			other[0] ^= 1
			return membus.Verdict{Data: bytes.Replace(data, hash[:], other[:], 1)}
		}, 3, nil},
		"in the other role's name": {func(n int, data []byte) membus.Verdict {
			if n != 3 {
				return membus.Verdict{}
			}
			bad := bytes.Replace(data, []byte("\xa6decode"), []byte("\xa7prefill"), 1)
			return membus.Verdict{Data: bytes.Replace(bad, []byte("\xa3seq\x03"), []byte("\xa3seq\x00"), 1)}
		}, 3, nil},
		"sealed by nobody": {func(n int, data []byte) membus.Verdict {
			if n != 3 {
				return membus.Verdict{}
			}
			return membus.Verdict{Data: forged(transfer.Output{TokenHash: hash, From: transfer.RoleDecode, Seq: 3, Payload: make([]byte, 40)})}
		}, 3, transfer.ErrSeal},
		"garbage": {func(n int, data []byte) membus.Verdict {
			if n != 3 {
				return membus.Verdict{}
			}
			return membus.Verdict{Data: []byte("garbage")}
		}, 3, nil},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			r, d := w.node(identity.Router, "r0"), w.node(identity.Decode, "d0")
			j := job("r0", "tok")
			rec := receive(t, r, j)
			release := w.hold(r) // so that a delayed message has others to wait for
			n := -1
			w.interfere(func(m membus.Message) membus.Verdict {
				n++
				return c.verdict(n, m.Data)
			})
			out := d.NewOutput(transfer.JobForRole(j, transfer.RoleDecode), hash)
			for i := range int32(10) {
				must(t, out.Send(tokens(i)))
			}
			release()
			for i := range c.heard {
				if got := recv(t, rec.got); got != fmt.Sprintf("decode:%d", i) {
					t.Fatalf("message %d: %s", i, got)
				}
			}
			if c.heard < 10 {
				err := recv(t, rec.broken)
				if !errors.Is(err, transfer.ErrOutput) || c.also != nil && !errors.Is(err, c.also) {
					t.Errorf("broken with %v", err)
				}
			}
			eventually(t, "bus empty", func() bool { return w.bus.Pending() == 0 })
			must(t, r.bus.Publish("out.r0.x.y", nil)) // one more event through the queue
			eventually(t, "bus empty", func() bool { return w.bus.Pending() == 0 })
			if len(rec.got) != 0 || len(rec.broken) != 0 {
				t.Errorf("%d more heard, %d more errors", len(rec.got), len(rec.broken))
			}
			if want := uint64(btoi(c.heard < 10)); r.counts.Get(transfer.CountBadOutput) != want {
				t.Errorf("counted %d, want %d", r.counts.Get(transfer.CountBadOutput), want)
			}
		})
	}
}

// A prefill node that knows the reply key cannot send tokens as itself either.
func TestOutputPrefillTokens(t *testing.T) {
	w := newWorld(t)
	r, p := w.node(identity.Router, "r0"), w.node(identity.Prefill, "p0")
	j := job("r0", "tok")
	hash := transfer.TokenHash("tok")
	rec := receive(t, r, j)
	must(t, p.bus.Publish(j.Reply, transfer.SealOutputForTest(j.ReplyKey, transfer.RolePrefill, hash, tokens(5))))
	wantErr(t, recv(t, rec.broken), transfer.ErrOutput)
	// Nor in decode's name, for which it has no key.
	rec = receive(t, r, j)
	own := transfer.JobForRole(j, transfer.RolePrefill).ReplyKey
	payload, err := seal.NewStream(own, "decode", hash).Seal(0, transfer.EncodeForTest(tokens(5)))
	must(t, err)
	must(t, p.bus.Publish(j.Reply, transfer.EncodeForTest(transfer.Output{TokenHash: hash, From: transfer.RoleDecode, Payload: payload})))
	wantErr(t, recv(t, rec.broken), transfer.ErrSeal)
	rec = receive(t, r, j)
	must(t, p.bus.Publish(j.Reply, transfer.SealOutputForTest(j.ReplyKey, transfer.RolePrefill, hash, transfer.OutputBody{Fail: &transfer.Reject{Reason: transfer.ReasonBusy}})))
	if got := recv(t, rec.got); got != "prefill:fail busy" {
		t.Error(got) // the control
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// kvWorld is a prefill node with one attempt towards d0.
type kvWorld struct {
	*world
	r, p, d *node
	sub     transfer.KVSubject
	hash    transfer.Hash
	s       *transfer.KVSender
}

func newKVWorld(t *testing.T, window *transfer.Window) *kvWorld {
	w := newWorld(t)
	k := &kvWorld{world: w, r: w.node(identity.Router, "r0"), p: w.node(identity.Prefill, "p0"), d: w.node(identity.Decode, "d0")}
	k.hash = transfer.TokenHash("tok")
	k.sub = transfer.KVSubject{Decode: "d0", Request: transfer.ID{1}, Attempt: 1, Token: transfer.Fingerprint(k.hash)}
	k.s = k.p.NewKVSender("d0", window)
	return k
}

func (k *kvWorld) attempt(credit int64) *transfer.KVAttempt {
	k.t.Helper()
	a, err := k.s.Attempt(k.sub, k.hash, credit)
	must(k.t, err)
	k.t.Cleanup(a.Close)
	return a
}

func frame(i int, size int) []byte {
	b := make([]byte, size)
	copy(b, "BKHF")
	b[4] = byte(i)
	return b
}

// What the stream refuses for now is sent again, the same bytes, until it is
// stored; the manifest comes after all of it.
func TestKVRetry(t *testing.T) {
	k := newKVWorld(t, nil)
	must(t, k.r.bus.EnsureKV(t.Context(), "d0", 1<<20))
	lost := map[string]int{} // every frame is lost twice
	k.interfere(func(m membus.Message) membus.Verdict {
		if m.Kind != membus.KV || !bytes.HasPrefix(m.Data, []byte("BKHF")) {
			return membus.Verdict{}
		}
		lost[string(m.Data)]++
		return membus.Verdict{Drop: lost[string(m.Data)] <= 2}
	})
	got := make(chan transfer.KVMessage, 100)
	stop, err := k.d.ConsumeKV(func(m transfer.KVMsg) {
		km, err := k.d.ParseKVMessage(m)
		if err != nil {
			t.Error(err)
		}
		got <- km
		m.Ack()
	}, nil)
	must(t, err)
	defer stop()
	a := k.attempt(0)
	must(t, a.Open(t.Context(), transfer.Open{Token: "tok", Prefill: "p0", Frames: 5}))
	for i := range 5 {
		must(t, a.Frame(t.Context(), frame(i, 100)))
	}
	must(t, a.Manifest(t.Context(), []byte("st")))
	if m := recv(t, got); m.Kind != transfer.KVOpen {
		t.Errorf("first is %s", m.Kind)
	}
	seen := map[byte]bool{}
	for range 5 {
		m := recv(t, got)
		if m.Kind != transfer.KVFrame || !bytes.Equal(m.Frame, frame(int(m.Frame[4]), 100)) {
			t.Errorf("%s %v", m.Kind, m.Frame)
		}
		seen[m.Frame[4]] = true
	}
	if m := recv(t, got); m.Kind != transfer.KVManifest || len(seen) != 5 {
		t.Errorf("last is %s, %d frames", m.Kind, len(seen))
	}
	if n := k.p.counts.Get(transfer.CountKVRetry); n != 2*5 {
		t.Errorf("%d retries, want 10", n)
	}
	if bytes, count := k.s.InFlight(); bytes != 0 || count != 0 {
		t.Errorf("%d bytes, %d messages in flight at the end", bytes, count)
	}
}

// A full stream holds the sender back and costs nothing but time.
func TestKVFullStream(t *testing.T) {
	k := newKVWorld(t, nil)
	must(t, k.r.bus.EnsureKV(t.Context(), "d0", 1000))
	a := k.attempt(0)
	for i := range 20 {
		must(t, a.Frame(t.Context(), frame(i, 300)))
	}
	eventually(t, "a frame refused and tried again", func() bool { return k.p.counts.Get(transfer.CountKVRetry) > 0 })
	if k.p.counts.Get(transfer.CountKVFull) == 0 {
		t.Error("a full stream was not counted")
	}
	seen := make(chan byte, 100)
	stop, err := k.d.ConsumeKV(func(m transfer.KVMsg) { seen <- m.Data[4]; m.Ack() }, nil)
	must(t, err)
	defer stop()
	must(t, a.Flush(t.Context()))
	all := map[byte]bool{}
	for range 20 {
		all[recv(t, seen)] = true
	}
	if len(all) != 20 {
		t.Errorf("%d different frames of 20", len(all))
	}
}

// No room, no credit: Frame waits; room or credit lets it go on; Close and ctx end the waiting.
func TestKVWaits(t *testing.T) {
	k := newKVWorld(t, transfer.NewWindow(250, 10))
	must(t, k.r.bus.EnsureKV(t.Context(), "d0", 1<<20))
	hold := make(chan struct{}, 100)
	k.interfere(func(m membus.Message) membus.Verdict {
		if m.Kind == membus.KV {
			<-hold
		}
		return membus.Verdict{}
	})
	a := k.attempt(400)
	results := make(chan error, 10)
	next := func(ctx context.Context, i int) { go func() { results <- a.Frame(ctx, frame(i, 100)) }() }
	waiting := func() {
		t.Helper()
		select {
		case err := <-results:
			t.Fatalf("did not wait: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	hold <- struct{}{}
	hold <- struct{}{}
	hold <- struct{}{}
	hold <- struct{}{}
	for i := range 4 {
		next(t.Context(), i)
		must(t, recv(t, results))
	}
	eventually(t, "all stored", func() bool { _, n := k.s.InFlight(); return n == 0 })
	next(t.Context(), 4) // 400 bytes of credit are used
	waiting()
	a.Credit(499)
	waiting()
	a.Credit(10) // less than before: nothing
	waiting()
	hold <- struct{}{}
	a.Credit(500)
	must(t, recv(t, results))
	ctx, cancel := context.WithCancel(t.Context())
	next(ctx, 5)
	waiting()
	cancel()
	wantErr(t, recv(t, results), context.Canceled)
	next(t.Context(), 6)
	waiting()
	a.Close()
	wantErr(t, recv(t, results), transfer.ErrWindow)
	wantErr(t, a.Frame(t.Context(), frame(7, 10)), transfer.ErrWindow)
	if n, _, _ := k.r.bus.StoredKV(t.Context(), "d0"); n != 5 {
		t.Errorf("%d frames stored, want 5", n)
	}
}

// Without a stream an attempt waits for one, and ends when it is closed.
func TestKVNoStream(t *testing.T) {
	k := newKVWorld(t, nil)
	a := k.attempt(0)
	done := make(chan error, 1)
	go func() { done <- a.Open(t.Context(), transfer.Open{Token: "tok", Prefill: "p0"}) }()
	eventually(t, "tried twice", func() bool { return k.p.counts.Get(transfer.CountKVRetry) >= 2 })
	must(t, k.r.bus.EnsureKV(t.Context(), "d0", 1<<20))
	must(t, recv(t, done))
	must(t, k.r.bus.DropKV(t.Context(), "d0"))
	must(t, a.Frame(t.Context(), frame(1, 10)))
	go func() { done <- a.Manifest(t.Context(), []byte("st")) }()
	a.Close()
	wantErr(t, recv(t, done), transfer.ErrWindow)
	eventually(t, "window empty", func() bool { _, n := k.s.InFlight(); return n == 0 })
}

// An attempt is only for the subject of its own token and node; a frame over the limit is none.
func TestKVRefused(t *testing.T) {
	k := newKVWorld(t, nil)
	other := k.sub
	other.Decode = "d1"
	_, err := k.s.Attempt(other, k.hash, 0)
	wantErr(t, err, transfer.ErrSubject)
	_, err = k.s.Attempt(k.sub, transfer.Hash{1}, 0)
	wantErr(t, err, transfer.ErrSubject)
	wantErr(t, k.attempt(0).Frame(t.Context(), make([]byte, transfer.FrameMax+1)), transfer.ErrMessage)
	// A bus that is closed is no reason to try again: the first error stays.
	a := k.attempt(0)
	k.p.bus.Close()
	must(t, a.Frame(t.Context(), frame(0, 10)))
	wantErr(t, a.Flush(t.Context()), transfer.ErrClosed)
	wantErr(t, a.Frame(t.Context(), frame(0, 10)), transfer.ErrClosed)
	wantErr(t, a.Manifest(t.Context(), nil), transfer.ErrClosed)
	if _, n := k.s.InFlight(); n != 0 {
		t.Errorf("%d in flight", n)
	}
}
