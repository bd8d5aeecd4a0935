package prefill

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Random events hold the scheduler to its promises:
//
//   - a step has at most ChunkRows rows and MaxSeqs chunks, one per job, of no
//     job that has ended, is blocked, or is AheadBlocks ahead; it is full
//     whenever there are rows to fill it;
//   - the rows of a prompt are computed in order, each once, and each block is
//     named for shipping once, after its rows;
//   - a prompt is sampled once, when its last row is computed;
//   - a job ends exactly once, is released exactly once after that, and never
//     under its step;
//   - within a tenant the first come goes first;
//   - tenants that have rows left over all the while get rows that differ by
//     two steps' worth at most, and of T tenants each is in one of the next
//     2T - 1 steps;
//   - the load that admission sees is the sum of what is there.
func TestSchedulerModel(t *testing.T) {
	ended := map[EndReason]int{}
	busy, rows, contended := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		cfg := SchedulerConfig{
			ChunkRows:   rapid.SampledFrom([]int{100, 512, 64, 7}).Draw(t, "chunk"),
			MaxSeqs:     rapid.SampledFrom([]int{4, 16, 1}).Draw(t, "seqs"),
			MaxJobs:     rapid.SampledFrom([]int{20, 5}).Draw(t, "jobs"),
			MaxTokens:   rapid.SampledFrom([]int{100_000, 1000}).Draw(t, "tokens"),
			AheadBlocks: rapid.SampledFrom([]int{4, 1000, 1}).Draw(t, "ahead"),
		}
		m := &schedModel{t: t, cfg: cfg, s: NewScheduler(cfg), jobs: map[JobID]*modelJob{}, ended: ended, pairs: map[[2]string]*pair{}, waits: map[string]*wait{}}
		m.event("tick")
		for range 400 {
			m.event(rapid.SampledFrom(schedEvents).Draw(t, "event"))
		}
		m.drain()
		busy, rows, contended = busy+m.busy, rows+m.rows, contended+m.contended
	})
	t.Logf("%d rows, %d jobs refused, %d steps with tenants in competition, ends %v", rows, busy, contended, ended)
	for r := EndShipped; r <= EndFault; r++ {
		if ended[r] == 0 {
			t.Errorf("no job ended by %v", r)
		}
	}
	if busy == 0 || rows == 0 || contended == 0 {
		t.Error("too little happened")
	}
}

// schedEvents: rapid draws the first ones more often than the last.
var schedEvents = []string{"add", "step", "ship", "add", "step", "step", "ship", "decide", "done", "block", "unblock", "unblock", "cancel", "fault", "tick"}

type modelJob struct {
	Job
	pos, inStep int
	named       int // blocks named for shipping
	shipped     int
	sampled     int
	blocked     bool
	why         EndReason
	ends        int
	releases    int
}

func (j *modelJob) ready(cfg SchedulerConfig) int {
	if j.why != 0 || j.blocked {
		return 0
	}
	return max(0, min(j.Tokens, (j.shipped+cfg.AheadBlocks)*64)-j.pos)
}

// pair follows two tenants while both have rows left over after each step.
type pair struct{ diff, low, high int }

// wait counts the steps that a tenant with rows was not in, and the tenants
// that it met.
type wait struct {
	steps int
	met   map[string]bool
}

type schedModel struct {
	t        *rapid.T
	cfg      SchedulerConfig
	s        *Scheduler
	jobs     map[JobID]*modelJob // all that were added
	open     []*modelJob         // those not yet released
	next     JobID
	now      int64
	inFlight []Chunk
	ended    map[EndReason]int
	pairs    map[[2]string]*pair
	waits    map[string]*wait

	busy, rows, contended int
}

var modelTenants = []string{"a", "b", "c"}

func (m *schedModel) event(name string) {
	switch name {
	case "add":
		m.add()
	case "step":
		m.decide()
		m.done()
	case "decide":
		m.decide()
	case "done":
		m.done()
	case "tick":
		m.now += rapid.Int64Range(0, 3).Draw(m.t, "seconds")
		m.s.Tick(time.Unix(m.now, 0))
		for _, j := range m.open {
			m.expire(j)
		}
	default:
		if m.next == 0 {
			return
		}
		// Mostly one of the latest jobs: the others have ended.
		back := rapid.Uint64Range(0, min(uint64(m.next)-1, 20)).Draw(m.t, "back")
		j := m.jobs[m.next-JobID(back)]
		if j == nil {
			return
		}
		m.jobEvent(name, j)
	}
	m.checkLoad()
}

func (m *schedModel) jobEvent(name string, j *modelJob) {
	switch name {
	case "ship":
		n := rapid.IntRange(0, j.named).Draw(m.t, "blocks")
		if rapid.Bool().Draw(m.t, "all") {
			n = j.named
		}
		m.s.Shipped(j.ID, n)
		if j.why == 0 {
			j.shipped = max(j.shipped, n)
			if j.shipped == j.Blocks() {
				j.why = EndShipped
			}
		}
	case "block":
		m.s.Block(j.ID)
		j.blocked = true
	case "unblock":
		m.s.Unblock(j.ID)
		j.blocked = false
	case "cancel":
		m.end(j, m.s.Cancel(j.ID), EndCancel)
	case "fault":
		m.end(j, m.s.Fault(j.ID), EndFault)
	}
}

func (m *schedModel) add() {
	m.next++
	j := &modelJob{Job: Job{
		ID: m.next, Tenant: rapid.SampledFrom(modelTenants).Draw(m.t, "tenant"),
		Tokens: rapid.SampledFrom([]int{600, 1, 64, 65, 130, 2000}).Draw(m.t, "prompt"),
	}}
	if j.Tokens > 64 {
		j.Cached = 64 * rapid.SampledFrom([]int{0, 0, 1}).Draw(m.t, "cached")
	}
	if rapid.IntRange(0, 7).Draw(m.t, "deadline") == 5 {
		j.Deadline = time.Unix(m.now+rapid.Int64Range(0, 5).Draw(m.t, "in"), 0)
	}
	jobs, pending := m.load()
	err := m.s.Add(j.Job)
	full := jobs >= m.cfg.MaxJobs || pending > 0 && pending+j.Tokens-j.Cached > m.cfg.MaxTokens
	if errors.Is(err, ErrBusy) != full {
		m.t.Fatalf("add of %d rows to %d jobs with %d rows: %v", j.Tokens-j.Cached, jobs, pending, err)
	}
	if full {
		m.busy++
		return
	}
	j.pos = j.Cached
	m.jobs[j.ID] = j
	m.open = append(m.open, j)
	m.expire(j)
}

func (m *schedModel) expire(j *modelJob) {
	if j.why == 0 && !j.Deadline.IsZero() && m.now >= j.Deadline.Unix() {
		j.why = EndDeadline
	}
}

func (m *schedModel) end(j *modelJob, did bool, why EndReason) {
	if did != (j.why == 0) {
		m.t.Fatalf("job %d: %v took effect %v, but it ended by %v", j.ID, why, did, j.why)
	}
	if did {
		j.why = why
	}
}

// load is what Jobs and Pending must say.
func (m *schedModel) load() (jobs, pending int) {
	for _, j := range m.open {
		if j.why == 0 {
			jobs++
			pending += j.Tokens - j.pos - j.inStep
		}
	}
	return jobs, pending
}

func (m *schedModel) checkLoad() {
	if jobs, pending := m.load(); m.s.Jobs() != jobs || m.s.Pending() != pending {
		m.t.Fatalf("load of %d jobs and %d rows, want %d and %d", m.s.Jobs(), m.s.Pending(), jobs, pending)
	}
}

func (m *schedModel) done() {
	if m.inFlight == nil {
		return
	}
	m.s.StepDone()
	for _, c := range m.inFlight {
		j := m.jobs[c.Job]
		j.inStep = 0
		if j.why == 0 {
			j.pos += c.Len
		}
	}
	m.inFlight = nil
}

func (m *schedModel) decide() {
	before := m.left() // ready rows per tenant
	d := m.s.Decide()
	for _, id := range d.Sample {
		j := m.jobs[id]
		if j.sampled++; j.pos != j.Tokens || j.why != 0 || j.sampled != 1 {
			m.t.Fatalf("job %d sampled at %d of %d, ended %v", id, j.pos, j.Tokens, j.why)
		}
	}
	for _, e := range d.Ended {
		j := m.jobs[e.Job]
		if j.ends++; e.Reason != j.why {
			m.t.Fatalf("job %d ended by %v, want %v", e.Job, e.Reason, j.why)
		}
		if e.Reason == EndShipped && (j.sampled != 1 || j.named != j.Blocks()) {
			m.t.Fatalf("job %d is shipped, and sampled %d times, %d blocks of %d", e.Job, j.sampled, j.named, j.Blocks())
		}
		m.ended[e.Reason]++
	}
	for _, id := range d.Release {
		j := m.jobs[id]
		if j.releases++; j.ends != 1 || j.inStep > 0 {
			m.t.Fatalf("job %d released with %d ends and %d rows in the step", id, j.ends, j.inStep)
		}
	}
	m.open = slices.DeleteFunc(m.open, func(j *modelJob) bool { return j.releases > 0 })
	for _, b := range d.Complete {
		j := m.jobs[b.Job]
		if b.From != j.named || b.To <= b.From || min(b.To*64, j.Tokens) > j.pos || j.why != 0 {
			m.t.Fatalf("blocks %+v of a job with %d named and %d rows, ended %v", b, j.named, j.pos, j.why)
		}
		j.named = b.To
	}
	for _, j := range m.open {
		if want := j.pos / 64; j.why == 0 && (j.named < want || j.pos == j.Tokens && (j.named != j.Blocks() || j.sampled != 1)) {
			m.t.Fatalf("job %d has %d rows, and %d blocks were named, %d sampled", j.ID, j.pos, j.named, j.sampled)
		}
	}
	if m.inFlight != nil {
		if len(d.Chunks) > 0 {
			m.t.Fatal("two steps in flight")
		}
		return
	}
	m.step(d.Chunks, before)
}

// left is how many rows each tenant may compute now.
func (m *schedModel) left() map[string]int {
	left := map[string]int{}
	for _, j := range m.open {
		if n := j.ready(m.cfg) - j.inStep; n > 0 {
			left[j.Tenant] += n
		}
	}
	return left
}

func (m *schedModel) step(chunks []Chunk, before map[string]int) {
	total, sum := 0, 0
	for _, n := range before {
		total += n
	}
	served := map[string]int{} // as charged
	for _, c := range chunks {
		j := m.jobs[c.Job]
		if j.inStep > 0 || c.Len < 1 || c.Pos != j.pos || c.Len > j.ready(m.cfg) || c.Last != (c.Pos+c.Len == j.Tokens) {
			m.t.Fatalf("chunk %+v of a job at %d of %d, %d ready", c, j.pos, j.Tokens, j.ready(m.cfg))
		}
		j.inStep = c.Len
		sum += c.Len
		served[j.Tenant] += max(c.Len, (m.cfg.ChunkRows+m.cfg.MaxSeqs-1)/m.cfg.MaxSeqs)
	}
	if sum > m.cfg.ChunkRows || len(chunks) > m.cfg.MaxSeqs {
		m.t.Fatalf("a step of %d rows in %d chunks", sum, len(chunks))
	}
	if sum < min(total, m.cfg.ChunkRows) && len(chunks) < m.cfg.MaxSeqs {
		m.t.Fatalf("a step of %d rows where %d were ready", sum, total)
	}
	m.rows += sum
	m.order()
	if len(chunks) > 0 {
		m.inFlight = chunks
		m.fair(before, served)
	}
}

// order: no job is in the step while an earlier one of its tenant has rows
// left over.
func (m *schedModel) order() {
	for _, late := range m.open {
		for _, early := range m.open {
			if late.inStep > 0 && early.ID < late.ID && early.Tenant == late.Tenant && early.ready(m.cfg) > early.inStep {
				m.t.Fatalf("job %d goes before %d of the same tenant", late.ID, early.ID)
			}
		}
	}
}

// fair follows who had rows before the step, what it was given, and who has
// rows left over.
func (m *schedModel) fair(before, served map[string]int) {
	after := m.left()
	if len(after) > 1 {
		m.contended++
	}
	for _, x := range modelTenants {
		if before[x] == 0 || served[x] > 0 {
			delete(m.waits, x)
			continue
		}
		w := m.waits[x]
		if w == nil {
			w = &wait{met: map[string]bool{}}
			m.waits[x] = w
		}
		w.steps++
		for y := range before {
			w.met[y] = true
		}
		if limit := 2*len(w.met) - 2; w.steps > limit {
			m.t.Fatalf("tenant %s was in none of %d steps among %d tenants", x, w.steps, len(w.met))
		}
	}
	for i, x := range modelTenants {
		for _, y := range modelTenants[:i] {
			key := [2]string{x, y}
			if after[x] == 0 || after[y] == 0 {
				delete(m.pairs, key)
				continue
			}
			p := m.pairs[key]
			if p == nil { // both have rows left from here on
				m.pairs[key] = &pair{}
				continue
			}
			p.diff += served[x] - served[y]
			p.low, p.high = min(p.low, p.diff), max(p.high, p.diff)
			if p.high-p.low > 2*m.cfg.ChunkRows+2*m.cfg.MaxSeqs {
				m.t.Fatalf("tenants %s and %s differ by %d rows", x, y, p.high-p.low)
			}
		}
	}
}

// drain lets everything that can end well do so.
func (m *schedModel) drain() {
	for range 100_000 {
		m.done()
		m.decide()
		open := 0
		for _, j := range m.open {
			if j.why == 0 {
				open++
				m.jobEvent("unblock", j)
				m.s.Shipped(j.ID, j.named)
				if j.shipped = j.named; j.shipped == j.Blocks() {
					j.why = EndShipped
				}
			}
		}
		if open == 0 {
			break
		}
	}
	m.done()
	m.decide()
	m.checkLoad()
	if m.s.InFlight() || m.s.Jobs() != 0 || len(m.s.jobs) != 0 || len(m.s.turns.tenants) != 0 {
		m.t.Fatalf("left over after the drain: %d jobs, %d tenants", len(m.s.jobs), len(m.s.turns.tenants))
	}
	for _, j := range m.jobs {
		if j.ends != 1 || j.releases != 1 {
			m.t.Fatalf("job %d ended %d times and was released %d times", j.ID, j.ends, j.releases)
		}
	}
}
