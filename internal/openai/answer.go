package openai

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Answer is what a server sent, from an endpoint of either kind, streamed or not, brought to one form.
type Answer struct {
	Status int
	Header http.Header
	Stream bool // an event stream, whatever was asked for
	Text   string
	Tokens []Token // with Request.Logprobs: one for each generated token
	Finish string  // finish_reason, "" if none came
	Usage  *Usage
	Err    *Error // in the body, or in an event
	Done   bool   // [DONE] came
	After  bool   // something came after [DONE], or text after an error
	Held   bool   // a comment came before the first event: the headers were sent before the answer was known

	RetryAfter time.Duration
	Events     []time.Duration // when each piece of text came, since sending
	Total      time.Duration   // until the end

	text strings.Builder // becomes Text at the end
}

// Token is one generated token as the server names it.
type Token struct {
	Text    string
	Logprob float64
}

// Usage is what the server counts.
type Usage struct {
	Prompt     int
	Completion int
	Total      int
	Cached     int
	HasCached  bool // it says how much of the prompt was cached
}

// Error is the server's own.
type Error struct {
	Message string
	Type    string
	Code    string
}

func newAnswer(resp *http.Response) *Answer {
	return &Answer{
		Status: resp.StatusCode, Header: resp.Header, RetryAfter: retryAfter(resp.Header),
		Stream: strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream"),
	}
}

// wireAnswer is a superset of all shapes: chat or completion, whole or a piece, or an error.
type wireAnswer struct {
	Choices []wireChoice `json:"choices"`
	Usage   *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
		Details    *struct {
			Cached *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error   json.RawMessage `json:"error"`
	Object  string          `json:"object"`  // SGLang: "error", with the message beside it
	Message json.RawMessage `json:"message"` // of such an error
}

type wireChoice struct {
	Index int    `json:"index"`
	Text  string `json:"text"`
	Delta struct {
		Content string `json:"content"`
	} `json:"delta"`
	Message struct {
		Content string `json:"content"`
	} `json:"message"`
	Logprobs *struct {
		Tokens  []string   `json:"tokens"`
		Values  []*float64 `json:"token_logprobs"`
		Content []struct {
			Token   string  `json:"token"`
			Logprob float64 `json:"logprob"`
		} `json:"content"`
	} `json:"logprobs"`
	Finish *string `json:"finish_reason"`
}

// readWhole reads a body. One that is no JSON is an error only where the status says success.
func (a *Answer) readWhole(r io.Reader) error {
	raw, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	_, err = a.add(raw)
	if err != nil && a.Status != http.StatusOK {
		return nil
	}
	return err
}

// add takes a body or the data of one event, and returns whether text came with it.
func (a *Answer) add(raw []byte) (text bool, err error) {
	var w wireAnswer
	if err := json.Unmarshal(raw, &w); err != nil {
		return false, fmt.Errorf("%w: %d bytes that are not JSON of the right shape", ErrMalformed, len(raw))
	}
	if e := w.error(); e != nil && a.Err == nil {
		a.Err = e
	}
	if u := w.Usage; u != nil {
		a.Usage = &Usage{Prompt: u.Prompt, Completion: u.Completion, Total: u.Total}
		if u.Details != nil && u.Details.Cached != nil {
			a.Usage.Cached, a.Usage.HasCached = *u.Details.Cached, true
		}
	}
	before := a.text.Len()
	for _, c := range w.Choices {
		if c.Index != 0 {
			return false, fmt.Errorf("%w: choice %d of 1", ErrMalformed, c.Index)
		}
		a.text.WriteString(c.Text + c.Delta.Content + c.Message.Content)
		if c.Finish != nil && *c.Finish != "" {
			a.Finish = *c.Finish
		}
		l := c.Logprobs
		if l == nil {
			continue
		}
		for i, t := range l.Tokens {
			if i >= len(l.Values) || l.Values[i] == nil {
				return false, fmt.Errorf("%w: a token without its log probability", ErrMalformed)
			}
			a.Tokens = append(a.Tokens, Token{t, *l.Values[i]})
			text = true
		}
		for _, t := range l.Content {
			a.Tokens = append(a.Tokens, Token{t.Token, t.Logprob})
			text = true
		}
	}
	return text || a.text.Len() > before, nil
}

func (w *wireAnswer) error() *Error {
	raw := w.Error
	if w.Object == "error" && isNull(raw) {
		var e Error
		if json.Unmarshal(w.Message, &e.Message) != nil {
			e.Message = "unreadable"
		}
		return &e
	}
	if isNull(raw) {
		return nil
	}
	var e struct {
		Message string
		Type    string
		Code    json.RawMessage // a string, a number or null
	}
	if json.Unmarshal(raw, &e) != nil {
		return &Error{Message: "unreadable"}
	}
	code := strings.Trim(string(e.Code), `"`)
	if code == "null" {
		code = ""
	}
	return &Error{e.Message, e.Type, code}
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// readStream reads server-sent events to the end. A stream that just stops is no
// error here: Done and Err say how it ended.
func (a *Answer) readStream(r io.Reader, start time.Time, onText func()) error {
	lines := bufio.NewReaderSize(r, 64<<10)
	first := true
	for {
		line, err := readLine(lines)
		if err != nil && (err != io.EOF || len(line) == 0) {
			if err == io.EOF {
				return nil
			}
			return err
		}
		if bytes.HasPrefix(line, []byte(":")) {
			a.Held = a.Held || first
			continue
		}
		data, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			continue
		}
		first = false
		data = bytes.TrimPrefix(data, []byte(" "))
		if a.Done {
			a.After = true
			continue
		}
		if string(data) == "[DONE]" {
			a.Done = true
			continue
		}
		failed := a.Err != nil
		text, err := a.add(data)
		if err != nil {
			return err
		}
		if text {
			a.After = a.After || failed
			a.Events = append(a.Events, time.Since(start))
			if onText != nil {
				onText()
			}
		}
	}
}

// readLine returns a line without its end. It is valid until the next call.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		long := bytes.Clone(line)
		for errors.Is(err, bufio.ErrBufferFull) {
			if len(long) > lineBytesMax {
				return nil, fmt.Errorf("%w: a line of over %d bytes", ErrTooLarge, lineBytesMax)
			}
			line, err = r.ReadSlice('\n')
			long = append(long, line...)
		}
		line = long
	}
	return bytes.TrimRight(line, "\r\n"), err
}
