package cluster_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead/decode"
	"bulkhead/internal/cluster"
	"bulkhead/internal/identity"
	"bulkhead/internal/metrics"
	"bulkhead/internal/sample"
	"bulkhead/transfer"
)

// listener is whatever may be at the address that a hostile decode node announces. talk has the connection
// to itself; it is closed afterwards.
type listener struct {
	url   string
	dials atomic.Int32
}

func listen(t *testing.T, talk func(net.Conn)) *listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	l := &listener{url: "nats://" + ln.Addr().String()}
	var mu sync.Mutex // guards open and ended
	open, ended := map[net.Conn]bool{}, false
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			l.dials.Add(1)
			mu.Lock()
			if open[c] = true; ended {
				c.Close()
			}
			mu.Unlock()
			wg.Go(func() {
				talk(c)
				mu.Lock()
				delete(open, c)
				mu.Unlock()
				c.Close()
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		ended = true
		for c := range open { // the node that dialled ends only after this
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l
}

// says tells what is there to be told until the other side leaves, and returns what it said.
func says(c net.Conn, what string) (heard string) {
	_, _ = io.WriteString(c, what)
	b, _ := io.ReadAll(c)
	return string(b)
}

// goal: a decode node that announces a KV server which is not there, not its own, or no KV server at all makes the
// attempts that were granted to it end with a reason of their own, and nothing else: no hang,
// nothing said to what is not a NATS server, no memory, no further address dialled. method: one such server a row, a
// real prefill node, a decode node that announces it.
func TestKVServerHostile(t *testing.T) {
	w := newWorld(t)
	w.prefill("p1", 4096)
	d := w.driver("r1")
	const dead = "127.0.0.1:1" // nobody's, and no system gives it to whoever asks for a free one
	further := listen(t, func(c net.Conn) {})
	var mu sync.Mutex
	said := map[string]string{}
	server := func(name, what string) string {
		return listen(t, func(c net.Conn) {
			heard := says(c, what)
			mu.Lock()
			said[name] += heard
			mu.Unlock()
		}).url
	}
	info := func(more string) string {
		return fmt.Sprintf("INFO {\"server_id\":\"x\",\"version\":\"2.15.3\",\"proto\":1,\"auth_required\":true,\"nonce\":\"abcdefghijklmno\",\"max_payload\":8388608,\"headers\":true,\"jetstream\":true%s}\r\n", more)
	}
	// login answers as a server that lets everybody in, and says more.
	login := func(more string) string {
		return listen(t, func(c net.Conn) {
			_, _ = io.WriteString(c, info(fmt.Sprintf(`,"connect_urls":[%q]`, strings.TrimPrefix(further.url, "nats://"))))
			in := bufio.NewReader(c)
			for {
				line, err := in.ReadString('\n')
				if err != nil {
					return
				}
				if strings.HasPrefix(line, "PING") {
					_, _ = io.WriteString(c, "PONG\r\n"+more)
				}
			}
		}).url
	}
	other := w.join(identity.Decode, "d0")
	defer other.Conn.Close()
	for i, c := range []struct{ name, url string }{
		{"nobody", "nats://" + dead},
		{"silence", server("silence", "")},
		{"no NATS server", server("no NATS server", "HTTP/1.1 400 Bad Request\r\n\r\n")},
		{"an endless line", server("an endless line", strings.Repeat("x", 1<<20))},
		{"TLS", server("TLS", info(`,"tls_required":true`))},
		{"a huge message", login("MSG _INBOX.p1.kvack.1 1 2000000000\r\nx")},
		{"no acknowledgement", login("")},
		{"the cluster's broker", w.nats.ClientURL()},
		{"another decode node's", w.kvServer(other).URL()},
	} {
		name := fmt.Sprintf("h%d", i)
		w.kvDecode(name, 8192, func(k *cluster.KVServerConfig) { k.Advertise = c.url })
		p, q := d.kvPair("p1", name)
		x := d.grant(p, q, tokens(100), sample.Params{MaxNew: 3})
		must(t, d.submit(x))
		got, err := d.wait(x)
		must(t, err)
		if got.fail == nil || got.fail.Reason != transfer.ReasonKVServer || !got.fail.Reason.Retryable() {
			t.Errorf("%s: %+v", c.name, got.fail)
		}
		must(t, d.SendCancel(within(t), name, transfer.Cancel{TokenHash: x.hash, Reason: transfer.ReasonNodeLost})) // as a router does
	}
	mu.Lock()
	defer mu.Unlock()
	for name, heard := range said {
		if heard != "" {
			t.Errorf("%s was told %q", name, heard)
		}
	}
	if n := further.dials.Load(); n != 0 {
		t.Errorf("%d connections to an address that a KV server named", n)
	}
	// Honest nodes are served by the same prefill node all the while.
	w.kvDecode("d1", 8192)
	p, q := d.kvPair("p1", "d1")
	x := d.grant(p, q, tokens(100), sample.Params{MaxNew: 3})
	must(t, d.submit(x))
	if got, err := d.wait(x); err != nil || got.fail != nil || len(got.tokens) != 3 {
		t.Errorf("an honest node: %+v, %v", got, err)
	}
}

// goal: a client sees nothing of a decode node whose KV server cannot be reached, and a node that dies
// under load takes only what was on it along; with another port it is back. method: a site whose
// largest decode node announces an address where every connection is cut; then one that is killed, KV server and
// all, in the middle of a load, and started again.
func TestKVServerLost(t *testing.T) {
	s := newSite(t, siteConfig{decodes: 1})
	cut := listen(t, func(net.Conn) {})
	_, _, stop := s.w.kvDecode("k0", 1<<16, func(k *cluster.KVServerConfig) { k.Advertise = cut.url })
	there := func(name string, is bool) {
		t.Helper()
		s.eventually(name, func() bool {
			a, _, ok := s.dir.Get(transfer.RoleDecode, name)
			return ok == is && (!is || a.Ready)
		})
	}
	there("k0", true)
	prompt := tokens(130)
	want := whole(t, prompt, sample.Params{MaxNew: 4, Logprobs: true, TopLogprobs: 1, IgnoreEOS: true, EOG: eog()})
	right := func(n int) {
		t.Helper()
		for range n {
			if err := like(s.mustAsk(acmeKey, completions, exact(prompt, 4)), want); err != nil {
				t.Error(err)
			}
		}
	}
	right(5)
	s.eventually("somebody tries the node that cannot be reached", func() bool { // prefill may hear of it later than the test
		right(1)
		return cut.dials.Load() > 0
	})
	stop()
	there("k0", false)

	j := s.w.join(identity.Decode, "k1")
	k := s.w.kvServer(j)
	n, err := decode.New(decode.Config{Peer: k.Peer(), KVURL: k.URL(), Engine: engine(), Capacity: 1 << 16, ClampWindow: true, DrainTimeout: time.Second, Metrics: decode.NewMetrics(metrics.New()), Log: testLog()})
	must(t, err)
	s.w.run(j, n.Run)
	there("k1", true)
	var good, bad atomic.Int32
	load, end := context.WithCancel(within(t))
	defer end()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for load.Err() == nil {
				ctx, cancel := context.WithTimeout(context.Background(), waitMax)
				r, err := s.ask(ctx, acmeKey, completions, exact(prompt, 4), nil)
				cancel()
				switch {
				case err != nil:
					t.Error("no answer: ", err)
				case r.status != 200:
					bad.Add(1) // it was on the dead node, and had its retry
				default:
					if err := like(r, want); err != nil {
						t.Error(err)
					}
					good.Add(1)
				}
			}
		})
	}
	s.eventually("load", func() bool { return good.Load() > 10 })
	k.Close() // the process is gone: server, stream and connections at once
	j.Conn.Close()
	there("k1", false)
	now := good.Load()
	s.eventually("others go on", func() bool { return good.Load() > now+10 })
	end()
	wg.Wait()
	if good.Load() < bad.Load() {
		t.Errorf("%d answers, %d errors", good.Load(), bad.Load())
	}
	_, again, _ := s.w.kvDecode("k1", 1<<16)
	if again.URL() == k.URL() {
		t.Fatal("the same port again")
	}
	there("k1", true)
	right(5)
}

// goal: a prefill node keeps one connection to a KV server for all attempts, and none to a decode node that is gone.
// method: a relay in front of the KV server counts.
func TestKVServerConnections(t *testing.T) {
	w := newWorld(t)
	w.prefill("p1", 4096)
	var open atomic.Int32
	var to, last atomic.Value
	relay := listen(t, func(c net.Conn) {
		last.Store(c)
		open.Add(1)
		defer open.Add(-1)
		at, err := net.Dial("tcp", to.Load().(string))
		if err != nil {
			t.Error(err)
			return
		}
		go func() {
			_, _ = io.Copy(at, c)
			at.Close()
		}()
		_, _ = io.Copy(c, at)
	})
	var own string
	_, k, stop := w.kvDecode("d1", 8192, func(c *cluster.KVServerConfig) {
		own = address(t)
		to.Store(own)
		_, port, err := net.SplitHostPort(own)
		must(t, err)
		_, err = fmt.Sscan(port, &c.Port)
		must(t, err)
		c.Advertise = relay.url
	})
	if k.URL() != relay.url {
		t.Fatal(k.URL())
	}
	d := w.driver("r1")
	p, q := d.kvPair("p1", "d1")
	answered := func() {
		t.Helper()
		x := d.grant(p, q, tokens(200), sample.Params{MaxNew: 2})
		must(t, d.submit(x))
		if got, err := d.wait(x); err != nil || got.fail != nil {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	for range 5 {
		answered()
	}
	if n := relay.dials.Load(); n != 1 || open.Load() != 1 {
		t.Errorf("%d connections were made, %d are open, want one", n, open.Load())
	}
	last.Load().(net.Conn).Close() // for a moment: what could not be sent is sent again
	answered()
	if n := relay.dials.Load(); n != 2 {
		t.Errorf("%d connections were made after one was cut, want two", n)
	}
	stop()
	eventually(t, "no connection to a node that is gone", func() bool { return open.Load() == 0 })
}
