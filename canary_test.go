package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/canary"

	"github.com/alecthomas/kong"
)

// parrot is no engine: it answers completions of text with one word, and takes any key.
func parrot(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/v1/models" {
		io.WriteString(w, `{"data":[{"id":"parrot"}]}`)
		return
	}
	var b struct {
		Prompt string
		Stream bool
	}
	if req.URL.Path != "/v1/completions" || json.NewDecoder(req.Body).Decode(&b) != nil {
		w.WriteHeader(400)
		return
	}
	n := len(b.Prompt)
	usage := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":1,"total_tokens":%d}`, n, n+1)
	if !b.Stream {
		fmt.Fprintf(w, `{"choices":[{"text":"x","finish_reason":"stop"}],"usage":%s}`, usage)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "data: {\"choices\":[{\"text\":\"x\",\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":%s}\n\ndata: [DONE]\n\n", usage)
}

// goal: the exit status says what was found, and no output shows a key. method: the command
// line as a person types it.
func TestCanaryCommand(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(parrot))
	defer s.Close()
	dir := t.TempDir()
	run := func(args ...string) error {
		var c commands
		k, err := kong.New(&c, kong.BindTo(context.Background(), (*context.Context)(nil)))
		if err != nil {
			t.Fatal(err)
		}
		ctx, err := k.Parse(append([]string{"canary", "--key", "A=sk-secret-a", "--key", "B=sk-secret-b", "-n", "40", "--json", filepath.Join(dir, "report.json")}, args...))
		if err != nil {
			t.Fatal(err)
		}
		return ctx.Run()
	}
	if err := run("--url", s.URL, "--allow-any-key"); err != nil {
		t.Errorf("nothing to find: %v", err)
	}
	var status exitStatus
	if err := run("--url", s.URL); !errors.As(err, &status) || status != 2 {
		t.Errorf("a server that takes any key: %v, want exit status 2", err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "report.json"))
	var rep canary.Report
	if err != nil || json.Unmarshal(raw, &rep) != nil || rep.Counts[canary.KeyNotChecked] != 1 || rep.Leak {
		t.Errorf("%v: %s", err, raw)
	}
	if strings.Contains(string(raw), "secret") {
		t.Error("a key is in the report")
	}
	var human strings.Builder
	printCanary(&human, &rep)
	if out := human.String(); !strings.Contains(out, "FINDING   key-not-checked") || !strings.Contains(out, "window is not known") || strings.Contains(out, "secret") || strings.Contains(out, "LEAK") {
		t.Errorf("%s", out)
	}
	if err := run("--url", "http://127.0.0.1:1"); err == nil || errors.As(err, &status) || strings.Contains(err.Error(), "secret") {
		t.Errorf("nobody there: %v, want another error", err)
	}
}

func TestProgressLine(t *testing.T) {
	for want, p := range map[string]canary.Progress{
		"[############............]  50%    500 requests    30 s    2 findings load": {Phase: "load", Sent: 500, Of: 1000, Elapsed: 30 * time.Second, Findings: 2},
		"[######..................]  25%    500 requests    15 s    0 findings load": {Phase: "load", Sent: 500, Elapsed: 15 * time.Second, Duration: time.Minute},
		"[########################] 100%      9 requests    90 s    0 findings load": {Phase: "load", Sent: 9, Of: 100, Elapsed: 90 * time.Second, Duration: time.Minute},
	} {
		if got := progressLine(p); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
