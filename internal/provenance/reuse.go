package provenance

import (
	"bulkhead/internal/model"
	"bulkhead/kernels"
)

// reuse is the memory that an engine with Config.Reuse lends: pools of pages, by how many
// they have, and runners.
type reuse struct {
	pages, lentPages     []*pages
	runners, lentRunners []*runner
}

// Recycle takes all pages and runners back that the engine made, for those that it makes
// from now on: nobody may use one any more. It is for one goroutine that makes many small
// clusters, one after another. The engine must have Config.Reuse.
func (e *Engine) Recycle() {
	u := &e.reuse
	u.pages, u.lentPages = append(u.pages, u.lentPages...), u.lentPages[:0]
	u.runners, u.lentRunners = append(u.runners, u.lentRunners...), u.lentRunners[:0]
}

func (u *reuse) newPages(l kernels.PageLayout, count int) (kernels.Pages, error) {
	p := (*pages)(nil)
	for i, have := range u.pages {
		if len(have.state) == count {
			p = have
			u.pages[i] = u.pages[len(u.pages)-1]
			u.pages = u.pages[:len(u.pages)-1]
			p.renew()
			break
		}
	}
	if p == nil {
		var err error
		if p, err = newPages(l, count); err != nil {
			return nil, err
		}
	}
	u.lentPages = append(u.lentPages, p)
	return p, nil
}

func (u *reuse) newRunner(e *Engine, maxRows, maxSeqs int) model.Runner {
	r := (*runner)(nil)
	if n := len(u.runners); n > 0 {
		r, u.runners = u.runners[n-1], u.runners[:n-1]
		r.maxRows, r.maxSeqs = maxRows, maxSeqs // the rest is scratch, or computed from its source alone
	} else {
		r = e.runner(maxRows, maxSeqs)
	}
	u.lentRunners = append(u.lentRunners, r)
	return r
}

// renew makes pages what newPages makes: all of it, not only what says that it was written, since
// what a build without some check left behind must not be found in the next cluster.
func (p *pages) renew() {
	clear(p.data)
	for i := range p.state {
		s := &p.state[i]
		s.owner.Store(0)
		s.place.Store(0)
		s.used.Store(false)
		for l := range s.filled {
			s.filled[l].Store(0)
		}
	}
}
