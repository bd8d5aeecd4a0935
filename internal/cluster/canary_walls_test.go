//go:build mutants

package cluster_test

import (
	"slices"
	"testing"

	"bulkhead/internal/canary"
	"bulkhead/internal/mutant"
)

// goal: the operators' canary sees a cluster that leaks. method: the same run as TestCanary, with
// walls removed: what it has to find, and whether it calls it a leak.
func TestWallsCanary(t *testing.T) {
	for _, tt := range []struct {
		name string
		off  []mutant.Check
		want canary.Kind
		leak bool
	}{
		{"another tenant's prefix", []mutant.Check{mutant.PrefixTenant}, canary.ForeignPrefix, true},
		{"the incident", []mutant.Check{mutant.AdmissionLength, mutant.PrefillCapacity, mutant.DecodeCapacity, mutant.DecodeCount,
			mutant.PageFilled, mutant.PageOwner, mutant.PageZero}, canary.OverLength, true},
		{"decode is the last to notice", []mutant.Check{mutant.AdmissionLength, mutant.PrefillCapacity}, canary.Integrity, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := canarySite(t)
			restore := mutant.Remove(tt.off...)
			defer restore()
			rep := s.canary(150)
			if !slices.Contains(rep.Kinds(), tt.want) || rep.Leak != tt.leak {
				t.Errorf("found %v, leak %v; want %s, leak %v", rep.Kinds(), rep.Leak, tt.want, tt.leak)
			}
			t.Logf("found, as it should be here: %v", rep.Counts)
		})
	}
}
