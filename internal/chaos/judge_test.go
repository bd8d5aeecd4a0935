//go:build chaos

package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"bulkhead/internal/openai"
	"bulkhead/internal/provenance"
	"bulkhead/internal/tokenizer"
)

// judge knows the right answer to every question. It belongs to one goroutine.
type judge struct {
	tok    *tokenizer.Tokenizer
	oracle *provenance.Oracle
}

func newJudge(window int) (*judge, error) {
	e, err := provenance.New(provenance.Config{Window: window})
	if err != nil {
		return nil, err
	}
	tok, _, err := provenance.NewTokenizer()
	if err != nil {
		return nil, err
	}
	return &judge{tok, e.NewOracle()}, nil
}

// question is one request with its right answer.
type question struct {
	openai.Request
	prompt []int32
	text   string
	finish string
	tokens int // generated, the end included
}

// ask makes a question of so many characters, marked by who asks and when.
func (j *judge) ask(r *rand.Rand, mark string, chars, maxNew int, chat, stream bool) (*question, error) {
	var b strings.Builder
	for b.Len() < chars {
		fmt.Fprintf(&b, "%s-%08x ", mark, r.Uint32())
	}
	q := &question{Request: openai.Request{
		Model: "provenance", Chat: chat, Text: b.String()[:chars], MaxTokens: maxNew, Stream: stream,
	}}
	if chat {
		var err error
		if q.prompt, err = j.tok.RenderChat([]tokenizer.Message{{Role: "user", Content: q.Text}}, true); err != nil {
			return nil, err
		}
	} else {
		q.prompt = j.tok.Encode(q.Text)
	}
	ids := j.oracle.Expected(q.prompt, maxNew)
	q.tokens, q.finish = len(ids), "length"
	var text strings.Builder
	for _, id := range ids {
		if id == provenance.EOG {
			q.finish = "stop"
			break
		}
		text.Write(j.tok.Piece(id))
	}
	q.text = text.String()
	return q, nil
}

// end is how a request ended.
type end string

// The ends. Only the first two and lost are ones that a client should ever see.
const (
	endRight end = "right"  // the answer, whole
	endError end = "error"  // an error that says so
	endLost  end = "lost"   // the connection to the router broke: it died
	endGone  end = "left"   // the client left
	endHung  end = "hung"   // nothing came until the deadline
	endWrong end = "WRONG"  // anything that is not the answer and does not say so
	endOdd   end = "unkind" // an error of a kind that clients are not promised here
)

// kind errors say that the same request may succeed later, or that a check refused
// what it met. refused is a node's no to a message that a faulty bus made of the router's; request_timeout
// is what a router that was stopped says of a body that it had no time to read.
var kindErrors = map[string]bool{
	"overloaded": true, "queue_timeout": true, "timeout": true, "worker_lost": true, "draining": true,
	"integrity_error": true, "refused": true, "request_timeout": true,
}

// judge says how a request ended and, unless it is right, why.
func (q *question) judge(ctx context.Context, a *openai.Answer, err error) (end, string) {
	switch {
	case errors.Is(context.Cause(ctx), errLeft):
		if a != nil && !strings.HasPrefix(q.text, a.Text) {
			return endWrong, q.difference(a.Text)
		}
		return endGone, ""
	case ctx.Err() != nil:
		return endHung, fmt.Sprintf("nothing terminal within %s", requestDeadline)
	case a != nil && !strings.HasPrefix(q.text, a.Text):
		return endWrong, q.difference(a.Text)
	case errors.Is(err, openai.ErrMalformed):
		return endWrong, err.Error()
	case err != nil:
		if a != nil && a.Done {
			return endWrong, "broken behind [DONE]"
		}
		return endLost, err.Error()
	case a.Err != nil:
		switch {
		case a.Done || a.Finish != "" || a.After:
			return endWrong, "an error beside the end of an answer"
		case !a.Stream && (a.Status < 400 || a.Text != ""):
			return endWrong, fmt.Sprintf("status %d with an error", a.Status)
		case !kindErrors[a.Err.Code]:
			return endOdd, fmt.Sprintf("status %d, %s: %s", a.Status, a.Err.Code, a.Err.Message)
		}
		return endError, a.Err.Code
	case a.Status != http.StatusOK:
		return endOdd, fmt.Sprintf("status %d without an error", a.Status)
	case a.Text != q.text:
		return endWrong, q.difference(a.Text)
	case a.Finish != q.finish || a.Usage == nil || a.Usage.Prompt != len(q.prompt):
		return endWrong, fmt.Sprintf("finish %q, usage %+v; want %q and %d prompt tokens", a.Finish, a.Usage, q.finish, len(q.prompt))
	case q.Stream != a.Done:
		return endWrong, "the stream just stops"
	case a.Header.Get("x-bulkhead-receipt") == "" && !a.Held:
		return endWrong, "no receipt"
	}
	return endRight, ""
}

func (q *question) difference(text string) string {
	return fmt.Sprintf("prompt of %d tokens: answer %q, want %q", len(q.prompt), text, q.text)
}

// errLeft is why a client's context ended when it hung up.
var errLeft = errors.New("the client left")

// requestDeadline is when every request must have had its terminal event: the router's
// deadlines for the first token (20 s) and between tokens (30 s) together, and what
// remains of 30 s in which the router itself was stopped.
const requestDeadline = 90 * time.Second
