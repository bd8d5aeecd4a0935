package loadgen

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"bulkhead/internal/openai"
)

const (
	failureKinds  = 32 // distinct reasons kept; the rest are counted as "other"
	failureLength = 64 // bytes of a server's own type or code
)

// failure says in a few words why a request did not end in a whole answer. A server's
// message is left out: it may repeat the prompt.
func failure(a *openai.Answer, err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "stopped"
	case errors.Is(err, openai.ErrMalformed):
		return "malformed answer"
	case errors.Is(err, openai.ErrTooLarge):
		return "answer over the limit"
	case err != nil:
		return "connection"
	case a.Err != nil:
		return fmt.Sprintf("status %d, error of type %q, code %q", a.Status, clip(a.Err.Type), clip(a.Err.Code))
	case a.Status != http.StatusOK:
		return fmt.Sprintf("status %d", a.Status)
	}
	return "stream without its end"
}

func clip(s string) string { return s[:min(len(s), failureLength)] }

// fail counts a reason. m.mu is held.
func (m *measured) fail(why string) {
	m.r.Failed++
	if m.r.Failures == nil {
		m.r.Failures = map[string]int{}
	}
	if _, there := m.r.Failures[why]; !there && len(m.r.Failures) >= failureKinds {
		why = "other"
	}
	m.r.Failures[why]++
}
