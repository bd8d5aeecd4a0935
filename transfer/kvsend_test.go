package transfer

import (
	"bytes"
	"sync"
	"testing"
	"time"
)

// slowBus answers a publish before it has read the bytes: a first try that
// hangs in the client while a second one is stored. It is a fake of the one call.
type slowBus struct {
	Bus
	fail int // so many publishes are refused for now

	mu   sync.Mutex
	read [][]byte
	wait chan struct{}
}

func (b *slowBus) PublishKV(_ string, data []byte, done func(error)) error {
	b.mu.Lock()
	first := b.fail > 0
	b.fail--
	b.mu.Unlock()
	if first {
		done(ErrAckTimeout)
		<-b.wait
	} else {
		done(nil)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read = append(b.read, bytes.Clone(data))
	return nil
}

// goal: a frame's memory is given back once, and while any call of the bus may
// still read it, not at all. method: the bus reads after it has answered, once
// after a whole second try; whoever gets the memory back overwrites it at once.
func TestKVRecycle(t *testing.T) {
	bus := &slowBus{fail: 1, wait: make(chan struct{})}
	second := make(chan struct{})
	p := NewPeer(Options{Bus: bus, Counters: new(Counters), After: func(_ time.Duration, f func()) {
		go func() { defer close(second); f() }()
	}})
	s := p.NewKVSender("d0", nil)
	hash := Hash{1}
	a, err := s.Attempt(KVSubject{Decode: "d0", Attempt: 1, Token: Fingerprint(hash)}, hash, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	freed := make(chan struct{}, 10)
	a.Recycle(func(frame []byte) { clear(frame); freed <- struct{}{} })
	sent := make(chan error)
	go func() { sent <- a.Frame(t.Context(), []byte("frame")) }()
	<-second // the second try is stored and over; the first still hangs
	if ok, err := a.Flushed(); !ok || err != nil {
		t.Fatalf("flushed %t, %v", ok, err)
	}
	if len(freed) != 0 {
		t.Fatal("memory given back while a publish may read it")
	}
	close(bus.wait)
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	<-freed
	bus.mu.Lock()
	defer bus.mu.Unlock()
	if len(bus.read) != 2 || string(bus.read[0]) != "frame" || string(bus.read[1]) != "frame" || len(freed) != 0 {
		t.Errorf("read %q, freed %d times more", bus.read, len(freed))
	}
}
