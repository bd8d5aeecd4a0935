package openai

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// server answers every request in one way.
func server(t *testing.T, status int, header http.Header, body string) *Client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		for k, v := range header {
			w.Header()[k] = v
		}
		w.WriteHeader(status)
		io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	c, err := New(s.URL+"/v1/", 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

var events = http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}}

// goal: an answer is brought to one form, whatever server and endpoint it is from.
func TestShapes(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status int
		header http.Header
		body   string
		want   Answer
	}{
		{"completion", 200, nil,
			`{"choices":[{"index":0,"text":"ab","logprobs":{"tokens":["a","b"],"token_logprobs":[-0.5,-1]},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":0}}}`,
			Answer{Text: "ab", Tokens: []Token{{"a", -0.5}, {"b", -1}}, Finish: "stop", Usage: &Usage{3, 2, 5, 0, true}}},
		{"chat", 200, nil,
			`{"choices":[{"message":{"role":"assistant","content":"ab"},"logprobs":{"content":[{"token":"ab","logprob":-2}]},"finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4,"prompt_tokens_details":null}}`,
			Answer{Text: "ab", Tokens: []Token{{"ab", -2}}, Finish: "length", Usage: &Usage{3, 1, 4, 0, false}}},
		{"chat stream", 200, events,
			": keepalive\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\ndata:{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\r\n\r\nevent: x\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":null}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2,\"total_tokens\":3}}\n\n: bye\n\ndata: [DONE]\n",
			Answer{Stream: true, Text: "a", Finish: "stop", Usage: &Usage{1, 2, 3, 0, false}, Done: true, Held: true}},
		{"stream without an end", 200, events, "data: {\"choices\":[{\"text\":\"a\"}]}\n\n: late\n\n", Answer{Stream: true, Text: "a"}},
		{"text after an error", 200, events, "data: {\"error\":{\"message\":\"m\",\"type\":\"t\",\"code\":null}}\n\ndata: {\"choices\":[{\"text\":\"a\"}]}", Answer{Stream: true, Text: "a", Err: &Error{"m", "t", ""}, After: true}},
		{"event after the end", 200, events, "data: [DONE]\n\ndata: {}\n\n", Answer{Stream: true, Done: true, After: true}},
		{"error, OpenAI", 400, nil, `{"error":{"message":"m","type":"t","param":null,"code":"context_length_exceeded"}}`, Answer{Err: &Error{"m", "t", "context_length_exceeded"}}},
		{"error, vLLM", 400, nil, `{"error":{"message":"m","type":"BadRequestError","code":400}}`, Answer{Err: &Error{"m", "BadRequestError", "400"}}},
		{"error, SGLang", 400, nil, `{"object":"error","message":"m","code":400}`, Answer{Err: &Error{Message: "m"}}},
		{"error, a string", 400, nil, `{"error":"m"}`, Answer{Err: &Error{Message: "unreadable"}}},
		{"error, no JSON", 502, nil, `<html>`, Answer{}},
		{"busy", 429, http.Header{"Retry-After": {"2"}}, ``, Answer{RetryAfter: 2 * time.Second}},
		{"busy, finer", 503, http.Header{"Retry-After": {"2"}, "Retry-After-Ms": {"50"}}, ``, Answer{RetryAfter: 50 * time.Millisecond}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := server(t, tt.status, tt.header, tt.body).Do(context.Background(), "k", Request{Model: "m", Text: "x", MaxTokens: 1})
			if err != nil {
				t.Fatal(err)
			}
			if got.Status != tt.status || got.Total <= 0 {
				t.Errorf("status %d, total %s", got.Status, got.Total)
			}
			if tt.want.Stream && tt.want.Text != "" && len(got.Events) != 1 {
				t.Errorf("%d pieces of text", len(got.Events))
			}
			line := func(a *Answer) string {
				return fmt.Sprintf("%q %v %q %+v %+v stream=%v done=%v after=%v held=%v %s", a.Text, a.Tokens, a.Finish, a.Usage, a.Err, a.Stream, a.Done, a.After, a.Held, a.RetryAfter)
			}
			if line(got) != line(&tt.want) {
				t.Errorf("got  %s\nwant %s", line(got), line(&tt.want))
			}
		})
	}
}

// goal: a hostile server only causes errors, and bounded memory.
func TestHostile(t *testing.T) {
	for _, tt := range []struct {
		name   string
		header http.Header
		body   string
		want   error
	}{
		{"no JSON", nil, "hello", ErrMalformed},
		{"a list", nil, "[]", ErrMalformed},
		{"text that is a number", nil, `{"choices":[{"text":5}]}`, ErrMalformed},
		{"another choice", nil, `{"choices":[{"index":1,"text":"a"}]}`, ErrMalformed},
		{"token without a value", nil, `{"choices":[{"text":"a","logprobs":{"tokens":["a"],"token_logprobs":[]}}]}`, ErrMalformed},
		{"null value", nil, `{"choices":[{"text":"a","logprobs":{"tokens":["a"],"token_logprobs":[null]}}]}`, ErrMalformed},
		{"half an event", events, "data: {\"choices\":\n\n", ErrMalformed},
		{"a long line", events, "data: " + strings.Repeat("x", lineBytesMax+1<<17), ErrTooLarge},
		{"a long comment", events, ":" + strings.Repeat("x", lineBytesMax+1<<17), ErrTooLarge},
		{"a long body", nil, `{"choices":[{"text":"` + strings.Repeat("x", answerBytesMax) + `"}]}`, ErrTooLarge},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, err := server(t, 200, tt.header, tt.body).Do(context.Background(), "k", Request{Model: "m", Text: "a secret prompt"})
			if !errors.Is(err, tt.want) || a == nil || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
}

func FuzzStream(f *testing.F) {
	f.Add("data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: [DONE]\n\n")
	f.Add(":\n\ndata:{\"error\":1}\r\n")
	f.Fuzz(func(t *testing.T, s string) {
		a := &Answer{Stream: true}
		err := a.readStream(strings.NewReader(s), time.Now(), nil)
		if err != nil && !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrTooLarge) {
			t.Error(err)
		}
	})
}

// goal: what is sent is what the APIs know.
func TestRequests(t *testing.T) {
	for want, r := range map[string]Request{
		`{"model":"m","prompt":"x","max_tokens":3,"temperature":0}`:                                                                                        {Model: "m", Text: "x", MaxTokens: 3},
		`{"model":"m","prompt":[5,6],"max_tokens":3,"temperature":0,"stream":true,"stream_options":{"include_usage":true},"logprobs":1,"ignore_eos":true}`: {Model: "m", IDs: []int32{5, 6}, MaxTokens: 3, Stream: true, Logprobs: true, IgnoreEOS: true},
		`{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":3,"temperature":0,"logprobs":true}`:                                          {Model: "m", Chat: true, Text: "x", MaxTokens: 3, Logprobs: true},
	} {
		got, err := r.body()
		if err != nil || string(got) != want {
			t.Errorf("%v\ngot  %s\nwant %s", err, got, want)
		}
	}
}

// goal: an address may hold a password, and no error shows it.
func TestAddress(t *testing.T) {
	for _, address := range []string{"", "localhost:80", "ftp://user:secret@h/", "http://user:secret@h:bad/", "http:///v1"} {
		if _, err := New(address, 1); !errors.Is(err, ErrURL) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", address, err)
		}
	}
	c, err := New("http://user:secret@127.0.0.1:1/v1", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Do(context.Background(), "k", Request{}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("nobody is there: %v", err)
	}
}

// goal: the first text is told as it comes, and who goes away then gets what there was.
func TestCancel(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {\"choices\":[{\"text\":\"a\"}]}\n\n")
		w.(http.Flusher).Flush()
		<-req.Context().Done()
	}))
	defer s.Close()
	c, err := New(s.URL, 1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	a, err := c.Do(ctx, "k", Request{Stream: true, OnText: cancel})
	if !errors.Is(err, context.Canceled) || a == nil || a.Text != "a" {
		t.Errorf("%v %+v", err, a)
	}
}

// goal: what a server does not take is found out, and is not an error.
func TestDiscover(t *testing.T) {
	refuse, status := "", 400
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		raw, _ := io.ReadAll(req.Body)
		has := func(what string) bool {
			return strings.Contains(refuse, what) && (strings.Contains(string(raw), what) || strings.Contains(req.URL.Path, what))
		}
		if req.URL.Path == "/v1/models" {
			io.WriteString(w, `{"data":[{"id":"other"},{"id":"m","meta":{"n_ctx":77}}]}`)
			return
		}
		var b struct {
			Logprobs json.RawMessage
			Prompt   json.RawMessage
		}
		json.Unmarshal(raw, &b)
		if strings.Contains(refuse, "list") && strings.HasPrefix(string(b.Prompt), "[") || has("ignore_eos") || has("/completions") || has("/chat/") {
			w.Header().Set("retry-after-ms", "1")
			w.WriteHeader(status)
			return
		}
		logprobs := `null`
		if len(b.Logprobs) > 0 && !strings.Contains(refuse, "logprobs") {
			logprobs = `{"tokens":["a"],"token_logprobs":[-1],"content":[]}`
		}
		fmt.Fprintf(w, `{"choices":[{"text":"a","message":{"content":""},"logprobs":%s}],"usage":{"prompt_tokens":%d}}`, logprobs, 2*len(words))
	}))
	defer s.Close()
	c, err := New(s.URL, 1)
	if err != nil {
		t.Fatal(err)
	}
	all := Abilities{Model: "m", Window: 77, Completions: true, Chat: true, IDs: true, TextLogprobs: true, ChatLogprobs: true, IgnoreEOS: true, TokensPerWord: 2}
	for _, tt := range []struct {
		refuse string
		change func(*Abilities)
	}{
		{"", func(*Abilities) {}},
		{"list", func(a *Abilities) { a.IDs = false }},
		{"ignore_eos", func(a *Abilities) { a.IgnoreEOS = false }},
		{"logprobs", func(a *Abilities) { a.TextLogprobs, a.ChatLogprobs = false, false }},
		{"/chat/", func(a *Abilities) { a.Chat, a.ChatLogprobs = false, false }},
	} {
		refuse = tt.refuse
		want := all
		tt.change(&want)
		got, err := c.Discover(context.Background(), "k", "m")
		got.Sent = 0
		if err != nil || got != want {
			t.Errorf("without %q: %v\ngot  %+v\nwant %+v", tt.refuse, err, got, want)
		}
	}
	// One that breaks over what it does not do, and one that is only busy.
	refuse, status = "ignore_eos", 500
	if got, err := c.Discover(context.Background(), "k", "m"); err != nil || got.IgnoreEOS || !got.Chat {
		t.Errorf("status 500: %v %+v", err, got)
	}
	status = 503
	if got, err := c.Discover(context.Background(), "k", "m"); err == nil {
		t.Errorf("status 503: %+v", got)
	}
	status = 400
	refuse = "/completions" // a part of both paths
	if _, err := c.Discover(context.Background(), "k", "m"); !errors.Is(err, ErrUnusable) {
		t.Errorf("nothing: %v", err)
	}
}

func TestFiller(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	a, b := Filler(rng, 100, 2), Filler(rng, 100, 2)
	if n := len(strings.Fields(a)); n != 50 || a == b || !slices.Contains(words, strings.Fields(a)[0]) {
		t.Errorf("%d words", n)
	}
	if n := len(strings.Fields(Filler(rng, 100, 0))); n != 100 {
		t.Errorf("%d words where nothing is known", n)
	}
}
