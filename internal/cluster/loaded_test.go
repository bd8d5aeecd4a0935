package cluster_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"bulkhead/decode"
	"bulkhead/prefill"
)

// asked is one of the mixed requests.
type asked struct {
	kind string
	key  string
	path string
	body body
	cut  int // events after which the client leaves; 0: it stays
}

// mixed makes n requests of all kinds, the same for the same seed.
func mixed(n int, seed uint64) []asked {
	rng := rand.New(rand.NewPCG(seed, 64))
	words := strings.Fields("the capital of a page is a block and every block has an owner until it is free again and zero")
	text := func(n int) string {
		out := make([]string, n)
		for i := range out {
			out[i] = words[rng.IntN(len(words))]
		}
		return strings.Join(out, " ")
	}
	shared := text(150) // a prefix that several requests of each tenant have
	prompt := func() string {
		if rng.IntN(3) == 0 {
			return shared + " " + text(1+rng.IntN(20))
		}
		return text(1 + rng.IntN(200))
	}
	chat := func() []body {
		return []body{{"role": "system", "content": "Answer."}, {"role": "user", "content": prompt()}}
	}
	out := make([]asked, n)
	for i := range out {
		a := asked{key: []string{acmeKey, umbrellaKey}[i/9%2]}
		greedy := body{"model": "tiny", "max_tokens": 8 + rng.IntN(24), "temperature": 0}
		seeded := body{"model": "tiny", "max_tokens": 8 + rng.IntN(24), "temperature": 0.9, "top_p": 0.95, "seed": rng.IntN(1 << 30)}
		switch i % 9 {
		case 0:
			a.kind, a.path, a.body = "chat, greedy", chats, greedy.with(body{"messages": chat(), "logprobs": true})
		case 1:
			a.kind, a.path, a.body = "chat, seeded, n=2", chats, seeded.with(body{"messages": chat(), "n": 2, "logprobs": true, "top_logprobs": 3})
		case 2:
			a.kind, a.path, a.body = "completion, greedy", completions, greedy.with(body{"prompt": prompt(), "logprobs": 2})
		case 3:
			a.kind, a.path, a.body = "completion with stop strings", completions, seeded.with(body{"prompt": prompt(), "stop": []string{"e", "ou"}, "max_tokens": 60, "logprobs": 1})
		case 4:
			a.kind, a.path, a.body = "chat, seeded, streamed", chats, seeded.with(body{"messages": chat(), "stream": true, "logprobs": true, "top_logprobs": 2, "stream_options": body{"include_usage": true}})
		case 5:
			a.kind, a.path, a.body = "client leaves midway", chats, seeded.with(body{"messages": chat(), "stream": true, "max_tokens": 150, "ignore_eos": true})
			a.cut = 3 + rng.IntN(5)
		case 6:
			a.kind, a.path, a.body = "over-length", completions, greedy.with(body{"prompt": tokens(4000), "max_tokens": 1000})
		case 7:
			a.kind, a.path, a.body = "two prompts, n=2, penalties", completions, seeded.with(body{"prompt": []string{prompt(), prompt()}, "n": 2, "logprobs": 1, "frequency_penalty": 0.5, "repetition_penalty": 1.1, "logit_bias": map[string]float64{"65": 1.5}})
		case 8:
			a.kind, a.path, a.body = "token ids over some blocks, streamed", completions, seeded.with(body{"prompt": tokens(60 + rng.IntN(600)), "stream": true, "logprobs": 1})
		}
		out[i] = a
	}
	return out
}

// do asks; a client that leaves gets what came until then.
func (s *site) do(a asked, cut bool) (*response, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*waitMax)
	defer cancel()
	events := 0
	r, err := s.ask(ctx, a.key, a.path, a.body, func() {
		if events++; cut && events == a.cut {
			cancel()
		}
	})
	if r != nil && ctx.Err() != nil && cut {
		err = nil
	}
	return r, err
}

// goal: a loaded cluster answers as an idle one, bit for bit: nothing of a
// request depends on who else is there. method: 64 mixed requests of two tenants at once on small
// pools of two nodes each, some cut off midway, some too long; every other one is compared with
// its solo run on an idle pair that has never seen it.
func TestLoadedEqualsAlone(t *testing.T) {
	requests := mixed(64, 7)
	alone := make([]*response, len(requests))
	idle := newSite(t, siteConfig{prefillCapacity: 4096, decodeCapacity: 4096})
	for i, a := range requests {
		r, err := idle.do(a, false)
		must(t, err)
		alone[i] = r
	}
	idle.baseline()

	// A small prefill chunk and batch, so that requests mix in every step; a
	// small pool, so that some must wait.
	s := newSite(t, siteConfig{prefills: 2, decodes: 2, prefillCapacity: 4096, decodeCapacity: 4096,
		prefill: func(c *prefill.Config) { c.Chunk = 96 },
		decode:  func(c *decode.Config) { c.MaxBatch = 7 },
	})
	loaded := make([]*response, len(requests))
	errs := make([]error, len(requests))
	var wg sync.WaitGroup
	for i, a := range requests {
		wg.Go(func() { loaded[i], errs[i] = s.do(a, a.cut > 0) })
	}
	wg.Wait()
	kinds := map[string]int{}
	for i, a := range requests {
		if errs[i] != nil {
			t.Errorf("%d, %s: %v", i, a.kind, errs[i])
			continue
		}
		kinds[a.kind]++
		if err := same(loaded[i], alone[i], a.cut > 0); err != nil {
			t.Errorf("%d, %s: %v", i, a.kind, err)
		}
		if want := map[bool]int{true: 400, false: 200}[a.kind == "over-length"]; alone[i].status != want {
			t.Errorf("%d, %s: status %d alone, want %d: %+v", i, a.kind, alone[i].status, want, alone[i].err)
		}
	}
	for kind, n := range kinds {
		if n < 7 {
			t.Errorf("only %d of %q", n, kind)
		}
	}
	if stops := alone[3].choices[0].finish; stops != "stop" {
		t.Errorf("a stop string never ended a text (%q): this test lacks a kind", stops)
	}
	s.baseline()
}

// same compares two answers; of a client that left, what it has is to be the
// beginning of the other one.
func same(got, want *response, cut bool) error {
	if got.status != want.status || got.err.code() != want.err.code() {
		return fmt.Errorf("status %d, error %+v; alone %d, %+v", got.status, got.err, want.status, want.err)
	}
	if cut {
		for i, c := range got.choices {
			if !strings.HasPrefix(want.choices[i].text, c.text) {
				return fmt.Errorf("choice %d begins with %q, alone %q", i, c.text, want.choices[i].text)
			}
		}
		return nil
	}
	if !maps.EqualFunc(got.choices, want.choices, func(a, b *gotChoice) bool {
		return a.text == b.text && a.finish == b.finish && slices.Equal(a.logprobs, b.logprobs)
	}) {
		return fmt.Errorf("answer differs:\n%s\nalone:\n%s", show(got), show(want))
	}
	if got.done != want.done {
		return fmt.Errorf("[DONE] %v, alone %v", got.done, want.done)
	}
	if got.usage != nil && (got.usage.Prompt != want.usage.Prompt || got.usage.Completion != want.usage.Completion) {
		return fmt.Errorf("usage %+v, alone %+v", got.usage, want.usage)
	}
	return nil
}

func show(r *response) string {
	var b strings.Builder
	for _, i := range slices.Sorted(maps.Keys(r.choices)) {
		fmt.Fprintf(&b, "%d: %q %s %v\n", i, r.choices[i].text, r.choices[i].finish, r.choices[i].logprobs)
	}
	return b.String()
}
