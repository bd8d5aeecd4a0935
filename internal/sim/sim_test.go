package sim

import (
	"bytes"
	"crypto/sha256"
	"io"
	"reflect"
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

// The bus hands the same bytes to all who hear them: nobody may change them.
func TestMessagesAreNotChanged(t *testing.T) {
	k, err := newKit()
	if err != nil {
		t.Fatal(err)
	}
	k.suspicious = true
	for seed := range uint64(300) {
		v, err := k.schedule(seed, nil)
		if err != nil {
			t.Fatal(err)
		}
		if v.Bad() {
			t.Errorf("seed %d: %v", seed, v.Violations)
		}
	}
}

// What ran before a schedule, in the same goroutine and with the same kit, does not
// matter. Method: the same seeds upwards, downwards and among others.
func TestOrderDoesNotMatter(t *testing.T) {
	const seeds = 150
	var sums [3][seeds][32]byte
	for i := range sums {
		k, err := newKit()
		if err != nil {
			t.Fatal(err)
		}
		for n := range uint64(seeds) {
			seed := n
			switch i {
			case 1:
				seed = seeds - 1 - n
			case 2: // 7 and 150 have no common divisor: every seed once, none beside its neighbour
				seed = n * 7 % seeds
				if _, err := k.schedule(1000+n, nil); err != nil {
					t.Fatal(err)
				}
			}
			var b bytes.Buffer
			if _, err := k.schedule(seed, &b); err != nil {
				t.Fatal(err)
			}
			sums[i][seed] = sha256.Sum256(b.Bytes())
		}
	}
	if sums[0] != sums[1] || sums[0] != sums[2] {
		t.Error("a schedule depends on what ran before it")
	}
}

// Memory that earlier schedules used is as good as fresh memory. Method: each seed
// once with a kit that has run all those before it, once with one that shares nothing.
func TestReuseChangesNothing(t *testing.T) {
	used, err := newKit()
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := (&kit{log: used.log, fresh: true}).make()
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(400) {
		var have, want bytes.Buffer
		v, err := used.schedule(seed, &have)
		if err != nil {
			t.Fatal(err)
		}
		f, err := fresh.schedule(seed, &want)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(v, f) || !bytes.Equal(have.Bytes(), want.Bytes()) {
			t.Fatalf("seed %d: %+v in used memory, %+v in fresh", seed, v, f)
		}
	}
	if len(used.bytes.whole) == 0 || len(fresh.bytes.whole) > 0 {
		t.Error("the two kits do not differ in what they use again")
	}
}

// A transcript is a by-product: with and without it a schedule ends the same.
func TestTranscriptChangesNothing(t *testing.T) {
	k, err := newKit()
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(200) {
		plain, err := k.schedule(seed, nil)
		if err != nil {
			t.Fatal(err)
		}
		told, err := k.schedule(seed, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(plain, told) {
			t.Errorf("seed %d: %+v without its transcript, %+v with it", seed, plain, told)
		}
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
