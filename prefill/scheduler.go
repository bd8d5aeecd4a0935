package prefill

import (
	"fmt"
	"slices"
	"time"

	"bulkhead/kernels"
)

// Scheduler decides which rows of which prompts each prefill step computes. It
// is a pure state machine: events in (Add, Shipped, Block, Unblock, Cancel,
// Fault, StepDone, Tick), decisions out (Decide). It knows no page, no socket
// and no clock but Tick's, and belongs to one goroutine.
//
//	        Add             Decide            StepDone: last row    Shipped: last block
//	(grant) ───► computing ───────► in a step ────────────────────► shipping ──────────► ended
//	                 ▲                  │ StepDone                        Cancel, Fault,
//	                 └──────────────────┘                 Tick: deadline, from any state ──► ended
//
// A step is filled up to ChunkRows rows, from one long prompt or from several
// short ones. Tenants share the rows fairly (turn.go); within a tenant the job
// that came first goes first. A job is held back, and others go before it,
// while it is blocked or AheadBlocks ahead of what was shipped of it: else one
// slow receiver would fill this node's pages with finished work.
//
// A job ends exactly once. Its pages are named for release once, too, and
// never while a step that may touch them is in flight. Whoever seals blocks of
// a job meanwhile holds a kv.Writer for that.
//
// Misuse of the order of events is the caller's own contradiction and panics.
type Scheduler struct {
	cfg     SchedulerConfig
	jobs    map[JobID]*job
	order   []*job // by arrival
	turns   turns
	pending int // rows of all jobs that were not yet put into a step
	step    []inStep
	now     time.Time

	// Not yet reported.
	ended    []End
	release  []JobID
	complete []Blocks
	sample   []JobID
}

// SchedulerConfig sizes a Scheduler.
type SchedulerConfig struct {
	ChunkRows   int // rows of one step at most; 0: 512
	MaxSeqs     int // prompts in one step at most; 0: 16
	MaxJobs     int // jobs at a time, shipping ones too; 0: 256
	MaxTokens   int // rows waiting to be computed at a time; 0: 1 Mi. One job alone may be larger.
	AheadBlocks int // blocks of a job computed and not shipped at most; 0: 64
}

func (c SchedulerConfig) withDefaults() SchedulerConfig {
	for _, f := range []struct {
		value     *int
		otherwise int
	}{{&c.ChunkRows, 512}, {&c.MaxSeqs, 16}, {&c.MaxJobs, 256}, {&c.MaxTokens, 1 << 20}, {&c.AheadBlocks, 64}} {
		if *f.value == 0 {
			*f.value = f.otherwise
		}
		if *f.value < 1 {
			panic(fmt.Sprintf("prefill: internal error: scheduler limit of %d", *f.value))
		}
	}
	return c
}

// JobID names one attempt at one sequence within a prefill node; never used
// twice.
type JobID uint64

// Job is what the scheduler knows of a prompt.
type Job struct {
	ID       JobID
	Tenant   string
	Tokens   int       // of the prompt, >= 1
	Cached   int       // leading tokens that the prefix cache holds: whole blocks, fewer than Tokens
	Deadline time.Time // zero: none
}

// Blocks is how many blocks the prompt has.
func (j Job) Blocks() int { return (j.Tokens + kernels.BlockTokens - 1) / kernels.BlockTokens }

// job is a Job in progress.
type job struct {
	Job
	pos      int // rows computed, or cached
	complete int // blocks named for shipping
	shipped  int // blocks shipped
	blocked  bool
	running  bool // in the step in flight
	ended    bool
}

// ready is how many more rows of j may be computed now.
func (j *job) ready(aheadBlocks int) int {
	if j.blocked || j.running || j.ended {
		return 0
	}
	return max(0, min(j.Tokens, (j.shipped+aheadBlocks)*kernels.BlockTokens)-j.pos)
}

// inStep is one chunk of the step in flight.
type inStep struct {
	job  *job
	rows int
}

// Chunk is the rows [Pos, Pos+Len) of a prompt, in one step. Last says that
// they end the prompt: their last row gives the logits of the first token.
type Chunk struct {
	Job      JobID
	Pos, Len int
	Last     bool
}

// Blocks is the blocks [From, To) of a job. The prompt's last one may be
// shorter than the others.
type Blocks struct {
	Job      JobID
	From, To int
}

// EndReason says why a job ended.
type EndReason uint8

const (
	EndShipped  EndReason = iota + 1 // computed and shipped, all of it
	EndCancel                        // the router asked
	EndDeadline                      // Tick passed its deadline
	EndFault                         // a page that was not its own, or an engine or transport failure
)

func (r EndReason) String() string {
	switch r {
	case EndShipped:
		return "shipped"
	case EndCancel:
		return "cancel"
	case EndDeadline:
		return "deadline"
	case EndFault:
		return "fault"
	}
	return fmt.Sprintf("EndReason(%d)", uint8(r))
}

// End is one job that ended.
type End struct {
	Job    JobID
	Reason EndReason
}

// Decision is what the caller must do now. Order matters: sample while the
// logits of the step that is done are valid, then report Ended and release the
// pages of Release, then begin the step of Chunks; Complete is sealed and
// shipped while that step computes.
type Decision struct {
	Sample   []JobID  // prompts that are computed: sample the first token
	Ended    []End    // since the last decision
	Release  []JobID  // no step touches their pages any more
	Complete []Blocks // ready to be shipped; each block once
	Chunks   []Chunk  // the step to begin now, at most one chunk per job; empty: none
}

// NewScheduler makes a scheduler.
func NewScheduler(cfg SchedulerConfig) *Scheduler {
	cfg = cfg.withDefaults()
	return &Scheduler{
		cfg:   cfg,
		jobs:  make(map[JobID]*job),
		turns: turns{minCharge: (cfg.ChunkRows + cfg.MaxSeqs - 1) / cfg.MaxSeqs},
	}
}

// Add queues a job. Cached blocks are complete from the start. Error: ErrBusy,
// with the limit that is reached; nothing is kept of the job then. A job
// larger than MaxTokens is taken when no other waits, so that it is not
// refused for ever.
func (s *Scheduler) Add(j Job) error {
	if s.jobs[j.ID] != nil {
		s.bug("job %d is added twice", j.ID)
	}
	if j.Tokens < 1 || j.Cached < 0 || j.Cached >= j.Tokens || j.Cached%kernels.BlockTokens != 0 {
		s.bug("job %d has %d tokens of which %d are cached", j.ID, j.Tokens, j.Cached)
	}
	if len(s.order) >= s.cfg.MaxJobs {
		return &BusyError{What: "jobs", Limit: s.cfg.MaxJobs, Value: len(s.order) + 1}
	}
	rows := j.Tokens - j.Cached
	if s.pending > 0 && s.pending+rows > s.cfg.MaxTokens {
		return &BusyError{What: "tokens", Limit: s.cfg.MaxTokens, Value: s.pending + rows}
	}
	q := &job{Job: j, pos: j.Cached}
	s.jobs[j.ID] = q
	s.order = append(s.order, q)
	s.pending += rows
	s.completed(q)
	s.expire(q)
	return nil
}

// Shipped says that the receiver's side of the window has taken the blocks
// [0, blocks) of a job. Repeats and smaller counts change nothing. The last
// block ends the job, if its prompt is computed.
func (s *Scheduler) Shipped(id JobID, blocks int) {
	j := s.jobs[id]
	if j == nil || j.ended {
		return
	}
	if blocks > j.complete {
		s.bug("job %d shipped %d blocks of %d complete ones", id, blocks, j.complete)
	}
	j.shipped = max(j.shipped, blocks)
	if j.shipped == j.Blocks() {
		s.end(j, EndShipped)
	}
}

// Block holds a job back, Unblock lets it go on: the window's word that there
// are no credits for it.
func (s *Scheduler) Block(id JobID)   { s.setBlocked(id, true) }
func (s *Scheduler) Unblock(id JobID) { s.setBlocked(id, false) }

func (s *Scheduler) setBlocked(id JobID, b bool) {
	if j := s.jobs[id]; j != nil {
		j.blocked = b
	}
}

// Cancel ends a job; it does nothing for one that has ended, and reports
// whether it ended it. If its step is in flight its pages are released when
// that step is done, at once otherwise.
func (s *Scheduler) Cancel(id JobID) bool { return s.end(s.jobs[id], EndCancel) }

// Fault ends a job that met a page not its own, whose step failed, or whose
// blocks could not be shipped. Like Cancel it may come at any time.
func (s *Scheduler) Fault(id JobID) bool { return s.end(s.jobs[id], EndFault) }

// Tick says what time it is and ends the jobs whose deadline has come.
func (s *Scheduler) Tick(now time.Time) {
	if now.Before(s.now) {
		return
	}
	s.now = now
	for _, j := range slices.Clone(s.order) {
		s.expire(j)
	}
}

// expire ends j if its deadline has come.
func (s *Scheduler) expire(j *job) {
	if !j.Deadline.IsZero() && !s.now.Before(j.Deadline) {
		s.end(j, EndDeadline)
	}
}

// StepDone says that the step in flight is done: its rows lie in their pages,
// except those of jobs that ended meanwhile.
func (s *Scheduler) StepDone() {
	if s.step == nil {
		s.bug("no step is in flight")
	}
	for _, c := range s.step {
		j := c.job
		j.running = false
		if j.ended {
			s.forget(j)
			continue
		}
		j.pos += c.rows
		if j.pos == j.Tokens {
			s.sample = append(s.sample, j.ID)
		}
		s.completed(j)
	}
	s.step = nil
}

// Decide takes what is to be done now. It begins a step, if there is one to
// begin and none in flight; the caller must run it and call StepDone.
func (s *Scheduler) Decide() Decision {
	d := Decision{Sample: s.sample, Ended: s.ended, Release: s.release, Complete: s.complete}
	s.sample, s.ended, s.release, s.complete = nil, nil, nil, nil
	if s.step == nil {
		d.Chunks = s.begin()
	}
	return d
}

// begin fills a step.
func (s *Scheduler) begin() (chunks []Chunk) {
	s.turns.open(s.order, s.cfg.AheadBlocks)
	budget := s.cfg.ChunkRows
	for budget > 0 && len(chunks) < s.cfg.MaxSeqs {
		j := s.turns.next()
		if j == nil {
			break
		}
		ready := j.ready(s.cfg.AheadBlocks)
		rows := min(budget, ready)
		chunks = append(chunks, Chunk{Job: j.ID, Pos: j.pos, Len: rows, Last: j.pos+rows == j.Tokens})
		s.step = append(s.step, inStep{j, rows})
		j.running = true
		budget -= rows
		s.pending -= rows
		s.turns.charge(rows, rows == ready)
	}
	s.turns.close()
	return chunks
}

// Jobs and Pending are the load: jobs not yet ended, and rows not yet put into
// a step.
func (s *Scheduler) Jobs() int    { return len(s.order) }
func (s *Scheduler) Pending() int { return s.pending }

// InFlight reports whether a step was begun and is not done.
func (s *Scheduler) InFlight() bool { return s.step != nil }

// completed names the blocks of j that became complete.
func (s *Scheduler) completed(j *job) {
	n := j.pos / kernels.BlockTokens
	if j.pos == j.Tokens {
		n = j.Blocks()
	}
	if n > j.complete {
		s.complete = append(s.complete, Blocks{j.ID, j.complete, n})
		j.complete = n
	}
}

// end ends j now; its pages follow when no step holds them. What was named for
// it and not yet taken is withdrawn.
func (s *Scheduler) end(j *job, why EndReason) bool {
	if j == nil || j.ended {
		return false
	}
	j.ended = true
	s.ended = append(s.ended, End{j.ID, why})
	s.order = slices.DeleteFunc(s.order, func(o *job) bool { return o == j })
	s.complete = slices.DeleteFunc(s.complete, func(b Blocks) bool { return b.Job == j.ID })
	s.sample = slices.DeleteFunc(s.sample, func(id JobID) bool { return id == j.ID })
	s.pending -= j.Tokens - j.pos
	if j.running {
		for _, c := range s.step { // rows in the step were counted when it began
			if c.job == j {
				s.pending += c.rows
			}
		}
		return true
	}
	s.forget(j)
	return true
}

// forget gives the pages of an ended job back.
func (s *Scheduler) forget(j *job) {
	delete(s.jobs, j.ID)
	s.release = append(s.release, j.ID)
}

func (s *Scheduler) bug(format string, args ...any) {
	panic("prefill: internal error: " + fmt.Sprintf(format, args...))
}
