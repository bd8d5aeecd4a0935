package prefill

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/transcript"
)

// The scheduler's behaviour as readable files. Every command is an event;
// "decide" prints what is to be done. Times are seconds.
func TestSchedulerTranscripts(t *testing.T) {
	transcript.RunDir(t, "testdata/sched", func(t *testing.T) func(*transcript.Cmd) string {
		var s *Scheduler
		return func(c *transcript.Cmd) (out string) {
			defer func() {
				if v := recover(); v != nil {
					out = fmt.Sprint(v)
				}
			}()
			id := func(i int) (id JobID) {
				if _, err := fmt.Sscanf(c.Word(i), "%d", &id); err != nil {
					c.Fatalf("%v", err)
				}
				return id
			}
			switch c.Name {
			case "scheduler": // scheduler chunk=N seqs=N jobs=N tokens=N ahead=N
				s = NewScheduler(SchedulerConfig{
					ChunkRows: c.Int("chunk", 0), MaxSeqs: c.Int("seqs", 0), MaxJobs: c.Int("jobs", 0),
					MaxTokens: c.Int("tokens", 0), AheadBlocks: c.Int("ahead", 0),
				})
			case "add": // add ID tenant=T tokens=N cached=N deadline=SECONDS
				j := Job{ID: id(0), Tenant: c.Str("tenant", "a"), Tokens: c.Int("tokens", 100), Cached: c.Int("cached", 0)}
				if d := c.Int("deadline", 0); d > 0 {
					j.Deadline = time.Unix(int64(d), 0)
				}
				if err := s.Add(j); err != nil {
					return err.Error()
				}
			case "shipped": // shipped ID blocks=N
				s.Shipped(id(0), c.Int("blocks", 1))
			case "block":
				s.Block(id(0))
			case "unblock":
				s.Unblock(id(0))
			case "cancel", "fault": // ID...
				f := map[string]func(JobID) bool{"cancel": s.Cancel, "fault": s.Fault}[c.Name]
				for i := range c.Words {
					if !f(id(i)) {
						out += fmt.Sprintf("%d: ended before\n", id(i))
					}
				}
			case "tick": // tick now=SECONDS
				s.Tick(time.Unix(int64(c.Int("now", 0)), 0))
			case "done": // the step in flight is done
				s.StepDone()
			case "decide":
				return s.Decide().String()
			case "steps": // steps n=N: decide and done, N times
				for i := range c.Int("n", 1) {
					d := s.Decide()
					for line := range strings.SplitSeq(strings.TrimSpace(d.String()), "\n") {
						out += fmt.Sprintf("%d: %s\n", i+1, line)
					}
					if len(d.Chunks) > 0 {
						s.StepDone()
					}
				}
			case "load":
				return fmt.Sprintf("%d jobs, %d rows", s.Jobs(), s.Pending())
			default:
				c.Fatalf("unknown command")
			}
			return out
		}
	})
}

// String is one line per part that is there.
func (d Decision) String() string {
	var b strings.Builder
	for _, id := range d.Sample {
		fmt.Fprintf(&b, "sample %d\n", id)
	}
	for _, e := range d.Ended {
		fmt.Fprintf(&b, "end %d: %v\n", e.Job, e.Reason)
	}
	if len(d.Release) > 0 {
		fmt.Fprintf(&b, "release %v\n", d.Release)
	}
	for _, x := range d.Complete {
		fmt.Fprintf(&b, "ship %d: blocks [%d, %d)\n", x.Job, x.From, x.To)
	}
	var run []string
	for _, c := range d.Chunks {
		text := fmt.Sprintf("%d [%d, %d)", c.Job, c.Pos, c.Pos+c.Len)
		if c.Last {
			text += " last"
		}
		run = append(run, text)
	}
	if len(run) > 0 {
		fmt.Fprintf(&b, "run %s\n", strings.Join(run, ", "))
	}
	if b.Len() == 0 {
		return "nothing"
	}
	return b.String()
}
