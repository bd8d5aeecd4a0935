package canary

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/openai"
)

// sent is one request and its end.
type sent struct {
	*prompt
	stream bool
	must   string // "": an answer; "refuse": an error; "cancel": the canary goes away
	tries  int
	answer *openai.Answer
	err    error
}

// what is a request's kind in a report.
func (s *sent) what() string {
	w := "completion of text"
	if s.request.Chat {
		w = "chat"
	} else if s.request.IDs != nil {
		w = fmt.Sprintf("completion of %d token ids", len(s.request.IDs))
	}
	if s.stream {
		w += ", streamed"
	}
	return fmt.Sprintf("%s, max_tokens %d", w, s.request.MaxTokens)
}

// whole says that there is an answer from beginning to end.
func (s *sent) whole() bool {
	return s.err == nil && s.answer != nil && s.answer.Status == http.StatusOK && s.answer.Err == nil && (!s.answer.Stream || s.answer.Done)
}

// ask sends p and checks what can be checked of the answer alone. nil: nothing was sent.
// A server that is busy is asked again, as clients do.
func (r *run) ask(ctx context.Context, p *prompt, stream bool, must string) *sent {
	const tries = 4
	s := &sent{prompt: p, stream: stream, must: must}
	for s.tries = 1; ; s.tries++ {
		if !r.take(ctx) {
			return nil
		}
		r.send(ctx, s)
		busy := s.answer != nil && (s.answer.Status == http.StatusTooManyRequests || s.answer.Status == http.StatusServiceUnavailable)
		r.count(s, busy)
		r.progress()
		if !busy || s.tries == tries {
			break
		}
		wait := min(s.answer.RetryAfter, 5*time.Second)
		if wait == 0 {
			wait = 100 * time.Millisecond
		}
		select {
		case <-ctx.Done():
			return s
		case <-time.After(wait):
		}
	}
	r.examine(s)
	return s
}

func (r *run) send(ctx context.Context, s *sent) {
	ctx, cancel := context.WithTimeout(ctx, r.c.Timeout)
	defer cancel()
	request := s.request
	request.Stream = s.stream
	s.answer, s.err = r.client.Do(ctx, r.c.Tenants[s.tenant].Key, request)
}

func (r *run) count(s *sent, busy bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case s.must == "cancel" && s.err != nil:
		r.rep.Canceled++
	case busy:
		r.rep.Refused++
	case s.whole():
		r.rep.OK++
	case s.must == "refuse" && s.err == nil && (s.answer.Status/100 == 4 || s.answer.Err != nil && s.answer.Status/100 == 2):
		r.rep.Rejected++
	default:
		r.rep.Failed++
	}
}

// examine looks for what cannot be right in one answer, whatever the request.
func (r *run) examine(s *sent) {
	if errors.Is(s.err, openai.ErrMalformed) || errors.Is(s.err, openai.ErrTooLarge) {
		r.find(Malformed, s, "", "%v", s.err)
	}
	a := s.answer
	if a == nil {
		return
	}
	r.foreign(s)
	if e := a.Err; e != nil {
		if e.Code == "integrity_error" {
			r.find(Integrity, s, "", "status %d, code %s", a.Status, e.Code)
		}
		if a.Status == http.StatusOK && !a.Stream {
			r.find(ErrorAs200, s, "", "status 200, error type %q, code %q", clip(e.Type), clip(e.Code))
		}
		if len(a.Events) > 0 && s.must == "refuse" {
			r.find(TextThenError, s, "", "%d pieces of text before an error with code %q", len(a.Events), clip(e.Code))
		}
	}
	if a.After {
		r.find(AfterEnd, s, "", "text or events after the end of the stream")
	}
	if s.err != nil || a.Status != http.StatusOK {
		return
	}
	if a.Stream && !a.Done && a.Err == nil {
		r.find(Truncated, s, "", "%d pieces of text, finish reason %q, then the end without [DONE]", len(a.Events), clip(a.Finish))
		return
	}
	if a.Err != nil || s.must == "refuse" {
		return
	}
	r.receipt(s)
	r.usage(s)
	r.finish(s)
}

// foreign looks for other requests' markers in everything that came.
func (r *run) foreign(s *sent) {
	var all strings.Builder
	all.WriteString(s.answer.Text)
	for _, values := range s.answer.Header {
		all.WriteString("\n" + strings.Join(values, "\n"))
	}
	if e := s.answer.Err; e != nil {
		all.WriteString("\n" + e.Message + "\n" + e.Type + "\n" + e.Code)
	}
	all.WriteByte('\n')
	for _, t := range s.answer.Tokens { // without what a stop string or a lost delta hid
		all.WriteString(t.Text)
	}
	for _, of := range r.book.find(all.String(), s.own) {
		whose := "another request of the same tenant"
		if of.tenant != s.tenant {
			whose = "another tenant"
		}
		r.find(ForeignMarker, s, r.c.Tenants[of.tenant].Name, "%d or more characters of the marker of prompt %d, of %s; status %d", gramLen, of.request, whose, s.answer.Status)
	}
}

func (r *run) usage(s *sent) {
	u := s.answer.Usage
	if r.counted(s); u == nil {
		return
	}
	if s.tokens > 0 && u.Prompt != s.tokens {
		r.find(WrongUsage, s, "", "prompt_tokens %d, sent %d token ids", u.Prompt, s.tokens)
	}
	if u.Prompt < 1 || u.Completion < 0 || u.Total != u.Prompt+u.Completion || u.Cached > u.Prompt || u.Cached < 0 {
		r.find(WrongUsage, s, "", "prompt_tokens %d, completion_tokens %d, total_tokens %d, cached_tokens %d", u.Prompt, u.Completion, u.Total, u.Cached)
	}
	if u.Completion > s.request.MaxTokens {
		r.find(WrongUsage, s, "", "completion_tokens %d, max_tokens %d", u.Completion, s.request.MaxTokens)
	}
	// One end-of-text token may be counted and not listed, or the other way round.
	if n := len(s.answer.Tokens); n > 0 && (u.Completion < n-1 || u.Completion > n+1) {
		r.find(WrongUsage, s, "", "completion_tokens %d, log probabilities of %d", u.Completion, n)
	}
}

func (r *run) finish(s *sent) {
	n := len(s.answer.Tokens)
	if u := s.answer.Usage; u != nil {
		n = u.Completion
	}
	known := n > 0 || s.answer.Usage != nil
	limit := s.request.MaxTokens
	switch f := s.answer.Finish; {
	case f == "":
		r.find(Finish, s, "", "none in a complete answer")
	case f == "length" && known && n < limit:
		r.find(Finish, s, "", "length after %d of %d tokens", n, limit)
	case f == "stop" && n > limit:
		r.find(Finish, s, "", "stop after %d tokens, over the %d asked for", n, limit)
	case f != "length" && f != "stop":
		r.find(Finish, s, "", "%q, of a request without tools or filters", clip(f))
	}
}

// compare checks an answer against the one that the same request got alone.
func (r *run) compare(s, alone *sent) {
	if s == nil || alone == nil || !s.whole() || !alone.whole() {
		return
	}
	r.mu.Lock()
	r.rep.Compared++
	r.mu.Unlock()
	a, b := s.answer, alone.answer
	if a.Usage != nil && b.Usage != nil && a.Usage.Prompt != b.Usage.Prompt {
		r.find(WrongUsage, s, "", "prompt_tokens %d, and %d for the same request alone", a.Usage.Prompt, b.Usage.Prompt)
	}
	if r.c.Determinism == Off {
		return
	}
	if a.Text != b.Text || a.Finish != b.Finish {
		r.find(Differs, s, "", "%d bytes of text, of which the first %d are those of the %d that came alone; finish reasons %q and %q",
			len(a.Text), common(a.Text, b.Text), len(b.Text), clip(a.Finish), clip(b.Finish))
		return
	}
	if r.c.Determinism == Bitwise && len(a.Tokens) > 0 && len(b.Tokens) > 0 && !slices.Equal(a.Tokens, b.Tokens) {
		at := 0
		for at < min(len(a.Tokens), len(b.Tokens)) && a.Tokens[at] == b.Tokens[at] {
			at++
		}
		r.find(Differs, s, "", "the same text, another log probability from token %d of %d on", at, len(b.Tokens))
	}
}

func common(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// refused checks the end of a request that must be refused.
func (r *run) refused(s *sent, k Kind) {
	if s == nil || s.err != nil || s.answer.Status/100 != 2 || s.answer.Err != nil {
		return
	}
	a := s.answer
	if u := a.Usage; k == OverLength && u != nil && len(s.request.IDs) == r.can.Window-1 && u.Prompt+u.Completion <= r.can.Window {
		return // max_tokens was cut to what fits: not as asked for, but true
	}
	if a.Stream && len(a.Events) == 0 && a.Usage == nil && a.Finish == "" {
		return // it broke off; that is found as such
	}
	got := "no usage"
	if u := a.Usage; u != nil {
		got = fmt.Sprintf("prompt_tokens %d, completion_tokens %d", u.Prompt, u.Completion)
	}
	r.find(k, s, "", "status %d, window %d, finish reason %q, %s, %d bytes of text", a.Status, r.can.Window, clip(a.Finish), got, len(a.Text))
}

// receipts are the x-bulkhead-receipt headers of answers.
type receipts struct {
	hashes  map[string]bool
	missing int
	last    *sent // of those without
}

// receiptsMax are remembered to find one that comes twice.
const receiptsMax = 1 << 18

func (r *run) receipt(s *sent) {
	hash := s.answer.Header.Get("x-bulkhead-receipt")
	if len(hash) > 1024 {
		hash = hash[:1024]
	}
	r.mu.Lock()
	twice := r.seen.hashes[hash]
	switch {
	case hash != "" && len(r.seen.hashes) < receiptsMax:
		r.seen.hashes[hash] = true
	case hash == "" && !(s.answer.Stream && s.answer.Held): // its headers were sent before the receipt was there
		r.seen.missing++
		r.seen.last = s
	}
	r.mu.Unlock()
	if twice {
		r.find(ReceiptTwice, s, "", "the receipt of an earlier answer")
	}
}

// finishReceipts decides at the end whether the server sends receipts at all.
func (r *run) finishReceipts() {
	r.mu.Lock()
	ever, missing, last := len(r.seen.hashes) > 0, r.seen.missing, r.seen.last
	r.mu.Unlock()
	if missing > 0 && (ever || r.c.ExpectReceipts) {
		r.find(ReceiptMissing, last, "", "%d answers without one; this is the last", missing)
	}
}

// usages are the token counts of answers. Streams are judged apart: some
// servers never count in them.
type usages struct {
	inStreams bool  // a stream had them
	missing   *sent // the first stream without
}

// counted looks for the token counts of an answer.
func (r *run) counted(s *sent) {
	has := s.answer.Usage != nil
	if !s.answer.Stream {
		if !has {
			r.find(UsageMissing, s, "", "no usage in the answer")
		}
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usages.inStreams = r.usages.inStreams || has
	if !has && r.usages.missing == nil {
		r.usages.missing = s
	}
}

// finishUsages decides at the end whether the server counts in streams at all.
func (r *run) finishUsages() {
	r.mu.Lock()
	u := r.usages
	r.mu.Unlock()
	if u.inStreams && u.missing != nil {
		r.find(UsageMissing, u.missing, "", "no usage in a stream; other streams have it")
	}
}

// badKey tries a key that nobody was given.
func (r *run) badKey(ctx context.Context) {
	if r.c.AllowAnyKey {
		return
	}
	models, status, err := r.client.Models(ctx, "sk-canary-"+r.book.mark(origin{}))
	if err == nil && status == http.StatusOK {
		r.find(KeyNotChecked, nil, "", "a random key lists %d models: the tenants of this run are only names", len(models))
	}
}
