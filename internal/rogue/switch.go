package rogue

import (
	"slices"

	"bulkhead/transfer"
)

// Outcome is what must become of a request that meets a bug.
type Outcome string

// The outcomes. A wrong answer is none of them.
const (
	Refused Outcome = "refused" // an error, each time
	Right   Outcome = "right"   // the right answer, at once or after a retry
	Either  Outcome = "either"  // one of the two, by time
	Blind   Outcome = "blind"   // no peer can notice: the oracle must find every answer wrong
)

// Switch is one bug.
type Switch struct {
	Name string
	Role transfer.Role // of the peer that has it
	Does string
	Want Outcome
	// Counted are the honest nodes' series of which one counts each such request, by
	// their names without the prefix "bulkhead_". Empty: there is nothing to refuse.
	Counted []string
	// Shunned: no request comes to a node that says this of itself, and the series,
	// a gauge, shows it.
	Shunned bool
	// Slow: each request takes a timeout, so all are sent at once.
	Slow bool

	prefill func(*shipment) error
	decode  func(*answer) error
	router  func(*errand)
}

// Switches lists all bugs, by role.
func Switches() []Switch {
	var all []Switch
	add := func(r transfer.Role, of []Switch) {
		for _, s := range of {
			s.Role = r
			all = append(all, s)
		}
	}
	add(transfer.RolePrefill, prefillSwitches)
	add(transfer.RoleDecode, decodeSwitches)
	add(transfer.RoleRouter, routerSwitches)
	return all
}

// find returns the switch of a role, or nil.
func find(role transfer.Role, name string) *Switch {
	all := Switches()
	i := slices.IndexFunc(all, func(s Switch) bool { return s.Role == role && s.Name == name })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// Series that count refusals. The first three are of decode, prefill and router.
func atDecode(reasons ...string) (all []string) {
	for _, r := range reasons {
		all = append(all, `decode_refusals_total{reason="`+r+`"}`)
	}
	return all
}

func atPrefill(reason string) []string {
	return []string{`prefill_refusals_total{reason="` + reason + `"}`}
}

func atRouter(event string) []string {
	return []string{`protocol_violations_total{event="` + event + `"}`}
}

func retried(cause string) []string { return []string{`request_retries_total{cause="` + cause + `"}`} }

func onBus(what string) []string { return []string{"bus_" + what + "_count"} }

func failed(kind string) []string { return []string{`request_errors_total{kind="` + kind + `"}`} }
