package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestText shows that what is counted is what a scraper reads, under the prefix.
func TestText(t *testing.T) {
	r := New()
	c := r.Counter("things_total", "Things.", "kind")
	c.Inc("a")
	c.Add(2, "b")
	g := r.Gauge("level", "Level.")
	g.Set(5)
	g.Add(-2)
	r.Histogram("wait_seconds", "Wait.", []float64{1, 2}).Observe(1.5)
	r.Func("asked", "Asked.", func() float64 { return 7 })

	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range []string{
		`bulkhead_things_total{kind="a"} 1`,
		`bulkhead_things_total{kind="b"} 2`,
		"bulkhead_level 3",
		`bulkhead_wait_seconds_bucket{le="1"} 0`,
		`bulkhead_wait_seconds_bucket{le="2"} 1`,
		"bulkhead_asked 7",
		"go_goroutines ",
	} {
		if !strings.Contains(w.Body.String(), line) {
			t.Errorf("no line %q in\n%s", line, w.Body)
		}
	}
	problems, err := testutil.GatherAndLint(r.reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}

// TestBounded shows that a label cannot grow without end.
func TestBounded(t *testing.T) {
	b := Bounded{Max: 2}
	got := ""
	for _, v := range []string{"x", "y", "z", "x", "w", "y"} {
		got += b.Value(v) + " "
	}
	if want := "x y other x other y "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestLintFindsBadNames shows that Lint is not blind.
func TestLintFindsBadNames(t *testing.T) {
	r := New()
	r.Counter("no_suffix", "A counter that does not end in _total.").Inc()
	if problems, err := r.Lint(); err != nil || len(problems) == 0 {
		t.Errorf("lint found nothing (%v)", err)
	}
}
