package canary

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Kind is what a finding is about.
type Kind string

// The kinds of findings.
const (
	ForeignMarker  Kind = "foreign-marker"       // a leak: part of another request's marker
	ForeignPrefix  Kind = "foreign-prefix"       // a leak: another tenant's prompt was a hit in the prefix cache
	PrefixTiming   Kind = "prefix-timing"        // another tenant's prompt is answered sooner than a new one
	OverLength     Kind = "over-length-answered" // as in the leak of 2026: a prompt over the window was answered
	TextThenError  Kind = "text-before-error"    // text of a request that should have been refused
	BadRequest     Kind = "bad-request-answered" // a token id that no vocabulary has
	KeyNotChecked  Kind = "key-not-checked"      // a key that nobody was given is good
	ErrorAs200     Kind = "error-as-200"         // an error's body with the status of an answer
	WrongUsage     Kind = "wrong-usage"          // token counts that are not true
	UsageMissing   Kind = "usage-missing"        // no token counts
	ReceiptMissing Kind = "receipt-missing"      // an answer without x-bulkhead-receipt
	ReceiptTwice   Kind = "receipt-repeated"     // two answers with one receipt
	Finish         Kind = "finish-contradicts"   // finish_reason against the tokens that came
	Truncated      Kind = "stream-truncated"     // a stream without [DONE] and without an error
	AfterEnd       Kind = "stream-after-end"     // something after [DONE], or text after an error
	Differs        Kind = "answer-differs"       // a greedy answer that is not that of the same request alone
	Integrity      Kind = "integrity-error"      // the server itself says that pages or frames did not verify
	Malformed      Kind = "malformed"            // no shape of the API
)

// leaks are the kinds that are one tenant's data in another's answer, or what leads to it.
var leaks = map[Kind]bool{ForeignMarker: true, ForeignPrefix: true, OverLength: true}

// Finding is one thing that cannot be right.
type Finding struct {
	Kind    Kind   `json:"kind"`
	Leak    bool   `json:"leak"`
	Tenant  string `json:"tenant"`       // who got the answer
	Of      string `json:"of,omitempty"` // whose data is in it
	Prompt  int    `json:"prompt"`       // number of the prompt in this run
	Request string `json:"request"`      // what kind of request
	ID      string `json:"id,omitempty"` // x-request-id of the answer, for the server's log
	Detail  string `json:"detail"`       // counts and states, no text
	At      string `json:"at"`           // RFC 3339
}

// findingsMax are kept whole; the rest are counted.
const findingsMax = 1000

// Report is what a run saw.
type Report struct {
	Model    string   `json:"model"`
	Window   int      `json:"window_tokens"` // 0: unknown, and then nothing at or over it was sent exactly
	Tenants  []string `json:"tenants"`
	Seed     uint64   `json:"seed"`
	Started  string   `json:"started"`
	Seconds  float64  `json:"seconds"`
	Takes    []string `json:"server_takes"` // what it was found to take
	Sent     int      `json:"requests"`
	OK       int      `json:"answered"`
	Rejected int      `json:"rejected"`  // that had to be: over-length and bad requests
	Canceled int      `json:"cancelled"` // by the canary
	Refused  int      `json:"refused"`   // 429 and 503, also when asked again
	Failed   int      `json:"failed"`    // every other end: 5xx, broken connections, timeouts
	Compared int      `json:"compared"`  // greedy answers under load compared with the same one alone
	Over     int      `json:"over_length"`
	Prefix   Prefixes `json:"prefix"`

	Counts   map[Kind]int `json:"counts"` // of all findings
	Findings []Finding    `json:"findings"`
	Leak     bool         `json:"leak"`
}

// Prefixes is what was seen of prefix caches.
type Prefixes struct {
	Probes  int `json:"probes"`       // of another tenant's prompt
	OwnHits int `json:"own_hits"`     // the same prompt again from its own tenant, with cached tokens: without any, cached_tokens shows nothing
	Hits    int `json:"foreign_hits"` // with cached tokens
	// Medians of the time to the first text, in milliseconds: the tenant's own
	// prompt again, a new prompt, another tenant's prompt.
	OwnMs   float64 `json:"ttft_own_ms"`
	NewMs   float64 `json:"ttft_new_ms"`
	ProbeMs float64 `json:"ttft_probe_ms"`
}

func (r *Report) total() int {
	n := 0
	for _, c := range r.Counts {
		n += c
	}
	return n
}

// Clean says that nothing was found.
func (r *Report) Clean() bool { return len(r.Counts) == 0 }

// Kinds are those of the findings, in order.
func (r *Report) Kinds() []Kind { return slices.Sorted(maps.Keys(r.Counts)) }

// find notes a finding. s may be nil where it is about no one request.
func (r *run) find(k Kind, s *sent, of, format string, args ...any) {
	f := Finding{Kind: k, Leak: leaks[k], Of: of, Detail: fmt.Sprintf(format, args...), At: time.Now().UTC().Format(time.RFC3339)}
	if s != nil {
		f.Tenant, f.Prompt, f.Request = r.c.Tenants[s.tenant].Name, s.number, s.what()
		if s.answer != nil {
			f.ID = clip(s.answer.Header.Get("x-request-id"))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rep.Counts == nil {
		r.rep.Counts = map[Kind]int{}
	}
	r.rep.Counts[k]++
	r.rep.Leak = r.rep.Leak || f.Leak
	if len(r.rep.Findings) < findingsMax {
		r.rep.Findings = append(r.rep.Findings, f)
	}
}

// clip keeps a server's string from filling the report, or the terminal with control characters.
func clip(s string) string {
	out := []byte(s[:min(len(s), 64)])
	for i, b := range out {
		if b < ' ' || b > '~' {
			out[i] = '?'
		}
	}
	return string(out)
}

func (r *run) report() *Report {
	r.finishReceipts()
	r.finishUsages()
	r.finishTiming()
	r.mu.Lock()
	defer r.mu.Unlock()
	rep := r.rep
	rep.Model, rep.Window, rep.Seed = r.can.Model, r.can.Window, r.c.Seed
	rep.Started, rep.Seconds = r.start.UTC().Format(time.RFC3339), time.Since(r.start).Seconds()
	for _, t := range r.c.Tenants {
		rep.Tenants = append(rep.Tenants, t.Name)
	}
	for _, can := range []struct {
		ok   bool
		name string
	}{
		{r.can.Completions, "completions"}, {r.can.Chat, "chat"}, {r.can.IDs, "token_ids"},
		{r.can.TextLogprobs || r.can.ChatLogprobs, "logprobs"}, {r.can.IgnoreEOS, "ignore_eos"},
	} {
		if can.ok {
			rep.Takes = append(rep.Takes, can.name)
		}
	}
	if rep.Findings == nil {
		rep.Findings = []Finding{}
	}
	return &rep
}
