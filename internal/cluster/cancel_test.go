package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/decode"
	"bulkhead/internal/kv"
	"bulkhead/internal/model"
	"bulkhead/internal/sample"
	"bulkhead/kernels"
	"bulkhead/prefill"
	"bulkhead/transfer"
)

// gate lets the steps of an engine through one by one, so that "mid-prefill"
// is a place and not a matter of luck.
type gate struct {
	model.Engine
	mu    sync.Mutex
	moved *sync.Cond
	left  int // steps that may begin
	begun int // steps that wanted to
}

func newGate(steps int) *gate {
	g := &gate{Engine: engine(), left: steps}
	g.moved = sync.NewCond(&g.mu)
	return g
}

// gatedSite is a site in which g stands somewhere. The gate is opened before the site is stopped: a
// node ends after its step.
func gatedSite(t *testing.T, g *gate, c siteConfig) *site {
	s := newSite(t, c)
	t.Cleanup(func() { g.open(open) })
	return s
}

func (g *gate) open(steps int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left += steps
	g.moved.Broadcast()
}

// waiting is whether a step stands before the gate.
func (g *gate) waiting() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.left == 0 && g.begun > 0
}

func (g *gate) NewRunner(rows, seqs int) (model.Runner, error) {
	r, err := g.Engine.NewRunner(rows, seqs)
	return gatedRunner{r, g}, err
}

type gatedRunner struct {
	model.Runner
	g *gate
}

func (r gatedRunner) Forward(p kernels.Pages, seqs []model.Seq) ([]model.Out, error) {
	r.g.mu.Lock()
	r.g.begun++
	for r.g.left == 0 {
		r.g.moved.Wait()
	}
	r.g.left--
	r.g.begun--
	r.g.mu.Unlock()
	return r.Runner.Forward(p, seqs)
}

const open = 1 << 30 // a gate that is no gate

// goal: a client that leaves costs nothing more: both sides' pages are free
// within the step that was being computed. method: engines that stand still
// where the test wants them; after the client is gone exactly one step is let through.
func TestClientLeaves(t *testing.T) {
	for _, stream := range []bool{false, true} {
		b := exact(tokens(1000), 200).with(body{"stream": stream})
		t.Run(fmt.Sprintf("mid-prefill/stream=%v", stream), func(t *testing.T) {
			g := newGate(1)
			s := gatedSite(t, g, siteConfig{prefill: func(c *prefill.Config) { c.Engine, c.Chunk = g, 128 }})
			leave := s.start(b)
			s.eventually("the second chunk waits", g.waiting)
			leave()
			s.eventually("decode's pages are free while prefill still computes", func() bool { return idle(s.decodes[0].Stats()) })
			steps := g.drip(s, "prefill's pages are free", s.prefills[0].Stats)
			if steps > 4 {
				t.Errorf("%d of 7 steps were computed for a client that is gone", steps)
			}
			s.baseline()
			if !g.quiet() {
				t.Error("prefill began another step for a client that is gone")
			}
		})
		t.Run(fmt.Sprintf("mid-decode/stream=%v", stream), func(t *testing.T) {
			g := newGate(3)
			s := gatedSite(t, g, siteConfig{decode: func(c *decode.Config) { c.Engine = g }})
			leave := s.start(b)
			s.eventually("the fourth step waits", g.waiting)
			leave()
			cancels := func() bool { _, by := s.sent.work(); return by["cancel"] >= 2 }
			s.eventually("both nodes are told", cancels)
			steps := g.drip(s, "decode's pages are free", s.decodes[0].Stats)
			if steps > 100 {
				t.Errorf("%d of 200 steps were computed for a client that is gone", steps)
			}
			s.baseline()
		})
		t.Run(fmt.Sprintf("queued/stream=%v", stream), func(t *testing.T) {
			g := newGate(3)
			s := gatedSite(t, g, siteConfig{decodeCapacity: 1280, decode: func(c *decode.Config) { c.Engine = g }})
			leaveFirst := s.start(b) // takes all of decode's pages
			s.eventually("the first request runs", g.waiting)
			_, before := s.sent.work()
			ctx, leave := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() {
				_, err := s.ask(ctx, umbrellaKey, completions, b, nil)
				ended <- err
			}()
			s.eventually("the second request waits in the queue", func() bool { return s.queued() == 1 })
			leave()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("the queued request ended with %v", err)
			}
			s.eventually("the router has noticed", func() bool { return s.queued() == 0 })
			leaveFirst()
			g.open(open)
			s.baseline()
			// Room came after it had left: nothing is sent for it any more.
			if r := s.mustAsk(acmeKey, completions, exact(tokens(70), 3)); r.status != 200 {
				t.Errorf("afterwards: %d %+v", r.status, r.err)
			}
			if _, by := s.sent.work(); by["job"] != before["job"]+2 {
				t.Errorf("%d jobs for one request: the one that left was placed", by["job"]-before["job"])
			}
			s.baseline()
		})
	}
}

// queued is how many sequences wait in the router's queue, by its own metric.
func (s *site) queued() int {
	s.t.Helper()
	resp, err := http.Get(s.url + "/metrics")
	must(s.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must(s.t, err)
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "bulkhead_num_requests_waiting "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(v))
			must(s.t, err)
			return n
		}
	}
	s.t.Fatal("no metric of the queue")
	return 0
}

// drip lets one step after the other through, slowly, until the cancellation has reached the engine's
// node and its pool is free: nobody outside knows when it gets there.
func (g *gate) drip(s *site, what string, stats func() kv.Stats) (steps int) {
	s.t.Helper()
	s.eventually(what, func() bool {
		if g.waiting() && !idle(stats()) {
			time.Sleep(50 * time.Millisecond)
			g.open(1)
			steps++
		}
		return idle(stats())
	})
	return steps
}

// quiet: no step stands before the gate.
func (g *gate) quiet() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.begun == 0
}

func idle(k kv.Stats) bool { return k.Tables == 0 && k.Held == 0 && k.Dirty == 0 }

// start sends a request in the background; leave is the client hanging up.
func (s *site) start(b body) (leave func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.ask(ctx, acmeKey, completions, b, nil) //nolint:errcheck // it is cut off
	}()
	leave = func() { cancel(); <-ended }
	s.t.Cleanup(leave)
	return leave
}

// kill cuts a node off the bus, as kill -9 would: it says goodbye to nobody.
func (s *site) kill(node string) { s.joined[node].Conn.Close() }

// goal: a node that dies before the first token is replaced once and nobody
// notices; one that dies after it is an error, never a finished answer. method:
// the node that works on the request is cut off the bus.
func TestNodeDies(t *testing.T) {
	prompt, want := tokens(600), sample.Params{MaxNew: 40, Logprobs: true, IgnoreEOS: true}
	for _, stream := range []bool{false, true} {
		b := exact(prompt, 40).with(body{"stream": stream})
		t.Run(fmt.Sprintf("decode before the first token/stream=%v", stream), func(t *testing.T) {
			g := newGate(1)
			s := gatedSite(t, g, siteConfig{decodes: 2, prefill: func(c *prefill.Config) { c.Engine, c.Chunk = g, 128 }})
			answer := s.background(b)
			s.eventually("prefill is in the middle", g.waiting)
			s.kill(s.busyDecode())
			s.eventually("a second attempt", func() bool { _, by := s.sent.work(); return by["job"] >= 3 })
			g.open(open)
			r := <-answer
			must(t, like(r, whole(t, prompt, want)))
			if stream != r.done {
				t.Errorf("[DONE] %v", r.done)
			}
			if _, by := s.sent.work(); by["job"] != 4 {
				t.Errorf("%d jobs, want two attempts of two", by["job"])
			}
		})
		t.Run(fmt.Sprintf("prefill before the first token/stream=%v", stream), func(t *testing.T) {
			g := newGate(1)
			s := gatedSite(t, g, siteConfig{prefills: 2, prefill: func(c *prefill.Config) { c.Engine, c.Chunk = g, 128 }})
			answer := s.background(b)
			s.eventually("prefill is in the middle", g.waiting)
			for i, n := range s.prefills {
				if n.Stats().Tables > 0 {
					s.kill(fmt.Sprintf("p%d", i+1))
				}
			}
			s.eventually("a second attempt", func() bool { _, by := s.sent.work(); return by["job"] >= 3 })
			g.open(open)
			r := <-answer
			must(t, like(r, whole(t, prompt, want)))
		})
		t.Run(fmt.Sprintf("decode after the first token/stream=%v", stream), func(t *testing.T) {
			g := newGate(3)
			s := gatedSite(t, g, siteConfig{decodes: 2, decode: func(c *decode.Config) { c.Engine = g }})
			answer := s.background(b)
			s.eventually("decode is in the middle", g.waiting)
			s.kill(s.busyDecode())
			r := <-answer
			g.open(open)
			if r.err.code() != "worker_lost" || r.done {
				t.Errorf("status %d, error %+v, [DONE] %v; want worker_lost and no [DONE]", r.status, r.err, r.done)
			}
			if c := r.choices[0]; c != nil && c.finish != "" {
				t.Errorf("finish_reason %q of an answer that was cut off", c.finish)
			}
			if stream && (r.status != 200 || r.choices[0] == nil) || !stream && (r.status != 502 || len(r.choices) > 0) {
				t.Errorf("status %d with %d choices", r.status, len(r.choices))
			}
			if _, by := s.sent.work(); by["job"] != 2 {
				t.Errorf("%d jobs: tried again after a token was out", by["job"])
			}
		})
	}
}

func (s *site) background(b body) chan *response {
	answer := make(chan *response, 1)
	go func() {
		r, err := s.ask(context.Background(), acmeKey, completions, b, nil)
		if err != nil {
			s.t.Error(err)
			r = &response{}
		}
		answer <- r
	}()
	return answer
}

func (s *site) busyDecode() string {
	s.t.Helper()
	for i, n := range s.decodes {
		if n.Stats().Tables > 0 {
			return fmt.Sprintf("d%d", i+1)
		}
	}
	s.t.Fatal("no decode node has the request")
	return ""
}

// goal: a cancellation that overtakes its job leaves nothing behind: the job is refused when it
// comes, since nobody would cancel it again and its pages would be held until its deadline. method: the test
// is the router, and sends them in that order.
func TestCancelBeforeJob(t *testing.T) {
	w := newWorld(t)
	pn, dn := w.prefill("p1", 4096), w.decode("d1", 8192)
	d := w.driver("r1")
	p, q := d.pair("p1", "d1")
	prompt, params := tokens(200), sample.Params{MaxNew: 4}
	for _, to := range []transfer.Announce{q, p} {
		x := d.grant(p, q, prompt, params)
		must(t, d.SendCancel(within(t), to.Node, transfer.Cancel{TokenHash: x.hash, Reason: transfer.ReasonCancelled}))
		var no *transfer.Rejected
		if _, err := d.SubmitJob(within(t), to, x.job); !errors.As(err, &no) || no.Reason != transfer.ReasonCancelled {
			t.Errorf("%s: the job behind its cancellation: %v, want %s", to.Node, err, transfer.ReasonCancelled)
		}
	}
	if !idle(pn.Stats()) || !idle(dn.Stats()) {
		t.Errorf("pages are held: %+v, %+v", pn.Stats(), dn.Stats())
	}
	// A router that has seen the hash of another's job cannot end it beforehand.
	x, other := d.grant(p, q, prompt, params), w.driver("r2")
	for _, to := range []transfer.Announce{q, p} {
		must(t, other.SendCancel(within(t), to.Node, transfer.Cancel{TokenHash: x.hash, Reason: transfer.ReasonCancelled}))
	}
	must(t, d.submit(x))
	if a, err := d.wait(x); err != nil || a.finish == nil {
		t.Errorf("another attempt: %+v, %v", a, err)
	}
}
