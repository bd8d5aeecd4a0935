package router

import (
	"log/slog"
	"strconv"
	"strings"
	"time"
)

// report counts the exchange and writes its one closing line, also when the client is gone. No
// prompt, key or text is in it.
func (x *exchange) report(err error) {
	m, now := x.r.metrics, time.Now()
	status, reason, finish := 200, "", x.finishReasons()
	if err != nil {
		e := asAPIError(err)
		reason = string(e.kind)
		if e.reason != "" {
			reason += "/" + string(e.reason)
		}
		if !x.begun {
			status = e.row().status
		}
		m.errors.Inc(string(e.kind))
		if len(x.sequences) == 0 {
			m.admission.Inc("rejected", string(e.kind))
			x.r.audit.reject(x, e.kind)
		}
	}
	m.requests.Inc(x.shape.endpoint(), strconv.Itoa(status))
	m.e2e.Seconds(now.Sub(x.start))
	attrs := []slog.Attr{
		slog.String("request_id", x.idText),
		slog.Int("status", status),
		slog.String("finish_reason", finish),
		slog.String("reason", reason),
		slog.Int64("dur_ms", now.Sub(x.start).Milliseconds()),
	}
	if id := x.req.Header.Get("X-Client-Request-Id"); id != "" {
		attrs = append(attrs, slog.String("client_request_id", headerText(id)))
	}
	if x.tenant != nil {
		attrs = append(attrs, slog.String("tenant", x.tenant.ID))
		m.tenant.Inc(x.r.tenantLabel.Value(x.tenant.ID))
	}
	if x.gen != nil && x.gen.model == x.r.cfg.ModelID {
		attrs = append(attrs, slog.String("model", x.gen.model), slog.Bool("stream", x.gen.stream))
	}
	if len(x.sequences) > 0 {
		attrs = append(attrs, x.reportSequences()...)
	}
	level := slog.LevelInfo
	if status >= 500 {
		level = slog.LevelWarn
	}
	x.r.log.LogAttrs(x.req.Context(), level, "request", attrs...)
}

func (x *exchange) reportSequences() []slog.Attr {
	m := x.r.metrics
	prompt, completion := 0, 0
	for _, ids := range x.ids {
		prompt += len(ids)
	}
	for _, c := range x.choices {
		completion += c.text.count
		if c.finish != "" {
			m.finished.Inc(c.finish)
		}
		if c.receipt != nil {
			m.cached.Add(float64(c.receipt.cached))
		}
	}
	m.prompt.Add(float64(prompt))
	m.generated.Add(float64(completion))
	var prefill, decode []string
	attempts := 0
	for _, s := range x.sequences { // they have ended: see close
		prefill, decode = append(prefill, s.lastPair[0]), append(decode, s.lastPair[1])
		attempts = max(attempts, s.flow.attempt)
	}
	attrs := []slog.Attr{
		slog.String("prefill", strings.Join(prefill, ",")), slog.String("decode", strings.Join(decode, ",")),
		slog.Int("attempt", attempts),
		slog.Int("prompt_tokens", prompt), slog.Int("completion_tokens", completion),
	}
	if !x.first.IsZero() {
		attrs = append(attrs, slog.Int64("ttft_ms", x.first.Sub(x.start).Milliseconds()))
	}
	return attrs
}

// finishReasons are those of the choices, in their order.
func (x *exchange) finishReasons() string {
	var all []string
	for _, c := range x.choices {
		all = append(all, c.finish)
	}
	return strings.Join(all, ",")
}
