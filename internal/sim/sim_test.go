package sim

import (
	"bytes"
	"crypto/sha256"
	"testing"

	"bulkhead/internal/identity"
)

// Goal: no schedule of faults makes a wrong page readable. Method: run them, and
// on failure print the transcript of the lowest failing seed.
func TestSchedules(t *testing.T) {
	report, err := Run(t.Context(), Config{Schedules: 2000, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", report)
	if report.FirstBad != nil {
		var b bytes.Buffer
		if _, err := Replay(report.FirstBad.Seed, &b); err != nil {
			t.Fatal(err)
		}
		t.Fatalf("seed %d: %v\n%s", report.FirstBad.Seed, report.FirstBad.Violations, b.Bytes())
	}
	if report.Answered < report.Requests/4 || report.Answered == report.Requests {
		t.Errorf("%d of %d requests were answered: the faults are too rare or too many", report.Answered, report.Requests)
	}
}

// The stand-ins for public-key cryptography change nothing that a schedule can
// see: with the real operations it ends as well. Few schedules, for their cost.
func TestRealCryptography(t *testing.T) {
	k, err := newKit()
	if err != nil {
		t.Fatal(err)
	}
	if k.keys, err = identity.NewMemory("sim"); err != nil {
		t.Fatal(err)
	}
	answered := 0
	for seed := range uint64(60) {
		v, err := k.schedule(seed, nil)
		if err != nil {
			t.Fatal(err)
		}
		if v.Bad() {
			t.Errorf("seed %d: %v", seed, v.Violations)
		}
		answered += v.Answered
	}
	if answered < 20 {
		t.Errorf("%d requests were answered", answered)
	}
}

// A seed is all that a schedule follows from.
func TestReplayIsExact(t *testing.T) {
	for seed := range uint64(40) {
		var sums [2][32]byte
		for i := range sums {
			var b bytes.Buffer
			if _, err := Replay(seed, &b); err != nil {
				t.Fatal(err)
			}
			sums[i] = sha256.Sum256(b.Bytes())
		}
		if sums[0] != sums[1] {
			t.Errorf("seed %d ran differently the second time", seed)
		}
	}
}
