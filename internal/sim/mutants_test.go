//go:build mutants

package sim

import (
	"strings"
	"testing"

	"bulkhead/internal/mutant"
)

// Goal: the simulator sees what it is for. Method: the product with checks
// removed, alone where one check is the only wall and together where several
// stand behind each other, must go red; what another check backs must stay green
// alone. The table says after how many schedules, and by what it was seen.
func TestMutants(t *testing.T) {
	const red, green = 6000, 500 // schedules at most
	off := func(c ...mutant.Check) []mutant.Check { return c }
	says := func(words string) func(*Verdict) bool {
		return func(v *Verdict) bool { return strings.Contains(strings.Join(v.Violations, "\n"), words) }
	}
	foreign := func(v *Verdict) bool { return v.Foreign > 0 }
	wrong := func(v *Verdict) bool { return v.Wrong > 0 }
	for _, m := range []struct {
		name string
		off  []mutant.Check
		seen func(*Verdict) bool // nil: another check backs it
	}{
		{"count from the sender", off(mutant.DecodeCount), says("rests on a prefill node")},
		{"unwritten slots are read", off(mutant.PageFilled), nil},
		{"both", off(mutant.DecodeCount, mutant.PageFilled), says("never written")},
		{"both, and pages not zeroed: the leak", off(mutant.DecodeCount, mutant.PageFilled, mutant.PageZero), foreign},
		{"zeroing", off(mutant.PageZero), nil},
		{"frame AEAD", off(mutant.FrameAEAD), wrong},
		{"manifest chain", off(mutant.ManifestChain), says("signs another chain")},
		{"attempt binding", off(mutant.AttemptBinding), wrong},
		{"attempt binding and frame AEAD", off(mutant.AttemptBinding, mutant.FrameAEAD), wrong},
		{"a token is taken once", off(mutant.PrefillOnce, mutant.DecodeOnce), says("taken twice")},
		{"the tenant in the prefix chain", off(mutant.PrefixTenant), foreign},
		{"owner and generation", off(mutant.PageOwner), wrong},
		{"a released page waits for its writer", off(mutant.PageWriter), nil}, // backed by the roles, which release last
		{"the placeholder of 2026: no wall for length", off(mutant.AdmissionLength, mutant.PrefillCapacity, mutant.DecodeCapacity, mutant.DecodeCount, mutant.PageFilled), wrong},
	} {
		k, err := newKit()
		if err != nil {
			t.Fatal(err)
		}
		restore := mutant.Remove(m.off...)
		most, what, after := uint64(red), "", uint64(0)
		if m.seen == nil {
			most = green
		}
		for seed := uint64(1); seed <= most && what == ""; seed++ {
			v, err := k.schedule(seed, nil)
			if err != nil {
				t.Fatal(err)
			}
			if m.seen != nil && m.seen(v) || m.seen == nil && v.Bad() {
				what, after = v.Violations[0], seed
			}
		}
		restore()
		t.Logf("%-46s %5d  %s", m.name, after, what)
		if (m.seen == nil) != (what == "") {
			t.Errorf("%s: seen %q after %d of %d schedules", m.name, what, after, most)
		}
	}
}
