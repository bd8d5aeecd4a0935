package canary

import (
	"math"

	"bulkhead/internal/openai"
)

// prompt is one prompt of one tenant, and the request that asks for its continuation.
type prompt struct {
	tenant  int
	number  int
	own     string // all of its text: what may be in its answer
	tokens  int    // what usage.prompt_tokens must be; 0: not known beforehand
	request openai.Request
}

// lengths of prompts in tokens, around the borders of blocks of 16 and 64 tokens and of usual chunks.
var lengths = []int{1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 257, 300, 511, 512, 513}

const genMax = 24

// newPrompt makes a prompt of any kind that the server takes.
func (r *run) newPrompt(tenant int) *prompt {
	p := &prompt{tenant: tenant, number: r.number()}
	gen := 1 + r.rng.IntN(genMax)
	length := lengths[r.rng.IntN(len(lengths))]
	if w := r.can.Window; w > 0 {
		length = max(1, min(length, w-gen))
	}
	var kinds []func()
	if r.can.IDs {
		kinds = append(kinds, func() { r.setIDs(p, length) })
	}
	if r.can.Completions {
		kinds = append(kinds, func() { r.setText(p, length, false) })
	}
	if r.can.Chat {
		kinds = append(kinds, func() { r.setText(p, length, true) })
	}
	kinds[r.rng.IntN(len(kinds))]()
	p.request.MaxTokens = gen
	p.request.IgnoreEOS = r.can.IgnoreEOS && r.rng.IntN(2) == 0
	return p
}

func (r *run) number() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.numbers++
	return r.numbers
}

// setIDs makes p a prompt of so many random token ids: its count is known exactly.
func (r *run) setIDs(p *prompt, n int) {
	p.request = openai.Request{Model: r.can.Model, IDs: make([]int32, n), Logprobs: r.can.TextLogprobs}
	p.tokens = n
	for i := range p.request.IDs {
		p.request.IDs[i] = int32(openai.LowID + r.rng.IntN(openai.HighID-openai.LowID))
	}
}

// setText makes p a text of very roughly so many tokens, that begins with one marker and
// asks for another.
func (r *run) setText(p *prompt, n int, chat bool) {
	head, secret := r.book.mark(origin{p.tenant, p.number}), r.book.mark(origin{p.tenant, p.number})
	p.own = head + ". " + openai.Filler(r.rng, n, r.can.TokensPerWord) + "." + secretWords + secret + ". Again," + secretWords + secret + ". Repeat the secret word:"
	p.request = openai.Request{Model: r.can.Model, Chat: chat, Text: p.own, Logprobs: r.can.TextLogprobs}
	if chat {
		p.request.Logprobs = r.can.ChatLogprobs
	}
}

const secretWords = " The secret word is "

// overLength makes a request that must be refused. Its prompt alone is as long as the
// window, or longer, except one that leaves too little room.
func (r *run) overLength(tenant int) *prompt {
	p := &prompt{tenant: tenant, number: r.number()}
	w := r.can.Window
	if r.can.IDs {
		sizes := []int{w - 1, w, w + 1, w + w/64 + 2, w + w/4, w + w/2, 2 * w}
		r.setIDs(p, min(sizes[r.rng.IntN(len(sizes))], 2*tokensMax))
	} else {
		r.setText(p, 3*w, !r.can.Completions)
	}
	p.request.MaxTokens = 8
	return p
}

// badRequest has a token id that is in no vocabulary.
func (r *run) badRequest(tenant int) *prompt {
	p := &prompt{tenant: tenant, number: r.number()}
	r.setIDs(p, 3)
	p.request.IDs[1] = []int32{-1, math.MaxInt32}[r.rng.IntN(2)]
	p.request.MaxTokens = 1
	return p
}
