package router

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/tenant"
	"bulkhead/transfer"
)

// TestErrorTable: each error that a request can end in, as its client sees it: status, type, code, param,
// headers. Nothing but the envelope is in the body, and nothing was sent to a node where that is promised.
func TestErrorTable(t *testing.T) {
	type row struct {
		name   string
		setup  func(w *world)
		path   string // chatPath if empty
		body   string // chat(``) if empty
		header []string
		change func(*Config)

		status           int
		typ, code, param string
		headers          map[string]string
		sent             bool // a job may have been sent
		message          string
	}
	retryable := map[string]string{"Retry-After": "1", "x-should-retry": ""}
	rows := []row{
		{name: "bad JSON", body: `{"model":`, status: 400, typ: "invalid_request_error", code: "null", param: "model"},
		{name: "wrong type", body: chat(`,"n":"x"`), status: 400, typ: "invalid_request_error", code: "null", param: "n"},
		{name: "unsupported", body: chat(`,"tools":[]`), status: 400, typ: "invalid_request_error", code: "unsupported_parameter", param: "tools"},
		{name: "template refuses", body: `{"model":"` + testModel + `","messages":[{"role":"user","content":"refuse me"}]}`, status: 400, typ: "invalid_request_error", code: "null", param: "messages", message: "No refusals."},
		{name: "logit_bias beyond the vocabulary", body: chat(`,"logit_bias":{"258":1}`), status: 400, typ: "invalid_request_error", code: "null", param: "logit_bias"},
		{name: "token id beyond the vocabulary", path: textPath, body: `{"model":"` + testModel + `","prompt":[258]}`, status: 400, typ: "invalid_request_error", code: "null", param: "prompt"},
		{name: "content type", header: []string{"Content-Type", "text/plain"}, status: 400, typ: "invalid_request_error", code: "unsupported_content_type", param: "null"},
		{name: "no content type", header: []string{"Content-Type", ""}, status: 400, typ: "invalid_request_error", code: "unsupported_content_type", param: "null"},
		{name: "charset", header: []string{"Content-Type", "application/json; charset=latin1"}, status: 400, typ: "invalid_request_error", code: "unsupported_content_type", param: "null"},
		{name: "content encoding", header: []string{"Content-Encoding", "gzip"}, status: 400, typ: "invalid_request_error", code: "unsupported_content_type", param: "null"},
		{name: "prompt too long", body: `{"model":"` + testModel + `","messages":[{"role":"user","content":"` + strings.Repeat("a", 300) + `"}]}`,
			status: 400, typ: "invalid_request_error", code: "context_length_exceeded", param: "messages",
			message: "This model's maximum context length is 256 tokens. However, your messages resulted in 319 tokens. Please reduce the length of the messages."},
		{name: "prompt and completion too long", body: chat(`,"max_tokens":236`), status: 400, typ: "invalid_request_error", code: "context_length_exceeded", param: "messages",
			message: "maximum context length is 256 tokens. However, you requested 257 tokens (21 in the messages, 236 in the completion)"},
		{name: "completion's prompt too long", path: textPath, body: `{"model":"` + testModel + `","prompt":"` + strings.Repeat("a", 257) + `"}`,
			status: 400, typ: "invalid_request_error", code: "context_length_exceeded", param: "prompt", message: "your prompt resulted in 257 tokens"},
		{name: "no key", header: []string{"Authorization", ""}, status: 401, typ: "invalid_request_error", code: "invalid_api_key", param: "null", headers: map[string]string{"WWW-Authenticate": "Bearer"}},
		{name: "wrong key", header: []string{"Authorization", "Bearer sk-wrong-0123456789abcdef"}, status: 401, typ: "invalid_request_error", code: "invalid_api_key", param: "null", headers: map[string]string{"WWW-Authenticate": "Bearer"}},
		{name: "wrong scheme", header: []string{"Authorization", "Basic " + testKey}, status: 401, typ: "invalid_request_error", code: "invalid_api_key", param: "null"},
		{name: "unknown model", body: strings.Replace(chat(``), testModel, "other", 1), status: 404, typ: "invalid_request_error", code: "model_not_found", param: "model"},
		{name: "unknown URL", path: "/v1/embeddings", status: 404, typ: "invalid_request_error", code: "unknown_url", param: "null"},
		{name: "wrong method", path: "/v1/models", status: 405, typ: "invalid_request_error", code: "method_not_allowed", param: "null", headers: map[string]string{"Allow": "GET"}},
		{name: "body too large", change: func(c *Config) { c.BodyMax = 50 }, status: 413, typ: "invalid_request_error", code: "request_too_large", param: "null"},
		{name: "request rate", setup: func(w *world) { w.limit(tenant.Limits{RequestsPerMinute: 1}); w.post(chatPath, chat(``)) }, sent: true,
			status: 429, typ: "rate_limit_error", code: "rate_limit_exceeded", param: "null", headers: map[string]string{"Retry-After": "60", "x-ratelimit-limit-requests": "1", "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m0s"}},
		{name: "token rate", setup: func(w *world) { w.limit(tenant.Limits{TokensPerMinute: 30}); w.post(chatPath, chat(``)) }, sent: true,
			status: 429, typ: "rate_limit_error", code: "rate_limit_exceeded", param: "null", headers: map[string]string{"Retry-After": "36", "x-ratelimit-limit-tokens": "30"}},
		{name: "concurrency", setup: func(w *world) { w.limit(tenant.Limits{MaxConcurrent: 2}) }, body: chat(`,"n":3`),
			status: 429, typ: "rate_limit_error", code: "rate_limit_exceeded", param: "null", headers: map[string]string{"Retry-After": "1"}},
		{name: "quota", setup: func(w *world) { w.limit(tenant.Limits{TokensPerMinute: 20}) },
			status: 429, typ: "insufficient_quota", code: "insufficient_quota", param: "null", headers: map[string]string{"x-should-retry": "false"}},
		{name: "tenant's own maximum", setup: func(w *world) { w.limit(tenant.Limits{MaxNewTokens: 5}) }, body: chat(`,"max_tokens":6`),
			status: 400, typ: "invalid_request_error", code: "null", param: "max_tokens"},
		{name: "no node", setup: func(w *world) { n := w.nodes["d0"]; n.ann.Draining = true; w.announce(n) },
			status: 503, typ: "server_error", code: "overloaded", param: "null", headers: retryable},
		{name: "queue full", change: func(c *Config) { c.QueueMax = -1 }, setup: func(w *world) { n := w.nodes["d0"]; n.ann.FreeTokens = 0; w.announce(n) },
			status: 503, typ: "server_error", code: "overloaded", param: "null", headers: retryable},
		{name: "queue timeout", change: func(c *Config) { c.QueueTimeout = time.Second }, setup: func(w *world) { n := w.nodes["d0"]; n.ann.FreeTokens = 0; w.announce(n) },
			status: 503, typ: "server_error", code: "queue_timeout", param: "null", headers: map[string]string{"Retry-After": "2"}},
		{name: "draining", setup: func(w *world) { _ = w.router.Drain(context.Background()) },
			status: 503, typ: "server_error", code: "draining", param: "null", headers: map[string]string{"Retry-After": "1", "Connection": "close"}},
		{name: "decode refuses the length", setup: func(w *world) {
			w.nodes["d0"].onJob = func(j *gotJob) {
				j.answer(nil, &transfer.Reject{Reason: transfer.ReasonContextLength, Limit: 100, Value: 256})
			}
		}, sent: true, status: 400, typ: "invalid_request_error", code: "context_length_exceeded", param: "messages", message: "maximum context length is 100 tokens. However, your messages resulted in 256 tokens."},
		{name: "a node refuses", setup: func(w *world) { w.nodes["d0"].onJob = func(j *gotJob) { j.reject(transfer.ReasonToken) } }, sent: true,
			status: 500, typ: "server_error", code: "refused", param: "null", headers: map[string]string{"x-should-retry": "false"}},
		{name: "integrity", setup: func(w *world) {
			w.nodes["p0"].onJob = func(j *gotJob) {
				j.accept()
				w.nodes["d0"].find(j.hash).send(transfer.OutputBody{Fail: &transfer.Reject{TokenHash: j.hash, Reason: transfer.ReasonIntegrity}})
			}
		}, sent: true, status: 502, typ: "server_error", code: "integrity_error", param: "null", headers: map[string]string{"x-should-retry": "false"}},
		{name: "first token's deadline", change: func(c *Config) { c.FirstTokenTimeout = 2 * time.Second }, setup: func(w *world) { w.nodes["p0"].onJob = (*gotJob).accept }, sent: true,
			status: 504, typ: "server_error", code: "timeout", param: "null"},
		{name: "the only decode node dies", setup: func(w *world) { w.nodes["p0"].onJob = func(j *gotJob) { j.accept(); go w.nodes["d0"].deaf() } }, sent: true,
			status: 502, typ: "server_error", code: "worker_lost", param: "null"},
	}
	testKeys()
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, r.change)
				defer w.close()
				if r.setup != nil {
					r.setup(w)
				}
				path, body := r.path, r.body
				if path == "" {
					path = chatPath
				}
				if body == "" {
					body = chat(``)
				}
				a := w.post(path, body, r.header...)
				e := a.errorObject(t)
				if a.Code != r.status || e.Type != r.typ || str(e.Code) != r.code || str(e.Param) != r.param || !strings.Contains(e.Message, r.message) || e.Message == "" {
					t.Errorf("got %d %s\nwant %d type %s code %s param %s %s\nlog %s", a.Code, a.Body, r.status, r.typ, r.code, r.param, r.message, w.log.String())
				}
				for name, want := range r.headers {
					if got := a.Header().Get(name); got != want {
						t.Errorf("header %s: %q, want %q", name, got, want)
					}
				}
				if a.Header().Get("Content-Type") != "application/json" {
					t.Errorf("Content-Type %q", a.Header().Get("Content-Type"))
				}
				if a.Header().Get("x-bulkhead-receipt") != "" {
					t.Error("an error with a receipt")
				}
				if !r.sent {
					for name, n := range w.nodes {
						if jobs, _ := n.got(); len(jobs) != 0 {
							t.Errorf("a job was sent to %s", name)
						}
					}
				}
			})
		})
	}
}

// limit replaces the tenant by one with limits.
func (w *world) limit(l tenant.Limits) {
	if err := w.tenants.Remove("acme"); err != nil {
		w.t.Fatal(err)
	}
	must(w.tenants.Add("acme", testKey, l))
}

// TestEveryKindHasARow: writeError never meets a kind that the table does not know, and every row is
// an envelope with all four members.
func TestEveryKindHasARow(t *testing.T) {
	for k, row := range errorTable {
		rec := httptest.NewRecorder()
		writeError(rec, fail(k, "p", "m"))
		var e map[string]map[string]any
		if err := json.Unmarshal(rec.Body.Bytes(), &e); err != nil || len(e["error"]) != 4 || rec.Code != row.status || row.status < 400 {
			t.Errorf("%s: %d %s", k, rec.Code, rec.Body)
		}
		if row.status == 429 || row.status == 503 {
			if h := rec.Header(); h.Get("Retry-After") == "" && h.Get("x-should-retry") == "" {
				t.Errorf("%s: status %d and no word on when to retry", k, row.status)
			}
		}
	}
	for _, reason := range []transfer.Reason{transfer.ReasonContextLength, transfer.ReasonNoPages, transfer.ReasonBusy, transfer.ReasonDraining, transfer.ReasonToken,
		transfer.ReasonModel, transfer.ReasonPrompt, transfer.ReasonProtocol, transfer.ReasonIntegrity, transfer.ReasonTimeout, transfer.ReasonCancelled, transfer.ReasonDuplicate,
		transfer.ReasonInternal, transfer.ReasonLogits, transfer.ReasonPeer, transfer.ReasonNodeLost, transfer.ReasonKVServer} {
		e := refusal(transfer.Reject{Reason: reason}, "messages")
		if e.row().status < 400 || e.reason != reason || (e.kind == kindInternal) != (reason == transfer.ReasonInternal) {
			t.Errorf("%s becomes %s", reason, e.kind)
		}
	}
}

// TestKeySecrets: neither the answer to a wrong key nor the log shows a key or a prompt.
func TestKeySecrets(t *testing.T) {
	w := newWorld(t, nil)
	defer w.close()
	const secret = "canary-prompt-4711"
	body := strings.Replace(chat(``), "hi", secret, 1)
	good := w.post(chatPath, body)
	bad := w.post(chatPath, body, "Authorization", "Bearer sk-canary-0123456789abcdef")
	broken := w.post(chatPath, strings.Replace(body, `"messages"`, `"messages":1,"x"`, 1))
	if good.Code != 200 || bad.Code != 401 || broken.Code != 400 {
		t.Fatal(good.Code, bad.Code, broken.Code)
	}
	metrics := httptest.NewRecorder()
	w.router.Handler().ServeHTTP(metrics, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for name, s := range map[string]string{"log": w.log.String(), "audit": w.audit.String(), "metrics": metrics.Body.String(), "answer": bad.Body.String() + broken.Body.String()} {
		for _, canary := range []string{secret, "sk-canary", testKey, "hello"} {
			if strings.Contains(s, canary) {
				t.Errorf("the %s shows %q", name, canary)
			}
		}
	}
	if !strings.Contains(w.log.String(), `"msg":"request"`) {
		t.Error("no closing line in the log")
	}
}
