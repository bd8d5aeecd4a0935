// Package openai is a client that watches an OpenAI-compatible server: it sends one
// generation and reports all that came back, and when, without believing any of it.
//
// The main type is [Client]; [Client.Do] gives an [Answer], [Client.Discover] what the
// server can do. It is for measuring and for looking for faults, not for
// applications: it never retries, and it knows one choice of one prompt.
//
// Memory is bounded whatever the server sends. Errors never hold a prompt, an
// answer or a key.
package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Errors of a call, beside those of the connection.
var (
	ErrURL       = errors.New("openai: not an http or https address")
	ErrMalformed = errors.New("openai: malformed answer") // not what the API's shapes allow
	ErrTooLarge  = errors.New("openai: answer over the limit")
)

// Bounds of one answer. A million tokens with log probabilities are under 64 MiB.
const (
	answerBytesMax = 64 << 20
	lineBytesMax   = 1 << 20
)

// Client calls one server. It is safe for concurrent use.
type Client struct {
	// Resend lets a request go out again over a new connection when a used one ended before the first byte of
	// an answer; set it before the first request. llama.cpp's server ends connections so, without notice, and
	// clients such as the openai packages retry. The server may then work on a request twice.
	Resend bool

	base string
	http *http.Client
}

// New returns a client of the server at address, with or without /v1 at its end, that keeps up to
// conns connections. The errors of a bad address do not repeat it: it may hold a secret.
func New(address string, conns int) (*Client, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, ErrURL
	}
	u.RawQuery, u.Fragment = "", ""
	base := strings.TrimSuffix(strings.TrimSuffix(u.String(), "/"), "/v1")
	return &Client{base: base, http: &http.Client{Transport: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		MaxIdleConns:        conns,
		MaxIdleConnsPerHost: conns,
		DisableCompression:  true, // it would hold events back
		IdleConnTimeout:     30 * time.Second,
	}}}, nil
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Do sends r with a key and reads the answer to its end. Every status is an answer;
// the error is for what kept one from coming whole: the connection, ctx,
// ErrMalformed, ErrTooLarge. Where a status came, the answer up to there comes beside the error.
func (c *Client) Do(ctx context.Context, key string, r Request) (*Answer, error) {
	body, err := r.body()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	resp, err := c.send(ctx, http.MethodPost, r.path(), key, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	a := newAnswer(resp)
	from := &limited{r: resp.Body, left: answerBytesMax}
	if a.Stream {
		err = a.readStream(from, start, r.OnText)
	} else {
		err = a.readWhole(from)
	}
	a.Total, a.Text = time.Since(start), a.text.String()
	return a, hide(err)
}

func (c *Client) send(ctx context.Context, method, path, key string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, ErrURL
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.Resend {
		req.Header["Idempotency-Key"] = []string{} // not sent: net/http's sign that it may send again
	}
	resp, err := c.http.Do(req)
	return resp, hide(err)
}

// hide drops the address from an error of net/http: it may hold a password.
func hide(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return fmt.Errorf("openai: %w", u.Err)
	}
	return err
}

// limited reads up to left bytes, and then fails rather than end.
type limited struct {
	r    io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, fmt.Errorf("%w of %d bytes", ErrTooLarge, answerBytesMax)
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}

// Model is one entry of the server's list.
type Model struct {
	ID     string
	Window int // longest prompt and output in tokens; 0: the server does not say
}

// Models lists the models that a key may use. status is that of the answer, 0 if
// none came.
func (c *Client) Models(ctx context.Context, key string) (models []Model, status int, err error) {
	resp, err := c.send(ctx, http.MethodGet, "/v1/models", key, nil)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, resp.StatusCode, fmt.Errorf("openai: the list of models is refused with status %d", resp.StatusCode)
	}
	raw, err := io.ReadAll(&limited{r: resp.Body, left: 4 << 20})
	if err != nil {
		return nil, resp.StatusCode, hide(err)
	}
	var list struct {
		Data []struct {
			ID     string
			Window int `json:"max_model_len"` // vLLM and Bulkhead
			Meta   struct {
				Window int `json:"n_ctx"` // llama-server
			}
		}
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, resp.StatusCode, fmt.Errorf("%w: the list of models is not JSON of the right shape", ErrMalformed)
	}
	for _, m := range list.Data {
		models = append(models, Model{m.ID, max(m.Window, m.Meta.Window, 0)})
	}
	return models, resp.StatusCode, nil
}

// retryAfter reads either header that SDKs obey; 0 if there is none.
func retryAfter(h http.Header) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("retry-after-ms"), 64); err == nil && ms > 0 && ms < 1e9 {
		return time.Duration(ms * float64(time.Millisecond))
	}
	if s, err := strconv.Atoi(h.Get("Retry-After")); err == nil && s > 0 && s < 1e6 {
		return time.Duration(s) * time.Second
	}
	return 0
}
