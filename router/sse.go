package router

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"
)

// sse writes server-sent events: one "data: {json}" per event, each flushed, each
// with its own write deadline, since a deadline for the whole answer would cut long streams.
type sse struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration // of one write
	begun   bool
	writes  int
}

func newSSE(w http.ResponseWriter, timeout time.Duration) *sse {
	return &sse{w: w, rc: http.NewResponseController(w), timeout: timeout}
}

// begin sends the status and the headers.
func (s *sse) begin() error {
	s.begun = true
	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no") // nginx would hold the stream back
	s.w.WriteHeader(http.StatusOK)
	return s.flush()
}

// event sends v as JSON.
func (s *sse) event(v any) error {
	b, err := marshal(v)
	if err != nil {
		return err
	}
	return s.data(b)
}

// done says that the answer is complete. SDKs take a stream without it for
// complete too, so every other end must be an error event or a broken connection.
func (s *sse) done() error { return s.data([]byte("[DONE]")) }

// comment sends a line that clients ignore and proxies count as life.
func (s *sse) comment(text string) error { return s.write([]byte(": " + text + "\n\n")) }

func (s *sse) data(b []byte) error {
	return s.write(append(append(append(make([]byte, 0, len(b)+8), "data: "...), b...), "\n\n"...))
}

func (s *sse) write(b []byte) error {
	s.writes++
	if err := s.deadline(); err != nil {
		return err
	}
	if _, err := s.w.Write(b); err != nil {
		return err
	}
	return s.flush()
}

// deadline gives the next write its time. Writers of tests may not support one.
func (s *sse) deadline() error {
	return ignoreUnsupported(s.rc.SetWriteDeadline(time.Now().Add(s.timeout)))
}

func (s *sse) flush() error { return ignoreUnsupported(s.rc.Flush()) }

// marshal is JSON without the escapes for HTML, which nobody embeds this in.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
