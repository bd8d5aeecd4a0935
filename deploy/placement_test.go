//go:build e2e

package deploy_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// placement is the router's closing line of one request.
type placement struct {
	Time     time.Time `json:"time"`
	Msg      string    `json:"msg"`
	ID       string    `json:"request_id"`
	Status   int       `json:"status"`
	Duration int64     `json:"dur_ms"`
	Prefill  string    `json:"prefill"`
	Decode   string    `json:"decode"`
	Attempt  int       `json:"attempt"`
	Reason   string    `json:"reason"`
	Node     string    `json:"node"` // of a job that was not answered
}

// began is when the request came, to the millisecond.
func (p placement) began() time.Time {
	return p.Time.Add(-time.Duration(p.Duration) * time.Millisecond)
}

// node returns the name of the container's node if it took part in the last attempt, else "".
// Each life of a container has a name of its own.
func (p placement) node(k container) string {
	for _, name := range []string{p.Prefill, p.Decode} {
		if strings.Contains(name, k.host()) {
			return name
		}
	}
	return ""
}

// at says whether a container's node, in any of its lives, took part in the last attempt.
func (p placement) at(k container) bool { return p.node(k) != "" }

// placements reads from the router's log who did the work.
func (c *compose) placements(t *testing.T) []placement {
	t.Helper()
	return c.routerLog(t, func(p placement) bool { return p.Msg == "request" && p.Prefill != "" })
}

// unanswered reads from the router's log which jobs a node did not answer. A second attempt alone
// says nothing: a node that is full refuses, too.
func (c *compose) unanswered(t *testing.T) []placement {
	t.Helper()
	return c.routerLog(t, func(p placement) bool { return p.Msg == "job not answered" })
}

func (c *compose) routerLog(t *testing.T, wanted func(placement) bool) []placement {
	t.Helper()
	var all []placement
	for _, k := range c.containers(t, "router") {
		for line := range strings.Lines(docker(t, "logs", k.ID)) {
			var p placement
			if json.Unmarshal([]byte(line), &p) == nil && wanted(p) {
				all = append(all, p)
			}
		}
	}
	return all
}

// works says how many requests that began after since a container's node took part in.
func (c *compose) works(t *testing.T, k container, since time.Time) int {
	t.Helper()
	n := 0
	for _, p := range c.placements(t) {
		if p.began().After(since) && p.at(k) {
			n++
		}
	}
	return n
}
