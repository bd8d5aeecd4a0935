package router

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing/iotest"
)

// secretText stands in every prompt, and may come back in no error.
const secretText = "SECRETSECRET"

// hostile is a request on its way to being spoiled.
type hostile struct {
	rng    *rand.Rand
	method string
	path   string
	header http.Header
	body   []byte
	cut    bool     // the body breaks off
	length int64    // of Content-Length, if not the body's
	how    []string // the spoilers that were used
}

// goodBodies are what the generator starts from.
var goodBodies = []struct{ path, body string }{
	{chatPath, `{"model":"org/test:model","messages":[{"role":"user","content":"SECRETSECRET"}]}`},
	{chatPath, `{"model":"org/test:model","messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"SECRETSECRET"}]}],"stream":true,"stream_options":{"include_usage":true}}`},
	{chatPath, `{"model":"org/test:model","messages":[{"role":"user","content":"SECRETSECRET"}],"max_tokens":5,"temperature":0.5,"top_p":0.9,"top_k":40,"seed":7,"n":2,"stop":["a","b"],"logit_bias":{"5":-1.5}}`},
	{chatPath, `{"model":"org/test:model","messages":[{"role":"user","content":"SECRETSECRET"}],"max_completion_tokens":9,"logprobs":true,"top_logprobs":2,"min_tokens":1,"frequency_penalty":1,"presence_penalty":-1,"user":"u","metadata":{"a":"b"}}`},
	{textPath, `{"model":"org/test:model","prompt":"SECRETSECRET"}`},
	{textPath, `{"model":"org/test:model","prompt":["SECRETSECRET","b"],"max_tokens":3,"stream":true,"logprobs":1}`},
	{textPath, `{"model":"org/test:model","prompt":[104,105,106],"max_tokens":4,"echo":false,"best_of":1,"ignore_eos":true}`},
	{textPath, `{"model":"org/test:model","prompt":[[104],[105,106]],"n":2,"min_p":0.1,"repetition_penalty":1.1,"response_format":{"type":"text"}}`},
}

func newHostile(rng *rand.Rand) *hostile {
	good := goodBodies[rng.IntN(len(goodBodies))]
	h := &hostile{rng: rng, method: http.MethodPost, path: good.path, body: []byte(good.body), length: -1, header: http.Header{
		"Content-Type": {"application/json"}, "Authorization": {"Bearer " + testKey},
	}}
	for range 1 + rng.IntN(3) {
		s := spoilers[rng.IntN(len(spoilers))]
		s.spoil(h)
		h.how = append(h.how, s.name)
	}
	return h
}

func (h *hostile) request() *http.Request {
	var body io.Reader = bytes.NewReader(h.body)
	if h.cut {
		body = io.MultiReader(body, iotest.ErrReader(errors.New("reset by peer")))
	}
	req := httptest.NewRequest(http.MethodPost, "/", body)
	req.Method, req.URL.Path, req.Header = h.method, h.path, h.header
	req.ContentLength = int64(len(h.body))
	if h.length >= 0 {
		req.ContentLength = h.length
	}
	return req
}

// at is a random place in the body, its end included.
func (h *hostile) at() int { return h.rng.IntN(len(h.body) + 1) }

func (h *hostile) insert(at int, b string) { h.body = slices.Insert(h.body, at, []byte(b)...) }

func pick[T any](rng *rand.Rand, list []T) T { return list[rng.IntN(len(list))] }

// hostileValues are put where another value belongs, as JSON.
var hostileValues = []string{
	`null`, `true`, `false`, `0`, `-1`, `1`, `2147483647`, `2147483648`, `9223372036854775807`, `9223372036854775808`, `1e308`, `1e309`, `-1e999`, `0.1e-400`, `1.5`, `-0`, `-0.0`,
	`123456789012345678901234567890123456789012345678901234567890`, `""`, `"x"`, `"\u0000"`, `"\ud83d\ude00"`, `"<|im_end|>"`, `"<|im_start|>system"`, `"../../etc/passwd"`, `[]`, `{}`, `[[]]`, `[{}]`, `{"a":{}}`, `[null]`, `[1,"a"]`, `["a",1]`,
	`[[[[1]]]]`, `{"":""}`, `{"type":"text"}`, `{"type":"json_schema"}`, `{"258":1}`, `{"1":1e9}`, `[258]`, `[-1]`, `[4294967296]`, `"user"`, `"stop"`,
}

var hostileKeys = []string{"tools", "cache_salt", "kv_transfer_params", "request_id", "tenant", "future", "", "MODEL", "Messages", "n", "stream", "prompt", "messages", "logit_bias", "__proto__", "\u0000", "ſtream", "model ", "stop", "max_tokens", "ignore_eos"}

// brokenText are bytes that are no UTF-8 or no string of JSON.
var brokenText = []string{"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xe2\x82", `\ud800`, `\udc00\ud800`, `\u12`, `\x41`, "\x00", "\x1f", "\n", "\ufeff", "\u2028", "\\", "\""}

var spoilers = []struct {
	name  string
	spoil func(h *hostile)
}{
	{"flip", func(h *hostile) {
		for range 1 + h.rng.IntN(4) {
			if len(h.body) > 0 {
				h.body[h.rng.IntN(len(h.body))] ^= 1 << h.rng.IntN(8)
			}
		}
	}},
	{"truncate", func(h *hostile) { h.body = h.body[:h.at()] }},
	{"insert", func(h *hostile) {
		h.insert(h.at(), pick(h.rng, []string{"{", "}", "[", "]", ",", ":", "\"", " ", "null", "{},", "0", "-", "e", "."}))
	}},
	{"repeat", func(h *hostile) {
		a, b := h.at(), h.at()
		part := string(h.body[min(a, b):max(a, b)])
		h.insert(h.at(), strings.Repeat(part, 1+h.rng.IntN(3)))
	}},
	{"splice", func(h *hostile) {
		other := pick(h.rng, goodBodies).body
		h.body = append(h.body[:h.at()], other[h.rng.IntN(len(other)):]...)
	}},
	{"utf-8", func(h *hostile) { h.insert(h.at(), pick(h.rng, brokenText)) }},
	{"type", func(h *hostile) { h.edit(func(any) any { return json.RawMessage(pick(h.rng, hostileValues)) }) }},
	{"member", func(h *hostile) {
		h.edit(func(v any) any {
			if m, ok := v.(map[string]any); ok {
				m[pick(h.rng, hostileKeys)] = json.RawMessage(pick(h.rng, hostileValues))
			}
			return v
		})
	}},
	{"missing", func(h *hostile) {
		h.edit(func(v any) any {
			if m, ok := v.(map[string]any); ok && len(m) > 0 {
				delete(m, pick(h.rng, slices.Sorted(maps.Keys(m))))
			}
			return v
		})
	}},
	{"duplicate", func(h *hostile) {
		key := pick(h.rng, []string{"model", "messages", "prompt", "n", "stream", "max_tokens", `mod\u0065l`, "seed"})
		if at := bytes.IndexByte(h.body, '{'); at >= 0 {
			h.insert(at+1, `"`+key+`":`+pick(h.rng, hostileValues)+`,`)
		}
	}},
	{"nesting", func(h *hostile) {
		depth := pick(h.rng, []int{2, 31, 32, 33, 1000, 10_000})
		open, end := "[", "]"
		if h.rng.IntN(2) == 0 {
			open, end = `{"a":`, "}"
		}
		v := strings.Repeat(open, depth) + "1" + strings.Repeat(end, depth)
		h.edit(func(any) any { return json.RawMessage(v) })
	}},
	{"size", func(h *hostile) {
		switch h.rng.IntN(40) { // the large ones are rare, for the time they take
		case 0:
			h.insert(h.at(), strings.Repeat("{},", 1<<20))
		case 1:
			h.body = append(h.body, bytes.Repeat([]byte(" "), 9<<20)...)
		case 2:
			h.length = 1 << 40
		case 3:
			h.edit(func(any) any { return strings.Repeat("long ", 50_000) })
		default:
			h.edit(func(any) any { return strings.Repeat("word ", h.rng.IntN(200)) })
		}
	}},
	{"broken off", func(h *hostile) { h.cut, h.body = true, h.body[:h.at()] }},
	{"content type", func(h *hostile) {
		h.header["Content-Type"] = []string{pick(h.rng, []string{"", "text/plain", "application/json; charset=utf-16", "application/json;;;", "application/json; charset=\xff", "multipart/form-data", "application/jsonx", ";", strings.Repeat("a", 10_000)})}
	}},
	{"encoding", func(h *hostile) {
		h.header["Content-Encoding"] = []string{pick(h.rng, []string{"gzip", "identity", "deflate, gzip", "\x00"})}
	}},
	{"authorization", func(h *hostile) {
		h.header["Authorization"] = pick(h.rng, [][]string{nil, {""}, {"Bearer"}, {"Bearer "}, {"Basic " + testKey}, {"bearer  " + testKey}, {testKey}, {"Bearer " + testKey, "Bearer " + otherKey}, {"Bearer " + otherKey}, {"Bearer " + testKey + "\x00"}, {"Bearer " + strings.Repeat("k", 100_000)}})
	}},
	{"headers", func(h *hostile) {
		for range 1 + h.rng.IntN(5) {
			name := pick(h.rng, []string{"X-Request-Id", "X-Forwarded-For", "Openai-Organization", "Expect", "Transfer-Encoding", "X-Tenant", "Host", "Content-Length", "Accept", "Idempotency-Key", "Traceparent", "Connection"})
			h.header[name] = []string{pick(h.rng, []string{"", "-1", "100-continue", "chunked", "acme", strings.Repeat("x", 5000), "a\r\nb: c", "\xff\xfe", "18446744073709551616"})}
		}
	}},
	{"method", func(h *hostile) {
		h.method = pick(h.rng, []string{"GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "POST ", "post", "\x00"})
	}},
	{"path", func(h *hostile) {
		h.path = pick(h.rng, []string{"/", "", "/v1", "/v1/chat/completions/", "//v1/chat/completions", "/v1/../v1/completions", "/v1/completions\x00", "/V1/completions", "/v1/models", "/v1/models/", "/v1/models/" + strings.Repeat("m", 5000), "/v1/models/../../etc", "/health", "/metrics", "/debug/pprof/", "/v1/embeddings"})
	}},
}

// edit changes one value of the body, at a random place of its tree. A body that is no JSON any
// more stays as it is.
func (h *hostile) edit(change func(any) any) {
	var root any
	d := json.NewDecoder(bytes.NewReader(h.body))
	d.UseNumber()
	if d.Decode(&root) != nil {
		return
	}
	root = h.editAt(root, change)
	if b, err := json.Marshal(root); err == nil { // not valid where a hostile value is none
		h.body = b
	}
}

func (h *hostile) editAt(v any, change func(any) any) any {
	switch v := v.(type) {
	case map[string]any:
		if len(v) > 0 && h.rng.IntN(4) != 0 {
			key := pick(h.rng, slices.Sorted(maps.Keys(v)))
			v[key] = h.editAt(v[key], change)
			return v
		}
	case []any:
		if len(v) > 0 && h.rng.IntN(4) != 0 {
			i := h.rng.IntN(len(v))
			v[i] = h.editAt(v[i], change)
			return v
		}
	}
	return change(v)
}
