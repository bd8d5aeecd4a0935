package cluster_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/decode"
	"bulkhead/internal/cluster"
	"bulkhead/internal/gguf"
	"bulkhead/internal/identity"
	"bulkhead/internal/kv"
	"bulkhead/internal/metrics"
	"bulkhead/internal/tenant"
	"bulkhead/internal/tokenizer"
	"bulkhead/prefill"
	"bulkhead/router"
	"bulkhead/transfer"
)

// Here a test is the HTTP client, of a cluster put together as cluster.New does
// it, but with the parts in reach: the nodes' pools, and every message that a
// role puts on the bus.

// The keys of the two tenants of a site.
const (
	acmeKey     = "sk-acme-0123456789abcdef"
	umbrellaKey = "sk-umbrella-0123456789abcdef"
)

// tokens of a GGUF header, once: what a router reads.
var edge = sync.OnceValues(func() (*tokenizer.Tokenizer, [32]byte) {
	f, err := gguf.Open(tinyChat)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	tok, err := tokenizer.New(f)
	if err != nil {
		panic(err)
	}
	return tok, f.HeaderDigest()
})

// spy counts what a role sends, by the first word of the subject.
type spy struct {
	transfer.Bus
	seen *sent
}

type sent struct {
	mu sync.Mutex
	n  map[string]int // guarded by mu
}

func (s *sent) note(subject string) {
	kind, _, _ := strings.Cut(subject, ".")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n[kind]++
}

// work is how many messages were sent that have to do with any request.
func (s *sent) work() (n int, by map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	by = map[string]int{}
	for kind, c := range s.n {
		if kind != "announce" && kind != "ping" {
			by[kind] = c
			n += c
		}
	}
	return n, by
}

func (b spy) Publish(subject string, data []byte) error {
	b.seen.note(subject)
	return b.Bus.Publish(subject, data)
}

func (b spy) Request(ctx context.Context, subject string, data []byte) ([]byte, error) {
	b.seen.note(subject)
	return b.Bus.Request(ctx, subject, data)
}

func (b spy) PublishKV(subject string, data []byte, done func(error)) error {
	b.seen.note(subject)
	return b.Bus.PublishKV(subject, data, done)
}

// siteConfig says what differs from a small site of one pair.
type siteConfig struct {
	prefills, decodes                       int
	prefillCapacity, decodeCapacity, window int
	router                                  func(*router.Config)
	prefill                                 func(*prefill.Config)
	decode                                  func(*decode.Config)
}

type site struct {
	t        *testing.T
	w        *world
	url      string
	prefills []*prefill.Node
	decodes  []*decode.Node
	joined   map[string]*cluster.Joined
	sent     *sent
	dir      *transfer.Directory
	client   *http.Client
}

func newSite(t *testing.T, c siteConfig) *site {
	t.Helper()
	s := &site{t: t, w: newWorld(t), sent: &sent{n: map[string]int{}}, joined: map[string]*cluster.Joined{}}
	for _, d := range []struct {
		at    *int
		value int
	}{{&c.prefills, 1}, {&c.decodes, 1}, {&c.prefillCapacity, 4096}, {&c.decodeCapacity, 8192}} {
		if *d.at == 0 {
			*d.at = d.value
		}
	}
	// The router is first, so that it hears the nodes' first announcements.
	j := s.join(identity.Router, "r1")
	tok, header := edge()
	cfg := router.Config{Tenants: tenants(t), Tokenizer: tok, Metadata: header, ModelID: "tiny", Log: testLog(), DrainTimeout: time.Second}
	if c.router != nil {
		c.router(&cfg)
	}
	r, dir, err := cluster.NewRouter(j, cfg)
	must(t, err)
	s.dir = dir
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s.url = "http://" + ln.Addr().String()
	keeper := cluster.Keeper{Bus: j.Conn, Dir: dir, MaxBytes: 64 << 20, Log: testLog()}
	s.w.run(j, func(ctx context.Context) error { return cluster.RunRouter(ctx, r, keeper, ln) })
	for i := range c.prefills {
		j := s.join(identity.Prefill, fmt.Sprintf("p%d", i+1))
		cfg := prefill.Config{Peer: j.Peer, Engine: engine(), Capacity: c.prefillCapacity, Window: c.window, ClampWindow: true, Metrics: prefill.NewMetrics(metrics.New()), Log: testLog()}
		if c.prefill != nil {
			c.prefill(&cfg)
		}
		n, err := prefill.New(cfg)
		must(t, err)
		s.prefills = append(s.prefills, n)
		s.w.run(j, n.Run)
	}
	for i := range c.decodes {
		j := s.join(identity.Decode, fmt.Sprintf("d%d", i+1))
		cfg := decode.Config{Peer: j.Peer, Engine: engine(), Capacity: c.decodeCapacity, Window: c.window, ClampWindow: true, DrainTimeout: time.Second, Metrics: decode.NewMetrics(metrics.New()), Log: testLog()}
		if c.decode != nil {
			c.decode(&cfg)
		}
		n, err := decode.New(cfg)
		must(t, err)
		s.decodes = append(s.decodes, n)
		s.w.run(j, n.Run)
	}
	s.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}, Timeout: 2 * waitMax}
	t.Cleanup(s.client.CloseIdleConnections)
	s.eventually("all nodes ready", func() bool {
		n := 0
		for _, role := range []transfer.Role{transfer.RolePrefill, transfer.RoleDecode} {
			for _, a := range dir.List(role) {
				if a.Ready {
					n++
				}
			}
		}
		return n == c.prefills+c.decodes
	})
	return s
}

func tenants(t *testing.T) *tenant.Registry {
	t.Helper()
	reg := tenant.NewRegistry()
	for name, key := range map[string]string{"acme": acmeKey, "umbrella": umbrellaKey} {
		_, err := reg.Add(name, key, tenant.Limits{})
		must(t, err)
	}
	return reg
}

// join is world.join with a spy on the bus.
func (s *site) join(role identity.Role, name string) *cluster.Joined {
	s.t.Helper()
	j := s.w.join(role, name)
	j.Peer = transfer.NewPeer(transfer.Options{Bus: spy{j.Conn, s.sent}, Node: j.Node, Authority: j.Node.Authority(), Cluster: j.Node.Authority().Cluster(), Log: testLog(), Loopback: true})
	s.joined[name] = j
	return j
}

func (s *site) eventually(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(waitMax); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	s.t.Fatalf("not within %s: %s", waitMax, what)
}

// baseline waits until nobody holds a page on any node. Prefix blocks that are
// cached and idle count as free: a reservation may take them.
func (s *site) baseline() {
	s.t.Helper()
	stats := func() (all []kv.Stats) {
		for _, n := range s.prefills {
			all = append(all, n.Stats())
		}
		for _, n := range s.decodes {
			all = append(all, n.Stats())
		}
		return all
	}
	end := time.Now().Add(waitMax)
	for {
		busy := false
		for _, k := range stats() {
			busy = busy || k.Free+k.CachedIdle != k.Pages || k.Tables != 0 || k.Held != 0 || k.Dirty != 0 || k.Quarantined != 0
		}
		if !busy {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("pools are not at their baseline: %+v", stats())
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// body is a request in JSON's own words.
type body map[string]any

// with is a copy with other members.
func (b body) with(more body) body {
	out := body{}
	for _, m := range []body{b, more} {
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}

// response is an answer of either endpoint, streamed or not, brought to one form.
type response struct {
	status  int
	header  http.Header
	choices map[int]*gotChoice
	usage   *gotUsage
	err     *gotError
	done    bool // [DONE] came
}

type gotChoice struct {
	text     string
	logprobs []gotLogprob
	finish   string
}

type gotLogprob struct {
	token string
	value float32
	top   string
}

type gotUsage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

type gotError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Code    *string `json:"code"`
}

func (e *gotError) code() string {
	if e == nil || e.Code == nil {
		return ""
	}
	return *e.Code
}

// gotBody is a superset of all shapes.
type gotBody struct {
	Choices []struct {
		Index int
		Text  string
		Delta struct {
			Content string
		}
		Message struct {
			Content string
		}
		Logprobs *struct {
			Tokens  []string             `json:"tokens"`
			Values  []float32            `json:"token_logprobs"`
			Top     []map[string]float32 `json:"top_logprobs"`
			Content []struct {
				Token   string
				Logprob float32
				Top     json.RawMessage `json:"top_logprobs"`
			}
		}
		Finish *string `json:"finish_reason"`
	}
	Usage *gotUsage
	Error *gotError
}

func (r *response) add(b gotBody) {
	if b.Usage != nil {
		r.usage = b.Usage
	}
	if b.Error != nil {
		r.err = b.Error
	}
	for _, c := range b.Choices {
		to := r.choices[c.Index]
		if to == nil {
			to = &gotChoice{}
			r.choices[c.Index] = to
		}
		to.text += c.Text + c.Delta.Content + c.Message.Content
		if c.Finish != nil {
			to.finish = *c.Finish
		}
		if l := c.Logprobs; l != nil {
			for i, t := range l.Tokens {
				lp := gotLogprob{token: t, value: l.Values[i]}
				if i < len(l.Top) {
					lp.top = fmt.Sprint(l.Top[i]) // maps print in order of their keys
				}
				to.logprobs = append(to.logprobs, lp)
			}
			for _, t := range l.Content {
				to.logprobs = append(to.logprobs, gotLogprob{t.Token, t.Logprob, string(t.Top)})
			}
		}
	}
}

// post sends a request; the caller reads the answer.
func (s *site) post(ctx context.Context, key, path string, b body) (*http.Response, error) {
	raw, err := json.Marshal(b)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	return s.client.Do(req)
}

// ask sends a request and reads the whole answer. each, if not nil, sees every event
// of a stream as it comes.
func (s *site) ask(ctx context.Context, key, path string, b body, each func()) (*response, error) {
	resp, err := s.post(ctx, key, path, b)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	r := &response{status: resp.StatusCode, header: resp.Header, choices: map[int]*gotChoice{}}
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		raw, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil, err
		}
		var got gotBody
		if err := json.Unmarshal(raw, &got); err != nil {
			return nil, fmt.Errorf("%s: %w", raw, err)
		}
		r.add(got)
		return r, nil
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
		case data == "[DONE]":
			r.done = true
		default:
			var got gotBody
			if err := json.Unmarshal([]byte(data), &got); err != nil {
				if ctx.Err() != nil {
					return r, ctx.Err() // the caller left in the middle of a line
				}
				return nil, fmt.Errorf("%s: %w", data, err)
			}
			r.add(got)
			if each != nil {
				each()
			}
		}
	}
	return r, lines.Err()
}

// mustAsk is ask for answers that must come.
func (s *site) mustAsk(key, path string, b body) *response {
	s.t.Helper()
	r, err := s.ask(within(s.t), key, path, b, nil)
	must(s.t, err)
	return r
}

const (
	completions = "/v1/completions"
	chats       = "/v1/chat/completions"
)

// exact asks for a completion of token ids by greedy sampling, with logprobs.
func exact(prompt []int32, maxTokens int) body {
	return body{"model": "tiny", "prompt": prompt, "max_tokens": maxTokens, "temperature": 0, "logprobs": 1, "ignore_eos": true}
}

func decodeJSON(r io.Reader, v any) error { return json.NewDecoder(r).Decode(v) }
