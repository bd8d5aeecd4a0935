package transfer

import (
	"testing"

	"pgregory.net/rapid"
)

// A transcript: what one attempt and the node's window allow, step by step.
func TestWindow(t *testing.T) {
	a, b := Hash{1}, Hash{2}
	w := NewWindow(100, 3)
	step := func(what string, got, want bool) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %t", what, got)
		}
	}
	step("nothing for an attempt that was not opened", w.Acquire(a, 1), false)
	w.Open(a, 150)
	w.Open(b, 1000)
	step("60 of a", w.Acquire(a, 60), true)
	step("60 more pass the window of 100", w.Acquire(a, 60), false)
	step("40 fill it", w.Acquire(b, 40), true)
	step("and it is full", w.Acquire(b, 1), false)
	w.Release(60)
	step("60 came back", w.Acquire(a, 60), true)
	w.Release(60)
	step("a has used 120 of its credit of 150", w.Acquire(a, 31), false)
	step("a lower credit changes nothing", w.Credit(a, 10), false)
	step("the same credit changes nothing", w.Credit(a, 150), false)
	step("more credit", w.Credit(a, 151), true)
	step("31 pass now", w.Acquire(a, 31), true)
	step("third message", w.Acquire(b, 1), true)
	step("no fourth: the window counts too", w.Acquire(b, 1), false)
	w.Close(b)
	step("credit of a closed attempt", w.Credit(b, 5000), false)
	w.Release(1)
	step("nothing for a closed attempt", w.Acquire(b, 1), false)
	w.Release(31)
	w.Release(40)
	if bytes, count := w.InFlight(); bytes != 0 || count != 0 {
		t.Errorf("%d bytes, %d messages in flight at the end", bytes, count)
	}
	step("credit again", w.Credit(a, 1000), true)
	step("a message larger than the window passes alone", w.Acquire(a, 500), true)
	step("and nothing beside it", w.Acquire(a, 1), false)
	defer func() {
		if recover() == nil {
			t.Error("releasing what was not acquired went unnoticed")
		}
	}()
	w.Release(501)
}

// Whatever the events: never over the window, never over an attempt's credit,
// and all back at the end.
func TestWindowInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const maxBytes, maxCount = 1000, 8
		w := NewWindow(maxBytes, maxCount)
		var flying []int64
		used, limit := map[Hash]int64{}, map[Hash]int64{}
		attempt := rapid.Custom(func(t *rapid.T) Hash { return Hash{byte(rapid.IntRange(0, 3).Draw(t, "attempt"))} })
		t.Repeat(map[string]func(*rapid.T){
			"open": func(t *rapid.T) {
				a, n := attempt.Draw(t, "a"), rapid.Int64Range(0, 2000).Draw(t, "credit")
				if _, ok := limit[a]; !ok {
					limit[a], used[a] = n, 0
				}
				w.Open(a, n)
			},
			"close": func(t *rapid.T) {
				a := attempt.Draw(t, "a")
				delete(limit, a)
				w.Close(a)
			},
			"credit": func(t *rapid.T) {
				a, n := attempt.Draw(t, "a"), rapid.Int64Range(0, 5000).Draw(t, "credit")
				if l, ok := limit[a]; ok {
					limit[a] = max(l, n)
				}
				w.Credit(a, n)
			},
			"acquire": func(t *rapid.T) {
				a, n := attempt.Draw(t, "a"), rapid.Int64Range(1, 1500).Draw(t, "n")
				if w.Acquire(a, n) {
					if _, ok := limit[a]; !ok {
						t.Fatal("acquired without an open attempt")
					}
					used[a] += n
					flying = append(flying, n)
				}
			},
			"release": func(t *rapid.T) {
				if len(flying) > 0 {
					w.Release(flying[0])
					flying = flying[1:]
				}
			},
			"": func(t *rapid.T) {
				var sum int64
				for _, n := range flying {
					sum += n
				}
				bytes, count := w.InFlight()
				if bytes != sum || count != len(flying) {
					t.Fatalf("in flight %d/%d, want %d/%d", bytes, count, sum, len(flying))
				}
				if count > maxCount || bytes > maxBytes && count > 1 {
					t.Fatalf("%d bytes, %d messages in flight", bytes, count)
				}
				for a, l := range limit {
					if used[a] > l {
						t.Fatalf("attempt used %d of %d", used[a], l)
					}
				}
			},
		})
	})
}
