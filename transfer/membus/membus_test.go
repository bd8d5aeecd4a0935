package membus_test

import (
	"fmt"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"bulkhead/transfer"
	"bulkhead/transfer/bustest"
	"bulkhead/transfer/membus"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBus(t *testing.T) {
	bustest.Run(t, func(t *testing.T) bustest.Cluster {
		b := membus.New(membus.Options{})
		t.Cleanup(b.Close)
		return bustest.Cluster{Router: b.Client("r0"), Prefill: b.Client("p0"), Decode: b.Client("d0"), Restart: b.Restart}
	})
}

// Each fault does what its name says, and nothing happens before Step.
func TestFaults(t *testing.T) {
	verdicts := map[string]membus.Verdict{
		"lost":  {Drop: true},
		"twice": {Repeat: 1},
		"late":  {Delay: 2},
		"else":  {Data: []byte("other")},
		"astra": {Subject: "b"},
	}
	b := membus.New(membus.Options{Manual: true, Faults: func(m membus.Message) membus.Verdict { return verdicts[string(m.Data)] }})
	defer b.Close()
	c := b.Client("x")
	var got []string
	for _, s := range []string{"a", "b"} {
		if _, err := c.Subscribe(s, func(m transfer.Msg) { got = append(got, m.Subject+":"+string(m.Data)) }); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []string{"lost", "twice", "late", "else", "astra", "plain"} {
		if err := c.Publish("a", []byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	if len(got) != 0 {
		t.Fatalf("before any step: %v", got)
	}
	for b.Step() {
	}
	slices.Sort(got)
	if want := "[a:late a:other a:plain a:twice a:twice b:astra]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

// Order under delay: a message held back for two events lets two others pass.
func TestDelay(t *testing.T) {
	b := membus.New(membus.Options{Manual: true, Faults: func(m membus.Message) membus.Verdict {
		if string(m.Data) == "0" {
			return membus.Verdict{Delay: 1}
		}
		return membus.Verdict{}
	}})
	defer b.Close()
	c := b.Client("x")
	var got []string
	if _, err := c.Subscribe("a", func(m transfer.Msg) { got = append(got, string(m.Data)) }); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if err := c.Publish("a", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	for b.Step() {
	}
	if fmt.Sprint(got) == "[0 1 2 3]" || len(got) != 4 {
		t.Errorf("order %v: nothing was held back", got)
	}
}

// A KV message of which the confirmation is lost is a timeout for its sender; of which the
// acknowledgement is lost, it stays and comes again.
func TestKVFaults(t *testing.T) {
	drop := map[membus.Kind]bool{}
	b := membus.New(membus.Options{Manual: true, Faults: func(m membus.Message) membus.Verdict { return membus.Verdict{Drop: drop[m.Kind]} }})
	defer b.Close()
	c := b.Client("x")
	if err := c.EnsureKV(t.Context(), "d0", 1000); err != nil {
		t.Fatal(err)
	}
	var got []transfer.KVMsg
	if _, err := c.ConsumeKV("d0", func(m transfer.KVMsg) { got = append(got, m) }, nil); err != nil {
		t.Fatal(err)
	}
	var done []error
	put := func() {
		if err := c.PublishKV("kv.d0.x", []byte("x"), func(err error) { done = append(done, err) }); err != nil {
			t.Fatal(err)
		}
		for b.Step() {
		}
	}
	drop[membus.KV] = true
	put()
	if len(got) != 0 || len(done) != 1 || done[0] != transfer.ErrAckTimeout {
		t.Fatalf("lost publish: %d delivered, confirmed %v", len(got), done)
	}
	drop = map[membus.Kind]bool{membus.Ack: true}
	put()
	got[0].Ack()
	for b.Step() {
	}
	if n, _, _ := c.StoredKV(t.Context(), "d0"); n != 1 {
		t.Fatalf("%d stored after a lost acknowledgement", n)
	}
	drop = nil
	b.Redeliver("d0")
	for b.Step() {
	}
	if len(got) != 2 {
		t.Fatalf("%d deliveries, want 2", len(got))
	}
	got[1].Ack()
	for b.Step() {
	}
	if n, _, _ := c.StoredKV(t.Context(), "d0"); n != 0 {
		t.Errorf("%d stored at the end", n)
	}
}
