package loadgen

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/openai"
)

// fakeServer is no engine: it streams max_tokens pieces of text, and does what a test tells it.
type fakeServer struct {
	refuseIDs bool
	noUsage   bool
	fault     func(n int) string // of the n-th streamed request, from 0: "", "busy", "drop", "error", "cut"
	gate      chan struct{}      // if not nil, a streamed request waits for it

	mu       sync.Mutex // guards all below
	n        int
	inFlight int
	most     int
	prompts  []string
	sizes    []int
	maxes    []int
}

func (f *fakeServer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/v1/models" {
		io.WriteString(w, `{"data":[{"id":"fake","max_model_len":4096}]}`)
		return
	}
	var b struct {
		Prompt    json.RawMessage
		MaxTokens int `json:"max_tokens"`
		Stream    bool
	}
	if err := json.NewDecoder(req.Body).Decode(&b); err != nil || req.Header.Get("Authorization") != "Bearer k" {
		w.WriteHeader(401)
		return
	}
	var ids []int32
	size := len(strings.Fields(string(b.Prompt)))
	if json.Unmarshal(b.Prompt, &ids) == nil {
		if f.refuseIDs {
			w.WriteHeader(400)
			return
		}
		size = len(ids)
	}
	usage := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, size, b.MaxTokens, size+b.MaxTokens)
	if !b.Stream {
		fmt.Fprintf(w, `{"choices":[{"text":"x","finish_reason":"length"}],"usage":%s}`, usage)
		return
	}
	f.mu.Lock()
	n := f.n
	f.n++
	f.inFlight++
	f.most = max(f.most, f.inFlight)
	f.prompts, f.sizes, f.maxes = append(f.prompts, string(b.Prompt)), append(f.sizes, size), append(f.maxes, b.MaxTokens)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.inFlight--
		f.mu.Unlock()
	}()
	if f.gate != nil {
		<-f.gate
	}
	fault := ""
	if f.fault != nil {
		fault = f.fault(n)
	}
	switch fault {
	case "busy":
		w.WriteHeader(503)
		return
	case "drop": // closes the connection without a byte
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range b.MaxTokens {
		if i == 1 && fault == "error" {
			io.WriteString(w, "data: {\"error\":{\"message\":\"no\"}}\n\n")
			return
		}
		if i == 1 && fault == "cut" {
			return
		}
		io.WriteString(w, "data: {\"choices\":[{\"text\":\"x\"}]}\n\n")
		w.(http.Flusher).Flush()
	}
	io.WriteString(w, "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n")
	if !f.noUsage {
		fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":%s}\n\n", usage)
	}
	io.WriteString(w, "data: [DONE]\n\n")
}

func serve(t *testing.T, f *fakeServer) ServeConfig {
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return ServeConfig{URL: s.URL, Key: "k", Duration: time.Minute, Timeout: time.Minute, PromptLen: []int{40, 90}, GenLen: []int{5, 9}, Seed: 3}
}

func TestBenchServeClosed(t *testing.T) {
	f := &fakeServer{}
	c := serve(t, f)
	c.Concurrency, c.Requests = 4, 60
	r, err := BenchServe(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	prompt, gen := 0, 0
	for i := range f.sizes {
		if f.sizes[i] != 40 && f.sizes[i] != 90 || f.maxes[i] != 5 && f.maxes[i] != 9 {
			t.Errorf("prompt of %d, %d to generate", f.sizes[i], f.maxes[i])
		}
		prompt, gen = prompt+f.sizes[i], gen+f.maxes[i]
	}
	if r.Sent != 60 || r.Done != 60 || f.n != 60 || f.most > 4 || r.Loop != "closed" || r.Prompts != "token_ids" || r.Model != "fake" {
		t.Errorf("%d at once: %+v", f.most, r)
	}
	if r.TTFT.N != 60 || r.E2E.N != 60 || r.TPOT.N != 60 || r.ITL.N != gen-60 {
		t.Errorf("%d tokens: %+v", gen, r)
	}
	if near(r.PromptMean*60, float64(prompt)) || near(r.GenMean*60, float64(gen)) || near(r.GenRate*r.Elapsed, float64(gen)) || near(r.RequestRate*r.Elapsed, 60) {
		t.Errorf("%d prompt and %d generated tokens: %+v", prompt, gen, r)
	}
	if r.TTFT.P50 <= 0 || r.TTFT.P50 > r.TTFT.P99 || r.E2E.P50 < r.TTFT.P50 {
		t.Errorf("%+v", r)
	}
}

func near(got, want float64) (far bool) { return math.Abs(got-want) > 1e-6*want }

// goal: no end of a request is taken for another.
func TestBenchServeEnds(t *testing.T) {
	kinds := []string{"", "busy", "error", "cut"}
	f := &fakeServer{fault: func(n int) string { return kinds[n%4] }}
	c := serve(t, f)
	c.Requests = 40
	r, err := BenchServe(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if r.Sent != 40 || r.Done != 10 || r.Refused != 10 || r.Failed != 20 || r.Within != 10 || r.TTFT.N != 10 {
		t.Errorf("%+v", r)
	}
	sum := 0
	for _, n := range r.Failures {
		sum += n
	}
	if len(r.Failures) != 2 || sum != 20 {
		t.Errorf("reasons: %v", r.Failures)
	}
}

// goal: a server that drops used connections between answers, as llama.cpp's does, loses no request.
func TestBenchServeDrops(t *testing.T) {
	dropped := 0
	f := &fakeServer{fault: func(n int) string {
		if n%4 == 3 {
			dropped++
			return "drop"
		}
		return ""
	}}
	c := serve(t, f)
	c.Requests = 20
	r, err := BenchServe(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if r.Done != 20 || dropped < 5 {
		t.Errorf("%d of 20 done, %d connections dropped, failures %v", r.Done, dropped, r.Failures)
	}
}

// goal: the reasons of failures stay few and hold nothing that a server said at length.
func TestFailureReasons(t *testing.T) {
	m := &measured{c: &ServeConfig{}}
	for i := range 100 {
		a := &openai.Answer{Status: 500, Err: &openai.Error{Message: "secret", Type: fmt.Sprint("t", i), Code: strings.Repeat("c", 1000)}}
		m.add(shot{}, a, nil, 0)
	}
	if m.r.Failed != 100 || len(m.r.Failures) > failureKinds+1 || m.r.Failures["other"] != 100-failureKinds {
		t.Errorf("%d failed, %d reasons, %d other", m.r.Failed, len(m.r.Failures), m.r.Failures["other"])
	}
	for why := range m.r.Failures {
		if strings.Contains(why, "secret") || len(why) > 200 {
			t.Error(why)
		}
	}
}

func TestBenchServeWords(t *testing.T) {
	f := &fakeServer{refuseIDs: true, noUsage: true}
	c := serve(t, f)
	c.Requests, c.PromptLen = 10, []int{50}
	r, err := BenchServe(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i, p := range f.prompts {
		if seen[p] || f.sizes[i] != 50 {
			t.Errorf("prompt %d has %d words, repeated %v", i, f.sizes[i], seen[p])
		}
		seen[p] = true
	}
	if r.Prompts != "words" || r.Missing != 10 || r.Done != 10 || r.GenMean < 5 {
		t.Errorf("%+v", r)
	}
}

// goal: an open loop does not wait for answers, sheds what is over its bound, and counts time
// from when a request was due. method: a server that answers nothing until all is sent.
func TestBenchServeOpen(t *testing.T) {
	f := &fakeServer{gate: make(chan struct{})}
	c := serve(t, f)
	c.Rate, c.Requests, c.Concurrency = 500, 30, 20
	go func() {
		for { // until 20 requests wait at once, which a closed loop with fewer answers never has
			f.mu.Lock()
			n := f.inFlight
			f.mu.Unlock()
			if n == 20 {
				time.Sleep(100 * time.Millisecond) // the rest come due and are shed
				close(f.gate)
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	r, err := BenchServe(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if f.most != 20 || r.Sent+r.Shed != 30 || r.Sent < 20 || r.Loop != "open" {
		t.Errorf("%d at once: %+v", f.most, r)
	}
}

// goal: arrivals are a Poisson process of the rate, the same for the same seed.
func TestArrivals(t *testing.T) {
	c := ServeConfig{Rate: 20, PromptLen: []int{8}, GenLen: []int{1}, Seed: 1}
	a, b := newGun(&c, openai.Abilities{IDs: true}), newGun(&c, openai.Abilities{IDs: true})
	c2 := c
	c2.Seed = 2
	other := newGun(&c2, openai.Abilities{IDs: true})
	const n = 20000
	var last time.Duration
	sum, squares, same := 0.0, 0.0, 0
	for range n {
		x, y, z := a.next(), b.next(), other.next()
		if x.due != y.due || fmt.Sprint(x.request.IDs) != fmt.Sprint(y.request.IDs) {
			t.Fatal("the same seed gives other requests")
		}
		if x.due == z.due {
			same++
		}
		gap := (x.due - last).Seconds()
		sum, squares, last = sum+gap, squares+gap*gap, x.due
	}
	mean := sum / n
	if math.Abs(mean-0.05) > 0.002 {
		t.Errorf("mean gap of %v s at 20 a second", mean)
	}
	// Of an exponential distribution the deviation is the mean.
	if dev := math.Sqrt(squares/n - mean*mean); math.Abs(dev/mean-1) > 0.05 {
		t.Errorf("deviation %v of mean %v", dev, mean)
	}
	if same > 0 {
		t.Errorf("%d arrivals are the same under another seed", same)
	}
}

func TestPercentiles(t *testing.T) {
	var hundred []time.Duration
	for i := 100; i >= 1; i-- {
		hundred = append(hundred, time.Duration(i)*time.Millisecond)
	}
	if p := percentiles(hundred); p != (Percentiles{P50: 50, P90: 90, P99: 99, Max: 100, Mean: 50.5, N: 100}) {
		t.Errorf("1 to 100: %+v", p)
	}
	if p := percentiles([]time.Duration{3 * time.Millisecond}); p != (Percentiles{3, 3, 3, 3, 3, 1}) {
		t.Errorf("one: %+v", p)
	}
	if p := percentiles([]time.Duration{2 * time.Millisecond, time.Millisecond, 10 * time.Millisecond}); p.P50 != 2 || p.P90 != 10 || p.P99 != 10 {
		t.Errorf("three: %+v", p)
	}
	if p := percentiles(nil); p != (Percentiles{}) {
		t.Errorf("none: %+v", p)
	}
	for n := 1; n <= 1000; n++ { // the definition, counted
		d := make([]time.Duration, n)
		for i := range d {
			d[i] = time.Duration(i)
		}
		for _, p := range []int{50, 90, 99} {
			got := int(nearestRank(d, float64(p)/100))
			if (got+1)*100 < p*n || got*100 >= p*n {
				t.Fatalf("p%d of %d: index %d", p, n, got)
			}
		}
	}
}

// goal: a time is what it says. method: answers with known times.
func TestMeasured(t *testing.T) {
	s := func(sec ...float64) (out []time.Duration) {
		for _, x := range sec {
			out = append(out, time.Duration(x*float64(time.Second)))
		}
		return out
	}
	c := ServeConfig{SLOTTFT: 2 * time.Second, SLOITL: time.Second, Rate: 1}
	m := &measured{c: &c}
	ok := func(total float64, tokens int, events ...float64) *openai.Answer {
		return &openai.Answer{Status: 200, Stream: true, Done: true, Events: s(events...), Total: s(total)[0], Usage: &openai.Usage{Prompt: 10, Completion: tokens}}
	}
	want := shot{request: openai.Request{MaxTokens: 3}}
	m.add(want, ok(4, 3, 1, 2, 3), nil, 0)
	m.add(want, ok(4, 3, 1, 2, 3), nil, 1500*time.Millisecond) // late: first text at 2.5 s
	m.add(want, ok(5, 2, 1, 4), nil, 0)                        // a gap of 3 s
	r := m.result(openai.Abilities{}, 10*time.Second)
	if r.Within != 1 || r.Goodput != 0.1 || r.Done != 3 || r.Short != 1 || r.MaxLate != 1500 {
		t.Errorf("%+v", r)
	}
	if r.TTFT.P50 != 1000 || r.TTFT.Max != 2500 || r.E2E.P50 != 5000 || r.E2E.Max != 5500 || r.ITL.N != 5 || r.ITL.P50 != 1000 || r.ITL.Max != 3000 {
		t.Errorf("%+v", r)
	}
	if r.TPOT.P50 != 1500 || r.TPOT.Max != 4000 {
		t.Errorf("TPOT %+v", r.TPOT)
	}
	if r.PromptRate != 3 || r.GenRate != 0.8 || r.PromptMean != 10 {
		t.Errorf("%+v", r)
	}
}

// goal: waiting for the next arrival heeds the end. method: fake time.
func TestSleepEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if !sleep(ctx, 500*time.Millisecond) || sleep(ctx, time.Hour) || sleep(ctx, 0) {
			t.Error("sleep does not heed its context")
		}
	})
}

func TestBenchServeStops(t *testing.T) {
	f := &fakeServer{gate: make(chan struct{})}
	c := serve(t, f)
	c.Concurrency, c.Timeout = 3, 50*time.Millisecond
	c.Duration = 120 * time.Millisecond
	r, err := BenchServe(context.Background(), c) // every request hangs
	close(f.gate)
	if err != nil || r.Done != 0 || r.Failed != r.Sent || r.Failures["timeout"] != r.Sent || r.Sent < 3 {
		t.Errorf("%v %+v", err, r)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := BenchServe(ctx, c); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestBenchServeRefuses(t *testing.T) {
	good := ServeConfig{URL: "http://127.0.0.1:1", Duration: time.Second, PromptLen: []int{1}, GenLen: []int{1}}
	for name, change := range map[string]func(*ServeConfig){
		"rate":        func(c *ServeConfig) { c.Rate = -1 },
		"not a rate":  func(c *ServeConfig) { c.Rate = math.NaN() },
		"concurrency": func(c *ServeConfig) { c.Concurrency = flightMax + 1 },
		"duration":    func(c *ServeConfig) { c.Duration = 0 },
		"requests":    func(c *ServeConfig) { c.Requests = requestsMax + 1 },
		"no lengths":  func(c *ServeConfig) { c.GenLen = nil },
		"length":      func(c *ServeConfig) { c.PromptLen = []int{5, 0} },
		"slo":         func(c *ServeConfig) { c.SLOTTFT = -1 },
	} {
		c := good
		change(&c)
		if _, err := BenchServe(context.Background(), c); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f := &fakeServer{}
	c := serve(t, f)
	c.Key = "secret-key"
	if _, err := BenchServe(context.Background(), c); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("wrong key: %v", err)
	}
}
