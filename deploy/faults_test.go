//go:build e2e

package deploy_test

import (
	"fmt"
	"testing"
	"time"
)

// goneWithin is how soon placement must know that a node is no more.
const goneWithin = 5 * time.Second

// checkKill kills one of two nodes of a pool while the load runs. Each request ends in the right
// answer or in a proper error; within five seconds nothing is placed on the dead node; a new
// life of it gets work again.
func checkKill(t *testing.T, c *compose, jobs []job, service string) {
	l := begin(c, jobs)
	defer l.end()
	l.more(t, clients)

	victim := c.containers(t, service)[0]
	killed := time.Now()
	docker(t, "kill", "--signal", "KILL", victim.ID)
	time.Sleep(goneWithin)
	l.more(t, clients)

	back := time.Now()
	docker(t, "start", victim.ID)
	waitFor(t, time.Minute, func() error {
		if c.works(t, victim, back) == 0 {
			return fmt.Errorf("the restarted %s node has not had a request yet", service)
		}
		return nil
	})
	all := l.end()

	_, failed, retried := judge(t, all, true)
	if failed+retried == 0 {
		t.Errorf("killing a %s node touched no request: the load was not on it, and this test showed nothing", service)
	}
	// A request may wait and then be placed on the node's new life, which has another name.
	dead := map[string]bool{}
	for _, p := range c.placements(t) {
		if name := p.node(victim); name != "" && p.Time.Before(killed) {
			dead[name] = true
		}
	}
	silent := map[string]bool{} // requests of which a dead node did not answer the job
	for _, p := range c.unanswered(t) {
		silent[p.ID] = silent[p.ID] || dead[p.Node]
	}
	if len(silent) == 0 {
		t.Log("no job met the dead node: it was known to be lost before the next was placed")
	}
	late := 0
	for _, p := range c.placements(t) {
		from := p.began()
		if !from.After(killed.Add(goneWithin)) || !from.Before(back) {
			continue
		}
		late++
		if dead[p.Prefill] || dead[p.Decode] || silent[p.ID] {
			t.Errorf("request %s came %s after the kill and was placed on the dead node (attempts: %d, reason %q)", p.ID, from.Sub(killed), p.Attempt, p.Reason)
		}
	}
	if len(dead) == 0 {
		t.Error("the killed node had done nothing before: nothing was shown")
	}
	if late == 0 {
		t.Errorf("no request came later than %s after the kill: nothing was shown of placement", goneWithin)
	}
}
