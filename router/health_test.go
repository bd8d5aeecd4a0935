package router

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"bulkhead/internal/metrics"
	"bulkhead/transfer"
)

func (w *world) get(path string, header ...string) answer {
	req := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	w.router.Handler().ServeHTTP(rec, req)
	return answer{rec}
}

// TestModels: only with a key; the list and the object, ids with slashes, and the effective window of the
// pools as they stand: the best pair's smaller limit.
func TestModels(t *testing.T) {
	w := newWorld(t, nil)
	defer w.close()
	auth := []string{"Authorization", "Bearer " + testKey}
	for _, path := range []string{"/v1/models", "/v1/models/" + testModel} {
		if a := w.get(path); a.Code != 401 {
			t.Errorf("%s without a key: %d", path, a.Code)
		}
	}
	window := func() int {
		var list modelList
		a := w.get("/v1/models", auth...)
		if err := json.Unmarshal(a.Body.Bytes(), &list); err != nil || a.Code != 200 || len(list.Data) != 1 || list.Data[0].ID != testModel || list.Object != "list" || list.Data[0].Object != "model" || list.Data[0].OwnedBy == "" {
			t.Fatalf("%d %s %v", a.Code, a.Body, err)
		}
		return list.Data[0].MaxLen
	}
	if got := window(); got != testWindow {
		t.Errorf("window %d", got)
	}
	p := w.nodes["p0"] // the incident's shape: one pool is smaller than the window
	p.ann.Window, p.ann.Capacity = 100, 100
	w.announce(p)
	if got := window(); got != 100 {
		t.Errorf("window %d with a prefill of 100", got)
	}
	w.add(transfer.RolePrefill, "p1")
	if got := window(); got != testWindow {
		t.Errorf("window %d with a larger prefill beside it", got)
	}
	for _, name := range []string{"p0", "p1"} {
		w.nodes[name].ann.Draining = true
		w.announce(w.nodes[name])
	}
	if got := window(); got != 0 {
		t.Errorf("window %d without a prefill node", got)
	}
	if a := w.get("/v1/models/"+testModel, auth...); a.Code != 200 || !strings.Contains(a.Body.String(), `"id":"`+testModel+`"`) {
		t.Errorf("%d %s", a.Code, a.Body)
	}
	if a := w.get("/v1/models/other", auth...); a.Code != 404 || str(a.errorObject(t).Code) != "model_not_found" {
		t.Errorf("%d %s", a.Code, a.Body)
	}
	if a := w.get("/v1/models/", auth...); a.Code != 404 {
		t.Errorf("%d %s", a.Code, a.Body)
	}
}

// TestHealth: alive is not ready; readiness follows the nodes and draining; no key is needed and no
// node is named.
func TestHealth(t *testing.T) {
	w := newWorld(t, nil)
	defer w.close()
	expect := func(live, ready int) {
		t.Helper()
		for path, want := range map[string]int{"/livez": live, "/readyz": ready, "/health": ready, "/version": 200, "/metrics": 200} {
			a := w.get(path)
			if a.Code != want {
				t.Errorf("%s: %d, want %d: %s", path, a.Code, want, a.Body)
			}
			if strings.Contains(a.Body.String(), "d0") || strings.Contains(a.Body.String(), testKey) {
				t.Errorf("%s shows a node or a key: %s", path, a.Body)
			}
		}
	}
	expect(200, 200)
	d := w.nodes["d0"]
	d.ann.Ready = false
	w.announce(d)
	expect(200, 503)
	d.ann.Ready = true
	w.announce(d)
	expect(200, 200)
	w.router.draining.Store(true)
	expect(200, 503)
}

// TestMetrics: names that Prometheus' linter takes, and the counts of what happened.
func TestMetrics(t *testing.T) {
	var reg *metrics.Registry
	w := newWorld(t, func(c *Config) { reg = c.Metrics })
	defer w.close()
	w.post(chatPath, chat(``))
	w.post(chatPath, chat(`,"tools":[],"whatever":1`))
	w.post(chatPath, chat(`,"whatever":1,"stream":true`))
	problems, err := reg.Lint()
	if err != nil || len(problems) != 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	text := w.get("/metrics").Body.String()
	for _, line := range []string{
		`bulkhead_http_requests_total{endpoint="/v1/chat/completions",status="200"} 2`,
		`bulkhead_http_requests_total{endpoint="/v1/chat/completions",status="400"} 1`,
		`bulkhead_request_errors_total{kind="unsupported_parameter"} 1`,
		`bulkhead_admission_total{decision="admitted",reason="ok"} 2`,
		`bulkhead_admission_total{decision="rejected",reason="unsupported_parameter"} 1`,
		`bulkhead_request_success_total{finished_reason="stop"} 2`,
		`bulkhead_unknown_fields_total{field="whatever"} 1`,
		`bulkhead_prompt_tokens_total 42`,
		`bulkhead_generation_tokens_total 12`,
		`bulkhead_prefix_cache_hits_total 6`,
		`bulkhead_time_to_first_token_seconds_count 2`,
		`bulkhead_e2e_request_latency_seconds_count 3`,
		`bulkhead_num_requests_running 0`,
		`bulkhead_num_requests_waiting 0`,
		`bulkhead_effective_window_tokens 256`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

// TestLogLine: the closing line has what operators ask for, in one line of JSON.
func TestLogLine(t *testing.T) {
	w := newWorld(t, nil)
	defer w.close()
	a := w.post(chatPath, chat(``), "X-Client-Request-Id", "mine\u00e9")
	var line map[string]any
	for l := range strings.Lines(w.log.String()) {
		if strings.Contains(l, `"msg":"request"`) {
			if err := json.Unmarshal([]byte(l), &line); err != nil {
				t.Fatal(err)
			}
		}
	}
	for key, want := range map[string]any{
		"request_id": a.Header().Get("x-request-id"), "client_request_id": "mine?", "model": testModel, "prefill": "p0", "decode": "d0",
		"attempt": 1., "status": 200., "finish_reason": "stop", "prompt_tokens": 21., "completion_tokens": 6., "reason": "", "stream": false,
	} {
		if line[key] != want {
			t.Errorf("%s: %v, want %v", key, line[key], want)
		}
	}
	for _, key := range []string{"tenant", "ttft_ms", "dur_ms"} {
		if _, ok := line[key]; !ok {
			t.Errorf("no %s in %v", key, line)
		}
	}
}

// TestConfig: what cannot work is refused at the start.
func TestConfig(t *testing.T) {
	w := newWorld(t, nil)
	defer w.close()
	for name, change := range map[string]func(*Config){
		"no cluster":       func(c *Config) { c.Cluster = nil },
		"no tenants":       func(c *Config) { c.Tenants = nil },
		"no tokenizer":     func(c *Config) { c.Tokenizer = nil },
		"no model":         func(c *Config) { c.ModelID = "" },
		"no key":           func(c *Config) { c.Key = nil },
		"a bad name":       func(c *Config) { c.Name = "a.b" },
		"negative timeout": func(c *Config) { c.QueueTimeout = -1 },
	} {
		c := w.router.cfg
		c.Metrics = metrics.New()
		change(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
