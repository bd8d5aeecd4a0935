//go:build mutants

package sim

import (
	"strings"
	"syscall"
	"testing"

	"bulkhead/internal/mutant"
)

// BenchmarkFound is what a mixture of schedules is worth: how often it finds a hole in a
// second of one core. A schedule that costs less is better only while this goes up.
//
//	go test -tags mutants -run xxx -bench Found -benchtime 1x ./internal/sim
//
// The holes are those of TestMutants that go red. Times are processor times, since others may
// use the machine; seeds go on until the hole was found 40 times, 20,000 schedules at most.
func BenchmarkFound(b *testing.B) {
	const finds, most = 40, 20000
	says := func(words string) func(*Verdict) bool {
		return func(v *Verdict) bool { return strings.Contains(strings.Join(v.Violations, "\n"), words) }
	}
	foreign := func(v *Verdict) bool { return v.Foreign > 0 }
	wrong := func(v *Verdict) bool { return v.Wrong > 0 }
	for _, m := range []struct {
		name string
		seen func(*Verdict) bool
		off  []mutant.Check
	}{
		{"sound", func(*Verdict) bool { return false }, nil},
		{"count", says("rests on a prefill node"), []mutant.Check{mutant.DecodeCount}},
		{"count+filled", says("never written"), []mutant.Check{mutant.DecodeCount, mutant.PageFilled}},
		{"leak", foreign, []mutant.Check{mutant.DecodeCount, mutant.PageFilled, mutant.PageZero}},
		{"frame", wrong, []mutant.Check{mutant.FrameAEAD}},
		{"chain", says("signs another chain"), []mutant.Check{mutant.ManifestChain}},
		{"binding", wrong, []mutant.Check{mutant.AttemptBinding}},
		{"once", says("taken twice"), []mutant.Check{mutant.PrefillOnce, mutant.DecodeOnce}},
		{"prefix", foreign, []mutant.Check{mutant.PrefixTenant}},
		{"owner", wrong, []mutant.Check{mutant.PageOwner}},
		{"placeholder", wrong, []mutant.Check{mutant.AdmissionLength, mutant.PrefillCapacity, mutant.DecodeCapacity, mutant.DecodeCount, mutant.PageFilled}},
	} {
		b.Run(m.name, func(b *testing.B) {
			k, err := newKit()
			if err != nil {
				b.Fatal(err)
			}
			defer mutant.Remove(m.off...)()
			for b.Loop() {
				found, seed, began := 0, 0, processorTime(b)
				for found < finds && seed < most && !(m.off == nil && seed == 2000) {
					seed++
					v, err := k.schedule(uint64(seed), nil)
					if err != nil {
						b.Fatal(err)
					}
					if m.seen(v) {
						found++
					} else if m.off == nil && v.Bad() {
						b.Fatalf("seed %d: %v", seed, v.Violations)
					}
				}
				spent := processorTime(b) - began
				b.ReportMetric(float64(found)/spent, "found/s")
				b.ReportMetric(float64(seed)/max(float64(found), 1), "schedules/find")
				b.ReportMetric(float64(seed)/spent, "schedules/s")
			}
		})
	}
}

// processorTime is what this process has used, in seconds.
func processorTime(b *testing.B) float64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
}
