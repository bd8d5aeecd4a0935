//go:build chaos

package chaos_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/openai"
	"bulkhead/internal/provenance"
)

// goal: the judge sees what it is there to see. method: one right answer, and each way in
// which it may be spoilt.
func TestJudge(t *testing.T) {
	j, err := newJudge(window)
	if err != nil {
		t.Fatal(err)
	}
	q, err := j.ask(rand.New(rand.NewPCG(1, 1)), "T1", 700, 40, false, true)
	if err != nil {
		t.Fatal(err)
	}
	if q.finish != "stop" || len(q.text) != 4*provenance.Digits {
		t.Fatalf("%q, %d characters", q.finish, len(q.text))
	}
	good := func() *openai.Answer {
		return &openai.Answer{
			Status: http.StatusOK, Header: http.Header{"X-Bulkhead-Receipt": {"00"}}, Stream: true, Text: q.text, Finish: "stop", Done: true,
			Usage: &openai.Usage{Prompt: len(q.prompt)},
		}
	}
	fails := func(code string) func(*openai.Answer) {
		return func(a *openai.Answer) {
			a.Text, a.Finish, a.Done, a.Usage, a.Err = q.text[:8], "", false, nil, &openai.Error{Code: code}
		}
	}
	left, leave := context.WithCancelCause(t.Context())
	leave(errLeft)
	late, cancel := context.WithTimeout(t.Context(), -time.Second)
	defer cancel()
	for name, c := range map[string]struct {
		ctx    context.Context
		change func(*openai.Answer)
		err    error
		want   end
	}{
		"right":                  {want: endRight},
		"another digit":          {change: func(a *openai.Answer) { a.Text = strings.Replace(a.Text, "[p", "[q", 1) }, want: endWrong},
		"too short":              {change: func(a *openai.Answer) { a.Text = a.Text[:len(a.Text)-4] }, want: endWrong},
		"another finish":         {change: func(a *openai.Answer) { a.Finish = "length" }, want: endWrong},
		"another prompt":         {change: func(a *openai.Answer) { a.Usage.Prompt++ }, want: endWrong},
		"no usage":               {change: func(a *openai.Answer) { a.Usage = nil }, want: endWrong},
		"no receipt":             {change: func(a *openai.Answer) { a.Header = http.Header{} }, want: endWrong},
		"it just stops":          {change: func(a *openai.Answer) { a.Done = false }, want: endWrong},
		"malformed":              {err: openai.ErrMalformed, want: endWrong},
		"an error":               {change: fails("worker_lost"), want: endError},
		"an error that is a bug": {change: fails("internal_error"), want: endOdd},
		"an error beside a finish": {change: func(a *openai.Answer) {
			fails("worker_lost")(a)
			a.Finish = "stop"
		}, want: endWrong},
		"another text in front of an error": {change: func(a *openai.Answer) {
			fails("worker_lost")(a)
			a.Text = "[px]"
		}, want: endWrong},
		"a status without an error":   {change: func(a *openai.Answer) { a.Status = 502 }, want: endOdd},
		"the router died":             {change: fails(""), err: io.ErrUnexpectedEOF, want: endLost},
		"the client left":             {ctx: left, err: context.Canceled, want: endGone},
		"left, and the text is wrong": {ctx: left, change: func(a *openai.Answer) { a.Text = "[px]" }, err: context.Canceled, want: endWrong},
		"nothing came":                {ctx: late, err: context.DeadlineExceeded, want: endHung},
	} {
		a := good()
		if c.change != nil {
			c.change(a)
		}
		if errors.Is(c.err, io.ErrUnexpectedEOF) {
			a.Err = nil
		}
		ctx := c.ctx
		if ctx == nil {
			ctx = t.Context()
		}
		if got, why := q.judge(ctx, a, c.err); got != c.want {
			t.Errorf("%s: %s (%s), want %s", name, got, why, c.want)
		}
	}
}

// goal: every fault happens as often as the report says.
func TestPlan(t *testing.T) {
	all := plan(3, "", 1)
	count := map[string]int{}
	for _, f := range all {
		count[f.String()]++
	}
	if len(count) != 4*len(roles)+7 {
		t.Errorf("%d kinds of fault: %v", len(count), count)
	}
	for f, n := range count {
		if n != 3 {
			t.Errorf("%s %d times, want 3", f, n)
		}
	}
	if only := plan(2, "kill decode", 1); len(only) != 2 {
		t.Errorf("%v", only)
	}
}
