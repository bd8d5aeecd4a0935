package decode

import "bulkhead/kernels"

// Manual is a Node without goroutines: what Run does by itself and by the clock
// happens when its caller says so. It is how the simulator runs the product.
// The Peer's bus must deliver on the caller's goroutine.
type Manual struct {
	n    *Node
	stop func()
}

// Manual begins to serve; Run must not be called. Close must be.
func (n *Node) Manual() (*Manual, error) {
	stop, err := n.serve()
	if err != nil {
		stop()
		return nil, err
	}
	return &Manual{n, stop}, nil
}

// Close stops serving. Nothing is drained: it is how a node dies.
func (m *Manual) Close() { m.stop() }

// Step takes what was posted to the engine loop and computes one step; it
// reports whether it computed.
func (m *Manual) Step() bool {
	m.n.worker.take()
	return m.n.worker.step()
}

// Busy reports whether a Step would do something.
func (m *Manual) Busy() bool {
	w := m.n.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.events) > 0 || len(w.seqs) > 0
}

// Tick looks at deadlines.
func (m *Manual) Tick() { m.n.recv.tick() }

// Announce says what the node is.
func (m *Manual) Announce() error { return m.n.cfg.Peer.Announce(m.n.announce()) }

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
