//go:build e2e

package deploy_test

import (
	"context"
	"strconv"
	"testing"
	"time"
)

// Times of a cut.
const (
	cutFor     = 6 * time.Second
	backWithin = 10 * time.Second // the promise
)

// TestCuts pulls the network out of running containers.
//
// goal: a node, the router or the bus that is cut off loses nobody's request silently, and the
// service is back within ten seconds. method: docker network disconnect and connect, BULKHEAD_E2E_CUTS times for each
// service (default 1), under load; the address may be another one afterwards. Each answer is the idle cluster's or a proper error.
func TestCuts(t *testing.T) {
	times, err := strconv.Atoi(env("BULKHEAD_E2E_CUTS", "1"))
	if err != nil {
		t.Fatalf("BULKHEAD_E2E_CUTS: %v", err)
	}
	c := start(t, "bulkhead-e2e-cuts", env("BULKHEAD_E2E_MODEL", tinyModel), 2)
	jobs := reference(t, c)
	for _, service := range []string{"prefill", "decode", "router", "nats"} {
		t.Run(service, func(t *testing.T) {
			for i := range times {
				checkCut(t, c, jobs, service, i)
			}
		})
	}
	t.Run("Logs", func(t *testing.T) { checkLogs(t, c) })
	t.Run("Down", func(t *testing.T) { checkDown(t, c) })
}

// checkCut takes one container of a service off the bus network for a while.
func checkCut(t *testing.T, c *compose, jobs []job, service string, i int) {
	l := begin(c, jobs)
	defer l.end()
	l.more(t, clients)
	before := map[string]int{}
	for _, k := range c.containers(t, "") {
		before[k.ID] = k.State.Pid
	}
	pool := c.containers(t, service)
	victim := pool[i%len(pool)]
	bus := c.project + "_bus"
	begun := time.Now()
	docker(t, "network", "disconnect", bus, victim.ID)
	time.Sleep(cutFor)
	docker(t, "network", "connect", "--alias", service, bus, victim.ID)
	back := time.Now()
	since := back
	if len(pool) > 1 {
		since = begun // another one is there all the time
	}
	took := c.waitBack(t, jobs[0], since)
	t.Logf("%s: back after %s", service, took.Round(time.Millisecond))
	if took > backWithin {
		t.Errorf("%s cut off for %s: the service was back after %s, promised is %s", service, cutFor, took.Round(time.Millisecond), backWithin)
	}
	judge(t, l.end(), true)
	c.waitHealthy(t, map[string]int{"nats": 1, "router": 1, "prefill": 2, "decode": 2}, time.Minute)
	for _, k := range c.containers(t, "") {
		if pid, ok := before[k.ID]; ok && pid != k.State.Pid {
			t.Errorf("%s was restarted: process %d, now %d", k.Name, pid, k.State.Pid)
		}
	}
}

// waitBack says how long after since the first of five good answers in a row had come.
func (c *compose) waitBack(t *testing.T, j job, since time.Time) time.Duration {
	t.Helper()
	good, first := 0, time.Duration(0)
	for good < 5 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		a := ask(ctx, c.url, c.keys[0], j.question)
		cancel()
		if err := a.complete(j.question, j.want); err != nil {
			if good = 0; time.Since(since) > time.Minute {
				t.Fatalf("not back within a minute: %v", err)
			}
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if good++; good == 1 {
			first = time.Since(since)
		}
	}
	return first
}
