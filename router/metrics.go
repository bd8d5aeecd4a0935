package router

import (
	"bulkhead/internal/metrics"
)

// routerMetrics are all that a router counts. Names and units are vLLM's where it has
// the same thing. TTFT is measured here, at the edge: a decode node's own would begin after
// the remote prefill.
type routerMetrics struct {
	requests   metrics.Counter // by endpoint and status
	errors     metrics.Counter // by kind
	admission  metrics.Counter // by decision and reason
	finished   metrics.Counter // by finish reason
	attempts   metrics.Counter // attempts after the first, by cause
	violations metrics.Counter // by event
	ignored    metrics.Counter // by field
	prompt     metrics.Counter
	generated  metrics.Counter
	cached     metrics.Counter
	tenant     metrics.Counter // requests by tenant id
	running    metrics.Gauge
	ttft       metrics.Histogram
	itl        metrics.Histogram
	e2e        metrics.Histogram
	wait       metrics.Histogram
}

func newRouterMetrics(r *metrics.Registry, waiting, window, refused func() float64) *routerMetrics {
	r.Func("num_requests_waiting", "Sequences that wait in the router's queue for a pair of nodes.", waiting)
	r.Func("effective_window_tokens", "Longest prompt + max_new that the best ready pair takes; 0 without one.", window)
	r.Func("refused_nodes", "Nodes that announce this model's header with other weights behind it.", refused)
	return &routerMetrics{
		requests:   r.Counter("http_requests_total", "HTTP requests answered, by endpoint and status.", "endpoint", "status"),
		errors:     r.Counter("request_errors_total", "Requests that ended in an error, by kind.", "kind"),
		admission:  r.Counter("admission_total", "Admission decisions on generation requests.", "decision", "reason"),
		finished:   r.Counter("request_success_total", "Choices finished, by finish reason.", "finished_reason"),
		attempts:   r.Counter("request_retries_total", "Attempts after a sequence's first, by cause.", "cause"),
		violations: r.Counter("protocol_violations_total", "Attempts ended because a message broke the protocol or did not verify, by event.", "event"),
		ignored:    r.Counter("unknown_fields_total", "Members of request bodies that were read past, by name (the first 64 names).", "field"),
		prompt:     r.Counter("prompt_tokens_total", "Prompt tokens of finished requests."),
		generated:  r.Counter("generation_tokens_total", "Tokens generated for clients."),
		cached:     r.Counter("prefix_cache_hits_total", "Prompt tokens that prefill found in its cache."),
		tenant:     r.Counter("tenant_requests_total", "Generation requests by tenant id (the first 64 ids).", "tenant"),
		running:    r.Gauge("num_requests_running", "Generation requests in work."),
		ttft:       r.Histogram("time_to_first_token_seconds", "From the request's arrival to its first text, at the router.", metrics.TTFTBuckets),
		itl:        r.Histogram("inter_token_latency_seconds", "Between two pieces of text of a request.", metrics.ITLBuckets),
		e2e:        r.Histogram("e2e_request_latency_seconds", "From the request's arrival to its end.", metrics.DurationBuckets),
		wait:       r.Histogram("request_queue_time_seconds", "A sequence's wait for a pair of nodes.", metrics.DurationBuckets),
	}
}
