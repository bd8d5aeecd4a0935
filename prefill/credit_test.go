package prefill

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"bulkhead/internal/identity"
	"bulkhead/internal/metrics"
	"bulkhead/internal/tenant"
	"bulkhead/transfer"
	"bulkhead/transfer/membus"
	"bulkhead/transfer/seal"
)

// goal: only the decode node that an attempt was granted to, with the attempt's
// own key, can make prefill publish more. method: an attempt with credit for
// one frame; every other credit leaves it at that, the true one does not.
func TestCreditForged(t *testing.T) {
	keys, err := identity.NewMemory("test")
	must(t, err)
	minter, err := keys.Minter(identity.Prefill)
	must(t, err)
	node, err := minter.NewNode("p1")
	must(t, err)
	bus := membus.New(membus.Options{})
	t.Cleanup(bus.Close)
	peer := transfer.NewPeer(transfer.Options{Bus: bus.Client("p1"), Node: node, Authority: node.Authority(), Cluster: "test"})

	decode, err := seal.NewKey()
	must(t, err)
	hash := transfer.Hash{1}
	sender, enc, err := seal.NewSender(decode.Public(), hash)
	must(t, err)
	receiver, err := decode.NewReceiver(enc, hash) // decode's end of the attempt
	must(t, err)
	other, _, err := seal.NewSender(decode.Public(), transfer.Hash{2})
	must(t, err)

	const frame = 1000
	subject := transfer.KVSubject{Decode: "d1", Attempt: 1, Token: transfer.Fingerprint(hash)}
	out, err := peer.NewKVSender("d1", nil).Attempt(subject, hash, frame)
	must(t, err)
	t.Cleanup(out.Close)
	a := &attempt{grant: &transfer.Grant{Hash: hash, Claims: tenant.Claims{Decode: "d1"}}, keys: sender, kv: out}
	n := &Node{stats: NewMetrics(metrics.New()), jobs: map[transfer.Hash]*attempt{hash: a}}

	// publishes tries one more frame without waiting: what is over the credit waits.
	publishes := func() bool {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		err := out.Frame(ctx, make([]byte, frame))
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		return err == nil
	}
	if !publishes() || publishes() {
		t.Fatal("the attempt does not begin with credit for exactly one frame")
	}
	d1 := identity.Peer{Name: "d1", Role: identity.Decode}
	const limit = 100 * frame
	for name, c := range map[string]struct {
		credit transfer.Credit
		from   identity.Peer
	}{
		"from another decode node":   {transfer.Credit{TokenHash: hash, Limit: limit, MAC: receiver.CreditMAC(limit)}, identity.Peer{Name: "d2", Role: identity.Decode}},
		"for an unknown attempt":     {transfer.Credit{TokenHash: transfer.Hash{3}, Limit: limit, MAC: receiver.CreditMAC(limit)}, d1},
		"without a MAC":              {transfer.Credit{TokenHash: hash, Limit: limit}, d1},
		"with a MAC of zeros":        {transfer.Credit{TokenHash: hash, Limit: limit, MAC: make([]byte, 32)}, d1},
		"with the MAC of less":       {transfer.Credit{TokenHash: hash, Limit: limit, MAC: receiver.CreditMAC(limit - 1)}, d1},
		"with another attempt's MAC": {transfer.Credit{TokenHash: hash, Limit: limit, MAC: other.CreditMAC(limit)}, d1},
		"with one bit flipped":       {transfer.Credit{TokenHash: hash, Limit: limit, MAC: flipped(receiver.CreditMAC(limit))}, d1},
		"with a negative limit":      {transfer.Credit{TokenHash: hash, Limit: -limit, MAC: receiver.CreditMAC(-limit)}, d1},
		"of what there is already":   {transfer.Credit{TokenHash: hash, Limit: frame, MAC: receiver.CreditMAC(frame)}, d1},
	} {
		n.credit(c.credit, c.from)
		if publishes() {
			t.Errorf("a credit %s was taken", name)
		}
	}
	n.credit(transfer.Credit{TokenHash: hash, Limit: 2 * frame, MAC: receiver.CreditMAC(2 * frame)}, d1)
	if !publishes() || publishes() {
		t.Error("the true credit does not allow exactly one frame more")
	}
}

func flipped(b []byte) []byte {
	b = bytes.Clone(b)
	b[31] ^= 1
	return b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
