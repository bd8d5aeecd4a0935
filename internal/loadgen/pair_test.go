package loadgen

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// two is a fake of both servers, which note who is asked for what.
type two struct {
	mu    sync.Mutex
	asked []string // arm:prompt, of long prompts
	fail  bool
}

func (f *two) arm(name string) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, `{"data":[{"id":"fake","max_model_len":8192}]}`)
			return
		}
		var b struct {
			Prompt json.RawMessage
			Stream bool
		}
		if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		n := strings.Count(string(b.Prompt), ",") + 1
		f.mu.Lock()
		defer f.mu.Unlock()
		if n >= 300 {
			f.asked = append(f.asked, fmt.Sprintf("%s:%s", name, b.Prompt))
			if f.fail {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
		}
		usage := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":3,"total_tokens":%d}`, n, n+3)
		if !b.Stream {
			fmt.Fprintf(w, `{"choices":[{"text":"abc","finish_reason":"length"}],"usage":%s}`, usage)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, c := range "abc" {
			fmt.Fprintf(w, "data: {\"choices\":[{\"text\":\"%c\"}]}\n\n", c)
			w.(http.Flusher).Flush()
		}
		fmt.Fprintf(w, "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\ndata: {\"choices\":[],\"usage\":%s}\n\ndata: [DONE]\n\n", usage)
	}))
}

// goal: both servers get the very same requests, one after the other, each first as often as the
// other, in every start; and what is no answer is an error, not a number.
func TestBenchPair(t *testing.T) {
	f := &two{}
	starts, stops := 0, 0
	cfg := PairConfig{
		Starts: 2, Key: "k", PromptLen: []int{300, 400}, Gen: 3, Rounds: 2,
		Start: func(context.Context, int) (string, string, func(), error) {
			starts++
			a, b := f.arm("with"), f.arm("without")
			return a.URL, b.URL, func() { stops++; a.Close(); b.Close() }, nil
		},
	}
	all, err := BenchPair(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 || all[0].Prompt != 300 || all[1].Prompt != 400 || all[0].Pairs != 4 || starts != 2 || stops != 2 {
		t.Fatalf("%+v after %d starts, %d stops", all, starts, stops)
	}
	for _, r := range all {
		if r.TTFT <= 0 || r.ITLWithout <= 0 || r.TTFTCost.Least > r.TTFTCost.Median || r.TTFTCost.Median > r.TTFTCost.Most {
			t.Errorf("%+v", r)
		}
	}
	if len(f.asked) != 16 {
		t.Fatalf("%d requests, want 2 starts of 2 rounds of 2 lengths to each of 2", len(f.asked))
	}
	first := map[string]int{}
	seen := map[string]bool{}
	for i := 0; i < len(f.asked); i += 2 {
		arm, prompt, _ := strings.Cut(f.asked[i], ":")
		other, same, _ := strings.Cut(f.asked[i+1], ":")
		if arm == other || prompt != same || seen[prompt] {
			t.Errorf("pair %d: %s and %s, same prompt %v, seen before %v", i/2, arm, other, prompt == same, seen[prompt])
		}
		first[arm]++
		seen[prompt] = true
	}
	if first["with"] != first["without"] {
		t.Errorf("who was first: %v", first)
	}

	f.fail = true
	if _, err := BenchPair(t.Context(), cfg); err == nil || starts != stops {
		t.Errorf("a server that refuses: %v; %d starts, %d stops", err, starts, stops)
	}
	if _, err := BenchPair(t.Context(), PairConfig{}); !errors.Is(err, ErrConfig) {
		t.Errorf("nothing to do: %v, want ErrConfig", err)
	}
}
