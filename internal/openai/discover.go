package openai

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// ErrUnusable is a server that answers no request that this package can make.
var ErrUnusable = errors.New("openai: no usable endpoint")

// Abilities is what a server was seen to take.
type Abilities struct {
	Model         string // the one asked for, or the first of the list
	Window        int    // longest prompt and output in tokens; 0: unknown
	Completions   bool
	Chat          bool
	IDs           bool // token ids as a completion's prompt
	TextLogprobs  bool // completions
	ChatLogprobs  bool
	IgnoreEOS     bool
	TokensPerWord float64 // of Filler, template included; 0: unknown
	Sent          int     // requests that it took to find out
}

// Token ids that every vocabulary has and that are ordinary text: those of control
// tokens are mostly lower or at the end.
const (
	LowID  = 64
	HighID = 256 // exclusive
)

// Discover finds out what the server takes, with a handful of small requests. model may be
// empty. Errors: those of the connection, a refused key, ErrUnusable.
func (c *Client) Discover(ctx context.Context, key, model string) (Abilities, error) {
	a := Abilities{Model: model}
	models, status, err := c.Models(ctx, key)
	if err != nil && (model == "" || status != http.StatusNotFound) {
		return a, err
	}
	for _, m := range models {
		if a.Model == "" || a.Model == m.ID {
			a.Model, a.Window = m.ID, m.Window
			break
		}
	}
	if a.Model == "" {
		return a, fmt.Errorf("%w: the server lists no model", ErrUnusable)
	}
	base := Request{Model: a.Model, Text: strings.Join(words, " "), MaxTokens: 1}
	takes := func(r Request) (ok bool, err error) {
		a.Sent++
		got, err := c.takes(ctx, key, r)
		if got != nil && got.Usage != nil && r.IDs == nil && (!r.Chat || !a.Completions) {
			a.TokensPerWord = float64(got.Usage.Prompt) / float64(len(words))
		}
		return got != nil, err
	}
	if a.Completions, err = takes(base); err != nil {
		return a, err
	}
	chat := base
	chat.Chat = true
	if a.Chat, err = takes(chat); err != nil {
		return a, err
	}
	if !a.Completions && !a.Chat {
		return a, fmt.Errorf("%w: neither /v1/completions nor /v1/chat/completions takes a small request for the model", ErrUnusable)
	}
	with := func(r Request, change func(*Request)) Request { change(&r); return r }
	if a.Completions {
		ids := with(base, func(r *Request) { r.IDs = []int32{LowID, LowID + 1, LowID + 2} })
		if a.IDs, err = takes(ids); err != nil {
			return a, err
		}
		if a.TextLogprobs, err = takes(with(base, func(r *Request) { r.Logprobs = true })); err != nil {
			return a, err
		}
	}
	if a.Chat {
		if a.ChatLogprobs, err = takes(with(chat, func(r *Request) { r.Logprobs = true })); err != nil {
			return a, err
		}
	}
	last := base
	if last.Chat = !a.Completions; last.Chat {
		last = chat
	}
	a.IgnoreEOS, err = takes(with(last, func(r *Request) { r.IgnoreEOS = true }))
	return a, err
}

// takes sends r and returns the answer if there is one, nil if the server says that it
// does not do this. A busy server is asked again.
func (c *Client) takes(ctx context.Context, key string, r Request) (*Answer, error) {
	const tries = 5
	for try := 1; ; try++ {
		got, err := c.Do(ctx, key, r)
		if err != nil {
			return nil, err
		}
		switch {
		case got.Status == http.StatusOK && got.Err == nil:
			if r.Logprobs && len(got.Tokens) == 0 {
				return nil, nil // read past
			}
			return got, nil
		case got.Status == http.StatusUnauthorized || got.Status == http.StatusForbidden:
			return nil, fmt.Errorf("openai: the key is refused with status %d", got.Status)
		case got.Status >= 400 && got.Status < 500 && got.Status != http.StatusTooManyRequests:
			return nil, nil
		case got.Status == http.StatusNotImplemented:
			return nil, nil
		case try == tries && got.Status != http.StatusServiceUnavailable && got.Status != http.StatusTooManyRequests && (r.IDs != nil || r.Logprobs || r.IgnoreEOS):
			return nil, nil // some servers break over what they do not do
		case try == tries:
			return nil, fmt.Errorf("openai: status %d to a small request, %d times", got.Status, tries)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(min(max(got.RetryAfter, 200*time.Millisecond), 5*time.Second)):
		}
	}
}
