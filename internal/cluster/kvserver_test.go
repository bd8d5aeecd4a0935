package cluster_test

import (
	"context"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/decode"
	"bulkhead/internal/cluster"
	"bulkhead/internal/identity"
	"bulkhead/internal/metrics"
	"bulkhead/internal/sample"
	"bulkhead/transfer"
)

// kvDecode is world.decode with a KV server in its process.
func (w *world) kvDecode(name string, capacity int, change ...func(*cluster.KVServerConfig)) (n *decode.Node, k *cluster.KVServer, stop func()) {
	w.t.Helper()
	j := w.join(identity.Decode, name)
	k = w.kvServer(j, change...)
	n, err := decode.New(decode.Config{
		Peer: k.Peer(), KVURL: k.URL(), Engine: engine(), Capacity: capacity, ClampWindow: true, Metrics: decode.NewMetrics(metrics.New()), Log: testLog(),
	})
	must(w.t, err)
	return n, k, w.run(j, n.Run)
}

func (w *world) kvServer(j *cluster.Joined, change ...func(*cluster.KVServerConfig)) *cluster.KVServer {
	w.t.Helper()
	cfg := cluster.KVServerConfig{Node: j, StoreDir: w.t.TempDir(), MaxBytes: 64 << 20, Log: testLog(), Counters: new(transfer.Counters)}
	for _, f := range change {
		f(&cfg)
	}
	k, err := cluster.StartKVServer(within(w.t), cfg)
	must(w.t, err)
	w.t.Cleanup(k.Close)
	return k
}

// goal: with KV servers in the decode nodes' processes a split generation is bitwise that of one
// process, and the cluster's broker carries no KV. method: as TestSplitEqualsWhole, on two decode
// nodes; the broker has no KV stream at the end.
func TestSplitEqualsWholeKVServer(t *testing.T) {
	w := newWorld(t)
	w.prefill("p1", 4096)
	w.kvDecode("d1", 8192)
	w.kvDecode("d2", 8192)
	d := w.driver("r1")
	for i, n := range []int{1, 2, 63, 64, 65, 127, 128, 129, 511, 512, 513, 700} {
		p, q := d.kvPair("p1", []string{"d1", "d2"}[i%2])
		params := sample.Params{MaxNew: 12, Logprobs: true, TopLogprobs: 3}
		if n%2 == 0 {
			params.Temperature, params.Seed = 0.8, uint64(n)
		}
		prompt := tokens(n)
		x := d.grant(p, q, prompt, params)
		must(t, d.submit(x))
		got, err := d.wait(x)
		must(t, err)
		if got.fail != nil {
			t.Fatalf("prompt of %d: %+v", n, got.fail)
		}
		want := whole(t, prompt, params)
		if !slices.EqualFunc(got.tokens, want, func(a, b sample.Token) bool {
			return a.ID == b.ID && a.Logprob == b.Logprob && a.EOG == b.EOG && slices.Equal(a.Top, b.Top)
		}) {
			t.Errorf("prompt of %d tokens: split\n%v\nwhole\n%v", n, got.tokens, want)
		}
	}
	for _, name := range []string{"d1", "d2"} {
		_, _, err := d.bus.StoredKV(within(t), name)
		wantErr(t, err, transfer.ErrNoStream)
	}
}

// kvPair waits until both nodes can be used; nobody makes a stream.
func (d *driver) kvPair(prefill, decode string) (p, q transfer.Announce) {
	d.t.Helper()
	eventually(d.t, prefill+" and "+decode+" are there", func() bool {
		var ok1, ok2 bool
		p, _, ok1 = d.dir.Get(transfer.RolePrefill, prefill)
		q, _, ok2 = d.dir.Get(transfer.RoleDecode, decode)
		return ok1 && ok2 && p.Ready && q.Ready
	})
	if q.KVURL == "" {
		d.t.Fatalf("%s announces no KV server", decode)
	}
	return p, q
}

// A KV server that could not work does not start, and says why; where it listens on every address it
// announces the one by which the node reaches the bus.
func TestKVServerConfig(t *testing.T) {
	w := newWorld(t)
	d, p := w.join(identity.Decode, "d1"), w.join(identity.Prefill, "p1")
	defer d.Conn.Close()
	defer p.Conn.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer ln.Close()
	for want, cfg := range map[string]cluster.KVServerConfig{
		"decode node":            {Node: p},
		"want at least":          {Node: d, MaxBytes: 1 << 20},
		"address already in use": {Node: d, Port: ln.Addr().(*net.TCPAddr).Port},
		"transfer: bad KV":       {Node: d, Advertise: "nats://169.254.169.254:80"},
		"no such file":           {Node: d, StoreDir: "/dev/null/x"},
	} {
		k, err := cluster.StartKVServer(within(t), cfg)
		if err == nil {
			k.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) && want != "no such file" {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
	for host, want := range map[string]string{"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "127.0.0.1", "127.0.0.1": "127.0.0.1"} {
		k, err := cluster.StartKVServer(within(t), cluster.KVServerConfig{Node: d, Host: host})
		must(t, err)
		got, port, err := transfer.CheckKVURL(k.URL())
		if err != nil || got != want || port == 0 {
			t.Errorf("listening on %q it is announced as %s", host, k.URL())
		}
		k.Close()
	}
}

// goal: the released binary with --kv-server embedded answers as one process does. method: as TestProcesses, with
// two decode nodes that carry their own KV, and fewer prompts.
func TestProcessesKVServer(t *testing.T) {
	bin, dir := build(t), t.TempDir()
	p := &processes{t: t, bin: bin, dir: dir}
	keys, file := filepath.Join(dir, "keys"), filepath.Join(dir, "tenants.json")
	if out, err := exec.Command(bin, "keys", "init", "--dir", keys, "--tenants-file", file, "--tenant", "acme="+acmeKey).CombinedOutput(); err != nil {
		t.Fatalf("keys init: %v\n%s", err, out)
	}
	gguf, err := filepath.Abs(tinyChat)
	must(t, err)
	bus, web := address(t), address(t)
	nats := []string{"--nats", "nats://" + bus, "--keys", keys, "--admin=", "--log-level=warn", "--model", gguf}
	stops := []func(){p.start("nats", "--listen", bus, "--keys", keys, "--admin=", "--store", filepath.Join(dir, "store"))}
	decode := append([]string{"decode", "--capacity", "32768", "--threads", "1", "--clamp-window", "--drain-timeout=5s", "--kv-server", "embedded"}, nats...)
	stops = append(stops,
		p.start(append([]string{"router", "--listen", web, "--model-id", "tiny", "--tenants-file", file, "--drain-timeout=5s"}, nats...)...),
		p.start(append([]string{"prefill", "--capacity", "16384", "--threads", "2"}, nats...)...),
		p.start(decode...), p.start(append(decode, "--kv-listen", "0.0.0.0:0")...))
	t.Cleanup(func() {
		for i := len(stops) - 1; i >= 0; i-- {
			stops[i]() // the bus last
		}
	})
	s := &site{t: t, url: "http://" + web, client: &http.Client{Timeout: 2 * waitMax}}
	t.Cleanup(s.client.CloseIdleConnections)
	s.eventually("the cluster is ready", func() bool {
		time.Sleep(20 * time.Millisecond)
		resp, err := s.client.Get(s.url + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == 200
	})
	for i, prompt := range splitPrompts()[:40] {
		b := exact(prompt, 5).with(body{"logprobs": 2, "stream": i%3 == 0})
		want := whole(t, prompt, sample.Params{MaxNew: 5, Logprobs: true, TopLogprobs: 2, IgnoreEOS: true, EOG: eog()})
		if err := like(s.mustAsk(acmeKey, completions, b), want); err != nil {
			t.Errorf("prompt %d of %d tokens: %v", i, len(prompt), err)
		}
	}
}

// The keeper makes no stream for a decode node that has a KV server, ready or not.
func TestKeeperLeavesKVServers(t *testing.T) {
	w := newWorld(t)
	d := w.driver("r1")
	ctx, stop := context.WithCancel(t.Context())
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		cluster.Keeper{Bus: d.bus, Dir: d.dir, MaxBytes: 1 << 20, Log: testLog()}.Run(ctx)
	}()
	own, broker := w.node(identity.Decode, "d1"), w.node(identity.Decode, "d2")
	eventually(t, "a stream for the node without a KV server", func() bool {
		must(t, own.Announce(transfer.Announce{HPKE: own.key.Public(), KVURL: "nats://127.0.0.1:4333"}))
		if _, _, ok := d.dir.Get(transfer.RoleDecode, "d1"); !ok {
			return false
		}
		must(t, broker.Announce(transfer.Announce{HPKE: broker.key.Public()})) // heard after the other
		_, _, err := d.bus.StoredKV(within(t), "d2")
		return err == nil
	})
	stop()
	<-kept
	_, _, err := d.bus.StoredKV(within(t), "d1")
	wantErr(t, err, transfer.ErrNoStream)
}
