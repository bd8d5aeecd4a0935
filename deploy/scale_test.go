//go:build e2e

package deploy_test

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// checkScaleUp adds a node to each pool while the load runs: both get work, and no request notices.
func checkScaleUp(t *testing.T, c *compose, jobs []job) {
	old := append(c.containers(t, "prefill"), c.containers(t, "decode")...)
	l := begin(c, jobs)
	defer l.end()
	l.more(t, clients)
	began := time.Now()
	c.cluster(t, "scale", "prefill=3", "decode=3")

	for _, service := range []string{"prefill", "decode"} {
		pool := c.containers(t, service)
		if len(pool) != 3 {
			t.Fatalf("%d %s containers after scaling to 3", len(pool), service)
		}
		for _, k := range pool {
			if slices.ContainsFunc(old, func(o container) bool { return o.ID == k.ID }) {
				continue
			}
			waitFor(t, time.Minute, func() error {
				if c.works(t, k, began) == 0 {
					return fmt.Errorf("the new %s node has not had a request yet", service)
				}
				return nil
			})
		}
	}
	judge(t, l.end(), false)
}

// checkScaleDown takes the nodes away again while the load runs: they finish
// what they have, every request is answered, and nothing more is placed on them.
func checkScaleDown(t *testing.T, c *compose, jobs []job) {
	before := append(c.containers(t, "prefill"), c.containers(t, "decode")...)
	l := begin(c, jobs)
	defer l.end()
	l.more(t, clients)
	for _, k := range before { // those that go take their logs with them
		c.gone[k.Name+" before scaling down"] = docker(t, "logs", k.ID)
	}
	c.cluster(t, "scale", "prefill=2", "decode=2")
	removed := time.Now()
	l.more(t, 2*clients)
	judge(t, l.end(), false)

	after := append(c.containers(t, "prefill"), c.containers(t, "decode")...)
	if len(after) != 4 {
		t.Fatalf("%d nodes after scaling down to 2 and 2", len(after))
	}
	late := 0
	for _, p := range c.placements(t) {
		if !p.began().After(removed) {
			continue
		}
		late++
		if !slices.ContainsFunc(after, func(k container) bool { return p.at(k) }) || p.Attempt > 1 {
			t.Errorf("request %s was placed on a removed node (attempts: %d)", p.ID, p.Attempt)
		}
		for _, k := range before {
			if p.at(k) && !slices.ContainsFunc(after, func(a container) bool { return a.ID == k.ID }) {
				t.Errorf("request %s was placed on %s, which is removed", p.ID, k.Name)
			}
		}
	}
	if late == 0 {
		t.Error("no request came after the removal: nothing was shown of placement")
	}
}
