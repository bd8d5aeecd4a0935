// Package metrics defines how a role counts and shows what it does: a [Registry]
// of counters, gauges and histograms in Prometheus' text format.
//
// Metric names follow vLLM's words and units behind the prefix bulkhead_, so that
// existing dashboards need one replacement. Each role declares its metrics once,
// in one file of its own package, with a help text.
//
// Promises: labels come from closed sets, or go through [Bounded], so no client can
// make series without end; nothing here holds a key or a prompt.
//
// It is the only package that imports client_golang.
package metrics

import (
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Prefix is in front of every metric's name.
const Prefix = "bulkhead_"

// Registry holds one process's metrics. Roles that share a process share it;
// their metrics differ by name.
type Registry struct {
	reg *prometheus.Registry
}

// New returns a registry with the Go runtime's and the process's own metrics.
func New() *Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return &Registry{r}
}

// Handler serves the metrics as text.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r.reg, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
}

// Counter only goes up. Its name ends in _total.
type Counter struct{ v *prometheus.CounterVec }

// Counter declares a counter. Declaring a name twice panics: names are
// constants of the program.
func (r *Registry) Counter(name, help string, labels ...string) Counter {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: Prefix + name, Help: help}, labels)
	r.reg.MustRegister(v)
	return Counter{v}
}

// Inc adds one to the series of the label values, given in the order declared.
func (c Counter) Inc(values ...string) { c.v.WithLabelValues(values...).Inc() }

// Add adds n, which must not be negative.
func (c Counter) Add(n float64, values ...string) { c.v.WithLabelValues(values...).Add(n) }

// Gauge goes up and down.
type Gauge struct{ v *prometheus.GaugeVec }

// Gauge declares a gauge.
func (r *Registry) Gauge(name, help string, labels ...string) Gauge {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: Prefix + name, Help: help}, labels)
	r.reg.MustRegister(v)
	return Gauge{v}
}

// Set replaces the value.
func (g Gauge) Set(x float64, values ...string) { g.v.WithLabelValues(values...).Set(x) }

// Add adds x, which may be negative.
func (g Gauge) Add(x float64, values ...string) { g.v.WithLabelValues(values...).Add(x) }

// Func declares a gauge without labels that is read when asked for.
func (r *Registry) Func(name, help string, read func() float64) {
	r.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: Prefix + name, Help: help}, read))
}

// Histogram counts observations into buckets.
type Histogram struct{ v *prometheus.HistogramVec }

// Histogram declares a histogram with the buckets' upper bounds.
func (r *Registry) Histogram(name, help string, buckets []float64, labels ...string) Histogram {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: Prefix + name, Help: help, Buckets: buckets}, labels)
	r.reg.MustRegister(v)
	return Histogram{v}
}

// Observe counts x.
func (h Histogram) Observe(x float64, values ...string) { h.v.WithLabelValues(values...).Observe(x) }

// Seconds counts a duration.
func (h Histogram) Seconds(d time.Duration, values ...string) { h.Observe(d.Seconds(), values...) }

// The buckets, in seconds.
var (
	// TTFTBuckets are vLLM's (and OpenTelemetry's), with room for queues.
	TTFTBuckets = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	// ITLBuckets are vLLM's for the gap between two tokens.
	ITLBuckets = []float64{.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5}
	// DurationBuckets are for whole requests and their phases.
	DurationBuckets = []float64{.01, .05, .1, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480}
)

// Bounded keeps a label's values few: the first Max values keep their names, later
// ones are "other". The zero value calls everything "other".
type Bounded struct {
	Max int

	mu   sync.Mutex
	seen map[string]bool // guarded by mu
}

// Value returns v or "other".
func (b *Bounded) Value(v string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.seen[v]:
	case len(b.seen) < b.Max:
		if b.seen == nil {
			b.seen = make(map[string]bool)
		}
		b.seen[v] = true
	default:
		return "other"
	}
	return v
}
