package prefill

import (
	"errors"
	"fmt"
	"testing"

	"bulkhead/internal/identity"
	"bulkhead/transfer"
	"bulkhead/transfer/membus"
)

// goal: however many decode nodes announce a KV server, a node has a bounded number of connections to them; one that no
// attempt uses makes room, one that is in use does not. method: attempts for more nodes than there is
// room for, at an address where nobody is: the dials fail, the places are held until a sender is closed.
func TestKVServersAreBounded(t *testing.T) {
	keys, err := identity.NewMemory("test")
	must(t, err)
	minter, err := keys.Minter(identity.Prefill)
	must(t, err)
	id, err := minter.NewNode("p1")
	must(t, err)
	bus := membus.New(membus.Options{})
	t.Cleanup(bus.Close)
	n := &Node{senders: map[boot]*transfer.KVSender{}}
	n.cfg.Peer = transfer.NewPeer(transfer.Options{Bus: bus.Client("p1"), Node: id, Authority: id.Authority(), Cluster: "test", Loopback: true})
	t.Cleanup(n.closeSenders)
	hash := transfer.Hash{1}
	open := func(i int) (*transfer.KVAttempt, error) {
		a := transfer.Announce{Node: fmt.Sprintf("d%d", i), Epoch: 1, KVURL: "nats://127.0.0.1:1"}
		return n.openKV(a, transfer.KVSubject{Decode: a.Node, Attempt: 1, Token: transfer.Fingerprint(hash)}, hash)
	}
	for i := range 200 {
		a, err := open(i)
		must(t, err)
		a.Close()
	}
	if got := len(n.senders); got < 2 || got > 100 {
		t.Errorf("%d senders are kept", got)
	}
	held := 0
	for i := 200; ; i++ {
		a, err := open(i)
		if err != nil {
			if !errors.Is(err, transfer.ErrKVServer) || held < 2 || reasonOf(err) != transfer.ReasonKVServer {
				t.Errorf("after %d that are in use: %v", held, err)
			}
			break
		}
		t.Cleanup(a.Close)
		if held++; held > 100 {
			t.Fatal("no bound")
		}
	}
	if _, err := n.openKV(transfer.Announce{Node: "dx", KVURL: "nats://169.254.169.254:80"}, transfer.KVSubject{Decode: "dx", Attempt: 1}, hash); !errors.Is(err, transfer.ErrKVURL) {
		t.Errorf("a URL that is none: %v", err)
	}
}
