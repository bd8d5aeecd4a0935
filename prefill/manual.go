package prefill

import (
	"context"

	"bulkhead/kernels"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// Manual is a Node without goroutines: what Run does by itself and by the clock
// happens when its caller says so. It is how the simulator runs the product.
// The Peer's bus must deliver on the caller's goroutine.
type Manual struct {
	n    *Node
	lies Lies
	stop func()
	jobs []*Shipping // in work, by their acceptance
}

// Lies are what a prefill node that does not follow the protocol says in place of
// the truth. The zero value is an honest node, as all are outside the simulator.
type Lies struct {
	// Open and Manifest change a message before it is signed.
	Open     func(*transfer.Open)
	Manifest func(*seal.Manifest)
	// Skip leaves a frame out and goes on as if it had been stored.
	Skip func(frame int) bool
	// Plain changes the bytes of a frame before they are sealed.
	Plain func(frame int, plain []byte)
}

// Manual begins to serve; Run must not be called. Close must be.
func (n *Node) Manual(lies Lies) (*Manual, error) {
	m := &Manual{n: n, lies: lies}
	n.begin = func(a *attempt) {
		s := newShipment(n, a)
		s.lies = &m.lies
		m.jobs = append(m.jobs, &Shipping{n: n, a: a, s: s})
	}
	var err error
	if m.stop, err = n.serve(); err != nil {
		m.stop()
		return nil, err
	}
	return m, nil
}

// Close stops serving. Nothing is drained: it is how a node dies. Only the deadlines of
// its attempts are taken back, since the system's timers would keep all of the node until then.
func (m *Manual) Close() {
	m.stop()
	for _, s := range m.jobs {
		s.a.cancel(context.Canceled)
	}
}

// Step takes what was posted to the engine loop and does what the scheduler
// decides; it reports whether there may be more.
func (m *Manual) Step() bool {
	m.n.worker.take()
	return m.n.worker.step()
}

// Busy reports whether a Step may do something.
func (m *Manual) Busy() bool {
	w := m.n.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.events) > 0 || w.sched.Jobs() > 0
}

// Tick looks at deadlines.
func (m *Manual) Tick() {
	now := m.n.cfg.Peer.Now()
	m.n.once.Prune(now)
	m.n.gone.Prune(now)
	if m.Busy() {
		m.n.worker.tick(now)
	}
}

// Announce says what the node is.
func (m *Manual) Announce() error { return m.n.cfg.Peer.Announce(m.n.announce()) }

// Shipments are the attempts that are being shipped.
func (m *Manual) Shipments() []*Shipping {
	live := m.jobs[:0]
	for _, s := range m.jobs {
		if !s.ended {
			live = append(live, s)
		}
	}
	m.jobs = live
	return m.jobs
}

// Quarantined lists the pages that are out of use, and why.
func (m *Manual) Quarantined() []string {
	var out []string
	for _, q := range m.n.pool.Quarantined() {
		out = append(out, q.Reason)
	}
	return out
}

// Swap lets two pages in use change places behind the back of the books, if the
// engine's pages can: a fault that attention and export must find. It reports whether it did.
func (m *Manual) Swap(a, b kernels.PageID) bool {
	s, ok := m.n.pages.(interface{ Swap(a, b kernels.PageID) })
	if !ok || m.n.pages.Tag(a).Owner == 0 || m.n.pages.Tag(b).Owner == 0 {
		return false
	}
	s.Swap(a, b)
	return true
}

// CheckIntegrity compares the books with themselves and with memory.
func (m *Manual) CheckIntegrity() error { return m.n.pool.CheckIntegrity() }

// Shipping is one attempt's shipment under way: shipAll without waiting.
type Shipping struct {
	n       *Node
	a       *attempt
	s       *shipment
	waiting bool   // a signed message is not yet stored
	err     error  // of one that was
	frame   []byte // sealed, and not yet taken by the window
	ended   bool
}

// Step sends the next message if it can be sent, and reports whether anything
// happened.
func (w *Shipping) Step() bool {
	a := w.a
	if w.ended {
		return false
	}
	if err := context.Cause(a.ctx); err != nil {
		w.end(err)
		return true
	}
	if w.err != nil {
		w.end(w.err)
		return true
	}
	if w.waiting {
		return false
	}
	m := w.s.next()
	if m.kind == shipDone {
		w.end(nil)
		return true
	}
	a.mu.Lock()
	ready := m.ready()
	a.mu.Unlock()
	if !ready {
		return false
	}
	moved, err := w.send(m.kind)
	if err != nil {
		w.end(err)
		return true
	}
	return moved
}

func (w *Shipping) send(kind shipKind) (moved bool, err error) {
	stored := func(err error) {
		w.waiting = false
		if w.err = err; err == nil {
			w.s.sent()
		}
	}
	switch kind {
	case shipOpen:
		w.waiting = true
		return true, w.a.kv.SendOpen(w.s.open(), stored)
	case shipManifest:
		if flushed, err := w.a.kv.Flushed(); !flushed || err != nil {
			return false, err
		}
		statement, err := w.s.manifest()
		if err != nil {
			return false, err
		}
		w.waiting = true
		return true, w.a.kv.SendManifest(statement, stored)
	}
	if w.frame == nil {
		if w.frame, err = w.s.frame(); err != nil {
			return false, err
		}
	}
	took := w.s.skips()
	if !took {
		if took, err = w.a.kv.TryFrame(w.frame); err != nil || !took {
			return false, err
		}
	}
	w.frame = nil
	w.s.sent()
	return true, nil
}

func (w *Shipping) end(err error) {
	w.ended = true
	no := w.n.shipped(w.a, err)
	if no == nil {
		w.n.leave(w.a)
		return
	}
	if err := w.a.kv.SendReject(*no, func(error) { w.n.leave(w.a) }); err != nil {
		w.n.leave(w.a)
	}
}
