//go:build mutants

package cluster_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"bulkhead/internal/model"
	"bulkhead/internal/mutant"
	"bulkhead/internal/sample"
	"bulkhead/kernels"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// Here checks are taken out, one after another, to show that each of the others
// holds alone, and that a leak would be seen: a leak test that cannot see a
// leak proves nothing. Run with -tags mutants.

// The incident's request: over what prefill holds, within the window.
const wallsTotal = 12000

func wallsRequest() body {
	return exact(tokens(2 * incidentWindow)[:wallsTotal-4], 4)
}

// goal: three walls stand behind each other, and each is enough. method: the
// incident's request, with the walls before it removed.
func TestWalls(t *testing.T) {
	for _, tt := range []struct {
		name   string
		off    []mutant.Check
		total  int
		status int
		code   string
		numbers
		touched bool // nodes hear of the request
	}{
		{"all on: admission refuses", nil, wallsTotal, 400, "context_length_exceeded", numbers{incidentPrefill, wallsTotal - 4}, false},
		{"admission off: prefill refuses", []mutant.Check{mutant.AdmissionLength}, wallsTotal, 400, "context_length_exceeded", numbers{incidentPrefill, wallsTotal}, true},
		{"admission off, over the window: decode refuses", []mutant.Check{mutant.AdmissionLength, mutant.PrefillCapacity}, incidentWindow + 1, 400, "context_length_exceeded", numbers{incidentWindow, incidentWindow + 1}, true},
		{"admission and prefill off: decode's expectation refuses the placeholder", []mutant.Check{mutant.AdmissionLength, mutant.PrefillCapacity}, wallsTotal, 502, "integrity_error", numbers{}, true},
		{"all capacities off, over the window: decode's expectation refuses the placeholder", []mutant.Check{mutant.AdmissionLength, mutant.PrefillCapacity, mutant.DecodeCapacity}, incidentWindow + 1, 502, "integrity_error", numbers{}, true},
		{"and no count: attention refuses pages that were not written", []mutant.Check{mutant.AdmissionLength, mutant.PrefillCapacity, mutant.DecodeCapacity, mutant.DecodeCount}, wallsTotal, 502, "integrity_error", numbers{}, true},
	} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/stream=%v", tt.name, stream), func(t *testing.T) {
				s := incidentSite(t)
				restore := mutant.Remove(tt.off...)
				before, _ := s.sent.work()
				r := s.mustAsk(acmeKey, completions, exact(tokens(2 * incidentWindow)[:tt.total-4], 4).with(body{"stream": stream}))
				restore()
				for _, c := range r.choices {
					// The first token comes from prefill and from no page: with the count off
					// it may be out before decode reads its first page. Nothing may follow.
					if len(c.logprobs) > 1 || c.finish != "" {
						t.Errorf("LEAK: %d tokens, finish %q: %+v", len(c.logprobs), c.finish, c)
					}
				}
				switch {
				case r.err.code() != tt.code:
					t.Errorf("error %+v, want %s", r.err, tt.code)
				case r.status != tt.status && !(stream && r.status == 200 && !r.done):
					t.Errorf("status %d, want %d", r.status, tt.status)
				case tt.limit != 0:
					wantTooLong(t, r, tt.limit, tt.value)
				}
				if now, by := s.sent.work(); (now != before) != tt.touched {
					t.Errorf("messages on the bus: %v", by)
				}
				if r := s.mustAsk(umbrellaKey, completions, exact(tokens(100), 4)); like(r, whole(t, tokens(100), sample.Params{MaxNew: 4, Logprobs: true, IgnoreEOS: true})) != nil {
					t.Errorf("another tenant's answer afterwards is wrong: %d %+v", r.status, r.err)
				}
			})
		}
	}
}

type numbers struct{ limit, value int }

// goal: without the walls the incident happens here too, and this test sees it.
// method: all of them off, freed pages not zeroed; the same request is answered with 200
// twice, and the answer depends on what another tenant had asked before.
func TestWallsLeak(t *testing.T) {
	restore := mutant.Remove(mutant.AdmissionLength, mutant.PrefillCapacity, mutant.DecodeCapacity, mutant.DecodeCount,
		mutant.PageFilled, mutant.PageOwner, mutant.PageZero)
	defer restore()
	var answers []string
	for victim := range 2 {
		s := newSite(t, siteConfig{prefillCapacity: incidentPrefill, decodeCapacity: 12032, window: incidentWindow})
		prompt := tokens(incidentPrefill - 8)
		for i := range prompt {
			prompt[i] = (prompt[i] + int32(victim*5)) % 256
		}
		if r := s.mustAsk(umbrellaKey, completions, exact(prompt, 2)); r.status != 200 {
			t.Fatalf("the victim got %d %+v", r.status, r.err)
		}
		r := s.mustAsk(acmeKey, completions, wallsRequest())
		if r.status != 200 || len(r.choices[0].logprobs) != 4 {
			t.Fatalf("status %d, error %+v: the positive control shows no leak; is a wall still standing?", r.status, r.err)
		}
		answers = append(answers, fmt.Sprint(r.choices[0].logprobs))
	}
	if answers[0] == answers[1] {
		t.Errorf("the answer does not depend on the other tenant's prompt: %s", answers[0])
	}
	t.Logf("leak, as it should be here: 200 from pages that were never written for the request;\nafter one victim   %s\nafter another one  %s", answers[0], answers[1])
}

// goal: attention itself refuses a page of somebody else. method: one engine,
// one page changed hands; with the check off the same call answers, and the
// answer is another.
func TestWallsPageOwner(t *testing.T) {
	m := engine()
	prompt := tokens(130)
	run := func(change func(kernels.Pages)) ([]float32, error) {
		pages, err := m.NewPages(3)
		must(t, err)
		table := make([]kernels.Entry, 3)
		for i := range table {
			table[i] = kernels.Entry{Page: kernels.PageID(i), Owner: 7, Generation: 1}
			pages.Claim(kernels.PageID(i), kernels.Tag{Owner: 7, Generation: 1, Index: uint32(i)})
		}
		r, err := m.NewRunner(len(prompt), 1)
		must(t, err)
		defer r.Close()
		_, err = r.Forward(pages, []model.Seq{{Tokens: prompt, Table: table}})
		must(t, err)
		change(pages)
		out, err := r.Forward(pages, []model.Seq{{Tokens: []int32{1}, Pos: len(prompt), Table: table, Logits: true}})
		must(t, err)
		return slices.Clone(out[0].Logits), out[0].Err
	}
	foreign := func(p kernels.Pages) { // page 0 is freed and written by another owner
		block := make([]byte, p.Layout().PageBytes())
		rng := rand.New(rand.NewPCG(1, 2))
		for i := 0; i < len(block); i += 2 {
			block[i], block[i+1] = byte(rng.Uint32()), 0x38|byte(rng.Uint32()&3) // f16 near 0.5
		}
		p.Scrub(0)
		p.Claim(0, kernels.Tag{Owner: 8, Generation: 2})
		must(t, p.Import(kernels.Entry{Page: 0, Owner: 8, Generation: 2}, 0, 0, p.Layout().Layers, kernels.BlockTokens, block))
	}
	good, err := run(func(kernels.Pages) {})
	must(t, err)
	_, err = run(foreign)
	wantErr(t, err, kernels.ErrForeignPage)
	restore := mutant.Remove(mutant.PageOwner)
	defer restore()
	leaked, err := run(foreign)
	if err != nil {
		t.Fatalf("with the check off: %v", err)
	}
	if fmt.Sprint(good) == fmt.Sprint(leaked) {
		t.Error("another owner's page makes no difference: this test sees no leak")
	}
}

// goal: the tamper tests see what they are for. method: with the frame's tag
// unchecked, a flipped byte is answered; with the chain unchecked, a manifest over other frames.
func TestWallsTamper(t *testing.T) {
	a := newArena(t)
	for _, c := range []struct {
		off    mutant.Check
		tamper func(x *try) []message
		want   transfer.Reason
	}{
		{mutant.FrameAEAD, func(x *try) []message {
			m := a.craft(x, recipe{})
			copy(m[1].data[seal.HeaderSize:len(m[1].data)-seal.TagSize], bytes.Repeat([]byte{0x12, 0x38}, 1<<14))
			return m
		}, transfer.ReasonIntegrity},
		{mutant.ManifestChain, func(x *try) []message {
			return a.craft(x, recipe{manifest: func(m *seal.Manifest) { m.Chain[0] ^= 1 }})
		}, transfer.ReasonIntegrity},
	} {
		t.Run(string(c.off), func(t *testing.T) {
			x := a.try(arenaPrompt)
			a.send(a.p1, c.tamper(x))
			must(t, a.refused(x, c.want))
			restore := mutant.Remove(c.off)
			defer restore()
			x = a.try(arenaPrompt)
			a.send(a.p1, c.tamper(x))
			if err := a.refused(x, c.want); err == nil {
				t.Error("refused with the check off: the tamper test would not see its removal")
			}
			must(t, a.baseline())
		})
	}
}

// goal: one tenant's prefix blocks are of no use to another. method: the same
// prompt from two tenants; with the tenant out of the chain's root the second
// one's prompt is a hit.
func TestWallsPrefixTenant(t *testing.T) {
	for _, off := range []bool{false, true} {
		s := newSite(t, siteConfig{})
		if off {
			defer mutant.Remove(mutant.PrefixTenant)()
		}
		prompt := tokens(300)
		s.mustAsk(acmeKey, completions, exact(prompt, 2))
		s.baseline() // the blocks are published when the job's pages are given back
		own := s.mustAsk(acmeKey, completions, exact(prompt, 2))
		theirs := s.mustAsk(umbrellaKey, completions, exact(prompt, 2))
		if own.usage.Details.Cached == 0 {
			t.Error("a tenant's own prefix is not found: this test sees nothing")
		}
		if leak := theirs.usage.Details.Cached > 0; leak != off {
			t.Errorf("tenant check off %v: another tenant's prefix found %v", off, leak)
		}
	}
}
