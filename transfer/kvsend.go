package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// KVSender sends to one decode node's stream, all attempts through one [Window].
type KVSender struct {
	p      *Peer
	decode string
	to     kvPublisher // the bus, or
	link   *KVLink     // the decode node's own KV server; nil: the bus

	mu     sync.Mutex
	window *Window       // guarded by mu
	open   int           // attempts that are not closed
	moved  chan struct{} // closed and replaced when there may be room
}

// kvPublisher is what a KVSender needs of a Bus.
type kvPublisher interface {
	PublishKV(subject string, data []byte, done func(error)) error
}

// NewKVSender makes the sender towards a decode node. The sender owns w from
// now on; nil is a window of the default size.
func (p *Peer) NewKVSender(decode string, w *Window) *KVSender {
	if w == nil {
		w = NewWindow(0, 0)
	}
	return &KVSender{p: p, decode: decode, to: p.bus, window: w, moved: make(chan struct{})}
}

// NewKVSenderTo makes the sender towards one boot of a decode node, wherever it says that its stream
// lives. If that is a server of its own, it is being dialled on return: see Connect. The error
// is ErrKVURL, or ErrKVServer when there are as many connections to such servers as there may be. Close
// must be called.
func (p *Peer) NewKVSenderTo(decode Announce, w *Window) (*KVSender, error) {
	s := p.NewKVSender(decode.Node, w)
	if decode.KVURL == "" {
		return s, nil
	}
	var err error
	if s.link, err = p.linkKV(decode); err != nil {
		return nil, err
	}
	s.to = s.link
	return s, nil
}

// Close ends the connection to a decode node's own KV server, if there is one; see KVLink.Close.
func (s *KVSender) Close() <-chan struct{} {
	if s.link != nil {
		return s.link.Close()
	}
	done := make(chan struct{})
	close(done)
	return done
}

// Spent reports whether the connection to a decode node's own KV server has failed, so long ago that
// another sender may try anew.
func (s *KVSender) Spent() bool { return s.link != nil && s.link.spent() }

// Linked reports whether the sender has a connection of its own.
func (s *KVSender) Linked() bool { return s.link != nil }

// Idle reports whether no attempt uses the sender and nothing is on its way.
func (s *KVSender) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, n := s.window.InFlight()
	return s.open == 0 && n == 0
}

// InFlight returns what is published to this node and not yet stored.
func (s *KVSender) InFlight() (bytes int64, count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.window.InFlight()
}

// wake tells all who wait to look again. mu is held.
func (s *KVSender) wake() {
	close(s.moved)
	s.moved = make(chan struct{})
}

// KVAttempt sends one attempt's KV: Open, then frames, then Manifest or Reject.
// Frame may be called while earlier frames are on their way; all methods are for one goroutine,
// but Credit and Close, which anyone may call.
type KVAttempt struct {
	s       *KVSender
	subject string
	hash    Hash
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	free    func(frame []byte) // nil: nobody wants a frame's memory back
	once    sync.Once          // closed

	mu      sync.Mutex
	pending int           // messages not yet stored
	err     error         // the first that failed for good
	idle    chan struct{} // closed and replaced when pending reaches 0 or err is set
}

// Attempt starts an attempt with so many bytes of credit; 0 is FirstCredit.
// Close must be called.
func (s *KVSender) Attempt(subject KVSubject, tokenHash Hash, credit int64) (*KVAttempt, error) {
	if subject.Decode != s.decode || subject.Token != Fingerprint(tokenHash) {
		return nil, fmt.Errorf("%w: %s is not the subject of this token at %s", ErrSubject, subject, s.decode)
	}
	if credit == 0 {
		credit = FirstCredit
	}
	s.mu.Lock()
	s.window.Open(tokenHash, credit)
	s.open++
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	return &KVAttempt{s: s, subject: subject.String(), hash: tokenHash, ctx: ctx, cancel: cancel, idle: make(chan struct{})}, nil
}

// Recycle has f told of each frame that will not be sent again, stored or given
// up: its memory is the caller's again. It comes before the first frame; f is called from
// any goroutine.
func (a *KVAttempt) Recycle(f func(frame []byte)) { a.free = f }

// Credit is decode's leave to have published limit bytes of frames in all.
func (a *KVAttempt) Credit(limit int64) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	if a.s.window.Credit(a.hash, limit) {
		a.s.wake()
	}
}

// Close ends the attempt: nothing is sent again, whoever waits gets ErrWindow.
func (a *KVAttempt) Close() {
	a.cancel()
	a.s.mu.Lock()
	a.s.window.Close(a.hash)
	a.once.Do(func() { a.s.open-- })
	a.s.wake()
	a.s.mu.Unlock()
}

// Connect returns when messages can be sent: at once, or when the decode node's own KV server was
// reached. It fails with ErrKVServer a few seconds after the dial began.
func (a *KVAttempt) Connect(ctx context.Context) error {
	if a.s.link == nil {
		return nil
	}
	return a.s.link.wait(ctx)
}

// Open publishes the opening message and waits until it is stored, so that it
// is in front of every frame.
func (a *KVAttempt) Open(ctx context.Context, o Open) error {
	return a.await(ctx, func(done func(error)) error { return a.SendOpen(o, done) })
}

// SendOpen is Open that does not wait: done is told, from any goroutine, when it
// is stored, unless an error is returned.
func (a *KVAttempt) SendOpen(o Open, done func(error)) error {
	body, err := opens.encode(&o)
	if err != nil {
		return err
	}
	return a.signed(kindOpen, body, done)
}

// Manifest waits until every frame is stored, then publishes the signed
// manifest and waits for it too. It returns the first error of any frame.
func (a *KVAttempt) Manifest(ctx context.Context, statement []byte) error {
	if err := a.Flush(ctx); err != nil {
		return err
	}
	return a.await(ctx, func(done func(error)) error { return a.SendManifest(statement, done) })
}

// SendManifest is Manifest that does not wait; the frames must be stored.
func (a *KVAttempt) SendManifest(statement []byte, done func(error)) error {
	return a.signed(kindManifest, statement, done)
}

// Reject publishes that the attempt will not be completed.
func (a *KVAttempt) Reject(ctx context.Context, r Reject) error {
	return a.await(ctx, func(done func(error)) error { return a.SendReject(r, done) })
}

// SendReject is Reject that does not wait.
func (a *KVAttempt) SendReject(r Reject, done func(error)) error {
	r.TokenHash = a.hash
	r.Detail = clip(r.Detail, limits["reject.detail"])
	body, err := rejects.encode(&r)
	if err != nil {
		return err
	}
	return a.signed(kindRefusal, body, done)
}

// signed publishes an envelope outside the window: it is small, and must not
// wait behind frames of other attempts.
func (a *KVAttempt) signed(k kind, body []byte, done func(error)) error {
	data, err := a.s.p.sign(k, a.subject, body)
	if err != nil {
		return err
	}
	a.publish(&kvMessage{data: data}, done)
	return nil
}

// await waits until a message is stored.
func (a *KVAttempt) await(ctx context.Context, send func(done func(error)) error) error {
	done := make(chan error, 1)
	if err := send(func(err error) { done <- err }); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-a.ctx.Done():
		return ErrWindow
	}
}

// Frame publishes one sealed frame. It waits for room in the window and for
// credit, not for storage: an error of an earlier frame is returned by any later call.
// data must not be changed until the attempt is flushed or closed: a frame that the
// stream refused for now is sent again as it is.
func (a *KVAttempt) Frame(ctx context.Context, data []byte) error {
	if len(data) > FrameMax {
		return fmt.Errorf("%w: frame of %d bytes, limit %d", ErrMessage, len(data), FrameMax)
	}
	if err := a.acquire(ctx, int64(len(data))); err != nil {
		return err
	}
	return a.send(data)
}

// TryFrame is Frame that does not wait: it reports whether there was room.
func (a *KVAttempt) TryFrame(data []byte) (bool, error) {
	if len(data) > FrameMax {
		return false, fmt.Errorf("%w: frame of %d bytes, limit %d", ErrMessage, len(data), FrameMax)
	}
	a.s.mu.Lock()
	ok := a.s.window.Acquire(a.hash, int64(len(data)))
	a.s.mu.Unlock()
	if !ok {
		return false, nil
	}
	return true, a.send(data)
}

// Flushed reports whether every frame is stored, and the first error of one.
func (a *KVAttempt) Flushed() (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pending == 0, a.err
}

// send publishes a frame whose room was acquired.
func (a *KVAttempt) send(data []byte) error {
	n := int64(len(data))
	a.mu.Lock()
	err := a.err
	if err == nil {
		a.pending++
	}
	a.mu.Unlock()
	if err != nil {
		a.release(n)
		return err
	}
	a.publish(&kvMessage{data: data, free: a.free}, func(err error) {
		a.release(n)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.pending--
		if err != nil && a.err == nil {
			a.err = err
		}
		if a.pending == 0 || err != nil {
			close(a.idle)
			a.idle = make(chan struct{})
		}
	})
	return nil
}

// Flush waits until every frame is stored, and returns the first error.
func (a *KVAttempt) Flush(ctx context.Context) error {
	for {
		a.mu.Lock()
		err, pending, idle := a.err, a.pending, a.idle
		a.mu.Unlock()
		if err != nil || pending == 0 {
			return err
		}
		select {
		case <-idle:
		case <-ctx.Done():
			return ctx.Err()
		case <-a.ctx.Done():
			return ErrWindow
		}
	}
}

func (a *KVAttempt) acquire(ctx context.Context, n int64) error {
	for {
		a.mu.Lock()
		err := a.err
		a.mu.Unlock()
		if err != nil {
			return err
		}
		if a.ctx.Err() != nil {
			return ErrWindow
		}
		a.s.mu.Lock()
		ok, moved := a.s.window.Acquire(a.hash, n), a.s.moved
		a.s.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		case <-a.ctx.Done():
			return ErrWindow
		}
	}
}

func (a *KVAttempt) release(n int64) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	a.s.window.Release(n)
	a.s.wake()
}

// Pauses between tries of a message that the stream could not take.
const (
	kvRetryFirst = 20 * time.Millisecond
	kvRetryMax   = 500 * time.Millisecond
	kvRetries    = 30 // about 13 s in all; an attempt is dead by then
)

// kvMessage is one message from its first try to its end.
type kvMessage struct {
	data  []byte
	free  func([]byte) // nil: nobody wants the memory back
	try   int
	deaf  int          // acknowledgements that did not come, in a row
	users atomic.Int32 // calls of the bus that may still read data, and one until the end
}

// leave is said by each user; after the last nobody reads data.
func (m *kvMessage) leave() {
	if m.users.Add(-1) == 0 && m.free != nil {
		m.free(m.data)
	}
}

// publish sends m until it is stored, refused for good, or the attempt is
// closed, and calls done once.
func (a *KVAttempt) publish(m *kvMessage, done func(error)) {
	m.users.Add(1)
	a.tryPublish(m, func(err error) { done(err); m.leave() })
}

func (a *KVAttempt) tryPublish(m *kvMessage, end func(error)) {
	again := func(err error) {
		if m.deaf++; !errors.Is(err, ErrAckTimeout) {
			m.deaf = 0
		}
		switch {
		case err == nil:
			end(nil)
		case a.ctx.Err() != nil:
			end(ErrWindow)
		case a.s.link != nil && (m.deaf >= kvLinkSilent || m.try >= kvRetries):
			end(fmt.Errorf("%w: KV to %s: %w", ErrKVServer, a.s.decode, err))
		case !Retryable(err) || m.try >= kvRetries:
			end(fmt.Errorf("transfer: KV to %s: %w", a.s.decode, err))
		default:
			a.s.p.counters.add(CountKVRetry)
			if errors.Is(err, ErrStreamFull) {
				a.s.p.counters.add(CountKVFull)
				a.s.p.log.Debug("bus: KV stream full, trying again", "decode", a.s.decode, "try", m.try)
			}
			pause := min(kvRetryFirst<<min(m.try, 10), kvRetryMax)
			m.try++
			a.s.p.after(pause, func() { a.tryPublish(m, end) })
		}
	}
	if a.ctx.Err() != nil {
		end(ErrWindow)
		return
	}
	m.users.Add(1)
	defer m.leave()
	if err := a.s.to.PublishKV(a.subject, m.data, again); err != nil {
		again(err)
	}
}
