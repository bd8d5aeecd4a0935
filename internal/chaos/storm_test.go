//go:build chaos

package chaos_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/chaos"
	"bulkhead/internal/cluster"
	"bulkhead/internal/identity"
	"bulkhead/internal/openai"
)

// The storm's shape.
const (
	stormWave   = 48 // requests at a time
	stormWindow = 8192
	stormGood   = 200 // requests whose latency is taken, before and after
	freeMax     = time.Second
	// restMax: a process back at its baseline is there by then. A lost slot, page or goroutine never is.
	restMax = 20 * time.Second
	// stallMin: when timers of the test's own are so late, the machine has no time for anybody, and a
	// wave says nothing about how soon slots are free. Such waves are counted and shown.
	stallMin = 150 * time.Millisecond
)

// stormSpreads are the times over which the clients of a wave leave, each at a random moment of it.
var stormSpreads = []time.Duration{60 * time.Millisecond, 120 * time.Millisecond, 240 * time.Millisecond}

// phase is how far a request was when its client left.
type phase string

// The phases, in order, as the bus shows them.
const (
	phaseQueued   phase = "queued"        // it had no pair of nodes
	phaseReserved phase = "reserved"      // it had one; no KV had left prefill
	phaseTransfer phase = "mid-transfer"  // some KV had, and prefill computed
	phaseCommit   phase = "before commit" // all of it and the manifest had; decode had not said so
	phaseDecode   phase = "mid-decode"    // tokens came
	phaseOver     phase = "over"          // the router had the last token, the client not
)

// traffic is what the nodes' own networks saw of each request.
type traffic struct {
	mu sync.Mutex
	of map[string]*flow // by request id
}

type flow struct{ kv, out int }

func (t *traffic) observe(role string, d chaos.Direction, subject string, _ int) {
	part := strings.Split(subject, ".")
	var id string
	switch {
	case role == "prefill" && d == chaos.ToServer && part[0] == "kv" && len(part) == 5:
		id = part[2]
	case role == "decode" && d == chaos.ToServer && part[0] == "out" && len(part) == 4:
		id = part[2]
	default:
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.of[id]
	if f == nil {
		f = &flow{}
		t.of[id] = f
	}
	if part[0] == "kv" {
		f.kv++
	} else {
		f.out++
	}
}

// stormReport is the run's.
type stormReport struct {
	Seed       uint64         `json:"seed"`
	Seconds    float64        `json:"seconds"`
	Cancels    int            `json:"cancels"`
	PerSecond  float64        `json:"per_second"`
	Streams    int            `json:"streaming"`
	Finished   int            `json:"finished_before"`
	Errors     map[string]int `json:"errors"`
	Phases     map[phase]int  `json:"phases"`
	FreeMax    float64        `json:"free_max_ms"` // upper bound over all cancels
	FreeP50    float64        `json:"free_p50_ms"` // of the waves' bounds
	FreeP99    float64        `json:"free_p99_ms"`
	Stalled    int            `json:"waves_not_timed"` // the machine stood still
	StalledMax float64        `json:"waves_not_timed_free_max_ms"`
	Leaked     float64        `json:"leaked_tokens"`
	Wrong      int            `json:"wrong"`
	Before     [3]float64     `json:"latency_before_ms"` // p50, p90, p99
	After      [3]float64     `json:"latency_after_ms"`
	Bad        []string       `json:"violations"`
}

// goal: clients that leave, at whatever moment, leave nothing behind. method: a cluster of released
// binaries; waves of requests, each of which is hung up on at a random moment. Behind each wave the nodes are asked, over the
// bus, how many attempts they still hold, until it is none: so many milliseconds after its first cancel is an
// upper bound for every slot of the wave.
func TestStorm(t *testing.T) {
	seed, cancels := number(t, "CHAOS_SEED", uint64(time.Now().UnixNano()%1e9)), int(number(t, "STORM_CANCELS", 2000))
	seen := &traffic{of: map[string]*flow{}}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// Decode's pools hold some 24 of 48 requests, so that there is a queue.
	p, err := newPlant(ctx, plantConfig{
		name: "storm", dir: env("CHAOS_DIR", t.TempDir()), seed: seed, prefills: 2, decodes: 2, prefillCap: capacity, decCap: 16384, window: stormWindow, chunk: 128,
		observe: seen.observe,
	})
	defer func() {
		for _, f := range p.stop() {
			t.Error(f)
		}
	}()
	if err != nil {
		t.Fatal(err)
	}
	s := &storm{t: t, p: p, r: rand.New(rand.NewPCG(seed, 3)), seen: seen}
	s.report.Seed, s.report.Errors, s.report.Phases = seed, map[string]int{}, map[phase]int{}
	if s.judge, err = newJudge(stormWindow); err != nil {
		t.Fatal(err)
	}
	if s.client, err = openai.New(p.url, 2*stormWave); err != nil {
		t.Fatal(err)
	}
	defer s.client.Close()
	s.watch(ctx)
	s.good(50) // warm
	s.report.Before = s.good(stormGood)
	before, err := s.rest()
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	for s.report.Cancels < cancels && len(s.report.Bad) == 0 {
		s.wave()
	}
	s.report.Seconds = time.Since(begun).Seconds()
	s.report.PerSecond = float64(s.report.Cancels) / s.report.Seconds
	after, err := s.rest()
	for end := time.Now().Add(restMax); err == nil && len(unlike(before, after)) > 0 && time.Now().Before(end); {
		after, err = s.rest()
	}
	if err != nil {
		s.bad("%v", err)
	}
	s.report.After = s.good(stormGood)
	s.phases()
	s.finish(before, after)
}

type storm struct {
	t       *testing.T
	p       *plant
	r       *rand.Rand
	seen    *traffic
	judge   *judge
	client  *openai.Client
	watcher *cluster.Joined
	bounds  []time.Duration // of the waves

	mu     sync.Mutex
	report stormReport // guarded by mu while a wave runs
}

func (s *storm) bad(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Bad = append(s.report.Bad, fmt.Sprintf(format, args...))
}

// watch joins the bus as a router that only asks how the nodes are.
func (s *storm) watch(ctx context.Context) {
	m, err := s.p.keys.Minter(identity.Router)
	if err != nil {
		s.t.Fatal(err)
	}
	if s.watcher, err = (cluster.Join{Minter: m, Name: "watch", URL: "nats://" + s.p.bus}).Connect(ctx); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(s.watcher.Conn.Close)
}

// question makes one of a random kind.
func (s *storm) question(chars int) *question {
	q, err := s.judge.ask(s.r, fmt.Sprintf("S%d", s.r.IntN(4)), chars, 33, s.r.IntN(2) == 0, s.r.IntN(2) == 0)
	if err != nil {
		s.t.Fatal(err)
	}
	return q
}

// good asks one after another and returns the percentiles of the latency in ms.
func (s *storm) good(n int) (p [3]float64) {
	var took []time.Duration
	for range n {
		q := s.question(1000)
		ctx, cancel := context.WithTimeout(context.Background(), requestDeadline)
		a, err := s.client.Do(ctx, s.p.tenants[0], q.Request)
		what, why := q.judge(ctx, a, err)
		cancel()
		if what != endRight {
			s.bad("a good request: %s %s", what, why)
			return p
		}
		took = append(took, a.Total)
	}
	return percentiles(took)
}

func percentiles(took []time.Duration) (p [3]float64) {
	slices.Sort(took)
	for i, q := range []int{50, 90, 99} {
		if len(took) > 0 {
			p[i] = float64(took[min(len(took)-1, len(took)*q/100)].Microseconds()) / 1e3
		}
	}
	return p
}

// wave is some requests at a time, each left at a random moment.
func (s *storm) wave() {
	var wg sync.WaitGroup
	var first, last time.Time
	var late time.Duration // of our own timers
	spread := stormSpreads[s.r.IntN(len(stormSpreads))]
	for i := range stormWave {
		chars := 1 + s.r.IntN(1200)
		if s.r.IntN(8) == 0 {
			chars = 2000 + s.r.IntN(5000)
		}
		q := s.question(chars)
		after := time.Duration(s.r.Int64N(int64(spread)))
		wg.Go(func() {
			due := time.Now().Add(after)
			ctx, leave := context.WithCancelCause(context.Background())
			var left time.Time
			stop := time.AfterFunc(after, func() { left = time.Now(); leave(errLeft) })
			a, err := s.client.Do(ctx, s.p.tenants[i%len(s.p.tenants)], q.Request)
			gone := !stop.Stop() // it has left, or is about to
			if gone {
				<-ctx.Done()
			}
			what, why := q.judge(ctx, a, err)
			s.mu.Lock()
			defer s.mu.Unlock()
			switch {
			case what == endWrong:
				s.report.Wrong++
				s.report.Bad = append(s.report.Bad, why)
			case gone && err != nil:
				s.report.Cancels++
				if q.Stream {
					s.report.Streams++
				}
				if first.IsZero() || left.Before(first) {
					first = left
				}
				if left.After(last) {
					last = left
				}
				late = max(late, left.Sub(due))
			case what == endError:
				s.report.Errors[why]++
			case what == endRight || what == endGone:
				s.report.Finished++
			default:
				s.report.Bad = append(s.report.Bad, string(what)+" "+why)
			}
			leave(nil)
		})
	}
	wg.Wait()
	if first.IsZero() {
		return
	}
	s.settle(last)
	bound := time.Since(first)
	if late > stallMin {
		s.report.Stalled++
		s.report.StalledMax = max(s.report.StalledMax, float64(bound.Microseconds())/1e3)
		s.t.Logf("the machine stood still for %s during a wave: slots were held until %s after its first cancel, %s after the last", late, bound, time.Since(last))
		return
	}
	s.bounds = append(s.bounds, bound)
	if bound > freeMax {
		s.bad("wave %d: slots were held until %s after the first cancel, %s after the last", len(s.bounds), bound, time.Since(last))
	}
	if len(s.bounds)%100 == 0 {
		s.t.Logf("%d cancels, at most %.0f ms to free a slot", s.report.Cancels, float64(slices.Max(s.bounds).Microseconds())/1e3)
	}
}

// settle waits until no node holds an attempt and the router no request.
func (s *storm) settle(since time.Time) {
	for {
		busy := ""
		for _, q := range s.p.procs {
			switch q.role {
			case "prefill", "decode":
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
				pong, err := s.watcher.Peer.Ping(ctx, q.name)
				cancel()
				if err != nil {
					busy = fmt.Sprintf("%s: %v", q.name, err)
				} else if pong.Attempts > 0 {
					busy = fmt.Sprintf("%s holds %d attempts", q.name, pong.Attempts)
				}
			case "router":
				m, err := q.metrics(context.Background())
				if err != nil {
					busy = err.Error()
				} else if n := m["bulkhead_num_requests_running"] + m["bulkhead_num_requests_waiting"]; n > 0 {
					busy = fmt.Sprintf("%s has %v requests", q.name, n)
				}
			}
			if busy != "" {
				break
			}
		}
		if busy == "" {
			return
		}
		if time.Since(since) > 20*time.Second {
			s.bad("%s after the last cancel: %s", time.Since(since).Round(time.Millisecond), busy)
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// rest is what every process holds once nobody is connected and the nodes have announced their pools.
func (s *storm) rest() (map[string]idle, error) {
	s.client.Close()                    // a kept connection is a goroutine of the router's: how many are kept is chance
	time.Sleep(2500 * time.Millisecond) // the gauges follow the announcements, one a second
	all := map[string]idle{}
	for _, q := range s.p.procs {
		m, err := q.metrics(context.Background())
		if err != nil {
			return nil, err
		}
		all[q.name] = idle{rss: q.rss(), goroutines: int(m["go_goroutines"]), free: m["bulkhead_"+q.role+"_free_tokens"], quarantine: m["bulkhead_"+q.role+"_quarantined_pages"]}
	}
	return all, nil
}

// phases reads from the router's log which requests were left, and from what passed their nodes, when.
func (s *storm) phases() {
	raw, err := os.ReadFile(filepath.Join(s.p.dir, "r1.log"))
	if err != nil {
		s.bad("%v", err)
		return
	}
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	found := 0
	for line := range strings.Lines(string(raw)) {
		var e struct {
			Msg    string `json:"msg"`
			ID     string `json:"request_id"`
			Reason string `json:"reason"`
			Pair   string `json:"decode"`
			Prompt int    `json:"prompt_tokens"`
		}
		if json.Unmarshal([]byte(line), &e) != nil || e.Msg != "request" || e.Reason != "client_gone" {
			continue
		}
		found++
		f := s.seen.of[e.ID]
		if f == nil {
			f = &flow{}
		}
		whole := (e.Prompt+63)/64 + 2 // opening, a frame for each block, manifest
		switch {
		case f.out > 0:
			s.report.Phases[phaseDecode]++
		case f.kv >= whole:
			s.report.Phases[phaseCommit]++
		case f.kv > 0:
			s.report.Phases[phaseTransfer]++
		case e.Pair != "":
			s.report.Phases[phaseReserved]++
		default:
			s.report.Phases[phaseQueued]++
		}
	}
	if n := s.report.Cancels - found; n > 0 {
		s.report.Phases[phaseOver] = n
	}
}

// unlike says for every process what it holds now and did not before.
func unlike(before, after map[string]idle) (bad []string) {
	for _, name := range slices.Sorted(maps.Keys(before)) {
		b, a := before[name], after[name]
		if a.free != b.free || a.quarantine != 0 || a.goroutines > b.goroutines+goroutinesSlack || a.rss > b.rss*3/2+rssSlack {
			bad = append(bad, fmt.Sprintf("%s is not as before: free tokens %.0f, afterwards %.0f with %.0f pages in quarantine; goroutines %d, afterwards %d; resident %.1f MiB, afterwards %.1f MiB",
				name, b.free, a.free, a.quarantine, b.goroutines, a.goroutines, float64(b.rss)/(1<<20), float64(a.rss)/(1<<20)))
		}
	}
	return bad
}

func (s *storm) finish(before, after map[string]idle) {
	r := &s.report
	if len(s.bounds) > 0 {
		slices.Sort(s.bounds)
		ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
		r.FreeMax, r.FreeP50, r.FreeP99 = ms(s.bounds[len(s.bounds)-1]), ms(s.bounds[len(s.bounds)/2]), ms(s.bounds[len(s.bounds)*99/100])
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		b, a := before[name], after[name]
		s.t.Logf("%-8s resident %5.1f MiB, afterwards %5.1f MiB; goroutines %d, afterwards %d; free tokens %.0f, afterwards %.0f", name, float64(b.rss)/(1<<20), float64(a.rss)/(1<<20), b.goroutines, a.goroutines, b.free, a.free)
		r.Leaked += b.free - a.free
	}
	r.Bad = append(r.Bad, unlike(before, after)...)
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Logf("%s", raw)
	if path := env("STORM_JSON", ""); path != "" {
		if err := os.WriteFile(path, append(raw, '\n'), 0o644); err != nil {
			s.t.Error(err)
		}
	}
	// The machine may be slower or faster now; a leak of slots or of time shows as multiples.
	if r.After[0] > 3*r.Before[0]+20 {
		s.bad("a good request takes %v ms, before %v ms", r.After, r.Before)
	}
	for _, b := range r.Bad {
		s.t.Error(b)
	}
}
