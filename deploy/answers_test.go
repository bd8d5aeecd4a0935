//go:build e2e

package deploy_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

func (c *compose) ask(t *testing.T, key string, q question) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return ask(ctx, c.url, key, q)
}

const capital = "What is the capital of France?"

// checkChat asks what anybody asks first. The right answer is only asked of the default model.
func checkChat(t *testing.T, c *compose) {
	q := question{Prompt: capital, MaxTokens: 32}
	a := c.ask(t, c.keys[0], q)
	if err := a.complete(q, a); err != nil {
		t.Fatal(err)
	}
	t.Logf("%q, %+v, receipt %s", a.text, *a.usage, a.receipt)
	if os.Getenv("BULKHEAD_MODEL") == "" {
		if !strings.Contains(a.text, "Paris") {
			t.Errorf("the answer %q does not name Paris", a.text)
		}
		if a.usage.Prompt != 37 { // as the chat template of the model has it
			t.Errorf("prompt_tokens is %d, want 37", a.usage.Prompt)
		}
	}
	again := c.ask(t, c.keys[1], q)
	if err := again.complete(q, a); err != nil {
		t.Errorf("the same question of another tenant: %v", err)
	}
	if a.receipt == again.receipt {
		t.Error("two requests have the same receipt")
	}
}

// checkStream wants of a stream what the whole answer was, and its usage.
func checkStream(t *testing.T, c *compose) {
	q := question{Prompt: c.canary + " Write about the sea.", MaxTokens: 48}
	whole := c.ask(t, c.keys[0], q)
	if err := whole.complete(q, whole); err != nil {
		t.Fatal(err)
	}
	if whole.usage.Completion < 2 || whole.text == "" {
		t.Fatalf("an answer of %d tokens shows nothing of streaming", whole.usage.Completion)
	}
	c.secrets = append(c.secrets, whole.text)
	q.Stream = true
	if err := c.ask(t, c.keys[0], q).complete(q, whole); err != nil {
		t.Fatal(err)
	}
}

// checkOverLength sends a prompt beyond every pool, streamed and not: 400 with both numbers.
func checkOverLength(t *testing.T, c *compose) {
	for _, stream := range []bool{false, true} {
		q := question{Prompt: strings.Repeat(" word", 60000), MaxTokens: 8, Stream: stream}
		a := c.ask(t, c.keys[0], q)
		if a.broken != nil || a.status != http.StatusBadRequest || a.fault == nil || a.fault.code() != "context_length_exceeded" {
			t.Fatalf("stream %t: status %d, error %+v (%v)", stream, a.status, a.fault, a.broken)
		}
		numbers := regexp.MustCompile(`maximum context length is (\d+) tokens.* resulted in (\d+) tokens`).FindStringSubmatch(a.fault.Message)
		if numbers == nil {
			t.Fatalf("the message does not have both numbers: %s", a.fault.Message)
		}
		var limit, got int
		if _, err := fmt.Sscan(numbers[1]+" "+numbers[2], &limit, &got); err != nil || got <= limit || got < 60000 {
			t.Errorf("a limit of %d and a prompt of %d (%v)", limit, got, err)
		}
		if a.receipt != "" {
			t.Error("a refusal with a receipt")
		}
	}
}

func checkWrongKey(t *testing.T, c *compose) {
	a := c.ask(t, c.keys[0]+"x", question{Prompt: capital, MaxTokens: 8})
	if a.status != http.StatusUnauthorized || a.fault == nil || a.fault.code() != "invalid_api_key" {
		t.Fatalf("status %d, error %+v (%v)", a.status, a.fault, a.broken)
	}
}

// checkNewTenant adds a tenant to the running cluster and uses its key.
func checkNewTenant(t *testing.T, c *compose) {
	out := c.cluster(t, "tenant", "add", "newcomer")
	key := regexp.MustCompile(`sk-[A-Za-z0-9_-]+`).FindString(out)
	if key == "" {
		t.Fatalf("no key was printed:\n%s", out)
	}
	c.secrets = append(c.secrets, key)
	c.waitReady(t, time.Minute)
	q := question{Prompt: capital, MaxTokens: 8}
	a := c.ask(t, key, q)
	if err := a.complete(q, a); err != nil {
		t.Fatal(err)
	}
}
