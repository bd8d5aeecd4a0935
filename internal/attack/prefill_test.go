package attack

import (
	"errors"

	"bulkhead/internal/mutant"
	"bulkhead/internal/provenance"
	"bulkhead/transfer"
)

// toPrefill is a row about one job at the honest prefill node, which knows d1.
func toPrefill(name, who, want string, w []mutant.Check, change func(x *rig, d *draft)) row {
	return row{name, who, want, w, func(x *rig) error {
		x.prefill(window, window)
		x.sayDecode(nil)
		d := x.draft(100)
		change(x, d)
		_, err := x.submit(transfer.RolePrefill, d)
		return err
	}}
}

// run lets p1 do all that it can.
func (x *rig) run() {
	for moved := true; moved; {
		moved = false
		for x.p.Busy() && x.p.Step() {
			moved = true
		}
		for _, s := range append(x.p.Shipments()[:0:0], x.p.Shipments()...) {
			moved = s.Step() || moved
		}
	}
}

// manifests counts those that were published.
func (x *rig) manifests() (n int) {
	for _, m := range x.net.sent {
		if len(m.subject) > 3 && m.subject[:3] == "kv." && string(m.data[:4]) != "BKHF" && parts(m.data).kind == "kv.manifest" {
			n++
		}
	}
	return n
}

// condemned is an attempt whose manifest would rest on a shared block that
// another request's fault has condemned.
func condemned(x *rig) error {
	x.engine = x.shared
	x.prefill(window, window)
	x.sayDecode(nil)
	submit := func(tokens int) {
		_, err := x.submit(transfer.RolePrefill, x.draft(tokens))
		must(err)
	}
	submit(130) // its two full blocks, in pages 0 and 1, are shared from now on
	x.run()
	if x.manifests() != 1 {
		panic(rigError("the first attempt did not complete"))
	}
	submit(200)
	for x.p.Busy() && x.p.Step() { // computed, and not yet sent
	}
	submit(200)
	if x.pn.Stats().HitBlocks != 4 || !x.p.Swap(4, 5) { // the third attempt's own
		panic(rigError("pages are not where they were expected"))
	}
	x.run()
	if x.manifests() > 1 {
		return nil
	}
	return x.why()
}

func prefillRows() []row {
	return []row{
		{"a job over prefill's window", "router", "over this node's limit", walls(mutant.PrefillCapacity), func(x *rig) error {
			x.prefill(128, window)
			x.sayDecode(nil)
			_, err := x.submit(transfer.RolePrefill, x.draft(125))
			return err
		}},
		toPrefill("a token for another prefill node", "router", "for another node", walls(mutant.ClaimAudience), func(x *rig, d *draft) { d.claims["pre"] = "p2" }),
		toPrefill("a token for a boot of decode that prefill does not know", "router", "is in boot", walls(mutant.PrefillBoot), func(x *rig, d *draft) { d.claims["dep"] = "00000000000000aa" }),
		toPrefill("a token for a decode node of another layout", "router", "another model or KV layout", walls(mutant.PrefillModel), func(x *rig, d *draft) {
			x.sayDecode(func(a *transfer.Announce) { a.Layout[0] ^= 1; a.Expires = x.now.Add(transfer.AnnounceTTL + 1e9) })
		}),
		{"a job that is sent again when its attempt has ended, at prefill", "bus", "used before", walls(mutant.PrefillOnce), func(x *rig) error {
			x.prefill(window, window)
			x.sayDecode(nil)
			_, err := x.submit(transfer.RolePrefill, x.draft(100))
			must(err)
			again := x.net.last("job")
			x.run()
			return x.jobAgain(again)
		}},
		{"a cancel by another router, at prefill", "router", "completed", walls(mutant.PrefillCancel), func(x *rig) error {
			x.prefill(window, window)
			x.sayDecode(nil)
			j, err := x.submit(transfer.RolePrefill, x.draft(100))
			must(err)
			x.cancelAt("p1", x.r2, j)
			x.run()
			if x.manifests() == 0 {
				return nil
			}
			return errors.New("completed all the same")
		}},
		{"a credit of another decode node", "decode", "not one frame more", walls(mutant.PrefillCredit, mutant.CreditMAC), func(x *rig) error {
			const long = 8600 // tokens: more than the first credit lets through
			e, err := provenance.New(provenance.Config{Window: 1 << 14, Layers: 64})
			must(err)
			x.engine = e
			x.prefill(1<<14, 1<<14)
			x.sayDecode(nil)
			j, err := x.submit(transfer.RolePrefill, x.draft(long))
			must(err)
			x.run()
			before := x.net.count("kv")
			hash := transfer.TokenHash(j.Token)
			x.net.deliver("credit.p1.d2", signed(x.d2, "credit", "credit.p1.d2", pack(members{"token_hash", hash, "limit", 1 << 30, "mac", make([]byte, 32)})), nil)
			x.run()
			if x.net.count("kv") > before {
				return nil
			}
			return errors.New("not one frame more")
		}},
		{"a manifest over a shared block that was condemned", "memory", "condemned", walls(mutant.PrefillSound), condemned},
		{"a manifest over a block of which nobody says that it was condemned", "memory", "condemned", walls(mutant.Suspect), condemned},
	}
}
