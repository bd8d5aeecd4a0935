//go:build mutants

package cluster_test

import (
	"strings"
	"sync"
	"testing"

	"bulkhead/decode"
	"bulkhead/internal/model"
	"bulkhead/internal/mutant"
	"bulkhead/internal/provenance"
	"bulkhead/prefill"
	"bulkhead/router"
)

// Goal: the positive control of TestIncidentAtTrueScale: without the walls the
// same requests leak, and the leak names its victim. Method: note for whom each
// reading is made; when B's is wrong, ask the oracle whose entries it read.
func TestLeakNamesItsVictim(t *testing.T) {
	var (
		mu      sync.Mutex
		known   = map[model.Source][]int32{}
		victims = map[string]int{}
		oracle  *provenance.Oracle
		tokens  = map[bool][]int32{} // by whether the prompt is A's
	)
	watch := func(s provenance.Sum) {
		mu.Lock()
		defer mu.Unlock()
		src := s.Seq.Source
		isA := src.Prompt == incidentPrefill-16
		known[src] = tokens[isA]
		if isA || src.Decode == 0 {
			return
		}
		var all []provenance.Known
		for k, t := range known {
			all = append(all, provenance.Known{Source: k, Tokens: t})
		}
		for _, f := range oracle.Wrong(s, tokens[false], all) {
			if f.From.Source.Tenant != "" && f.From.Source.Tenant != src.Tenant {
				victims[f.From.Source.Tenant]++
			}
		}
	}
	e, err := provenance.New(provenance.Config{Window: incidentWindow, Watch: watch})
	must(t, err)
	oracle = e.NewOracle()
	tok, metadata, err := provenance.NewTokenizer()
	must(t, err)
	a, b := strings.Repeat("A", incidentPrefill-16), strings.Repeat("B", incidentPrefill+64)
	tokens[true], tokens[false] = tok.Encode(a), tok.Encode(b)
	s := newSite(t, siteConfig{
		prefillCapacity: incidentPrefill, decodeCapacity: incidentDecode, window: incidentWindow,
		router:  func(c *router.Config) { c.Tokenizer, c.Metadata, c.ModelID = tok, metadata, "provenance" },
		prefill: func(c *prefill.Config) { c.Engine = e },
		decode:  func(c *decode.Config) { c.Engine = e },
	})
	ask := func(key, prompt string) *response {
		return s.mustAsk(key, completions, body{"model": "provenance", "prompt": prompt, "max_tokens": 8})
	}
	if r := ask(acmeKey, a); r.status != 200 {
		t.Fatalf("A: status %d, %+v", r.status, r.err)
	}
	if r := ask(umbrellaKey, b); r.status != 400 || len(victims) != 0 {
		t.Fatalf("with the walls: status %d, victims %v", r.status, victims)
	}
	defer mutant.Remove(mutant.AdmissionLength, mutant.PrefillCapacity, mutant.DecodeCapacity, mutant.DecodeCount, mutant.PageFilled, mutant.PageZero)()
	if r := ask(acmeKey, a); r.status != 200 { // leaves its entries behind
		t.Fatalf("A: status %d, %+v", r.status, r.err)
	}
	r := ask(umbrellaKey, b)
	mu.Lock()
	defer mu.Unlock()
	if r.status != 200 || len(victims) != 1 {
		t.Errorf("without the walls: status %d, %+v, victims %v; want B's answer to rest on A's pages", r.status, r.err, victims)
	}
	t.Logf("status %d, answer %q, entries read by victim: %v", r.status, r.choices[0].text, victims)
}
