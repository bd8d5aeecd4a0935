//go:build rogue

package rogue

import (
	"fmt"
	"strings"
)

const head = `| peer | bug | what it does | requests that met it | refused | right after all | wrong | counted by |
|---|---|---|---|---|---|---|---|
`

// row is a line of the table. Of requests that met the bug, those not refused were right: every
// other request of the run went to honest nodes and was right too.
func row(s Switch, a tally) string {
	by := strings.Join(s.Counted, " or ")
	if by == "" {
		by = "nothing is refused"
	}
	met, right, wrong := fmt.Sprint(a.met), fmt.Sprint(a.met-a.refused-a.wrong), fmt.Sprint(a.wrong)
	switch {
	case s.Shunned:
		met, right = "0: no request comes to it", "-"
	case s.Want == Blind:
		by = "no peer can notice; the oracle does"
	}
	if by != "nothing is refused" && s.Want != Blind {
		by = "`" + strings.ReplaceAll(by, " or ", "` or `") + "`"
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %d | %s | %s | %s |\n", s.Role, s.Name, s.Does, met, a.refused, right, wrong, by)
}

// page is docs/misbehaving-peers.md.
func page(n int, rows []string) string {
	return fmt.Sprintf(`# Misbehaving peers

Made by `+"`make rogue`"+`: at least %d requests met each bug. The peer named has the bug; all others are the
released binary, in processes of their own, with a real nats-server and the provenance engine, whose every
right answer is known. *Refused* is an HTTP error, or an error event on a stream that was right up
to there. *Right after all* was answered right, by a retry on other nodes, or because what was refused was
not needed. *Counted by* is the honest nodes' series (behind `+"`bulkhead_`"+`) that moved by at least
one for each request. Afterwards all pages are back and honest requests are served.

%s%s
## What cannot be noticed

A peer can check that a message is whole, in place, from the granted node and for this request. It cannot check what that
node computed: a prefill node that vouches for other bytes than its model would give, and a decode node that says other
tokens, are believed. Two rows, the control of this test, are such lies, and its oracle finds every one. A lie reaches
no further than the requests that were granted to the liar.

Prefill and decode get a key each for their output to the router. What a prefill node seals in the decode node's name
does not open (speaks-as-decode).

Nor can a node tell whether a router names the right tenant: tenants are authenticated at the router, and the nodes
take its word for who asks, and for which prefix cache may be shared. It cannot make a node take a request over
its limits, read pages that were not filled for the very token, or mix two grants.

What a decode node sends after its end is not looked at: the answer is complete by then, and nothing of it changes.
`, n, head, strings.Join(rows, ""))
}
