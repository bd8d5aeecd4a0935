package transfer

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead/internal/identity"
)

// place is an address at which somebody listens, and counts.
func place(t *testing.T, talk func(net.Conn)) (port string, dials *atomic.Int32) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dials = new(atomic.Int32)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			dials.Add(1)
			wg.Go(func() {
				defer c.Close()
				talk(c)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
	_, port, _ = net.SplitHostPort(ln.Addr().String())
	return port, dials
}

func linkPeer(t *testing.T, loopback bool) *Peer {
	t.Helper()
	keys, err := identity.NewMemory("test")
	if err != nil {
		t.Fatal(err)
	}
	m, err := keys.Minter(identity.Prefill)
	if err != nil {
		t.Fatal(err)
	}
	node, err := m.NewNode("p1")
	if err != nil {
		t.Fatal(err)
	}
	return NewPeer(Options{Node: node, Authority: node.Authority(), Cluster: "test", Loopback: loopback, Counters: new(Counters)})
}

// goal: where the cluster's bus is on another machine, no announced address and no name leads prefill to
// itself. method: a listener on this machine under each way to write it; with the bus on this machine it is
// dialled, the control.
func TestKVLinkLoopback(t *testing.T) {
	port, dials := place(t, func(net.Conn) {})
	for _, loopback := range []bool{false, true} {
		p := linkPeer(t, loopback)
		for _, host := range []string{"127.0.0.1", "localhost"} {
			before := dials.Load()
			_, err := p.LinkKV(t.Context(), Announce{Node: "d1", Epoch: 1, KVURL: "nats://" + host + ":" + port})
			if !errors.Is(err, ErrKVServer) {
				t.Errorf("%s: %v", host, err)
			}
			if dialled := dials.Load() > before; dialled != loopback {
				t.Errorf("%s: dialled %t, and the bus is on this machine: %t", host, dialled, loopback)
			}
		}
		if p.counters.Get(CountKVServer) != 2 || p.links.Load() != 0 {
			t.Errorf("%d failures counted, %d links held", p.counters.Get(CountKVServer), p.links.Load())
		}
	}
}

// goal: a KV server cannot send prefill on to another address. method: one that lets it in, names another, and
// hangs up, again and again; the other is never dialled.
func TestKVLinkGoesNowhereElse(t *testing.T) {
	other, further := place(t, func(net.Conn) {})
	port, dials := place(t, func(c net.Conn) {
		fmt.Fprintf(c, "INFO {\"server_id\":\"x\",\"version\":\"2.15.3\",\"proto\":1,\"auth_required\":true,\"nonce\":\"abcdefghijklmno\",\"max_payload\":8388608,\"headers\":true,\"jetstream\":true,\"connect_urls\":[\"127.0.0.1:%s\"]}\r\n", other)
		in := bufio.NewReader(c)
		for pings := 0; pings < 2; {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			if strings.HasPrefix(line, "PING") {
				pings++
				_, _ = io.WriteString(c, "PONG\r\n")
			}
		}
	})
	l, err := linkPeer(t, true).LinkKV(t.Context(), Announce{Node: "d1", Epoch: 1, KVURL: "nats://127.0.0.1:" + port})
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); dials.Load() < 4; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("only %d dials", dials.Load())
		}
	}
	<-l.Close()
	if n := further.Load(); n != 0 {
		t.Errorf("%d connections to an address that a KV server named", n)
	}
}
