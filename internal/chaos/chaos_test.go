//go:build chaos

package chaos_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/chaos"
)

// fault is one thing done to one plant.
type fault struct {
	kind string // kill, stop5, stop30, cut, or bus and a chaos.Kind
	role string // "" is everybody
}

func (f fault) String() string {
	if f.role == "" {
		return f.kind
	}
	return f.kind + " " + f.role
}

// The roles that faults happen to.
var roles = []string{"router", "prefill", "decode", "nats"}

// odds are the probabilities of a burst, by kind: so that most requests meet something, and some do not.
var odds = chaos.Faults{
	chaos.Drop: 0.02, chaos.Duplicate: 0.2, chaos.Reorder: 0.2, chaos.Delay: 0.03, chaos.Flip: 0.02, chaos.Cut: 0.003, chaos.Replay: 0.2,
}

// Durations of faults.
const (
	burst     = 2 * time.Second
	cutMin    = time.Second
	cutSpread = 7 * time.Second
	// look is how long the service is watched at least after the beginning of a fault that ends at once, and
	// lookEnd after the end of one: longer than a dead node is believed.
	look    = 4500 * time.Millisecond
	lookEnd = 1500 * time.Millisecond
	// backMax is the promise, backGiveUp when nobody waits any more.
	backMax    = 10 * time.Second
	backGiveUp = 40 * time.Second
)

// plan is every fault so many times, in the order of the seed.
func plan(each int, only string, seed uint64) (all []fault) {
	for range each {
		for _, kind := range []string{"kill", "stop5", "stop30", "cut"} {
			for _, role := range roles {
				all = append(all, fault{kind, role})
			}
		}
		for _, k := range chaos.Kinds {
			all = append(all, fault{"bus " + string(k), ""})
		}
	}
	all = slices.DeleteFunc(all, func(f fault) bool { return only != "" && !strings.Contains(f.String(), only) })
	r := rand.New(rand.NewPCG(seed, 0))
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// outcome is what one kind of fault led to, over all of its times.
type outcome struct {
	Fault  string  `json:"fault"`
	Times  int     `json:"times"`
	Back   []int64 `json:"-"` // milliseconds
	Max    int64   `json:"back_max_ms"`
	Median int64   `json:"back_median_ms"`
	Late   int     `json:"back_late"` // over 10 s
	Ends   tally   `json:"requests"`
}

// report is the whole run's.
type report struct {
	Seed       uint64           `json:"seed"`
	Seconds    int              `json:"seconds"`
	Clusters   int              `json:"clusters"`
	Faults     int              `json:"faults"`
	Requests   int              `json:"requests"`
	Wrong      int              `json:"wrong"`
	Hung       int              `json:"without_a_terminal_event"`
	Unkind     int              `json:"unexpected_errors"`
	Late       int              `json:"back_late"`
	Restarted  int              `json:"decode_restarted_by_others"`
	Messages   int64            `json:"bus_messages"`
	Done       map[string]int64 `json:"bus_faults"`
	Codes      map[string]int   `json:"errors"`
	Longest    map[end]float64  `json:"longest_s"`
	Kinds      []outcome        `json:"by_fault"`
	Memory     []memory         `json:"memory"`
	Violations []string         `json:"violations"`
}

// goal: whatever happens to the bus and to processes, no answer is wrong, every request ends, the
// service comes back, and nothing is left behind. method: clusters of released binaries, each node on a faulty
// network of its own, under load with the engine whose right answers are known. Each cluster is met
// by one fault at a time; docs/chaos.md says how it is judged.
func TestChaos(t *testing.T) {
	seed, each, clusters := number(t, "CHAOS_SEED", uint64(time.Now().UnixNano()%1e9)), int(number(t, "CHAOS_EACH", 1)), int(number(t, "CHAOS_CLUSTERS", 2))
	faults := plan(each, env("CHAOS_ONLY", ""), seed)
	todo := make(chan fault, len(faults))
	for _, f := range faults {
		todo <- f
	}
	close(todo)
	dir := env("CHAOS_DIR", t.TempDir())
	t.Logf("seed %d: %d faults on %d clusters", seed, len(faults), clusters)
	begun := time.Now()
	r := &runner{t: t, done: map[string]*outcome{}}
	r.Seed, r.Clusters, r.Faults = seed, clusters, len(faults)
	r.Codes, r.Longest, r.Done = map[string]int{}, map[end]float64{}, map[string]int64{}
	var wg sync.WaitGroup
	for i := range clusters {
		wg.Go(func() {
			nodes := 2
			if i%3 == 2 {
				nodes = 1 // nobody takes over
			}
			if err := r.cluster(fmt.Sprintf("c%d", i+1), nodes, dir, seed+uint64(i)<<32, todo); err != nil {
				r.violation("c%d: %v", i+1, err)
			}
		})
	}
	wg.Wait()
	r.Seconds = int(time.Since(begun).Seconds())
	r.finish()
}

func number(t *testing.T, name string, or uint64) uint64 {
	n, err := strconv.ParseUint(env(name, strconv.FormatUint(or, 10)), 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// runner drives all clusters of a run.
type runner struct {
	t    *testing.T
	mu   sync.Mutex
	left int
	done map[string]*outcome // by fault; guarded by mu, as the rest
	report
}

func (r *runner) violation(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Violations = append(r.Violations, fmt.Sprintf(format, args...))
}

// cluster runs one cluster through faults until none is left.
func (r *runner) cluster(name string, nodes int, dir string, seed uint64, todo <-chan fault) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p, err := newPlant(ctx, plantConfig{
		name: name, dir: dir, seed: seed, prefills: nodes, decodes: nodes, prefillCap: capacity, decCap: capacity, window: window, chunk: 512,
		routerFlags: []string{"--first-token-timeout=20s", "--queue-timeout=10s"},
	})
	defer func() {
		for _, f := range p.stop() {
			r.violation("%s", f)
		}
	}()
	if err != nil {
		return err
	}
	warm, err := newLoad(p)
	if err != nil {
		return err
	}
	if err := warm.begin(6, seed); err != nil {
		return err
	}
	time.Sleep(8 * time.Second)
	warm.end()
	before, err := p.baseline(30 * time.Second)
	if err != nil {
		return err
	}
	l, err := newLoad(p)
	if err != nil {
		return err
	}
	if err := l.begin(6, seed+1); err != nil {
		return err
	}
	turn := rand.New(rand.NewPCG(seed, 2))
	for f := range todo {
		r.meet(p, l, f, turn)
	}
	l.set("none")
	l.end()
	after, err := p.baseline(60 * time.Second)
	r.memory(p, before, after, err)
	r.book(p, l)
	return nil
}

// meet does one fault and judges what follows.
func (r *runner) meet(p *plant, l *load, f fault, turn *rand.Rand) {
	l.set(f.String())
	defer l.set("none")
	before := map[string]int{}
	for _, q := range p.procs {
		before[q.name] = q.pid()
	}
	pool := p.pool(f.role)
	var victim *process
	if len(pool) > 0 {
		victim = pool[turn.IntN(len(pool))]
	}
	begun := time.Now()
	ended, err := p.do(f, victim, turn)
	if err != nil {
		r.violation("%s: %s: %v", p.name, f, err)
		return
	}
	// With another node in the pool the service must be back even while this one is not. Who is
	// alone, as the router and the bus are, is waited for.
	took, ok, why := l.back(ended, ended.Add(lookEnd), backGiveUp)
	if len(pool) > 1 {
		took, ok, why = l.back(begun, begun.Add(look), backGiveUp)
		if ended.Sub(begun) > backMax { // it must be back before, and stay so at the end
			t, k, w := l.back(ended, ended.Add(lookEnd), backGiveUp)
			early := l.lastBad(begun, ended)
			took, ok, why = max(early, t), k, w
		}
	}
	r.mu.Lock()
	o := r.done[f.String()]
	if o == nil {
		o = &outcome{Fault: f.String(), Ends: tally{}}
		r.done[f.String()] = o
	}
	o.Times++
	o.Back = append(o.Back, took.Milliseconds())
	if !ok || took > backMax {
		o.Late++
		r.Violations = append(r.Violations, fmt.Sprintf("%s: %s at %s of %v: service back after %s (%s)", p.name, f, begun.UTC().Format("15:04:05.000"), victim, took.Round(time.Millisecond), why))
	}
	r.left++
	r.t.Logf("%4d/%d %s %-14s %s back after %s %s", r.left, r.Faults, p.name, f, begun.UTC().Format("15:04:05"), took.Round(time.Millisecond), why)
	r.mu.Unlock()
	for _, q := range p.procs {
		if q != victim && q.pid() != before[q.name] || f.kind != "kill" && q.pid() != before[q.name] {
			r.violation("%s: %s: another process runs as %s", p.name, f, q.name)
			if q.role == "decode" {
				r.mu.Lock()
				r.Restarted++
				r.mu.Unlock()
			}
		}
	}
}

// String names the process.
func (q *process) String() string {
	if q == nil {
		return "all"
	}
	return q.name
}

// lastBad is how long after begun the last bad probe had ended that began before until.
func (l *load) lastBad(begun, until time.Time) (took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.probes {
		if !p.begun.Before(begun) && p.begun.Before(until) && (p.why != "" || p.ended.IsZero()) {
			end := p.ended
			if end.IsZero() {
				end = time.Now()
			}
			took = max(took, end.Sub(begun))
		}
	}
	return took
}

// do is the fault itself; it returns when it is over.
func (p *plant) do(f fault, victim *process, turn *rand.Rand) (ended time.Time, err error) {
	switch f.kind {
	case "kill":
		victim.kill()
		return time.Now(), victim.start() // as whatever watches over processes would
	case "stop5", "stop30":
		d := 5 * time.Second
		if f.kind == "stop30" {
			d = 30 * time.Second
		}
		if err := victim.signal(syscall.SIGSTOP); err != nil {
			return ended, err
		}
		time.Sleep(d)
		return time.Now(), victim.signal(syscall.SIGCONT)
	case "cut":
		cut := victim.hold
		if turn.IntN(2) == 0 {
			cut = victim.sever
		}
		cut(true)
		time.Sleep(cutMin + time.Duration(turn.Int64N(int64(cutSpread))))
		cut(false)
		return time.Now(), nil
	}
	kind := chaos.Kind(strings.TrimPrefix(f.kind, "bus "))
	set := func(faults chaos.Faults) {
		for _, q := range p.procs {
			if q.proxy != nil {
				q.proxy.Set(faults)
			}
		}
	}
	set(chaos.Faults{kind: odds[kind]})
	time.Sleep(burst)
	set(nil)
	return time.Now(), nil
}

// book adds what a cluster's clients saw to the report.
func (r *runner) book(p *plant, l *load) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	for label, ends := range l.counts {
		for e, n := range ends {
			r.Requests += n
			switch e {
			case endWrong:
				r.Wrong += n
			case endHung:
				r.Hung += n
			case endOdd:
				r.Unkind += n
			}
			if o := r.done[label]; o != nil {
				o.Ends[e] += n
			} else if label == "none" {
				r.done[label] = &outcome{Fault: label, Ends: tally{e: n}}
			}
		}
	}
	for c, n := range l.codes {
		r.Codes[c] += n
	}
	for e, d := range l.slow {
		r.Longest[e] = max(r.Longest[e], d.Round(time.Millisecond).Seconds())
	}
	r.Violations = append(r.Violations, l.bad...)
	for _, q := range p.procs {
		if q.proxy == nil {
			continue
		}
		seen, done := q.proxy.Stats()
		r.Messages += seen
		for k, n := range done {
			r.Done[string(k)] += n
		}
	}
}

// finish prints the report and fails the test for each violation.
func (r *runner) finish() {
	for _, o := range r.done {
		slices.Sort(o.Back)
		if n := len(o.Back); n > 0 {
			o.Median, o.Max = o.Back[n/2], o.Back[n-1]
		}
		r.Late += o.Late
		r.Kinds = append(r.Kinds, *o)
	}
	slices.SortFunc(r.Kinds, func(a, b outcome) int { return strings.Compare(a.Fault, b.Fault) })
	var b strings.Builder
	fmt.Fprintf(&b, "\n| fault | times | right | error | lost | left | wrong | hung | unkind | back, median | back, longest |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	sum := tally{}
	for _, o := range r.Kinds {
		for e, n := range o.Ends {
			sum[e] += n
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d | %d | %d | %d | %.1f s | %.1f s |\n", o.Fault, o.Times,
			o.Ends[endRight], o.Ends[endError], o.Ends[endLost], o.Ends[endGone], o.Ends[endWrong], o.Ends[endHung], o.Ends[endOdd], float64(o.Median)/1e3, float64(o.Max)/1e3)
	}
	fmt.Fprintf(&b, "| all | %d | %d | %d | %d | %d | %d | %d | %d | | |\n\n", r.Faults, sum[endRight], sum[endError], sum[endLost], sum[endGone], sum[endWrong], sum[endHung], sum[endOdd])
	fmt.Fprintf(&b, "%d s, %d clusters, seed %d; %d messages on the bus, of them met: %v\nerrors by code: %v\nlongest request by end, s: %v\n\n", r.Seconds, r.Clusters, r.Seed, r.Messages, r.Done, r.Codes, r.Longest)
	for _, m := range r.Memory {
		fmt.Fprintln(&b, m)
	}
	r.t.Log(b.String())
	if path := env("CHAOS_JSON", ""); path != "" {
		raw, err := json.MarshalIndent(r.report, "", "  ")
		if err == nil {
			err = os.WriteFile(path, append(raw, '\n'), 0o644)
		}
		if err != nil {
			r.t.Error(err)
		}
	}
	for _, v := range r.Violations {
		r.t.Error(v)
	}
	if sum[endRight] == 0 {
		r.t.Error("no request was answered")
	}
}

// memory is what a process held, idle, before and after.
type memory struct {
	Process                string
	RSSBefore, RSSAfter    int64 // bytes
	Goroutines             [2]int
	Starts                 int
	Free, Held, Quarantine float64 // tokens free, tokens that are not, pages
}

func (m memory) String() string {
	return fmt.Sprintf("%-8s started %3d times; resident %5.1f MiB, at the end %5.1f MiB; goroutines %3d, at the end %3d; tokens held %.0f, pages in quarantine %.0f",
		m.Process, m.Starts, float64(m.RSSBefore)/(1<<20), float64(m.RSSAfter)/(1<<20), m.Goroutines[0], m.Goroutines[1], m.Held, m.Quarantine)
}

// idle is one process at rest.
type idle struct {
	rss        int64
	goroutines int
	free       float64
	held       float64
	quarantine float64
}

// Bounds of "back to baseline". A Go heap breathes: what counts is that it does not grow with the run.
const (
	rssSlack        = 48 << 20
	goroutinesSlack = 24
)

// baseline waits until the plant is at rest and returns what its processes hold then.
func (p *plant) baseline(most time.Duration) (map[string]idle, error) {
	var err error
	for end := time.Now().Add(most); ; {
		var at map[string]idle
		if at, err = p.rest(); err == nil {
			return at, nil
		}
		if time.Now().After(end) {
			return at, fmt.Errorf("%s is not at rest: %w", p.name, err)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

func (p *plant) rest() (map[string]idle, error) {
	all := map[string]idle{}
	var held error
	for _, q := range p.procs {
		m, err := q.metrics(context.Background())
		if err != nil {
			return all, fmt.Errorf("%s: %w", q.name, err)
		}
		i := idle{rss: q.rss(), goroutines: int(m["go_goroutines"])}
		switch q.role {
		case "prefill", "decode":
			i.free, i.quarantine = m["bulkhead_"+q.role+"_free_tokens"], m["bulkhead_"+q.role+"_quarantined_pages"]
			i.held = capacity - i.free - 64*i.quarantine
			if i.held != 0 {
				held = fmt.Errorf("%s holds %v tokens, %v pages in quarantine", q.name, i.held, i.quarantine)
			}
		case "router":
			if n := m["bulkhead_num_requests_running"] + m["bulkhead_num_requests_waiting"]; n != 0 {
				held = fmt.Errorf("%s has %v requests", q.name, n)
			}
		}
		all[q.name] = i
	}
	return all, held
}

// capacity of every pool, in tokens.
const capacity = 131072

func (r *runner) memory(p *plant, before, after map[string]idle, err error) {
	if err != nil {
		r.violation("%v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(before)) {
		b, a := before[name], after[name]
		i := slices.IndexFunc(p.procs, func(q *process) bool { return q.name == name })
		m := memory{Process: p.name + " " + name, RSSBefore: b.rss, RSSAfter: a.rss, Goroutines: [2]int{b.goroutines, a.goroutines},
			Starts: p.procs[i].starts, Free: a.free, Held: a.held, Quarantine: a.quarantine}
		r.Memory = append(r.Memory, m)
		if a.rss > b.rss*3/2+rssSlack || a.goroutines > b.goroutines+goroutinesSlack || a.held != 0 || a.quarantine != 0 {
			r.Violations = append(r.Violations, "not back to baseline: "+m.String())
		}
	}
}
