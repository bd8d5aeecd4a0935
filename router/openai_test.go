package router

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"bulkhead/internal/sample"
	"bulkhead/internal/tokenizer"
)

// TestFields: each supported field arrives where the sampler or the relay reads it.
func TestFields(t *testing.T) {
	base := func() *generation {
		return &generation{
			chat: true, model: "m", n: 1, maxNewParam: "max_tokens",
			messages: []tokenizer.Message{{Role: "user", Content: "x"}}, params: sample.Params{Temperature: 1},
		}
	}
	seed := int64(-7)
	for _, tc := range []struct {
		more string
		want func(g *generation)
	}{
		{``, func(*generation) {}},
		{`"max_tokens":5`, func(g *generation) { g.maxNew = 5 }},
		{`"max_tokens":5,"max_completion_tokens":6`, func(g *generation) { g.maxNew, g.maxNewParam = 6, "max_completion_tokens" }},
		{`"temperature":0`, func(g *generation) { g.params.Temperature = 0 }},
		{`"temperature":null,"stop":null,"n":null,"logit_bias":null,"tools":null,"stream_options":null,"response_format":null`, func(*generation) {}},
		{`"top_p":0.5,"top_k":40,"min_p":0.1`, func(g *generation) { g.params.TopP, g.params.TopK, g.params.MinP = 0.5, 40, 0.1 }},
		{`"top_p":0`, func(g *generation) { g.params.TopP = math.SmallestNonzeroFloat32 }},
		{`"top_k":-1`, func(*generation) {}},
		{`"frequency_penalty":-2,"presence_penalty":2,"repetition_penalty":1.5`, func(g *generation) {
			g.params.FrequencyPenalty, g.params.PresencePenalty, g.params.RepetitionPenalty = -2, 2, 1.5
		}},
		{`"seed":-7`, func(g *generation) { g.seed = &seed }},
		{`"stop":"a"`, func(g *generation) { g.stop = []string{"a"} }},
		{`"stop":["a","b","c","d"]`, func(g *generation) { g.stop = []string{"a", "b", "c", "d"} }},
		{`"stop":[]`, func(*generation) {}},
		{`"n":8`, func(g *generation) { g.n = 8 }},
		{`"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false}`, func(g *generation) { g.stream, g.includeUsage = true, true }},
		{`"stream":true,"stream_options":{}`, func(g *generation) { g.stream = true }},
		{`"logit_bias":{"3":-100,"0":1.5}`, func(g *generation) { g.params.LogitBias = []sample.Bias{{ID: 3, Bias: -100}, {ID: 0, Bias: 1.5}} }},
		{`"logprobs":true`, func(g *generation) { g.params.Logprobs = true }},
		{`"logprobs":true,"top_logprobs":20`, func(g *generation) { g.params.Logprobs, g.params.TopLogprobs = true, 20 }},
		{`"ignore_eos":true,"min_tokens":3`, func(g *generation) { g.params.IgnoreEOS, g.minTokens, g.params.MinTokens = true, 3, 3 }},
		{`"response_format":{"type":"text"}`, func(*generation) {}},
		{`"user":"u","metadata":{"a":"b"},"store":false,"service_tier":"auto","safety_identifier":"s","prompt_cache_key":"k"`, func(*generation) {}},
		{`"future_field":{"a":[1]},"other":null`, func(g *generation) { g.ignored = []string{"future_field"} }},
	} {
		body := `{"model":"m","messages":[{"role":"user","content":"x"}]`
		if tc.more != "" {
			body += "," + tc.more
		}
		got, err := parseRequest([]byte(body+"}"), true)
		want := base()
		tc.want(want)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\ngot  %+v %v\nwant %+v", tc.more, got, err, want)
		}
	}
}

// TestMessages: strings, text parts, and what SDKs send back of an assistant's turn.
func TestMessages(t *testing.T) {
	body := `{"model":"m","messages":[
		{"role":"developer","content":"be kind"},
		{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
		{"role":"assistant","content":"c","refusal":null,"tool_calls":null,"audio":null,"function_call":null,"annotations":[]},
		{"content":"d","role":"user","name":"bob"}]}`
	g, err := parseRequest([]byte(body), true)
	if err != nil {
		t.Fatal(err)
	}
	want := []tokenizer.Message{{Role: "system", Content: "be kind"}, {Role: "user", Content: "a\nb"}, {Role: "assistant", Content: "c"}, {Role: "user", Content: "d"}}
	if !reflect.DeepEqual(g.messages, want) {
		t.Errorf("got %+v", g.messages)
	}
	if got := strings.Join(g.ignored, " "); got != "messages[2].annotations messages[3].name" {
		t.Errorf("ignored %q", got)
	}
}

// TestPrompts: all forms of a completion's prompt.
func TestPrompts(t *testing.T) {
	for body, want := range map[string][]prompt{
		`"hi"`:         {{text: "hi"}},
		`["a","b"]`:    {{text: "a"}, {text: "b"}},
		`[1,2,3]`:      {{ids: []int32{1, 2, 3}}},
		`[[1,2],[3]]`:  {{ids: []int32{1, 2}}, {ids: []int32{3}}},
		`["a",[1]]`:    {{text: "a"}, {ids: []int32{1}}},
		`[2147483647]`: {{ids: []int32{math.MaxInt32}}},
	} {
		g, err := parseRequest([]byte(`{"model":"m","prompt":`+body+`}`), false)
		if err != nil || !reflect.DeepEqual(g.prompts, want) {
			t.Errorf("%s: got %v, %v", body, g, err)
		}
	}
	for _, body := range []string{`""`, `[]`, `[""]`, `[[]]`, `[1,"a"]`, `[-1]`, `[1.5]`, `[2147483648]`, `null`, `{}`, `["a","b","c","d","e","f","g","h","i"]`, `[1,[2]]`} {
		if _, err := parseRequest([]byte(`{"model":"m","prompt":`+body+`}`), false); err == nil {
			t.Errorf("%s: accepted", body)
		}
	}
}

// TestRefusedFields: a field without effect is a 400 that names it, never silence.
func TestRefusedFields(t *testing.T) {
	type row struct{ more, param, code string }
	rows := []row{
		{`"model":""`, "model", ""},
		{`"temperature":2.1`, "temperature", ""}, {`"temperature":"1"`, "temperature", ""}, {`"temperature":1e999`, "temperature", ""},
		{`"top_p":1.1`, "top_p", ""}, {`"top_k":-2`, "top_k", ""}, {`"top_k":1.5`, "top_k", ""}, {`"min_p":-0.1`, "min_p", ""},
		{`"frequency_penalty":2.5`, "frequency_penalty", ""}, {`"presence_penalty":-2.5`, "presence_penalty", ""}, {`"repetition_penalty":0`, "repetition_penalty", ""},
		{`"max_tokens":0`, "max_tokens", ""}, {`"max_tokens":99999999999999999999`, "max_tokens", ""}, {`"max_completion_tokens":-1`, "max_completion_tokens", ""},
		{`"n":0`, "n", ""}, {`"n":9`, "n", ""}, {`"seed":1.5`, "seed", ""},
		{`"stop":["a","b","c","d","e"]`, "stop", ""}, {`"stop":""`, "stop", ""}, {`"stop":[1]`, "stop[0]", ""}, {`"stop":"` + strings.Repeat("a", 1025) + `"`, "stop", ""},
		{`"stream":1`, "stream", ""}, {`"stream_options":{"include_usage":true}`, "stream_options", ""},
		{`"stream":true,"stream_options":{"include_obfuscation":true}`, "stream_options.include_obfuscation", "unsupported_parameter"},
		{`"logprobs":1`, "logprobs", ""}, {`"top_logprobs":1`, "top_logprobs", ""}, {`"logprobs":true,"top_logprobs":21`, "top_logprobs", ""},
		{`"logit_bias":{"a":1}`, "logit_bias", ""}, {`"logit_bias":{"01":1}`, "logit_bias", ""}, {`"logit_bias":{"-1":1}`, "logit_bias", ""}, {`"logit_bias":{"1":101}`, "logit_bias.1", ""},
		{`"logit_bias":{` + biases(301) + `}`, "logit_bias", ""},
		{`"max_tokens":2,"min_tokens":3`, "min_tokens", ""},
		{`"response_format":{"type":"json_object"}`, "response_format", "unsupported_parameter"},
		{`"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{}}}`, "response_format", "unsupported_parameter"},
		{`"kv_transfer_params":{}`, "kv_transfer_params", "unsupported_parameter"}, {`"bootstrap_host":"h"`, "bootstrap_host", "unsupported_parameter"},
		{`"bootstrap_room":1`, "bootstrap_room", "unsupported_parameter"}, {`"cache_salt":"s"`, "cache_salt", "unsupported_parameter"}, {`"Cache_Salt":"s"`, "Cache_Salt", "unsupported_parameter"},
		{`"request_id":"r"`, "request_id", "unsupported_parameter"}, {`"rid":"r"`, "rid", "unsupported_parameter"}, {`"tenant":"t"`, "tenant", "unsupported_parameter"},
		{`"bulkhead_decode":"d"`, "bulkhead_decode", "unsupported_parameter"}, {`"prefill":"p"`, "prefill", "unsupported_parameter"},
	}
	for _, name := range unsupportedFields {
		rows = append(rows, row{`"` + name + `":[]`, name, "unsupported_parameter"})
	}
	for _, r := range rows {
		body := `{"model":"m","messages":[{"role":"user","content":"x"}],` + r.more + `}`
		if strings.HasPrefix(r.more, `"model"`) {
			body = `{"messages":[{"role":"user","content":"x"}],` + r.more + `}`
		}
		_, err := parseRequest([]byte(body), true)
		if err == nil {
			t.Errorf("%.60s: accepted", r.more)
			continue
		}
		if e := asAPIError(err); e.param != r.param || e.row().code != r.code || e.row().status != 400 {
			t.Errorf("%.60s: got param %q code %q: %s; want param %q code %q", r.more, e.param, e.row().code, e.msg, r.param, r.code)
		}
	}
	for more, param := range map[string]string{
		`"echo":true`: "echo", `"suffix":"s"`: "suffix", `"best_of":3,"n":2`: "best_of", `"logprobs":21`: "logprobs", `"messages":[]`: "", `"n":8,"prompt":["a","b"]`: "n",
	} {
		body := `{"model":"m","prompt":"x",` + more + `}`
		if strings.Contains(more, `"prompt"`) {
			body = `{"model":"m",` + more + `}`
		}
		_, err := parseRequest([]byte(body), false)
		if param == "" { // of the other endpoint: unknown here, so read past and told
			if err != nil {
				t.Errorf("%s: %v", more, err)
			}
			continue
		}
		if err == nil || asAPIError(err).param != param {
			t.Errorf("%s: got %v, want an error of %s", more, err, param)
		}
	}
	for _, m := range []struct{ message, param string }{
		{`{"role":"tool","content":"x","tool_call_id":"a"}`, "messages[0].tool_call_id"},
		{`{"role":"tool","content":"x"}`, "messages[0].role"},
		{`{"role":"alien","content":"x"}`, "messages[0].role"},
		{`{"content":"x"}`, "messages[0].role"},
		{`{"role":"user"}`, "messages[0].content"},
		{`{"role":"user","content":null}`, "messages[0].content"},
		{`{"role":"user","content":1}`, "messages[0].content"},
		{`{"role":"user","content":[]}`, "messages[0].content"},
		{`{"role":"user","content":["x"]}`, "messages[0].content[0]"},
		{`{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}`, "messages[0].content[0].image_url"},
		{`{"role":"user","content":[{"type":"image"}]}`, "messages[0].content[0].type"},
		{`{"role":"user","content":[{"type":"text"}]}`, "messages[0].content[0].text"},
		{`{"role":"assistant","content":"x","tool_calls":[{}]}`, "messages[0].tool_calls"},
		{`"x"`, "messages[0]"},
	} {
		_, err := parseRequest([]byte(`{"model":"m","messages":[`+m.message+`]}`), true)
		if err == nil || asAPIError(err).param != m.param {
			t.Errorf("%s: got %v, want an error of %s", m.message, err, m.param)
		}
	}
	for _, list := range []string{`[]`, `{}`, `"x"`, `null`, `[` + strings.Repeat(`{"role":"user","content":"x"},`, 1024) + `{"role":"user","content":"x"}]`,
		`[{"role":"user","content":[` + strings.Repeat(`{"type":"text","text":"a"},`, 64) + `{"type":"text","text":"a"}]}]`} {
		if _, err := parseRequest([]byte(`{"model":"m","messages":`+list+`}`), true); err == nil {
			t.Errorf("messages %.40s: accepted", list)
		}
	}
}

func biases(n int) string {
	var all []string
	for i := range n {
		all = append(all, `"`+itoa(i)+`":1`)
	}
	return strings.Join(all, ",")
}

func itoa(i int) string { return strings.TrimPrefix(strings.TrimSuffix(index("", i), "]"), "[") }
