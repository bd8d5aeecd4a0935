package prefill

// turns says whose job is computed next, so that tenants share the rows: start-
// time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996) with tenants as flows
// and chunks as packets. Each tenant has the sum of rows that it was given;
// the one with the least goes first, and of equals the one that was served
// longest ago. A tenant that had nothing to compute comes back at the present
// level, so that idle time is neither saved up nor held against it.
//
// From this follow, for tenants that have rows to compute all the while: the
// rows they get never differ by more than two steps' worth, and of T tenants
// each is in one of the next 2T - 1 steps.
//
// A chunk is charged at least minCharge rows: a step is full by rows or by
// chunks, and many tiny prompts must not be cheaper than they are.
type turns struct {
	minCharge int
	tenants   []*tenantTurn
	level     int // the start tag of the last chunk that was given out
	count     int // chunks given out
	picked    *tenantTurn
}

type tenantTurn struct {
	name   string
	given  int
	last   int    // count at its last chunk
	active bool   // had rows to compute left over when the last step was full
	queue  []*job // with rows to compute now, by arrival; only between open and close
}

// open begins the choice for one step among jobs, which are in the order of
// their arrival.
func (t *turns) open(jobs []*job, aheadBlocks int) {
	for _, j := range jobs {
		if j.ready(aheadBlocks) > 0 {
			x := t.tenant(j.Tenant)
			x.queue = append(x.queue, j)
		}
	}
	for _, x := range t.tenants {
		if !x.active {
			x.given = max(x.given, t.level)
		}
	}
}

// next gives the job whose turn it is; nil if none is left.
func (t *turns) next() *job {
	t.picked = nil
	for _, x := range t.tenants {
		if len(x.queue) == 0 {
			continue
		}
		if p := t.picked; p == nil || x.given < p.given || x.given == p.given && x.last < p.last {
			t.picked = x
		}
	}
	if t.picked == nil {
		return nil
	}
	return t.picked.queue[0]
}

// charge books rows for the job that next gave; all says that it has no more
// to compute now.
func (t *turns) charge(rows int, all bool) {
	x := t.picked
	if all {
		x.queue = x.queue[1:]
	}
	t.level = max(t.level, x.given)
	x.given += max(rows, t.minCharge)
	t.count++
	x.last = t.count
}

// close ends the choice. Tenants that have nothing left and are not ahead of
// the present level are forgotten: they would come back just so.
func (t *turns) close() {
	idle := true
	for _, x := range t.tenants {
		x.active = len(x.queue) > 0
		x.queue = nil
		idle = idle && !x.active
	}
	if idle { // nobody competes: all begin anew
		t.tenants = nil
		return
	}
	kept := t.tenants[:0]
	for _, x := range t.tenants {
		if x.active || x.given > t.level {
			kept = append(kept, x)
		}
	}
	clear(t.tenants[len(kept):])
	t.tenants = kept
}

// tenant finds or makes the line of a tenant.
func (t *turns) tenant(name string) *tenantTurn {
	for _, x := range t.tenants {
		if x.name == name {
			return x
		}
	}
	x := &tenantTurn{name: name, given: t.level}
	t.tenants = append(t.tenants, x)
	return x
}
