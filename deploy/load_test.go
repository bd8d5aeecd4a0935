//go:build e2e

package deploy_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	clients  = 24               // requests at once
	deadline = 90 * time.Second // of each: all of the router's own stages end before it
)

// job is a question with the answer of the idle cluster.
type job struct {
	question
	want answer
}

// questions are short and long prompts, streamed and not. The long answers are
// there to be in work when something happens, the long prompts to keep prefill busy.
// size is 1 for a model as fast as the tiny one, and less for slower ones.
func questions(canary string, size float64) []question {
	long := strings.Repeat("The ship sails on, and all its doors are shut. ", max(2, int(40*size)))
	answer := func(tokens int) int { return max(16, int(float64(tokens)*size)) }
	return []question{
		{Prompt: canary + " Name the sea.", MaxTokens: answer(24)},
		{Prompt: canary + " Tell a long story.", MaxTokens: answer(1500), Stream: true, IgnoreEOS: true},
		{Prompt: canary + " Tell another.", MaxTokens: answer(1500), IgnoreEOS: true},
		{Prompt: canary + " Sum this up. " + long, MaxTokens: answer(200), Stream: true, IgnoreEOS: true},
		{Prompt: canary + " And this. " + long + long, MaxTokens: answer(64)},
		{Prompt: canary + " How does it go on? " + long + long, MaxTokens: answer(400), Stream: true, IgnoreEOS: true},
	}
}

// sizeFor measures the idle cluster: the median of three short answers.
func sizeFor(t *testing.T, c *compose) float64 {
	t.Helper()
	var took []time.Duration
	for range 3 {
		q := question{Prompt: c.canary + " How fast?", MaxTokens: 24, IgnoreEOS: true}
		a := c.ask(t, c.keys[0], q)
		if err := a.complete(q, a); err != nil {
			t.Fatal(err)
		}
		took = append(took, a.took)
	}
	slices.Sort(took)
	return min(1, max(1./64, float64(40*time.Millisecond)/float64(took[1])))
}

// reference asks each question of the idle cluster, twice: the second answer
// comes from another pair of nodes or from a warm cache, and must be the same.
func reference(t *testing.T, c *compose) []job {
	t.Helper()
	var jobs []job
	size := sizeFor(t, c)
	t.Logf("questions of %.2f times the full size", size)
	for i, q := range questions(c.canary, size) {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		first := ask(ctx, c.url, c.keys[0], q)
		if err := first.complete(q, first); err != nil {
			t.Fatalf("question %d, idle: %v", i, err)
		}
		again := ask(ctx, c.url, c.keys[1], q)
		cancel()
		if err := again.complete(q, first); err != nil {
			t.Fatalf("question %d, idle, the second time: %v", i, err)
		}
		t.Logf("question %d: %d + %d tokens in %s", i, first.usage.Prompt, first.usage.Completion, first.took.Round(time.Millisecond))
		if len(first.text) > 20 {
			c.secrets = append(c.secrets, first.text[:20])
		}
		jobs = append(jobs, job{q, first})
	}
	return jobs
}

// load is a bounded number of clients that ask one question after another.
type load struct {
	wg      sync.WaitGroup
	stopped atomic.Bool
	ended   atomic.Int64 // questions that were answered somehow

	mu  sync.Mutex
	all []outcome // guarded by mu
}

// outcome is one question of the load and what came of it.
type outcome struct {
	job
	got answer
}

// begin starts the clients.
func begin(c *compose, jobs []job) *load {
	l := &load{}
	for i := range clients {
		l.wg.Go(func() {
			for n := i; !l.stopped.Load(); n++ {
				j := jobs[n%len(jobs)]
				ctx, cancel := context.WithTimeout(context.Background(), deadline)
				got := ask(ctx, c.url, c.keys[n%2], j.question)
				cancel()
				l.mu.Lock()
				l.all = append(l.all, outcome{j, got})
				l.mu.Unlock()
				l.ended.Add(1)
				if got.fault != nil { // as a client would; it also bounds the number of requests
					time.Sleep(200 * time.Millisecond)
				}
			}
		})
	}
	return l
}

// more waits until n more questions have been answered.
func (l *load) more(t *testing.T, n int) {
	t.Helper()
	goal := l.ended.Load() + int64(n)
	waitFor(t, 2*deadline, func() error {
		if at := l.ended.Load(); at < goal {
			return fmt.Errorf("%d of %d questions are answered", at, goal)
		}
		return nil
	})
}

// end lets the clients finish the question they are at, and returns all outcomes.
func (l *load) end() []outcome {
	l.stopped.Store(true)
	l.wg.Wait()
	return l.all
}

// judge fails the test for each outcome that is not right, and returns how many were
// complete answers, proper errors, and answers that took more than one attempt.
func judge(t *testing.T, all []outcome, errorsAllowed bool) (complete, failed, retried int) {
	t.Helper()
	slowest := time.Duration(0)
	for _, o := range all {
		check := o.got.complete
		if errorsAllowed {
			check = o.got.proper
		}
		if err := check(o.question, o.want); err != nil {
			t.Errorf("request %s (stream %t, %d tokens): %v", o.got.id, o.Stream, o.MaxTokens, err)
		}
		switch {
		case o.got.fault != nil || o.got.broken != nil:
			failed++
		default:
			complete++
		}
		if o.got.attempts > 1 {
			retried++
		}
		slowest = max(slowest, o.got.took)
	}
	t.Logf("%d requests: %d complete (%d of them at a second attempt), %d proper errors; the slowest took %s",
		len(all), complete, retried, failed, slowest.Round(time.Millisecond))
	if complete == 0 {
		t.Error("no request was answered")
	}
	return complete, failed, retried
}
