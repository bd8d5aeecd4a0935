package prefill

import (
	"time"

	"bulkhead/internal/metrics"
)

// Metrics are what prefill nodes count. Nodes in one process share them.
type Metrics struct {
	refusals, prompt, cached, bytes metrics.Counter
	step                            metrics.Histogram
	waiting, free, quarantined      metrics.Gauge
}

// NewMetrics declares them; once per registry.
func NewMetrics(r *metrics.Registry) *Metrics {
	return &Metrics{
		refusals:    r.Counter("prefill_refusals_total", "Attempts that a prefill node refused or ended, by reason.", "reason"),
		prompt:      r.Counter("prefill_computed_tokens_total", "Prompt tokens computed by prefill nodes."),
		cached:      r.Counter("prefix_cache_hit_tokens_total", "Prompt tokens taken from a tenant's own prefix cache."),
		bytes:       r.Counter("kv_shipped_bytes_total", "Bytes of KV published by prefill nodes, of complete attempts."),
		step:        r.Histogram("prefill_step_seconds", "Time of one engine step.", metrics.ITLBuckets),
		waiting:     r.Gauge("prefill_waiting_tokens", "Prompt tokens of the attempts in work.", "node"),
		free:        r.Gauge("prefill_free_tokens", "Capacity that nobody holds.", "node"),
		quarantined: r.Gauge("prefill_quarantined_pages", "Pages that are never used again in this process.", "node"),
	}
}

func (m *Metrics) refused(reason string) { m.refusals.Inc(reason) }
func (m *Metrics) shipped(bytes int64)   { m.bytes.Add(float64(bytes)) }
func (m *Metrics) stepped(d time.Duration, tokens int) {
	m.prompt.Add(float64(tokens))
	m.step.Seconds(d)
}
