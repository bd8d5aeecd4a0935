//go:build e2e

package deploy_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// question is one request. Sampling is greedy: the answer is a fact.
type question struct {
	Prompt    string
	MaxTokens int
	Stream    bool
	IgnoreEOS bool // go on to MaxTokens
}

// answer is what came of it.
type answer struct {
	status   int
	text     string
	finish   string
	usage    *usage
	receipt  string
	id       string // x-request-id
	attempts int    // as the header says; 0 where it does not
	fault    *fault // of the body, or of a frame in a stream
	done     bool   // [DONE] came
	broken   error  // the connection's, or the deadline's
	started  time.Time
	took     time.Duration
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

// fault is OpenAI's error object.
type fault struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

func (f fault) code() string {
	if f.Code == nil {
		return ""
	}
	return *f.Code
}

var receiptText = regexp.MustCompile(`^[0-9a-f]{64}$`)

// ask sends one question and reads everything that comes back, until ctx ends.
func ask(ctx context.Context, url, key string, q question) (a answer) {
	a.started = time.Now()
	defer func() { a.took = time.Since(a.started) }()
	body := map[string]any{
		"model": "e2e", "temperature": 0, "max_tokens": q.MaxTokens, "stream": q.Stream, "ignore_eos": q.IgnoreEOS,
		"messages": []map[string]string{{"role": "user", "content": q.Prompt}},
	}
	if q.Stream {
		body["stream_options"] = map[string]bool{"include_usage": true}
	}
	raw, err := json.Marshal(body)
	if err != nil {
		a.broken = err
		return a
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(raw))
	if err != nil {
		a.broken = err
		return a
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		a.broken = err
		return a
	}
	defer resp.Body.Close()
	a.status, a.receipt, a.id = resp.StatusCode, resp.Header.Get("x-bulkhead-receipt"), resp.Header.Get("x-request-id")
	a.attempts, _ = strconv.Atoi(resp.Header.Get("x-bulkhead-attempts"))
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		a.broken = a.readStream(resp.Body)
	} else {
		a.broken = a.readWhole(resp.Body)
	}
	return a
}

// object is an answer, a chunk of one or an error.
type object struct {
	Error   *fault `json:"error"`
	Choices []struct {
		Message, Delta struct {
			Content string `json:"content"`
		}
		Finish *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *usage `json:"usage"`
}

func (a *answer) take(raw []byte) error {
	var o object
	if err := json.Unmarshal(raw, &o); err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	if o.Error != nil {
		a.fault = o.Error
	}
	for _, c := range o.Choices {
		a.text += c.Message.Content + c.Delta.Content
		if c.Finish != nil {
			a.finish = *c.Finish
		}
	}
	if o.Usage != nil {
		a.usage = o.Usage
	}
	return nil
}

func (a *answer) readWhole(r io.Reader) error {
	raw, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return a.take(raw)
}

func (a *answer) readStream(r io.Reader) error {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		data, ok := strings.CutPrefix(s.Text(), "data: ")
		switch {
		case !ok: // a blank line or a comment
		case a.done || a.fault != nil:
			return errors.New("an event behind the stream's last one")
		case data == "[DONE]":
			a.done = true
		default:
			if err := a.take([]byte(data)); err != nil {
				return err
			}
		}
	}
	return s.Err()
}

// passing are the errors that a client may see while nodes come and go: each says
// that the same request may well succeed later.
var passing = []string{"worker_lost", "overloaded", "queue_timeout", "timeout", "draining"}

// complete says why a is not the answer want, whole and with all that belongs to one.
func (a answer) complete(q question, want answer) error {
	switch {
	case a.broken != nil:
		return fmt.Errorf("the answer broke off or took too long: %w", a.broken)
	case a.fault != nil:
		return fmt.Errorf("status %d with the error %q: %s", a.status, a.fault.code(), a.fault.Message)
	case a.status != http.StatusOK:
		return fmt.Errorf("status %d without an error object", a.status)
	case q.Stream && !a.done:
		return errors.New("the stream ended with neither [DONE] nor an error")
	case a.text != want.text:
		return fmt.Errorf("another text than the idle cluster gave: they differ after %d of %d bytes", common(a.text, want.text), len(want.text))
	case a.finish != want.finish || a.finish == "":
		return fmt.Errorf("finish_reason %q, want %q", a.finish, want.finish)
	case a.usage == nil || want.usage != nil && *a.usage != *want.usage || a.usage.Total != a.usage.Prompt+a.usage.Completion:
		return fmt.Errorf("usage %+v, want %+v", a.usage, want.usage)
	case !receiptText.MatchString(a.receipt):
		return errors.New("x-bulkhead-receipt is no SHA-256 in hex")
	}
	return nil
}

// proper says why a is neither the complete answer nor a proper error. A stream that ends with an
// error may have text before it: the beginning of the right one, and no finish_reason.
func (a answer) proper(q question, want answer) error {
	if a.broken != nil || a.fault == nil {
		return a.complete(q, want)
	}
	switch {
	case !slices.Contains(passing, a.fault.code()):
		return fmt.Errorf("status %d with the error %q: %s", a.status, a.fault.code(), a.fault.Message)
	case a.fault.Message == "" || a.fault.Type == "":
		return fmt.Errorf("the error %q has no message or no type", a.fault.code())
	case a.status == http.StatusOK && !q.Stream:
		return errors.New("status 200 with an error in the body")
	case a.status != http.StatusOK && a.status < 400:
		return fmt.Errorf("status %d with an error", a.status)
	case a.done || a.finish != "":
		return errors.New("an error behind the end of an answer")
	case !strings.HasPrefix(want.text, a.text):
		return fmt.Errorf("the text before the error is not the beginning of the right one after %d bytes", common(a.text, want.text))
	}
	return nil
}

func common(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
