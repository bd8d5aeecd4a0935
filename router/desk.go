package router

import (
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"bulkhead/internal/tenant"
	"bulkhead/transfer"
)

// desk is where requests are let in and sequences get their pair: the pure states
// of admission, board and queue behind one lock.
type desk struct {
	announced func() (all []transfer.Announce, changed bool)
	now       func() time.Time
	wait      time.Duration // how long a sequence may wait for a pair

	log       *slog.Logger
	mu        sync.Mutex
	told      string // what was last logged of refused nodes; guarded by mu, as the rest
	admission *admission
	board     *board
	queue     *queue
}

// newDesk makes a desk. list gives the current announcements of a role, and the
// same slice as long as they are the same.
func newDesk(cfg Config, list func(transfer.Role) []transfer.Announce) *desk {
	return &desk{
		announced: roster(list),
		now:       time.Now,
		wait:      cfg.QueueTimeout,
		log:       cfg.Log,
		admission: newAdmission(),
		board:     newBoard(cfg.Metadata),
		queue:     newQueue(cfg.QueueMax, cfg.QueueTimeout/2),
	}
}

// roster puts prefill and decode nodes together, and says whether they are other
// announcements than at the call before.
func roster(list func(transfer.Role) []transfer.Announce) func() ([]transfer.Announce, bool) {
	var prefills, decodes, all []transfer.Announce
	first := true
	same := func(a, b []transfer.Announce) bool {
		return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
	}
	return func() ([]transfer.Announce, bool) {
		p, d := list(transfer.RolePrefill), list(transfer.RoleDecode)
		if !first && same(p, prefills) && same(d, decodes) {
			return all, false
		}
		first, prefills, decodes = false, p, d
		all = append(append(all[:0], p...), d...)
		return all, true
	}
}

// look updates the board. Nodes that announce the router's header with another
// file behind it are an operator's mistake, and said once. Caller holds mu.
func (d *desk) look() {
	all, changed := d.announced()
	if !changed {
		return
	}
	d.board.update(all)
	if now := strings.Join(d.board.refused, " "); now != d.told {
		d.told = now
		if now != "" {
			d.log.Error("nodes refused: their model file has this router's header and other weights than the file that is served", "nodes", now)
		}
	}
}

// refused is the number of nodes that are there with another model file.
func (d *desk) refused() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.look()
	return len(d.board.refused)
}

// enter, grow, charge, generated and leave are admission's, locked.

func (d *desk) enter(t *tenant.Tenant) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.admission.enter(t, d.now())
}

func (d *desk) grow(t *tenant.Tenant, n int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.admission.grow(t, n, d.now())
}

func (d *desk) charge(t *tenant.Tenant, tokens int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.admission.charge(t, tokens, d.now())
}

func (d *desk) generated(t *tenant.Tenant, tokens int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.admission.generated(t, tokens, d.now())
}

func (d *desk) leave(t *tenant.Tenant, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.admission.leave(t, n, d.now())
}

func (d *desk) rateHeaders(t *tenant.Tenant, h http.Header) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.admission.headers(t, h, d.now())
}

// best returns the pair with the largest limit as things stand.
func (d *desk) best() (pair, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.look()
	return d.board.best()
}

// waiting is the number of sequences in the queue.
func (d *desk) waiting() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.queue.waiting
}

// join asks for a pair. The answer comes through the ticket, at once if a pair is
// free and nobody waits for it, else after a wait in the queue. An error means that there is
// no point in waiting.
func (d *desk) join(tenantID string, n need) (*ticket, error) {
	now := d.now()
	t := &ticket{tenant: tenantID, need: n, since: now, deadline: now.Add(d.wait), granted: make(chan grant, 1)}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.look()
	switch _, v := d.board.choose(n); v {
	case noNode:
		if len(n.avoid) > 0 {
			return nil, fail(kindWorkerLost, "", "a node was lost and there is no other to take its place")
		}
		return nil, fail(kindOverloaded, "", "no node is ready to serve the model; retry later")
	case tooLong:
		return nil, fail(kindOverloaded, "", "no node that can hold the request is ready; retry later")
	}
	if err := d.queue.push(t); err != nil {
		return nil, err
	}
	d.dispatchLocked(now)
	return t, nil
}

// quit takes a ticket back. A grant that it has already is released.
func (d *desk) quit(t *ticket) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.queue.remove(t) {
		select {
		case g := <-t.granted:
			d.releaseLocked(g.claims)
		default:
		}
	}
	d.dispatchLocked(d.now())
}

// release gives claims back and serves those who wait for them.
func (d *desk) release(claims [2]reservation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.releaseLocked(claims)
	d.dispatchLocked(d.now())
}

func (d *desk) releaseLocked(claims [2]reservation) {
	for _, c := range claims {
		d.board.release(c)
	}
}

// markFull notes a node's "no room".
func (d *desk) markFull(node string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.board.markFull(node)
}

// dispatch serves the queue as far as the latest announcements allow.
func (d *desk) dispatch() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.queue.waiting > 0 {
		d.dispatchLocked(d.now())
	}
}

func (d *desk) dispatchLocked(now time.Time) {
	if d.queue.waiting == 0 {
		return
	}
	d.look()
	for _, t := range d.queue.expire(now) {
		t.granted <- grant{err: fail(kindQueueTimeout, "", "no capacity became free within %s; retry later", d.wait)}
	}
	for {
		var p pair
		t := d.queue.next(now, func(t *ticket) bool {
			var v verdict
			p, v = d.board.choose(t.need)
			return v == placed
		})
		if t == nil {
			return
		}
		t.granted <- grant{pair: p, claims: d.board.reserve(p, t.need)}
	}
}
