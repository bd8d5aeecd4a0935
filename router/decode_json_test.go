package router

import (
	"bytes"
	"encoding/json"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"bulkhead/internal/negative"
)

// TestStrictJSON: what encoding/json would take in silence is refused, each with its own words.
func TestStrictJSON(t *testing.T) {
	const ok = `{"model":"m","messages":[{"role":"user","content":"x"}]`
	if _, err := parseRequest([]byte(ok+"}"), true); err != nil {
		t.Fatalf("the request that all cases vary: %v", err)
	}
	for _, tc := range []struct{ name, body, want, param string }{
		{"duplicate", ok + `,"model":"m"}`, "duplicate member 'model'", "model"},
		{"duplicate by escape", ok + `,"mod\u0065l":"m"}`, "duplicate member 'model'", "model"},
		{"duplicate of a null", ok + `,"n":null,"n":1}`, "duplicate member 'n'", "n"},
		{"case variant", ok + `,"MODEL":"m"}`, "case-sensitive, use 'model'", "model"},
		{"case variant, non-ASCII", ok + `,"ſtream":true}`, "case-sensitive, use 'stream'", "stream"},
		{"case variant in a message", `{"model":"m","messages":[{"role":"user","Content":"x"}]}`, "use 'messages[0].content'", "messages[0].content"},
		{"duplicate in a message", `{"model":"m","messages":[{"role":"user","role":"system","content":"x"}]}`, "duplicate member 'messages[0].role'", "messages[0].role"},
		{"duplicate in what is not read", ok + `,"future":{"a":1,"a":2}}`, "duplicate member", "future.a"},
		{"duplicate in logit_bias", ok + `,"logit_bias":{"5":1,"5":2}}`, "twice", "logit_bias"},
		{"trailing data", ok + `} {}`, "data after the top-level value", ""},
		{"trailing comma", ok + `,}`, "expected a member name", ""},
		{"no value", ok + `,"n":}`, "expected an integer", "n"},
		{"invalid UTF-8", ok + ",\"user\":\"\xff\"}", "not valid UTF-8", ""},
		{"invalid UTF-8 in a skipped name", ok + ",\"\xc3\":1}", "not valid UTF-8", ""},
		{"half a surrogate pair", ok + `,"user":"\ud800"}`, "half a surrogate pair", ""},
		{"swapped surrogates", ok + `,"user":"\udc00\ud800"}`, "half a surrogate pair", ""},
		{"control character", ok + ",\"user\":\"a\x01\"}", "control character", ""},
		{"bad escape", ok + `,"user":"\x"}`, "unknown escape", ""},
		{"bad hex", ok + `,"user":"\u12g4"}`, "bad \\u escape", ""},
		{"cut in an escape", ok + `,"user":"\`, "unexpected end of a string", ""},
		{"cut in a string", ok + `,"user":"a`, "unexpected end of a string", ""},
		{"leading zero", ok + `,"seed":01}`, "expected ',' or '}'", ""},
		{"a plus", ok + `,"n":+1}`, "expected an integer", "n"},
		{"a point without digits", ok + `,"temperature":1.}`, "without digits after its point", ""},
		{"not a number", ok + `,"temperature":NaN}`, "expected a number", "temperature"},
		{"a long number", ok + `,"temperature":0.` + strings.Repeat("1", 100) + `}`, "more than 64 characters", ""},
		{"deep", ok + `,"future":` + strings.Repeat("[", 1e6) + `}`, "nested", ""},
		{"many values", ok + `,"future":[` + strings.Repeat("1,", 20000) + `1]}`, "not read", "future"},
		{"many members", ok + `,"future":{` + manyMembers(600) + `}}`, "more than 512 members", "future"},
		{"a long name", ok + `,"` + strings.Repeat("a", 300) + `":1}`, "longer than 256 bytes", "body"},
		{"no object", `[1]`, "expected an object", "body"},
		{"a string", `"x"`, "expected an object", "body"},
		{"nothing", ``, "expected an object", "body"},
		{"only space", " \n", "expected an object", "body"},
		{"a NUL", "\x00", "expected an object", "body"},
	} {
		_, err := parseRequest([]byte(tc.body), true)
		if err == nil {
			t.Errorf("%s: accepted", tc.name)
			continue
		}
		e := asAPIError(err)
		if !strings.Contains(e.msg, tc.want) || e.param != tc.param || e.row().status != 400 {
			t.Errorf("%s: got %q (param %q, %d), want %q (param %q)", tc.name, e.msg, e.param, e.row().status, tc.want, tc.param)
		}
	}
}

func manyMembers(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"k` + itoa(i) + `":1`)
	}
	return b.String()
}

// TestBodyMemory: 6 MB of {}, cost encoding/json 181 MB of heap; here less than 30, in
// every place of a request where they can stand.
func TestBodyMemory(t *testing.T) {
	filler := strings.Repeat("{},", 2_000_000)
	for _, body := range []string{
		`{"model":"m","messages":[` + filler + `{}]}`,
		`{"model":"m","messages":[{"role":"user","content":[` + filler + `{}]}]}`,
		`{"model":"m","prompt":[` + filler + `{}]}`,
		`{"model":"m","future":[` + filler + `{}]}`,
		`{"model":"m","metadata":{"a":[` + filler + `{}]}}`,
		`{"model":"m","stop":[` + filler + `{}]}`,
	} {
		for _, chat := range []bool{true, false} {
			b := []byte(body)
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := parseRequest(b, chat)
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Error("accepted")
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 30<<20-uint64(len(b)) {
				t.Errorf("%.40s...: %d bytes allocated", body, got)
			}
		}
	}
}

// FuzzParse: no body makes the parser panic; what it accepts is JSON that encoding/json accepts, and
// both read the same model, prompt and messages from it.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","messages":[{"role":"user","content":"h\u00e9\ud83d\ude00"}],"stop":["a"],"logit_bias":{"1":-1.5e0},"future":[{"a":[null,true,1.5]}]}`,
		`{"model":"m","messages":[{"role":"developer","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],"stream":true,"stream_options":{"include_usage":true}}`,
		`{"model":"m","prompt":[[1,2],[3]],"n":2,"best_of":2,"logprobs":3,"echo":false,"seed":-1}`,
		`{"model":"m","prompt":"a","MODEL":"b"}`,
		"{\"model\":\"\xff\"}",
	} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	negative.Seeds(f, "testdata/negative", func(what string, data []byte) { f.Add(data, what == "chat") })
	f.Fuzz(func(t *testing.T, body []byte, chat bool) {
		g, err := parseRequest(bytes.Clone(body), chat)
		if err != nil {
			e := asAPIError(err)
			if e.kind == kindInternal || e.row().status != 400 {
				t.Fatalf("%v is no error of a client", err)
			}
			if !json.Valid(e.body()) {
				t.Fatalf("error body %q", e.body())
			}
			return
		}
		if !json.Valid(body) || !utf8.Valid(body) {
			t.Fatalf("accepted what is no JSON: %q", body)
		}
		var ref struct {
			Model    string
			Messages []struct {
				Role    string
				Content json.RawMessage
			}
			Prompt json.RawMessage
		}
		if err := json.Unmarshal(body, &ref); err != nil {
			t.Fatalf("encoding/json refuses %q: %v", body, err)
		}
		if ref.Model != g.model {
			t.Fatalf("model %q, encoding/json reads %q", g.model, ref.Model)
		}
		if chat {
			if len(ref.Messages) != len(g.messages) {
				t.Fatalf("%d messages, encoding/json reads %d", len(g.messages), len(ref.Messages))
			}
			for i, m := range ref.Messages {
				var s string
				if json.Unmarshal(m.Content, &s) == nil && s != g.messages[i].Content {
					t.Fatalf("content %q, encoding/json reads %q", g.messages[i].Content, s)
				}
			}
			return
		}
		var s string
		var ids []int32
		if json.Unmarshal(ref.Prompt, &s) == nil && (len(g.prompts) != 1 || g.prompts[0].text != s) {
			t.Fatalf("prompt %v, encoding/json reads %q", g.prompts, s)
		}
		if json.Unmarshal(ref.Prompt, &ids) == nil && (len(g.prompts) != 1 || !reflect.DeepEqual(g.prompts[0].ids, ids)) {
			t.Fatalf("prompt %v, encoding/json reads %v", g.prompts, ids)
		}
	})
}
