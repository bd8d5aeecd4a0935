package router

import (
	"slices"
	"time"
)

// queue holds sequences that fit the cluster but not at this moment. Tenants take turns;
// within a tenant the order is that of arrival. It is bounded, in all and per
// tenant, and everything in it has a deadline. It is pure state: callers hand in
// the time, and lock.
type queue struct {
	most      int           // tickets in all
	perTenant int           // tickets of one tenant, so that nobody fills it alone
	starving  time.Duration // waiting longer, a ticket holds back all younger ones
	tenants   map[string][]*ticket
	turns     []string // tenants with tickets, whose turn is next first
	waiting   int
}

// ticket is one sequence in the queue.
type ticket struct {
	tenant   string
	need     need
	since    time.Time
	deadline time.Time
	granted  chan grant // one value, or none if the ticket is removed
}

// grant is a place in the cluster.
type grant struct {
	pair   pair
	claims [2]reservation
	err    error // instead: why there will be no place
}

func newQueue(most int, starving time.Duration) *queue {
	return &queue{most: most, perTenant: max(1, most/2), starving: starving, tenants: make(map[string][]*ticket)}
}

// push adds t at the end of its tenant's line, or says that there is no room.
func (q *queue) push(t *ticket) error {
	if q.waiting >= q.most || len(q.tenants[t.tenant]) >= q.perTenant {
		return fail(kindOverloaded, "", "the cluster is busy and its queue is full; retry later")
	}
	if len(q.tenants[t.tenant]) == 0 {
		q.turns = append(q.turns, t.tenant)
	}
	q.tenants[t.tenant] = append(q.tenants[t.tenant], t)
	q.waiting++
	return nil
}

// next removes and returns the first ticket in fair order that fits, nil if none
// does. Only the head of each line is asked. A head that starves is asked alone:
// otherwise small requests would eat the room that a large one waits for.
func (q *queue) next(now time.Time, fits func(*ticket) bool) *ticket {
	if t := q.oldest(); t != nil && now.Sub(t.since) > q.starving {
		if !fits(t) {
			return nil
		}
		q.remove(t)
		return t
	}
	for i, name := range q.turns {
		t := q.tenants[name][0]
		if !fits(t) {
			continue
		}
		q.turns = append(slices.Delete(q.turns, i, i+1), name) // to the back of the round
		q.remove(t)
		return t
	}
	return nil
}

// oldest returns the ticket that has waited longest.
func (q *queue) oldest() *ticket {
	var old *ticket
	for _, name := range q.turns {
		if t := q.tenants[name][0]; old == nil || t.since.Before(old.since) {
			old = t
		}
	}
	return old
}

// expire removes and returns all tickets past their deadline.
func (q *queue) expire(now time.Time) []*ticket {
	var late []*ticket
	for _, line := range q.tenants {
		for _, t := range line {
			if !now.Before(t.deadline) {
				late = append(late, t)
			}
		}
	}
	for _, t := range late {
		q.remove(t)
	}
	return late
}

// remove takes t out, and reports whether it was there.
func (q *queue) remove(t *ticket) bool {
	line := q.tenants[t.tenant]
	i := slices.Index(line, t)
	if i < 0 {
		return false
	}
	if line = slices.Delete(line, i, i+1); len(line) == 0 {
		delete(q.tenants, t.tenant)
		q.turns = slices.DeleteFunc(q.turns, func(name string) bool { return name == t.tenant })
	} else {
		q.tenants[t.tenant] = line
	}
	q.waiting--
	return true
}
