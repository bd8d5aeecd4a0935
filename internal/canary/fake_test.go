package canary

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// fake is no engine: a server whose answer is a function of the prompt, with a prefix
// cache of whole prompts per tenant, and with one fault that a test chooses.
type fake struct {
	fault    string
	receipts bool

	mu     sync.Mutex                 // guards all below
	n      int                        // generations
	last   map[string]string          // by key: the text of the latest prompt
	cached map[string]map[string]bool // by key: prompts
}

const fakeWindow = 600

type fakeRequest struct {
	Prompt   json.RawMessage
	Messages []struct{ Content string }
	Max      int `json:"max_tokens"`
	Stream   bool
	Logprobs json.RawMessage
	Ignore   bool `json:"ignore_eos"`

	chat  bool
	text  string
	ids   []int32
	count int
}

func (b *fakeRequest) read(req *http.Request) {
	if json.NewDecoder(req.Body).Decode(b) != nil {
		return
	}
	if b.chat = strings.Contains(req.URL.Path, "chat"); b.chat {
		b.text = b.Messages[0].Content
	} else if json.Unmarshal(b.Prompt, &b.ids) != nil {
		json.Unmarshal(b.Prompt, &b.text)
	}
	if b.count = len(strings.Fields(b.text)); b.ids != nil {
		b.count = len(b.ids)
	}
}

func (f *fake) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	key := strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")
	if key != "key-a" && key != "key-b" && f.fault != "any key" {
		w.WriteHeader(401)
		io.WriteString(w, `{"error":{"message":"no","code":"invalid_api_key"}}`)
		return
	}
	if req.URL.Path == "/v1/models" {
		fmt.Fprintf(w, `{"data":[{"id":"fake","max_model_len":%d}]}`, fakeWindow)
		return
	}
	var b fakeRequest
	b.read(req)
	f.mu.Lock()
	f.n++
	// What finds out the abilities is let alone, and then some requests.
	bad := f.n > 12 && uint32(f.n)*2654435761>>16%5 == 0
	n := f.n
	other := ""
	for k, text := range f.last {
		if k != key {
			other = text
		}
	}
	if b.text != "" {
		f.last[key] = b.text
	}
	where := key
	if f.fault == "shared cache" {
		where = "all"
	}
	if f.cached[where] == nil {
		f.cached[where] = map[string]bool{}
	}
	whole := string(b.Prompt) + b.text
	hit := f.cached[where][whole]
	f.cached[where][whole] = true
	f.mu.Unlock()
	fault := ""
	if bad {
		fault = f.fault
	}
	refuse := func(status int, code, message string) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error":{"message":%q,"type":"t","param":null,"code":%q}}`, message, code)
	}
	for _, id := range b.ids {
		if (id < 0 || id > 50000) && f.fault != "bad id" {
			refuse(400, "", "no such token")
			return
		}
	}
	if f.fault == "clamps" && b.count < fakeWindow {
		b.Max = min(b.Max, fakeWindow-b.count)
	}
	if b.count+b.Max > fakeWindow && f.fault != "over length" && !(f.fault == "over length in streams" && b.Stream) {
		switch {
		case f.fault == "text before error" && b.Stream:
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, "data: {\"choices\":[{\"text\":\"x\"}]}\n\ndata: {\"error\":{\"message\":\"m\",\"code\":\"c\"}}\n\n")
		case f.fault == "breaks off" && b.Stream:
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(200)
		case f.fault == "marker in an error":
			refuse(400, "context_length_exceeded", "too long: "+other)
		case f.fault == "integrity":
			refuse(502, "integrity_error", "m")
		default:
			refuse(400, "context_length_exceeded", "too long")
		}
		return
	}
	switch fault {
	case "error as 200":
		refuse(200, "internal", "m")
		return
	case "malformed":
		io.WriteString(w, "hello")
		return
	case "broken": // which is honest
		panic(http.ErrAbortHandler)
	case "busy":
		w.Header().Set("retry-after-ms", "1")
		refuse(429, "rate_limit_exceeded", "m")
		return
	}
	f.answer(w, &b, fault, answerFacts{n: n, hit: hit, other: other})
}

type answerFacts struct {
	n     int
	hit   bool
	other string
}

func (f *fake) answer(w http.ResponseWriter, b *fakeRequest, fault string, is answerFacts) {
	sum := sha256.Sum256([]byte(string(b.Prompt) + b.text))
	gen, finish := b.Max, "length"
	if early := int(sum[0]) % 30; !b.Ignore && early < gen {
		gen, finish = early, "stop"
	}
	var tokens []string
	for i := range gen {
		tokens = append(tokens, fmt.Sprintf("w%d ", sum[i%32]))
	}
	value := func(i int) float64 { return -float64(sum[31-i%32]) / 64 }
	prompt, completion, total := b.count, gen, 0
	if b.chat {
		prompt += 5
	}
	if f.fault == "always an id too many" && b.ids != nil {
		prompt++
	}
	total = prompt + completion
	switch fault {
	case "another reason":
		if finish == "length" {
			finish = "stop"
		}
	case "marker":
		if len(tokens) > 0 && len(is.other) > 20 {
			tokens[0] = is.other[3:18]
		}
	case "usage of ids":
		if b.ids != nil {
			prompt, total = prompt-1, total-1
		}
	case "usage of text":
		if b.ids == nil {
			prompt, total = prompt+1, total+1
		}
	case "total":
		total++
	case "completion":
		completion, total = b.Max+2, prompt+b.Max+2
	case "counts too few":
		completion, total = gen/3, prompt+gen/3
	case "length too soon":
		finish = "length"
		if gen == b.Max && gen > 0 {
			gen--
			tokens, completion, total = tokens[:gen], gen, prompt+gen
		}
	case "no finish":
		finish = ""
	case "text":
		if len(tokens) > 0 {
			tokens[len(tokens)-1] = "other"
		}
	case "logprob":
		old := value
		value = func(i int) float64 { return old(i) + 1e-6 }
	}
	held := fault == "held" && b.Stream
	if f.receipts && fault != "no receipt" && !held {
		r := fmt.Sprintf("%064x", is.n)
		if fault == "receipt twice" {
			r = strings.Repeat("a", 64)
		}
		w.Header().Set("x-bulkhead-receipt", r)
	}
	cached := 0
	if is.hit {
		cached = prompt / 2
	}
	if fault == "cached over the prompt" && !b.Stream { // probes stream
		cached = prompt + 1
	}
	usage := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`,
		prompt, completion, total, cached)
	if fault == "no usage" || fault == "no usage in some streams" && b.Stream || f.fault == "never usage in streams" && b.Stream {
		usage = "null"
	}
	logprobs := func(from, to int) string {
		if len(b.Logprobs) == 0 {
			return "null"
		}
		var names, values, content []string
		for i := from; i < to; i++ {
			names, values = append(names, fmt.Sprintf("%q", tokens[i])), append(values, fmt.Sprint(value(i)))
			content = append(content, fmt.Sprintf(`{"token":%q,"logprob":%v}`, tokens[i], value(i)))
		}
		if b.chat {
			return `{"content":[` + strings.Join(content, ",") + `]}`
		}
		return `{"tokens":[` + strings.Join(names, ",") + `],"token_logprobs":[` + strings.Join(values, ",") + `]}`
	}
	quoted := "null"
	if finish != "" {
		quoted = `"` + finish + `"`
	}
	member := func(text string) string {
		switch {
		case b.chat && b.Stream:
			return fmt.Sprintf(`"delta":{"content":%q}`, text)
		case b.chat:
			return fmt.Sprintf(`"message":{"content":%q}`, text)
		}
		return fmt.Sprintf(`"text":%q`, text)
	}
	if !b.Stream {
		fmt.Fprintf(w, `{"choices":[{%s,"logprobs":%s,"finish_reason":%s}],"usage":%s}`, member(strings.Join(tokens, "")), logprobs(0, gen), quoted, usage)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	if held {
		io.WriteString(w, ": keepalive\n\n")
	}
	for i := range gen {
		fmt.Fprintf(w, "data: {\"choices\":[{%s,\"logprobs\":%s}]}\n\n", member(tokens[i]), logprobs(i, i+1))
		w.(http.Flusher).Flush()
	}
	fmt.Fprintf(w, "data: {\"choices\":[{%s,\"finish_reason\":%s}]}\n\n", member(""), quoted)
	fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":%s}\n\n", usage)
	if fault == "no done" {
		return
	}
	io.WriteString(w, "data: [DONE]\n\n")
	if fault == "after done" {
		io.WriteString(w, "data: {\"choices\":[]}\n\n")
	}
}

func (f *fake) start(t *testing.T) Config {
	f.last, f.cached = map[string]string{}, map[string]map[string]bool{}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return Config{URL: s.URL, Tenants: []Tenant{{"a", "key-a"}, {"b", "key-b"}}, N: 500, Concurrency: 4, Seed: 7, Prefix: 100, Long: 200}
}
