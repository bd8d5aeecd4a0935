package loadgen

import (
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"bulkhead/internal/openai"
)

// Percentiles of a set of times, in milliseconds: nearest rank, so each is a time
// that was measured.
type Percentiles struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
	Mean float64 `json:"mean"`
	N    int     `json:"n"`
}

// ServeResult is what a client saw. Latencies are of answers that came whole.
type ServeResult struct {
	Model       string         `json:"model"`
	Loop        string         `json:"loop"`           // open or closed
	Rate        float64        `json:"rate,omitempty"` // asked for, per second
	Concurrency int            `json:"concurrency"`    // clients of a closed loop, most in flight of an open one
	Seed        uint64         `json:"seed"`
	SLOTTFT     float64        `json:"slo_ttft_ms,omitempty"`
	SLOITL      float64        `json:"slo_itl_ms,omitempty"`
	Prompts     string         `json:"prompts"`            // token_ids or words
	Elapsed     float64        `json:"elapsed_s"`          // from the first request to the last end
	Sent        int            `json:"requests"`           // sent
	Done        int            `json:"completed"`          // answers that came whole
	Refused     int            `json:"refused"`            // 429 and 503
	Failed      int            `json:"failed"`             // every other end
	Failures    map[string]int `json:"failures,omitempty"` // how often for each reason
	Short       int            `json:"ended_early"`        // of completed: fewer tokens than asked for
	Shed        int            `json:"shed"`               // open loop: due, but not sent; too many in flight
	Within      int            `json:"within_slo"`         // of completed
	Missing     int            `json:"usage_missing"`      // of completed: tokens are counted as pieces of text
	MaxLate     float64        `json:"client_late_max_ms"` // the load generator's own lateness: > 10 is a client that is too slow

	RequestRate float64 `json:"requests_per_s"` // completed
	Goodput     float64 `json:"goodput_per_s"`  // completed within the SLO
	PromptRate  float64 `json:"prompt_tok_s"`
	GenRate     float64 `json:"gen_tok_s"`
	PromptMean  float64 `json:"prompt_tokens_mean"` // as the server counts
	GenMean     float64 `json:"gen_tokens_mean"`

	TTFT Percentiles `json:"ttft_ms"` // due to first text
	ITL  Percentiles `json:"itl_ms"`  // each gap between pieces of text
	TPOT Percentiles `json:"tpot_ms"` // (end - first text) / (tokens - 1), of each answer
	E2E  Percentiles `json:"e2e_ms"`  // due to end
}

// measured collects. Its methods may be called by many.
type measured struct {
	c *ServeConfig

	mu                   sync.Mutex // guards all below
	r                    ServeResult
	ttft, itl, tpot, e2e []time.Duration
	prompt, gen          int
	late                 time.Duration
}

func (m *measured) shed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.r.Shed++
}

// add takes the end of one request. late is how long after its time it was sent.
func (m *measured) add(s shot, a *openai.Answer, err error, late time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.r.Sent++
	m.late = max(m.late, late)
	if a != nil && (a.Status == http.StatusTooManyRequests || a.Status == http.StatusServiceUnavailable) {
		m.r.Refused++
		return
	}
	if err != nil || a.Status != http.StatusOK || a.Err != nil || (a.Stream && !a.Done) {
		m.fail(failure(a, err))
		return
	}
	m.r.Done++
	tokens := len(a.Events)
	if a.Usage != nil {
		m.prompt += a.Usage.Prompt
		tokens = a.Usage.Completion
	} else {
		m.r.Missing++
	}
	m.gen += tokens
	if tokens < s.request.MaxTokens {
		m.r.Short++
	}
	total := a.Total + late
	m.e2e = append(m.e2e, total)
	first := total // a server that does not stream, or no text at all
	if len(a.Events) > 0 {
		first = a.Events[0] + late
	}
	m.ttft = append(m.ttft, first)
	if tokens > 1 {
		m.tpot = append(m.tpot, (total-first)/time.Duration(tokens-1))
	}
	gaps := gaps(a.Events)
	if len(m.itl) < gapsMax {
		m.itl = append(m.itl, gaps...)
	}
	if m.c.within(first, gaps) {
		m.r.Within++
	}
}

func gaps(events []time.Duration) []time.Duration {
	var out []time.Duration
	for i := 1; i < len(events); i++ {
		out = append(out, events[i]-events[i-1])
	}
	return out
}

// within says whether one answer meets the SLO. gaps is sorted by it.
func (c *ServeConfig) within(ttft time.Duration, gaps []time.Duration) bool {
	if c.SLOTTFT > 0 && ttft > c.SLOTTFT {
		return false
	}
	slices.Sort(gaps)
	return c.SLOITL == 0 || len(gaps) == 0 || nearestRank(gaps, 0.99) <= c.SLOITL
}

// nearestRank returns the smallest of sorted such that at least a share p is not over it.
// p is in (0, 1], sorted is not empty.
func nearestRank(sorted []time.Duration, p float64) time.Duration {
	// 0.99 * 100 is a little over 99 in binary: without the slack the rank would be 100.
	rank := int(math.Ceil(p*float64(len(sorted)) - 1e-9))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

func percentiles(d []time.Duration) Percentiles {
	if len(d) == 0 {
		return Percentiles{}
	}
	slices.Sort(d)
	sum := 0.0
	for _, x := range d {
		sum += ms(x)
	}
	return Percentiles{
		P50: ms(nearestRank(d, 0.5)), P90: ms(nearestRank(d, 0.9)), P99: ms(nearestRank(d, 0.99)),
		Max: ms(d[len(d)-1]), Mean: sum / float64(len(d)), N: len(d),
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (m *measured) result(can openai.Abilities, elapsed time.Duration) *ServeResult {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.r
	r.Model, r.Rate, r.Elapsed, r.MaxLate = can.Model, m.c.Rate, elapsed.Seconds(), ms(m.late)
	r.Concurrency, r.Seed, r.SLOTTFT, r.SLOITL = m.c.Concurrency, m.c.Seed, ms(m.c.SLOTTFT), ms(m.c.SLOITL)
	if r.Loop = "closed"; m.c.Rate > 0 {
		r.Loop = "open"
	}
	if r.Prompts = "words"; can.IDs && !m.c.Chat {
		r.Prompts = "token_ids"
	}
	r.TTFT, r.ITL, r.TPOT, r.E2E = percentiles(m.ttft), percentiles(m.itl), percentiles(m.tpot), percentiles(m.e2e)
	if s := r.Elapsed; s > 0 {
		r.RequestRate, r.Goodput = float64(r.Done)/s, float64(r.Within)/s
		r.PromptRate, r.GenRate = float64(m.prompt)/s, float64(m.gen)/s
	}
	if counted := r.Done - r.Missing; counted > 0 {
		r.PromptMean = float64(m.prompt) / float64(counted)
	}
	if r.Done > 0 {
		r.GenMean = float64(m.gen) / float64(r.Done)
	}
	return &r
}
