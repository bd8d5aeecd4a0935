package router

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"bulkhead/internal/sample"
)

// stable replaces what differs from run to run in an answer.
func stable(s string) string {
	s = regexp.MustCompile(`"id":"(chatcmpl|cmpl)-[a-z2-7]{26}"`).ReplaceAllString(s, `"id":"$1-ID"`)
	return regexp.MustCompile(`"created":\d+`).ReplaceAllString(s, `"created":NOW`)
}

const (
	head     = `{"id":"chatcmpl-ID","object":"chat.completion.chunk","created":NOW,"model":"org/test:model","system_fingerprint":"fp_abcd00000000","choices":`
	textHead = `{"id":"cmpl-ID","object":"text_completion","created":NOW,"model":"org/test:model","system_fingerprint":"fp_abcd00000000","choices":`
)

// TestChatWhole: the whole object, byte for byte, and its headers.
func TestChatWhole(t *testing.T) {
	w := newWorld(t, nil)
	defer w.close()
	a := w.post(chatPath, chat(`,"max_tokens":10`))
	// <|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n is 1+5+2+1+1+1+10 tokens here.
	want := `{"id":"chatcmpl-ID","object":"chat.completion","created":NOW,"model":"org/test:model","system_fingerprint":"fp_abcd00000000",` +
		`"choices":[{"index":0,"message":{"role":"assistant","content":"hello","refusal":null},"logprobs":null,"finish_reason":"stop"}],` +
		`"usage":{"prompt_tokens":21,"completion_tokens":6,"total_tokens":27,"prompt_tokens_details":{"cached_tokens":3}}}` + "\n"
	if got := stable(a.Body.String()); a.Code != 200 || got != want {
		t.Errorf("status %d\ngot  %s\nwant %s\nlog %s", a.Code, got, want, w.log.String())
	}
	for name, pattern := range map[string]string{
		"x-request-id": `^[a-z2-7]{26}$`, "x-bulkhead-receipt": `^[0-9a-f]{64}$`, "x-bulkhead-attempts": `^1$`,
		"Content-Type": `^application/json$`, "openai-processing-ms": `^\d+$`,
	} {
		if got := a.Header().Get(name); !regexp.MustCompile(pattern).MatchString(got) {
			t.Errorf("header %s: %q", name, got)
		}
	}
	jobs, _ := w.nodes["d0"].got()
	if p := jobs[0].Params; p.MaxNew != 10 || p.Temperature != 1 || len(p.EOG) != 1 || p.EOG[0] != idEnd || p.Seed == 0 {
		t.Errorf("parameters of the job: %+v", p)
	}
	if len(jobs[0].Prompt) != 21 || jobs[0].Prompt[0] != idStart || jobs[0].Prompt[1] != 'u' {
		t.Errorf("prompt of the job: %v", jobs[0].Prompt)
	}
}

// TestChatStream: every byte of a stream, with and without usage.
func TestChatStream(t *testing.T) {
	w := newWorld(t, nil)
	defer w.close()
	for _, usage := range []bool{false, true} {
		more, null, last := `,"stream":true`, "", ""
		if usage {
			more += `,"stream_options":{"include_usage":true}`
			null = `,"usage":null`
			last = "data: " + head + `[],"usage":{"prompt_tokens":21,"completion_tokens":6,"total_tokens":27,"prompt_tokens_details":{"cached_tokens":3}}}` + "\n\n"
		}
		a := w.post(chatPath, chat(more))
		want := "data: " + head + `[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]` + null + "}\n\n" +
			"data: " + head + `[{"index":0,"delta":{"content":"hello"},"logprobs":null,"finish_reason":null}]` + null + "}\n\n" +
			"data: " + head + `[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]` + null + "}\n\n" +
			last + "data: [DONE]\n\n"
		if got := stable(a.Body.String()); a.Code != 200 || got != want {
			t.Errorf("status %d\ngot  %s\nwant %s\n%s", a.Code, got, want, w.log.String())
		}
		h := a.Header()
		if h.Get("Content-Type") != "text/event-stream; charset=utf-8" || h.Get("Cache-Control") != "no-cache" || h.Get("X-Accel-Buffering") != "no" || len(h.Get("x-bulkhead-receipt")) != 64 {
			t.Errorf("headers %v", h)
		}
	}
}

// TestHTMLStays: what looks like HTML is not escaped away.
func TestHTMLStays(t *testing.T) {
	w := newWorld(t, nil)
	defer w.close()
	w.nodes["p0"].onJob = func(j *gotJob) { j.accept(); w.nodes["d0"].find(j.hash).reply("<b>&") }
	if a := w.post(chatPath, chat(``)); !strings.Contains(a.Body.String(), `"content":"<b>&"`) {
		t.Error(a.Body)
	}
}

// TestCompletions: all forms of prompt, each choice with its own index, one prompt's tokens counted once.
func TestCompletions(t *testing.T) {
	w := newWorld(t, nil)
	defer w.close()
	for _, tc := range []struct {
		body       string
		choices    int
		prompt     int
		completion int
	}{
		{`"prompt":"hi"`, 1, 2, 6},
		{`"prompt":["hi","you"]`, 2, 5, 12},
		{`"prompt":[104,105]`, 1, 2, 6},
		{`"prompt":[[104],[105,106]],"n":2`, 4, 3, 24},
	} {
		a := w.post(textPath, `{"model":"`+testModel+`","max_tokens":10,`+tc.body+`}`)
		var got textCompletionSeen
		if err := json.Unmarshal(a.Body.Bytes(), &got); err != nil || a.Code != 200 {
			t.Fatalf("%s: %d %s %v", tc.body, a.Code, a.Body, err)
		}
		u := got.Usage
		if len(got.Choices) != tc.choices || u.Prompt != tc.prompt || u.Completion != tc.completion || u.Total != tc.prompt+tc.completion {
			t.Errorf("%s: %s", tc.body, a.Body)
		}
		for i, c := range got.Choices {
			if c.Index != i || c.Text != "hello" || c.Finish != "stop" {
				t.Errorf("%s: choice %+v", tc.body, c)
			}
		}
		if n := len(strings.Split(a.Header().Get("x-bulkhead-receipt"), ",")); n != tc.choices {
			t.Errorf("%s: %d receipts", tc.body, n)
		}
	}
	a := w.post(textPath, completion(`,"stream":true`))
	want := "data: " + textHead + `[{"text":"hello","index":0,"logprobs":null,"finish_reason":null}]}` + "\n\n" +
		"data: " + textHead + `[{"text":"","index":0,"logprobs":null,"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"
	if got := stable(a.Body.String()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

type textCompletionSeen struct {
	Choices []struct {
		Text     string `json:"text"`
		Index    int    `json:"index"`
		Finish   string `json:"finish_reason"`
		Logprobs *textLogprobs
	}
	Usage usageObject
}

// TestBOS: a plain prompt begins with the token that the model file wants there.
func TestBOS(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Tokenizer = bosTokenizer() })
	defer w.close()
	if a := w.post(textPath, completion(``)); a.Code != 200 {
		t.Fatal(a.Body)
	}
	jobs, _ := w.nodes["p0"].got()
	if p := jobs[0].Prompt; len(p) != 3 || p[0] != idStart {
		t.Errorf("prompt %v", p)
	}
}

// TestChildren: n sequences, each its own grant and child, of one seed; the client sees one id.
func TestChildren(t *testing.T) {
	w := newWorld(t, nil)
	defer w.close()
	a := w.post(chatPath, chat(`,"n":3,"seed":-5,"stream":true,"stream_options":{"include_usage":true}`))
	if a.Code != 200 {
		t.Fatal(a.Body)
	}
	jobs, _ := w.nodes["d0"].got()
	tokens, children := map[string]bool{}, map[uint32]bool{}
	for _, j := range jobs {
		tokens[j.Token], children[j.Params.Child] = true, true
		if int64(j.Params.Seed) != -5 {
			t.Errorf("seed %d", int64(j.Params.Seed))
		}
	}
	if len(tokens) != 3 || len(children) != 3 {
		t.Errorf("%d tokens, children %v", len(tokens), children)
	}
	for i := range 3 {
		for _, part := range []string{`"delta":{"role":"assistant","content":""}`, `"delta":{"content":"hello"}`, `"finish_reason":"stop"`} {
			if n := strings.Count(a.Body.String(), fmt.Sprintf(`[{"index":%d,`, i)); n != 3 {
				t.Errorf("choice %d has %d events", i, n)
			}
			if n := strings.Count(a.Body.String(), part); n != 3 {
				t.Errorf("%d of %s", n, part)
			}
		}
	}
	if !strings.Contains(a.Body.String(), `"prompt_tokens":21,"completion_tokens":18,`) {
		t.Error("usage: " + a.Body.String())
	}
	a = w.post(chatPath, chat(``))
	b := w.post(chatPath, chat(``))
	if a.Code != 200 || b.Code != 200 {
		t.Fatal(a.Body, b.Body)
	}
	jobs, _ = w.nodes["d0"].got()
	if jobs[3].Params.Seed == jobs[4].Params.Seed {
		t.Error("two requests without a seed got the same")
	}
}

// TestLogprobs: both shapes.
func TestLogprobs(t *testing.T) {
	w := newWorld(t, nil)
	defer w.close()
	w.nodes["p0"].onJob = func(j *gotJob) {
		j.accept()
		d := w.nodes["d0"].find(j.hash)
		d.receipt()
		d.tokens(sample.Token{ID: 'a', Logprob: -0.5, Top: []sample.TopToken{{ID: 'a', Logprob: -0.5}, {ID: 0xe2, Logprob: -2}}}, sample.Token{ID: 'b', Logprob: -1})
		d.tokens(sample.Token{ID: idEnd, EOG: true, Logprob: -0.25})
		d.finish("stop", 3)
	}
	a := w.post(chatPath, chat(`,"logprobs":true,"top_logprobs":2`))
	want := `"logprobs":{"content":[` +
		`{"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[{"token":"a","logprob":-0.5,"bytes":[97]},{"token":"bytes:\\xe2","logprob":-2,"bytes":[226]}]},` +
		`{"token":"b","logprob":-1,"bytes":[98],"top_logprobs":[]},` +
		`{"token":"<|im_end|>","logprob":-0.25,"bytes":[60,124,105,109,95,101,110,100,124,62],"top_logprobs":[]}],"refusal":null}`
	if !strings.Contains(a.Body.String(), want) {
		t.Errorf("got  %s\nwant %s", a.Body, want)
	}
	a = w.post(chatPath, chat(`,"logprobs":true,"stream":true`))
	if n := strings.Count(a.Body.String(), `"bytes":`); n != 5 { // three sampled, two alternatives
		t.Errorf("%d entries in the stream: %s", n, a.Body)
	}
	a = w.post(textPath, completion(`,"logprobs":2`))
	want = `"logprobs":{"tokens":["a","b","<|im_end|>"],"token_logprobs":[-0.5,-1,-0.25],` +
		`"top_logprobs":[{"a":-0.5,"bytes:\\xe2":-2},{"b":-1},{"<|im_end|>":-0.25}],"text_offset":[0,1,2]}`
	if !strings.Contains(a.Body.String(), want) {
		t.Errorf("got  %s\nwant %s", a.Body, want)
	}
	a = w.post(textPath, completion(`,"logprobs":0`))
	if !strings.Contains(a.Body.String(), `"token_logprobs":[-0.5,-1,-0.25],"top_logprobs":null`) {
		t.Error(a.Body)
	}
}

// TestStopString: the text ends before it, the nodes are told, tokens up to its end are counted.
func TestStopString(t *testing.T) {
	for _, stream := range []bool{false, true} {
		w := newWorld(t, nil)
		w.nodes["p0"].onJob = func(j *gotJob) {
			j.accept()
			d := w.nodes["d0"].find(j.hash)
			d.receipt()
			d.tokens(text("ab")...)
			d.tokens(text("END and more")...) // no finish: only the stop string can end it
		}
		a := w.post(chatPath, chat(fmt.Sprintf(`,"stop":["bEND"],"stream":%v,"max_tokens":100`, stream)))
		body := a.Body.String()
		if a.Code != 200 || !strings.Contains(body, `"content":"a"`) || strings.Contains(body, "END") || !strings.Contains(body, `"finish_reason":"stop"`) {
			t.Errorf("status %d: %s", a.Code, body)
		}
		if !stream && !strings.Contains(body, `"completion_tokens":5,`) {
			t.Error(body)
		}
		w.eventually("both cancels", func() bool {
			_, p := w.nodes["p0"].got()
			_, d := w.nodes["d0"].got()
			return len(p) == 1 && len(d) == 1
		})
		w.close()
	}
}

// TestIgnoredParams: fields of tomorrow pass, and the client is told.
func TestIgnoredParams(t *testing.T) {
	w := newWorld(t, nil)
	defer w.close()
	a := w.post(chatPath, chat(`,"tomorrow":1,"caf\u00e9":2,"user":"u"`))
	if got := a.Header().Get("x-ignored-params"); a.Code != 200 || got != "tomorrow,caf?" {
		t.Errorf("status %d, header %q", a.Code, got)
	}
}
