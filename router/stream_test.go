package router

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/sample"
)

// TestStops: a stop string is never seen, wherever token borders fall; what only looked like the
// beginning of one is given out as soon as that is known.
func TestStops(t *testing.T) {
	tok := testTokenizer()
	for _, tc := range []struct {
		text    string
		stops   []string
		want    string // pieces, as each token (one byte) comes, joined by |
		stopped bool
	}{
		{"abc", nil, "a|b|c|", false},
		{"abXYc", []string{"XY"}, "a|b||", true},
		{"abXc", []string{"XY"}, "a|b||Xc|", false},
		{"XXY", []string{"XY"}, "|X|", true},
		{"aX", []string{"XY"}, "a||X", false},
		{"aabaac", []string{"aabaac"}, "|||||", true},
		{"aabaabaac", []string{"aabaac"}, "|||||aab|||", true},
		{"one\ntwo", []string{"\n", "two"}, "o|n|e|", true},
		{"xENDy", []string{"ENDING", "END"}, "x|||", true},
		{"xaby", []string{"b", "ab"}, "x||", true},
		{"héz", []string{"é"}, "h||", true},
		{"h€z", nil, "h|||€|z|", false},
	} {
		a := newAssembler(tok, tc.stops, false)
		var got []string
		stopped := false
		for _, tk := range text(tc.text) {
			var p piece
			if p, stopped = a.push([]sample.Token{tk}); stopped {
				got = append(got, p.text)
				break
			}
			got = append(got, p.text)
		}
		if !stopped {
			got = append(got, a.finish().text)
		}
		joined := strings.Join(got, "|")
		if joined != tc.want || stopped != tc.stopped {
			t.Errorf("%q with %q: got %q %v, want %q %v", tc.text, tc.stops, joined, stopped, tc.want, tc.stopped)
		}
	}
}

// TestStopsAnyway: for any text, stops and cuts, the pieces joined are the text up to the first
// stop string, and no piece breaks a character.
func TestStopsAnyway(t *testing.T) {
	tok := testTokenizer()
	rapid.Check(t, func(t *rapid.T) {
		full := rapid.StringOfN(rapid.RuneFrom([]rune("ab€é😀")), 0, 30, -1).Draw(t, "text")
		stops := rapid.SliceOfN(rapid.StringOfN(rapid.RuneFrom([]rune("ab€é😀")), 1, 4, -1), 0, 3).Draw(t, "stops")
		want, ends := full, false
		if at := firstStop(full, stops); at >= 0 {
			// The first to be complete wins; among those complete at once, the earliest beginning.
			ends = true
			for n := range len(full) + 1 {
				if at := firstStop(full[:n], stops); at >= 0 {
					want = full[:at]
					break
				}
			}
		}
		a := newAssembler(tok, stops, true)
		got, entries, stopped := "", 0, false
		tokens := text(full)
		for len(tokens) > 0 && !stopped {
			n := rapid.IntRange(1, len(tokens)).Draw(t, "cut")
			var p piece
			p, stopped = a.push(tokens[:n])
			got, entries, tokens = got+p.text, entries+len(p.logprobs), tokens[n:]
			if !strings.HasPrefix(want, got) {
				t.Fatalf("gave out %q of %q", got, want)
			}
		}
		if !stopped {
			p := a.finish()
			got, entries = got+p.text, entries+len(p.logprobs)
		}
		if got != want || stopped != ends || entries != a.count {
			t.Fatalf("got %q (stopped %v, %d entries of %d), want %q (%v)", got, stopped, entries, a.count, want, ends)
		}
	})
}

// TestLogprobEntries: one entry per sampled token, given out with the text of the token, the end's at the end.
func TestLogprobEntries(t *testing.T) {
	a := newAssembler(testTokenizer(), []string{"cd"}, true)
	p, _ := a.push(text("ab"))
	if len(p.logprobs) != 2 || p.logprobs[1].offset != 1 {
		t.Errorf("ab: %+v", p)
	}
	p, _ = a.push(text("c")) // may begin the stop string
	if len(p.logprobs) != 0 || p.text != "" {
		t.Errorf("c: %+v", p)
	}
	p, _ = a.push(text("e"))
	if len(p.logprobs) != 2 || p.text != "ce" {
		t.Errorf("ce: %+v", p)
	}
	p, _ = a.push([]sample.Token{{ID: idEnd, EOG: true}})
	q := a.finish()
	if p.text+q.text != "" || len(p.logprobs)+len(q.logprobs) != 1 || a.count != 5 {
		t.Errorf("end: %+v %+v, count %d", p, q, a.count)
	}
}

// TestNumbers: JSON has no infinities, and pieces of characters stay apart.
func TestNumbers(t *testing.T) {
	for in, want := range map[float32]float32{-1.5: -1.5, float32(math.Inf(-1)): -9999, -1e9: -9999, float32(math.Inf(1)): 0} {
		if got := finite(in); got != want {
			t.Errorf("%v: %v, want %v", in, got, want)
		}
	}
	if got := finite(float32(math.NaN())); got != -9999 {
		t.Errorf("NaN: %v", got)
	}
	if got := tokenText([]byte("\xe2\x82")); got != `bytes:\xe2\x82` {
		t.Errorf("half a character: %q", got)
	}
}
