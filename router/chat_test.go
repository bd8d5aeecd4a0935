package router

import (
	"strings"
	"testing"
)

// TestChat: a whole answer, with everything that clients read in it.
func TestChat(t *testing.T) {
	w := newWorld(t, nil)
	defer w.close()
	a := w.post(chatPath, chat(`,"max_tokens":10`))
	if a.Code != 200 {
		t.Fatalf("status %d: %s\n%s", a.Code, a.Body, w.log.String())
	}
	body := a.Body.String()
	for _, want := range []string{`"content":"hello"`, `"finish_reason":"stop"`, `"object":"chat.completion"`} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in %s", want, body)
		}
	}
}
