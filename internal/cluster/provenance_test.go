package cluster_test

import (
	"strings"
	"testing"

	"bulkhead/decode"
	"bulkhead/internal/provenance"
	"bulkhead/prefill"
	"bulkhead/router"
)

// Goal: the incident at the scale at which it happened, over HTTP, bus and real
// nodes. Method: the provenance engine, whose answer says what was read; tenants
// take turns, so that every page that B gets was A's before. At the limit the
// answer is right in every token; over it, both numbers are named at once.
func TestIncidentAtTrueScale(t *testing.T) {
	const window, capacity = 1_048_576, 681_280
	e, err := provenance.New(provenance.Config{Window: window})
	must(t, err)
	tok, metadata, err := provenance.NewTokenizer()
	must(t, err)
	s := newSite(t, siteConfig{
		prefillCapacity: capacity, decodeCapacity: window, window: window,
		router: func(c *router.Config) {
			c.Tokenizer, c.Metadata, c.ModelID = tok, metadata, "provenance"
		},
		prefill: func(c *prefill.Config) { c.Engine, c.Chunk = e, 8192 },
		decode:  func(c *decode.Config) { c.Engine = e },
	})
	o := e.NewOracle()
	for _, c := range []struct {
		key        string
		mark       string
		n, maxNew  int
		overLength bool
	}{
		{acmeKey, "A", capacity - 8, 8, false},
		{umbrellaKey, "B", 1, 40, false},
		{umbrellaKey, "B", capacity - 1, 1, false},
		{umbrellaKey, "B", capacity, 1, true},
		{umbrellaKey, "B", capacity + 1, 1, true},
		{umbrellaKey, "B", window, 1, true},
		{umbrellaKey, "B", window + 1, 1, true},
		{acmeKey, "A", capacity - 40, 40, false},
	} {
		prompt := strings.Repeat(c.mark, c.n)
		r := s.mustAsk(c.key, completions, body{"model": "provenance", "prompt": prompt, "max_tokens": c.maxNew})
		if c.overLength {
			if r.status != 400 || r.err.code() != "context_length_exceeded" || !strings.Contains(r.err.Message, "681280") || len(r.choices) != 0 {
				t.Errorf("%d tokens: status %d, %+v", c.n, r.status, r.err)
			}
			continue
		}
		var want strings.Builder
		for _, id := range o.Expected(tok.Encode(prompt), c.maxNew) {
			if id != provenance.EOG {
				want.Write(tok.Piece(id))
			}
		}
		if r.status != 200 || r.choices[0].text != want.String() || r.usage.Prompt != c.n {
			t.Errorf("%d tokens: status %d, error %+v, answer %+v, want %s", c.n, r.status, r.err, r.choices[0], want.String())
		}
	}
	s.baseline()
}
