package transfer

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/internal/mutant"
)

// Times of announcements.
const (
	// AnnounceEvery is the pause between a node's announcements.
	AnnounceEvery = time.Second
	// AnnounceTTL is how long one is believed after it was heard: a dead node
	// is gone from placement in less than the 5 s that are promised.
	AnnounceTTL = 3500 * time.Millisecond
	// ClockSkew is how far the clocks of two nodes may be apart.
	ClockSkew = 5 * time.Second
)

// nodesMax bounds a directory.
const nodesMax = 4096

// Announce signs and publishes what this node is. Node, Role and Epoch are
// filled in from its identity; Expires, when zero, is AnnounceTTL from now.
func (p *Peer) Announce(a Announce) error {
	a.Node, a.Role, a.Epoch = p.node.Name, p.Role(), p.node.Epoch
	if a.Expires.IsZero() {
		a.Expires = p.clock().Add(AnnounceTTL)
	}
	subject := AnnounceSubject(a.Role, a.Node)
	data, err := signBody(p, &announces, &a, kindAnnounce, subject)
	if err != nil {
		return err
	}
	return p.bus.Publish(subject, data)
}

// Directory holds the verified, current announcements of the nodes.
type Directory struct {
	p     *Peer
	stops []func()

	mu      sync.Mutex
	entries map[nodeKey]*entry
	lists   map[Role]roll // what List last gave, as long as it stays so
	changed []func()
	timer   *time.Timer // next expiry; nil when nothing is held
	closed  bool
}

type nodeKey struct {
	role Role
	name string
}

// roll is the answer of List at any time in [from, until).
type roll struct {
	all         []Announce
	from, until time.Time
}

type entry struct {
	a    Announce
	peer identity.Peer
	// until is when the entry stops being believed, by this node's clock.
	until time.Time
	// The entry itself is kept until a replay of what it held would be too old on its own account.
	forget time.Time
}

// WatchPeers keeps a directory of the nodes of some roles (none: all).
func (p *Peer) WatchPeers(roles ...Role) (*Directory, error) {
	if len(roles) == 0 {
		roles = []Role{RoleRouter, RolePrefill, RoleDecode}
	}
	d := &Directory{p: p, entries: map[nodeKey]*entry{}, lists: map[Role]roll{}}
	for _, r := range roles {
		if err := checkRole(r); err != nil {
			d.Close()
			return nil, err
		}
		stop, err := p.bus.Subscribe(AnnounceSubject(r, "*"), d.hear)
		if err != nil {
			d.Close()
			return nil, err
		}
		d.stops = append(d.stops, stop)
	}
	return d, nil
}

// Close ends the watching.
func (d *Directory) Close() {
	for _, stop := range d.stops {
		stop()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.timer != nil {
		d.timer.Stop()
	}
}

// OnChange registers f, to be called (without locks held) after a node came,
// went, or said something new.
func (d *Directory) OnChange(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changed = append(d.changed, f)
}

// Get returns a node's announcement and who it is.
func (d *Directory) Get(role Role, node string) (Announce, identity.Peer, bool) {
	now := d.p.clock()
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[nodeKey{role, node}]
	if e == nil || !now.Before(e.until) && !mutant.Off(mutant.AnnounceCurrent) {
		return Announce{}, identity.Peer{}, false
	}
	return e.a, e.peer, true
}

// List returns the current announcements of a role, by name. Nobody may change
// them: who asks again before anything has changed gets the same slice.
func (d *Directory) List(role Role) []Announce {
	now := d.p.clock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if l, ok := d.lists[role]; ok && !now.Before(l.from) && now.Before(l.until) {
		return l.all
	}
	l := roll{from: now, until: now.Add(AnnounceTTL)}
	for k, e := range d.entries {
		if k.role == role && (now.Before(e.until) || mutant.Off(mutant.AnnounceCurrent)) {
			l.all = append(l.all, e.a)
			if e.until.Before(l.until) {
				l.until = e.until
			}
		}
	}
	slices.SortFunc(l.all, func(a, b Announce) int { return cmp.Compare(a.Node, b.Node) })
	l.all = slices.Clip(l.all)
	d.lists[role] = l
	return l.all
}

// Forget drops a node that was found dead (ErrNodeLost) before its time. It is
// back with its next announcement.
func (d *Directory) Forget(role Role, node string) {
	d.mu.Lock()
	e := d.entries[nodeKey{role, node}]
	if e != nil {
		e.until = time.Time{}
		delete(d.lists, role)
	}
	d.mu.Unlock()
	if e != nil {
		d.notify()
	}
}

func (d *Directory) hear(m Msg) {
	a, from, err := d.p.verifyAnnounce(m)
	if err == nil {
		err = d.put(a, from)
	}
	if err != nil {
		d.p.refuse(m.Subject, err)
		return
	}
	d.notify()
}

// verifyAnnounce checks who says it; put checks when.
func (p *Peer) verifyAnnounce(m Msg) (Announce, identity.Peer, error) {
	role, node, err := ParseAnnounce(m.Subject)
	if err != nil {
		p.counters.add(CountBadSubject)
		return Announce{}, identity.Peer{}, err
	}
	e, from, err := p.verify(m.Data, m.Subject, kindAnnounce)
	if err != nil {
		return Announce{}, identity.Peer{}, err
	}
	a, err := announces.decode(e.Body)
	if err != nil {
		p.counters.add(CountBadMessage)
		return Announce{}, identity.Peer{}, err
	}
	if (from.Name != node || a.Node != node || Role(from.Role) != role || a.Role != role) && !mutant.Off(mutant.AnnounceName) {
		p.counters.add(CountBadEnvelope)
		return Announce{}, identity.Peer{}, fmt.Errorf("%w: %s %s announced %s %s on %s", ErrEnvelope, from.Role, from.Name, a.Role, a.Node, m.Subject)
	}
	return a, from, nil
}

// put takes an announcement unless it is older than the one held, expired, or
// from a clock too far ahead. Of one node, Expires only goes up, also across
// boots: an announcement of an earlier boot that the bus kept back is refused.
func (d *Directory) put(a Announce, from identity.Peer) error {
	now := d.p.clock()
	if late := now.Sub(a.Expires); late > ClockSkew && !mutant.Off(mutant.AnnounceExpired) {
		d.p.counters.add(CountReplay)
		return fmt.Errorf("%w: %s %s: announcement expired at %s, now is %s", ErrReplay, a.Role, a.Node, stamp(a.Expires), stamp(now))
	}
	if a.Expires.Sub(now) > AnnounceTTL+ClockSkew && !mutant.Off(mutant.AnnounceAhead) {
		d.p.counters.add(CountReplay)
		return fmt.Errorf("%w: %s %s: announcement expires at %s, now is %s: clocks differ by more than %s", ErrReplay, a.Role, a.Node, stamp(a.Expires), stamp(now), ClockSkew)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrClosed
	}
	k := nodeKey{a.Role, a.Node}
	old := d.entries[k]
	if old != nil && !a.Expires.After(old.a.Expires) && !mutant.Off(mutant.AnnounceOrder) {
		d.p.counters.add(CountReplay)
		return fmt.Errorf("%w: %s %s: announcement of %s after one of %s", ErrReplay, a.Role, a.Node, stamp(a.Expires), stamp(old.a.Expires))
	}
	if old == nil && len(d.entries) >= nodesMax {
		return fmt.Errorf("transfer: %d nodes known, limit %d", len(d.entries), nodesMax)
	}
	delete(d.lists, a.Role)
	d.entries[k] = &entry{a: a, peer: from, until: now.Add(AnnounceTTL), forget: a.Expires.Add(2 * ClockSkew)}
	d.arm(now)
	return nil
}

// arm sets the timer to the next expiry. mu is held.
func (d *Directory) arm(now time.Time) {
	if !d.p.timers {
		return
	}
	var next time.Time
	for _, e := range d.entries {
		at := e.until
		if !now.Before(at) {
			at = e.forget
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if !next.IsZero() && !d.closed {
		d.timer = time.AfterFunc(max(next.Sub(now), time.Millisecond), d.expire)
	}
}

func (d *Directory) expire() {
	now := d.p.clock()
	gone := false
	d.mu.Lock()
	for k, e := range d.entries {
		switch {
		case now.After(e.forget):
			delete(d.entries, k)
		case !e.until.IsZero() && !now.Before(e.until):
			e.until = time.Time{}
			gone = true
		}
	}
	d.arm(now)
	d.mu.Unlock()
	if gone {
		d.notify()
	}
}

func (d *Directory) notify() {
	d.mu.Lock()
	fs := slices.Clip(d.changed) // nobody takes one away
	d.mu.Unlock()
	for _, f := range fs {
		f()
	}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
