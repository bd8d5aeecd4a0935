package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"bulkhead/decode"
	"bulkhead/internal/cluster"
	"bulkhead/internal/kv"
	"bulkhead/internal/metrics"
	"bulkhead/internal/sample"
	"bulkhead/prefill"
	"bulkhead/router"
)

// The shape of the incident of 2026: the model's window is larger than what the
// prefill pool holds, and decode's pool holds more than either knows.
const (
	incidentWindow  = 16384
	incidentPrefill = 10645
	incidentDecode  = 20000
)

func incidentSite(t *testing.T) *site {
	return newSite(t, siteConfig{prefillCapacity: incidentPrefill, decodeCapacity: incidentDecode, window: incidentWindow})
}

// like compares an answer with the generation of one engine without a bus:
// text and every logprob, bit for bit.
func like(r *response, want []sample.Token) error {
	c := r.choices[0]
	if r.status != 200 || r.err != nil || c == nil {
		return fmt.Errorf("status %d, error %+v; want an answer", r.status, r.err)
	}
	if len(c.logprobs) != len(want) {
		return fmt.Errorf("%d tokens, want %d", len(c.logprobs), len(want))
	}
	tok, _ := edge()
	d := tok.NewDecoder()
	var text strings.Builder
	for i, w := range want {
		text.WriteString(d.Push(w.ID))
		if c.logprobs[i].value != w.Logprob {
			return fmt.Errorf("token %d has logprob %v, want %v", i, c.logprobs[i].value, w.Logprob)
		}
	}
	if text.WriteString(d.Flush()); c.text != text.String() {
		return fmt.Errorf("text %q, want %q", c.text, text.String())
	}
	return nil
}

// fill has another tenant write into every page of both pools.
func (s *site) fill() {
	s.t.Helper()
	for i := range 2 { // two of these leave no decode page untouched
		prompt := tokens(incidentPrefill - 8)
		prompt[0] = int32(100 + i)
		if r := s.mustAsk(umbrellaKey, completions, exact(prompt, 2)); r.status != 200 {
			s.t.Fatalf("the other tenant got %d %+v", r.status, r.err)
		}
	}
}

// goal: the incident cannot happen. method: its numbers, asked for from both
// sides of every limit, streaming or not, on fresh pools and on pools that are
// full of another tenant's leftovers: over the limit it is always 400 with both numbers and not
// one message on the bus, at the limit the very answer of one process.
func TestIncident(t *testing.T) {
	s := incidentSite(t)
	const maxTokens = 4
	long := tokens(2 * incidentWindow)
	want := map[int][]sample.Token{}
	for _, n := range []int{incidentPrefill - 1, incidentPrefill} {
		want[n] = whole(t, long[:n-maxTokens], sample.Params{MaxNew: maxTokens, Logprobs: true, TopLogprobs: 1, IgnoreEOS: true})
	}
	for _, before := range []string{"fresh", "used by another tenant"} {
		if before != "fresh" {
			s.fill()
		}
		for _, total := range []int{incidentPrefill - 1, incidentPrefill, incidentPrefill + 1, incidentWindow - 1, incidentWindow, incidentWindow + 1, 2 * incidentWindow} {
			for _, stream := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/stream=%v", before, total, stream), func(t *testing.T) {
					s.baseline()
					messages, _ := s.sent.work()
					r := s.mustAsk(acmeKey, completions, exact(long[:total-maxTokens], maxTokens).with(body{"stream": stream}))
					if total <= incidentPrefill {
						if err := like(r, want[total]); err != nil {
							t.Error(err)
						}
						if stream != r.done || r.header.Get("x-bulkhead-receipt") == "" {
							t.Errorf("[DONE] %v, receipt %q", r.done, r.header.Get("x-bulkhead-receipt"))
						}
						return
					}
					value := total
					if prompt := total - maxTokens; prompt > incidentPrefill {
						value = prompt // alone over the limit
					}
					wantTooLong(t, r, incidentPrefill, value)
					if now, by := s.sent.work(); now != messages {
						t.Errorf("%d messages on the bus for a request that is refused: %v", now-messages, by)
					}
				})
			}
		}
		// A prompt that leaves no room for one token, and one that says nothing of how many.
		for _, n := range []int{incidentPrefill, incidentPrefill + 1, incidentWindow} {
			b := exact(long[:n], 1)
			delete(b, "max_tokens")
			messages, _ := s.sent.work()
			r := s.mustAsk(acmeKey, completions, b)
			if r.status != 400 || r.err.code() != "context_length_exceeded" {
				t.Errorf("prompt of %d without max_tokens: %d %+v", n, r.status, r.err)
			}
			if now, by := s.sent.work(); now != messages {
				t.Errorf("prompt of %d: %d messages on the bus: %v", n, now-messages, by)
			}
		}
	}
	s.baseline()
}

func wantTooLong(t *testing.T, r *response, limit, value int) {
	t.Helper()
	switch {
	case r.status != http.StatusBadRequest || r.err == nil || r.err.code() != "context_length_exceeded" || r.err.Type != "invalid_request_error":
		t.Errorf("status %d, error %+v, choices %v; want 400 context_length_exceeded", r.status, r.err, r.choices)
	case !strings.Contains(r.err.Message, strconv.Itoa(limit)) || !strings.Contains(r.err.Message, strconv.Itoa(value)):
		t.Errorf("message %q does not name %d and %d", r.err.Message, limit, value)
	}
}

// goal: what does not fit is said at the start and in the list of models.
// method: cluster.New itself, without and with the clamp.
func TestIncidentWindow(t *testing.T) {
	tok, header := edge()
	config := func(clamp bool, ln net.Listener) cluster.Config {
		return cluster.Config{
			Engine: engine(), Prefill: 1, Decode: 1,
			PrefillNode: prefill.Config{Capacity: incidentPrefill, Window: incidentWindow, ClampWindow: clamp},
			DecodeNode:  decode.Config{Capacity: incidentDecode, Window: incidentWindow, ClampWindow: clamp},
			Router:      router.Config{Tenants: tenants(t), Tokenizer: tok, Metadata: header, ModelID: "tiny"},
			Listener:    ln, Metrics: metrics.New(), Log: testLog(),
		}
	}
	_, err := cluster.New(within(t), config(false, nil))
	var no *kv.WindowError
	if !errors.As(err, &no) {
		t.Fatalf("a window over the capacity: %v, want a *kv.WindowError", err)
	}
	for _, n := range []string{strconv.Itoa(incidentWindow), strconv.Itoa(incidentPrefill), "clamp"} {
		if !strings.Contains(err.Error(), n) {
			t.Errorf("%q does not name %s", err, n)
		}
	}

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	c, err := cluster.New(within(t), config(true, ln))
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() { stop(); must(t, <-done) })
	must(t, c.Ready(within(t)))
	s := &site{t: t, url: "http://" + ln.Addr().String(), client: &http.Client{Timeout: waitMax}}
	t.Cleanup(s.client.CloseIdleConnections)
	req, err := http.NewRequestWithContext(within(t), http.MethodGet, s.url+"/v1/models", nil)
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+acmeKey)
	resp, err := s.client.Do(req)
	must(t, err)
	defer resp.Body.Close()
	var list struct {
		Data []struct {
			Max int `json:"max_model_len"`
		}
	}
	must(t, decodeJSON(resp.Body, &list))
	if len(list.Data) != 1 || list.Data[0].Max != incidentPrefill {
		t.Errorf("/v1/models shows %+v, want a window of %d", list.Data, incidentPrefill)
	}
	wantTooLong(t, s.mustAsk(acmeKey, completions, exact(tokens(incidentPrefill), 1)), incidentPrefill, incidentPrefill+1)
	r := s.mustAsk(acmeKey, completions, exact(tokens(100), 4))
	must(t, like(r, whole(t, tokens(100), sample.Params{MaxNew: 4, Logprobs: true, IgnoreEOS: true})))
}
