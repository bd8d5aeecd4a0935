package sim

import "testing"

// BenchmarkSchedule is one schedule on one core, seeds in order. Run sets the
// collector to work less often than it does here: GOGC=800.
func BenchmarkSchedule(b *testing.B) {
	b.ReportAllocs()
	k, err := newKit()
	if err != nil {
		b.Fatal(err)
	}
	seed := uint64(1)
	for b.Loop() {
		v, err := k.schedule(seed, nil)
		if err != nil {
			b.Fatal(err)
		}
		if v.Bad() {
			b.Fatalf("seed %d: %v", seed, v.Violations)
		}
		seed++
	}
}
