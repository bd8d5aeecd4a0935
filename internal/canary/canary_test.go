package canary

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// goal: what a fault looks like from outside is found, and nothing else. method: a
// server with one fault at a time, and one without any.
func TestFinds(t *testing.T) {
	for _, tt := range []struct {
		fault    string
		receipts bool
		want     []Kind // the first must be found, the others may
	}{
		{"", false, nil},
		{"", true, nil},
		{"broken", true, nil},
		{"busy", true, nil},
		{"marker", false, []Kind{ForeignMarker, Differs}},
		{"marker in an error", false, []Kind{ForeignMarker}},
		{"shared cache", false, []Kind{ForeignPrefix}},
		{"over length", false, []Kind{OverLength}},
		{"over length in streams", false, []Kind{OverLength}},
		{"text before error", false, []Kind{TextThenError}},
		{"bad id", false, []Kind{BadRequest}},
		{"any key", false, []Kind{KeyNotChecked}},
		{"error as 200", false, []Kind{ErrorAs200}},
		{"usage of ids", false, []Kind{WrongUsage}},
		{"usage of text", false, []Kind{WrongUsage}},
		{"always an id too many", false, []Kind{WrongUsage}},
		{"another reason", false, []Kind{Differs}},
		{"completion", false, []Kind{Finish, WrongUsage}},
		{"counts too few", false, []Kind{WrongUsage, Finish}},
		{"cached over the prompt", false, []Kind{WrongUsage}},
		{"clamps", false, nil},
		{"held", true, nil},
		{"total", false, []Kind{WrongUsage}},
		{"completion", false, []Kind{WrongUsage, Finish}},
		{"no usage", false, []Kind{UsageMissing}},
		{"no usage in some streams", false, []Kind{UsageMissing}},
		{"never usage in streams", false, nil},
		{"breaks off", false, []Kind{Truncated}},
		{"no receipt", true, []Kind{ReceiptMissing}},
		{"receipt twice", true, []Kind{ReceiptTwice}},
		{"length too soon", false, []Kind{Finish, Differs}},
		{"no finish", false, []Kind{Finish, Differs}},
		{"no done", false, []Kind{Truncated}},
		{"after done", false, []Kind{AfterEnd}},
		{"text", false, []Kind{Differs}},
		{"logprob", false, []Kind{Differs}},
		{"integrity", false, []Kind{Integrity}},
		{"malformed", false, []Kind{Malformed}},
	} {
		t.Run(tt.fault, func(t *testing.T) {
			f := &fake{fault: tt.fault, receipts: tt.receipts}
			c := f.start(t)
			rep, err := Run(context.Background(), c)
			if err != nil {
				t.Fatal(err)
			}
			found := rep.Findings
			if rep.Sent != 500 || rep.OK < 100 || rep.Compared < 50 || rep.Over < 8 || rep.Canceled == 0 || rep.Prefix.Probes < 4 {
				rep.Findings = nil
				t.Errorf("the run is too small: %+v", rep)
			}
			if rep.OK+rep.Rejected+rep.Canceled+rep.Refused+rep.Failed != rep.Sent {
				t.Errorf("the ends are not %d in all: %+v", rep.Sent, rep)
			}
			if rep.Prefix.OwnHits == 0 && tt.fault != "never usage in streams" {
				t.Error("the cache is not seen")
			}
			if len(tt.want) > 0 && rep.Counts[tt.want[0]] == 0 {
				t.Errorf("not found; only %v", rep.Kinds())
			}
			for _, f := range found {
				if !slices.Contains(tt.want, f.Kind) {
					t.Errorf("false alarm: %+v", f)
					break
				}
			}
			if rep.Clean() != (len(tt.want) == 0) {
				t.Errorf("clean %v with %v", rep.Clean(), rep.Kinds())
			}
			if leak := len(tt.want) > 0 && leaks[tt.want[0]]; rep.Leak != leak {
				t.Errorf("leak %v, want %v", rep.Leak, leak)
			}
			raw, err := json.Marshal(rep)
			if err != nil || strings.Contains(string(raw), "key-a") || strings.Contains(string(raw), "key-b") {
				t.Errorf("a key is in the report, or %v", err)
			}
		})
	}
}

// goal: what an operator says of a server is heeded.
func TestOptions(t *testing.T) {
	for _, tt := range []struct {
		fault  string
		change func(*Config)
		want   []Kind
	}{
		{"", func(c *Config) { c.ExpectReceipts = true }, []Kind{ReceiptMissing}},
		{"any key", func(c *Config) { c.AllowAnyKey = true }, nil},
		{"logprob", func(c *Config) { c.Determinism = Text }, nil},
		{"text", func(c *Config) { c.Determinism = Text }, []Kind{Differs}},
		{"text", func(c *Config) { c.Determinism = Off }, nil},
	} {
		c := (&fake{fault: tt.fault}).start(t)
		tt.change(&c)
		rep, err := Run(context.Background(), c)
		if err != nil {
			t.Fatal(err)
		}
		if got := rep.Kinds(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: found %v, want %v", tt.fault, got, tt.want)
		}
	}
}

func TestProgress(t *testing.T) {
	c := (&fake{}).start(t)
	last, calls := 0, 0
	c.Progress = func(p Progress) {
		calls++
		if p.Sent < last || p.Sent > p.Of || p.Of != 500 || p.Phase == "" {
			t.Errorf("%+v after %d", p, last)
		}
		last = p.Sent
	}
	if _, err := Run(context.Background(), c); err != nil || last != 500 || calls < 500 {
		t.Errorf("%d calls, last at %d: %v", calls, last, err)
	}
}

// goal: a run ends when it is told to, and says so when it could not be.
func TestEnds(t *testing.T) {
	c := (&fake{}).start(t)
	ctx, cancel := context.WithCancel(context.Background())
	c.Progress = func(p Progress) {
		if p.Sent >= 100 { // calls may come a few requests apart
			cancel()
		}
	}
	rep, err := Run(ctx, c)
	if err != nil || rep.Sent < 100 || rep.Sent > 400 || !rep.Clean() {
		t.Errorf("%v %+v", err, rep)
	}
	c.N, c.Duration, c.Progress = 0, 50*time.Millisecond, nil
	if rep, err := Run(context.Background(), c); err != nil || rep.Sent == 0 {
		t.Errorf("%v %+v", err, rep)
	}
	c.Tenants[1].Key = "wrong-key"
	if _, err := Run(context.Background(), c); err == nil || strings.Contains(err.Error(), "wrong-key") {
		t.Errorf("a refused key: %v", err)
	}
	c.Tenants[1].Key = c.Tenants[0].Key
	if _, err := Run(context.Background(), c); !errors.Is(err, ErrConfig) {
		t.Errorf("one key twice: %v", err)
	}
	c.Tenants = c.Tenants[:1]
	if _, err := Run(context.Background(), c); !errors.Is(err, ErrConfig) {
		t.Errorf("one tenant: %v", err)
	}
}

func TestBook(t *testing.T) {
	b := newBook(rand.New(rand.NewPCG(1, 2)))
	first := b.mark(origin{0, 1})
	second := b.mark(origin{1, 2})
	if len(first) != markerLen || first == second {
		t.Fatalf("%q %q", first, second)
	}
	for text, want := range map[string][]origin{
		"nothing of the kind, and some more of it":         nil,
		"x" + first[5:5+gramLen] + "y":                     {{0, 1}},
		first[:gramLen-1] + " " + first[gramLen:]:          {{0, 1}}, // the second part is 13 or more
		first[:gramLen-1]:                                  nil,
		"a " + second + " b " + first + " " + second + ".": {{1, 2}, {0, 1}},
	} {
		if got := b.find(text, "my own prompt"); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	if got := b.find("say "+second, "the word is "+second); got != nil {
		t.Errorf("own marker: %v", got)
	}
	// The prober has the beginning only.
	if got := b.find("say "+second, "the word is "+second[:4]); !slices.Equal(got, []origin{{1, 2}}) {
		t.Errorf("the rest of a marker: %v", got)
	}
	for i := range markersMax {
		b.mark(origin{1, 3 + i})
	}
	if got := b.find(first, ""); got != nil || len(b.ring) != markersMax || len(b.grams) > markersMax*(markerLen-gramLen+1) {
		t.Errorf("an old marker is remembered: %v, %d of %d", got, len(b.ring), len(b.grams))
	}
}

// goal: a cache that shows only in its times is found, noise is not.
func TestTiming(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	times := func(n int, mean float64) (out []time.Duration) {
		for range n {
			out = append(out, time.Duration((mean+10*rng.NormFloat64()+100*rng.ExpFloat64()*float64(rng.IntN(2)))*float64(time.Millisecond)))
		}
		return out
	}
	for _, tt := range []struct {
		n     int
		probe float64
		want  bool
	}{{100, 100, false}, {100, 300, false}, {100, 500, false}, {timingSamples - 1, 1, false}, {60, 100, false}} {
		r := &run{timing: timing{own: times(tt.n, 100), fresh: times(tt.n, 300), probe: times(tt.n, tt.probe)}}
		tt.want = tt.n >= timingSamples && tt.probe < 240
		r.finishTiming()
		if got := r.rep.Counts[PrefixTiming] > 0; got != tt.want {
			t.Errorf("%+v: found %v", tt, got)
		}
	}
	var t3 timing
	for i := range time.Duration(timingsMax + 5) {
		t3.add(i, i, i)
	}
	if len(t3.own) != timingsMax || len(t3.probe) != timingsMax || t3.fresh[0] != 5 {
		t.Errorf("%d times are kept, from %d on", len(t3.own), t3.fresh[0])
	}
	for range 2000 { // both alike
		r := &run{timing: timing{fresh: times(30, 100), probe: times(30, 100)}}
		if r.finishTiming(); !r.rep.Clean() {
			t.Fatalf("false alarm: %+v", r.rep.Findings)
		}
	}
}
