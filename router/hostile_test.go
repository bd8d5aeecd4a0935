package router

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"

	"bulkhead/internal/sample"
	"bulkhead/transfer"
)

// hostileRequests is how many generated requests a plain test run sends, and the
// environment variable that asks for more.
const (
	hostileRequests = 10_000
	hostileEnv      = "BULKHEAD_HOSTILE_REQUESTS"
)

// TestHostileRequests: no request makes the router fail. Method: good requests, each spoiled in
// one to three ways by a seeded generator, through the real handler to nodes that answer honestly.
// Every answer is a complete 200 or a 4xx in OpenAI's error envelope that repeats nothing
// of the prompt; none is a 5xx, none a panic.
func TestHostileRequests(t *testing.T) {
	n := hostileRequests
	if s := os.Getenv(hostileEnv); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatalf("%s: %v", hostileEnv, err)
		}
	}
	w := newWorld(t, func(c *Config) { c.Log, c.Audit = slog.New(slog.DiscardHandler), io.Discard })
	defer w.close()
	w.answerHonestly()
	handler := w.router.Handler()
	statuses, refusedBy := map[int]int{}, map[string]int{}
	for i := range n {
		rng := rand.New(rand.NewPCG(uint64(i), 1))
		h := newHostile(rng)
		rec := httptest.NewRecorder()
		if err := serveSafely(handler, rec, h.request()); err != nil {
			t.Fatalf("request %d %v: %v\n%s", i, h.how, err, h.show())
		}
		if err := h.judge(rec); err != nil {
			t.Fatalf("request %d %v: %v\nstatus %d, %.300q\n%s", i, h.how, err, rec.Code, rec.Body, h.show())
		}
		statuses[rec.Code]++
		if rec.Code >= 400 {
			for _, how := range h.how {
				refusedBy[how]++
			}
		}
		if i%1000 == 0 {
			w.forget()
		}
	}
	t.Logf("%d requests: %v", n, statuses)
	for _, status := range []int{200, 400, 401, 404, 405, 408, 413} {
		if statuses[status] < n/10_000+1 {
			t.Errorf("status %d came %d times in %d: the generator no longer reaches it", status, statuses[status], n)
		}
	}
	for _, m := range spoilers {
		if refusedBy[m.name] == 0 {
			t.Errorf("nothing spoiled by %q was refused", m.name)
		}
	}
}

// TestHostileMemory: 6 MB of {}, through the whole handler takes less than 30 MB more heap; the
// control is encoding/json, which needs far more for the same body.
func TestHostileMemory(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(10)) // so that garbage is not counted as held
	w := newWorld(t, nil)
	defer w.close()
	filler := strings.Repeat("{},", 2_000_000)
	const most = 30 << 20
	for _, body := range []string{
		`{"model":"m","messages":[` + filler + `{}]}`,
		`{"model":"m","messages":[{"role":"user","content":[` + filler + `{}]}]}`,
		`{"model":"m","future":[` + filler + `{}]}`,
		filler,
	} {
		grown := heapGrowth(func(p *peak) {
			req := httptest.NewRequest(http.MethodPost, chatPath, p.reading(strings.NewReader(body)))
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Authorization", "Bearer "+testKey)
			rec := httptest.NewRecorder()
			w.router.Handler().ServeHTTP(rec, req)
			if rec.Code != 400 {
				t.Errorf("status %d: %.200s", rec.Code, rec.Body)
			}
		})
		if grown > most {
			t.Errorf("%.40s...: %d bytes more heap, at most %d", body, grown, most)
		}
	}
	control := heapGrowth(func(p *peak) {
		var v any
		if err := json.Unmarshal([]byte("["+filler+"{}]"), &v); err != nil {
			t.Error(err)
		}
		p.look()
		runtime.KeepAlive(v)
	})
	if control < most {
		t.Errorf("encoding/json is seen to need only %d bytes: the measurement sees nothing", control)
	}
}

// peak is the most heap that was seen in use.
type peak struct{ bytes uint64 }

func (p *peak) look() {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	p.bytes = max(p.bytes, m.HeapAlloc)
}

// reading looks at the heap from time to time while r is read.
func (p *peak) reading(r io.Reader) io.Reader { return &peakReader{r: r, p: p} }

type peakReader struct {
	r io.Reader
	p *peak
	n int
}

func (r *peakReader) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	if r.n += n; err != nil || r.n > 1<<20 {
		r.n = 0
		r.p.look()
	}
	return n, err
}

func heapGrowth(f func(*peak)) uint64 {
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	var p peak
	f(&p)
	p.look()
	return p.bytes - min(p.bytes, before.HeapAlloc)
}

func serveSafely(h http.Handler, w http.ResponseWriter, req *http.Request) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	h.ServeHTTP(w, req)
	return nil
}

// answerHonestly makes the scripted nodes keep to what a job asks for.
func (w *world) answerHonestly() {
	var mu sync.Mutex
	waiting := map[transfer.Hash]*gotJob{}
	w.nodes["d0"].onJob = func(j *gotJob) {
		mu.Lock()
		waiting[j.hash] = j
		mu.Unlock()
		j.accept()
	}
	w.nodes["p0"].onJob = func(j *gotJob) {
		j.accept()
		mu.Lock()
		d := waiting[j.hash]
		delete(waiting, j.hash)
		mu.Unlock()
		d.receipt()
		count, reason := 5, "stop"
		if p := j.Params; p.MaxNew <= count || p.IgnoreEOS || p.MinTokens > count {
			count, reason = p.MaxNew, "length"
		}
		for sent := 0; sent < count; sent += transfer.TokensMax {
			d.tokens(text(strings.Repeat("hello", 13)[:min(transfer.TokensMax, count-sent)])...)
		}
		if reason == "stop" {
			d.tokens(sample.Token{ID: idEnd, EOG: true})
			count++
		}
		d.finish(reason, count)
	}
}

// forget drops what the scripted nodes keep of earlier requests.
func (w *world) forget() {
	for _, n := range w.nodes {
		n.mu.Lock()
		n.jobs, n.cancels = nil, nil
		n.mu.Unlock()
	}
}

// judge holds an answer against the promise.
func (h *hostile) judge(rec *httptest.ResponseRecorder) error {
	body := rec.Body.String()
	switch {
	case rec.Code >= 500 || rec.Code < 200 || rec.Code > 200 && rec.Code < 400:
		return errors.New("no status for a client's mistake")
	case rec.Code >= 400:
		var e errorBody
		d := json.NewDecoder(strings.NewReader(body))
		d.DisallowUnknownFields()
		if err := d.Decode(&e); err != nil || d.More() {
			return fmt.Errorf("no error envelope: %v", err)
		}
		for _, member := range []string{`"message"`, `"type"`, `"param"`, `"code"`} {
			if !strings.Contains(body, member) {
				return fmt.Errorf("envelope without %s", member)
			}
		}
		switch {
		case e.Error.Message == "" || e.Error.Type == "" || rec.Header().Get("Content-Type") != "application/json":
			return errors.New("an incomplete envelope")
		case strings.Contains(body, secretText) && !strings.Contains(str(e.Error.Param), secretText):
			return errors.New("the error repeats the prompt")
		case len(body) > 16<<10:
			return fmt.Errorf("an error of %d bytes", len(body))
		}
		return nil
	case h.method != http.MethodPost || !strings.HasSuffix(h.path, "completions"):
		return nil // models, health and the like
	case strings.HasPrefix(rec.Header().Get("Content-Type"), "text/event-stream"):
		list := events(strings.NewReader(body))
		for _, e := range list[:len(list)-1] {
			if !json.Valid([]byte(e)) || strings.HasPrefix(e, `{"error"`) {
				return fmt.Errorf("event %.200q", e)
			}
		}
		if list[len(list)-1] != "[DONE]" {
			return errors.New("a stream without its end")
		}
		return nil
	}
	var whole struct {
		Choices []json.RawMessage
		Usage   *usageObject
		Error   json.RawMessage
	}
	if err := json.Unmarshal([]byte(body), &whole); err != nil || len(whole.Choices) == 0 || whole.Usage == nil || whole.Error != nil {
		return fmt.Errorf("an incomplete answer: %v", err)
	}
	return nil
}

// show prints a request for whoever has to look at it.
func (h *hostile) show() string {
	return fmt.Sprintf("%s %s\n%v\n%.2000q", h.method, h.path, h.header, bytes.Clone(h.body))
}

// TestHostileJudge: the judge itself finds each answer that must not be.
func TestHostileJudge(t *testing.T) {
	envelope := func(message string) string {
		return `{"error":{"message":"` + message + `","type":"invalid_request_error","param":null,"code":null}}`
	}
	for _, tc := range []struct {
		name, typ, body string
		status          int
		ok              bool
	}{
		{"an envelope", "application/json", envelope("no"), 400, true},
		{"a whole answer", "application/json", `{"choices":[{}],"usage":{}}`, 200, true},
		{"a stream", "text/event-stream", "data: {}\n\ndata: [DONE]\n\n", 200, true},
		{"a 500", "application/json", envelope("no"), 500, false},
		{"a 302", "application/json", envelope("no"), 302, false},
		{"no envelope", "application/json", `{"message":"no"}`, 400, false},
		{"text", "text/plain", "no", 404, false},
		{"another content type", "text/plain", envelope("no"), 400, false},
		{"no message", "application/json", envelope(""), 400, false},
		{"a member missing", "application/json", `{"error":{"message":"no","type":"x","param":null}}`, 400, false},
		{"a member too many", "application/json", `{"error":{"message":"no","type":"x","param":null,"code":null,"stack":"x"}}`, 400, false},
		{"two envelopes", "application/json", envelope("no") + envelope("no"), 400, false},
		{"the prompt", "application/json", envelope(secretText), 400, false},
		{"a flood", "application/json", envelope(strings.Repeat("x", 17<<10)), 400, false},
		{"a 200 with an error", "application/json", `{"choices":[{}],"usage":{},"error":{}}`, 200, false},
		{"a 200 without choices", "application/json", `{"usage":{}}`, 200, false},
		{"a stream that breaks off", "text/event-stream", "data: {}\n\n", 200, false},
		{"a stream with an error", "text/event-stream", "data: {\"error\":{}}\n\ndata: [DONE]\n\n", 200, false},
	} {
		rec := httptest.NewRecorder()
		rec.Header().Set("Content-Type", tc.typ)
		rec.Code = tc.status
		rec.Body.WriteString(tc.body)
		h := &hostile{method: http.MethodPost, path: chatPath}
		if err := h.judge(rec); (err == nil) != tc.ok {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
