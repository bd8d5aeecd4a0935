package prefill

// turns says whose job is computed next, so that tenants share the rows: start-
// time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996) with tenants as flows
// and chunks as packets. Each tenant has the sum of rows that it was given;
// the one with the least goes first. A tenant that had nothing to compute comes
// back at the present level, so that idle time is not saved up.
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
	picked    *tenantTurn
}

type tenantTurn struct {
	name  string
	given int
	queue []*job // with rows to compute now, by arrival; only between open and close
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
		x.given = max(x.given, t.level) // changes nothing for those that had rows left over
	}
}

// next gives the job whose turn it is; nil if none is left.
func (t *turns) next() *job {
	t.picked = nil
	for _, x := range t.tenants {
		if len(x.queue) == 0 {
			continue
		}
		if p := t.picked; p == nil || x.given < p.given {
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
}

// close ends the choice. Tenants that have no rows left over and are not ahead
// of the present level are forgotten: they would come back just so. When
// nobody has, nobody competes, and all begin anew.
func (t *turns) close() {
	idle := true
	kept := t.tenants[:0]
	for _, x := range t.tenants {
		left := len(x.queue) > 0
		idle = idle && !left
		if left || x.given > t.level {
			kept = append(kept, x)
		}
		x.queue = nil
	}
	clear(t.tenants[len(kept):])
	t.tenants = kept
	if idle {
		t.tenants = nil
	}
}

// tenant finds or makes the line of a tenant.
func (t *turns) tenant(name string) *tenantTurn {
	for _, x := range t.tenants {
		if x.name == name {
			return x
		}
	}
	x := &tenantTurn{name: name} // open lifts it to the present level
	t.tenants = append(t.tenants, x)
	return x
}
