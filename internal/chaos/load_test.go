//go:build chaos

package chaos_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"bulkhead/internal/openai"
)

// window is the engine's in the runs of faults: what the largest question takes, and some.
const window = 32768

// load is what clients do to a plant while things break, and what they saw.
type load struct {
	p      *plant
	client *openai.Client
	ctx    context.Context
	wg     sync.WaitGroup
	quit   chan struct{}

	mu     sync.Mutex
	label  string           // of the fault that is on; guarded by mu, as the rest
	counts map[string]tally // by label
	codes  map[string]int   // of errors
	bad    []string         // what no client may see
	known  map[string]asked // by request id
	order  []string         // of known, oldest first
	probes map[int]*probe   // by number
	number int
	slow   map[end]time.Duration // the longest, by end
}

// tally counts ends.
type tally map[end]int

// asked is a question and who asked it.
type asked struct {
	q      *question
	tenant int
}

// probe is a small request that tells whether the service is there.
type probe struct {
	begun, ended time.Time // ended is zero while it runs
	why          string    // it is bad: "" is good
}

// Bounds of a probe.
const (
	probeEvery   = 200 * time.Millisecond
	probeSlow    = 2 * time.Second  // slower is as good as none
	probeGiveUp  = 12 * time.Second // and nobody waits longer
	knownMax     = 4096
	badMax       = 50
	leavePortion = 0.05 // of requests whose client hangs up
)

func newLoad(p *plant) (*load, error) {
	c, err := openai.New(p.url, 64)
	if err != nil {
		return nil, err
	}
	return &load{
		p: p, client: c, ctx: context.Background(), quit: make(chan struct{}),
		label: "none", counts: map[string]tally{}, codes: map[string]int{}, known: map[string]asked{},
		probes: map[int]*probe{}, slow: map[end]time.Duration{},
	}, nil
}

// begin starts so many clients, and the probes.
func (l *load) begin(clients int, seed uint64) error {
	for i := range clients {
		j, err := newJudge(window)
		if err != nil {
			return err
		}
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		l.wg.Go(func() { l.run(r, j, i) })
	}
	j, err := newJudge(window)
	if err != nil {
		return err
	}
	l.wg.Go(func() { l.probe(rand.New(rand.NewPCG(seed, 1<<32)), j) })
	return nil
}

// end stops the clients and waits until each has its last answer.
func (l *load) end() {
	close(l.quit)
	l.wg.Wait()
	l.client.Close()
}

func (l *load) set(label string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.label = label
}

// pause waits, and reports whether there is more to do.
func (l *load) pause(d time.Duration) bool {
	select {
	case <-l.quit:
		return false
	case <-time.After(d):
		return true
	}
}

// run is one client: it asks, judges and asks again.
func (l *load) run(r *rand.Rand, j *judge, i int) {
	for n := 0; l.pause(time.Duration(10+r.IntN(120)) * time.Millisecond); n++ {
		chars := 1 + r.IntN(300)
		switch r.IntN(10) {
		case 0:
			chars = 8000 + r.IntN(16000)
		case 1, 2, 3:
			chars = 300 + r.IntN(4000)
		}
		who := (i + n) % len(l.p.tenants)
		q, err := j.ask(r, fmt.Sprintf("T%d", who), chars, 1+r.IntN(34), r.IntN(2) == 0, r.IntN(2) == 0)
		if err != nil {
			l.report(fmt.Sprintf("cannot ask: %v", err))
			return
		}
		ctx, cancel := context.WithTimeout(l.ctx, requestDeadline)
		leave := context.CancelCauseFunc(func(error) {})
		if r.Float64() < leavePortion {
			ctx, leave = context.WithCancelCause(ctx)
			time.AfterFunc(time.Duration(r.IntN(60))*time.Millisecond, func() { leave(errLeft) })
		}
		if what := l.send(ctx, q, who); what != endRight && what != endGone {
			l.pause(200 * time.Millisecond) // as a client would
		}
		leave(nil)
		cancel()
	}
}

// send asks one question and books how it ended.
func (l *load) send(ctx context.Context, q *question, who int) end {
	begun := time.Now()
	a, err := l.client.Do(ctx, l.p.tenants[who], q.Request)
	what, why := q.judge(ctx, a, err)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.counts[l.label] == nil {
		l.counts[l.label] = tally{}
	}
	l.counts[l.label][what]++
	l.slow[what] = max(l.slow[what], time.Since(begun))
	if what == endError {
		l.codes[why]++
	}
	id := ""
	if a != nil {
		id = a.Header.Get("x-request-id")
		l.remember(id, asked{q, who})
	}
	if what == endWrong || what == endHung || what == endOdd {
		text := fmt.Sprintf("%s: %s: request %s of tenant %d during %s: %s: %s", begun.UTC().Format("15:04:05.000"), l.p.name, id, who, l.label, what, why)
		if what == endWrong && a != nil {
			text += "; " + l.whose(id, who, q, a.Text)
		}
		if len(l.bad) < badMax {
			l.bad = append(l.bad, text)
		}
	}
	return what
}

func (l *load) report(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bad = append(l.bad, text)
}

// remember keeps the latest questions, to name the victim if one leaks. Caller holds mu.
func (l *load) remember(id string, a asked) {
	if id == "" {
		return
	}
	l.known[id] = a
	if l.order = append(l.order, id); len(l.order) > knownMax {
		delete(l.known, l.order[0])
		l.order = l.order[1:]
	}
}

// probe sends a small request now and again, whatever became of the one before.
func (l *load) probe(r *rand.Rand, j *judge) {
	for l.pause(probeEvery) {
		q, err := j.ask(r, "PROBE", 100, 3, false, false)
		if err != nil {
			l.report(fmt.Sprintf("cannot ask: %v", err))
			return
		}
		l.mu.Lock()
		l.number++
		n, pr := l.number, &probe{begun: time.Now()}
		l.probes[n] = pr
		delete(l.probes, n-2000)
		l.mu.Unlock()
		l.wg.Go(func() {
			ctx, cancel := context.WithTimeoutCause(l.ctx, probeGiveUp, errLeft)
			defer cancel()
			a, err := l.client.Do(ctx, l.p.tenants[0], q.Request)
			what, why := q.judge(ctx, a, err)
			l.mu.Lock()
			defer l.mu.Unlock()
			pr.ended = time.Now()
			switch {
			case what != endRight:
				pr.why = string(what) + " " + why
			case pr.ended.Sub(pr.begun) > probeSlow:
				pr.why = "slow"
			}
			if what == endWrong {
				l.bad = append(l.bad, l.p.name+": a probe: "+why)
			}
		})
	}
}

// goodRun is how many probes in a row say that the service is back.
const goodRun = 4

// back waits until the service is back, at least until least, and says how long after since: when the
// first probe had its answer behind which none was bad any more. It gives up after most.
func (l *load) back(since, least time.Time, most time.Duration) (time.Duration, bool, string) {
	for {
		took, good, last := l.recovered(since)
		now := time.Now()
		if good && now.After(least) {
			return took, true, last
		}
		if now.After(least) && now.Sub(since) > most {
			return now.Sub(since), false, last
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// recovered looks at the probes since a time: when the first good one behind the last bad one had its
// answer, and whether enough are behind that.
func (l *load) recovered(since time.Time) (took time.Duration, good bool, last string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	run, first := 0, time.Duration(0)
	for _, n := range slices.Sorted(maps.Keys(l.probes)) {
		p := l.probes[n]
		switch {
		case p.begun.Before(since):
		case p.ended.IsZero() && time.Since(p.begun) < time.Second:
			// too early to tell
		case p.ended.IsZero():
			run = 0
		case p.why != "":
			run, took, last = 0, max(took, p.ended.Sub(since)), p.why
		default:
			if run++; run == 1 {
				first = max(took, p.ended.Sub(since))
			}
		}
	}
	return max(took, first), run >= goodRun, last
}
