package cluster_test

import (
	"testing"

	"bulkhead/internal/cluster"
	"bulkhead/internal/identity"
	"bulkhead/transfer"
)

// BenchmarkKV carries 256 KiB frames from a prefill node over TCP through the
// stream to a decode node, acknowledging each, with the default window.
func BenchmarkKV(b *testing.B) {
	keys, err := identity.NewMemory("bench")
	check := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	check(err)
	auth, err := keys.Authority()
	check(err)
	n, err := cluster.StartNATS(cluster.NATSConfig{Port: -1, StoreDir: b.TempDir(), Auth: keys.ServerAuth(), MaxMemory: 512 << 20})
	check(err)
	defer n.Shutdown()
	connect := func(role identity.Role, name string) (*transfer.Conn, *transfer.Peer) {
		m, err := keys.Minter(role)
		check(err)
		id, err := m.NewNode(name)
		check(err)
		c, err := transfer.Connect(b.Context(), transfer.Config{URL: n.ClientURL(), Name: name, Identity: id})
		check(err)
		b.Cleanup(c.Close)
		return c, transfer.NewPeer(transfer.Options{Bus: c, Node: id, Authority: auth, Cluster: "bench"})
	}
	r, _ := connect(identity.Router, "r0")
	_, p := connect(identity.Prefill, "p0")
	_, d := connect(identity.Decode, "d0")
	check(r.EnsureKV(b.Context(), "d0", 256<<20))
	got := make(chan struct{}, 1<<16)
	ready := make(chan bool, 10)
	stop, err := d.ConsumeKV(func(m transfer.KVMsg) { m.Ack(); got <- struct{}{} }, func(up bool) { ready <- up })
	check(err)
	defer stop()
	<-ready
	hash := transfer.Hash{1}
	a, err := p.NewKVSender("d0", nil).Attempt(transfer.KVSubject{Decode: "d0", Attempt: 1, Token: transfer.Fingerprint(hash)}, hash, 1<<62)
	check(err)
	defer a.Close()
	frame := make([]byte, 256<<10)
	copy(frame, "BKHF")
	b.SetBytes(int64(len(frame)))
	b.ReportAllocs()
	b.ResetTimer()
	failed := make(chan error, 1)
	go func() {
		for range b.N {
			if err := a.Frame(b.Context(), frame); err != nil {
				failed <- err
				return
			}
		}
	}()
	for range b.N {
		select {
		case <-got:
		case err := <-failed:
			b.Fatal(err)
		}
	}
	b.StopTimer()
	check(a.Flush(b.Context()))
}
