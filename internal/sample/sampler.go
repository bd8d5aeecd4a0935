package sample

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

var (
	// ErrBadLogits: a logit is NaN or +Inf, or all are -Inf. A poisoned or
	// broken forward pass ends here; it never becomes a token.
	ErrBadLogits = errors.New("sample: logits are not numbers")
	// ErrNoToken: IgnoreEOS or MinTokens forbid every token there is.
	ErrNoToken = errors.New("sample: every token is forbidden")
	// ErrTokenID: a prompt or generated token is not in the vocabulary.
	ErrTokenID = errors.New("sample: token id outside the vocabulary")
)

// Sampler chooses the tokens of one sequence. It belongs to one goroutine. What
// it keeps between calls is only derived (counts, scratch): a new Sampler gives
// the same tokens.
type Sampler struct {
	p      Params
	vocab  int
	prompt int // tokens in the prompt

	seen   []int32       // generated tokens that counts covers
	counts []count       // distinct tokens of prompt and output, in order of first sight
	index  map[int32]int // token -> place in counts

	logits []float32 // scratch [vocab]: after penalties, bias and masks
	cands  []cand
	part   []cand
}

// count is what the penalties know of one token.
type count struct {
	id        int32
	inPrompt  bool
	generated int
}

// New checks p and prompt and makes a Sampler for a vocabulary of vocab tokens.
// prompt is only read during the call. The error is p.Validate's, or ErrTokenID.
func New(p Params, vocab int, prompt []int32) (*Sampler, error) {
	if err := p.Validate(vocab); err != nil {
		return nil, err
	}
	p.LogitBias, p.EOG = slices.Clone(p.LogitBias), slices.Clone(p.EOG)
	s := &Sampler{p: p, vocab: vocab, prompt: len(prompt), index: map[int32]int{}}
	for i, id := range prompt {
		if id < 0 || int(id) >= vocab {
			return nil, fmt.Errorf("%w: prompt token %d, vocabulary of %d", ErrTokenID, i, vocab)
		}
		if s.repetition() {
			s.slot(id).inPrompt = true
		}
	}
	return s, nil
}

// Sample chooses the token that follows prompt and generated. logits [vocab] are
// the model's own and are not changed. The order is vLLM's: penalties, bias,
// masks (MinTokens, IgnoreEOS), then temperature, min-p, top-k, top-p; greedy
// takes the lowest id among equals. The error is ErrBadLogits, ErrNoToken or ErrTokenID.
func (s *Sampler) Sample(logits []float32, generated []int32) (Token, error) {
	if len(logits) != s.vocab {
		return Token{}, fmt.Errorf("%w: %d values, vocabulary of %d", ErrBadLogits, len(logits), s.vocab)
	}
	best := argmax(logits)
	if best < 0 {
		return Token{}, ErrBadLogits
	}
	if err := s.follow(generated); err != nil {
		return Token{}, err
	}
	final := s.adjust(logits, len(generated))
	id := best
	if &final[0] != &logits[0] {
		if id = argmax(final); id < 0 {
			return Token{}, ErrNoToken
		}
	}
	if s.p.Temperature > 0 {
		position := uint64(s.prompt) + uint64(len(generated))
		id = s.draw(final, final[id], random(s.p.Seed, s.p.Child, position))
	}
	t := Token{ID: int32(id), EOG: slices.Contains(s.p.EOG, int32(id))}
	if s.p.Logprobs || s.p.TopLogprobs > 0 {
		norm := logNorm(logits, logits[best])
		t.Logprob = logprob(logits[id], norm)
		t.Top = top(logits, s.p.TopLogprobs, norm)
	}
	return t, nil
}

// argmax returns the lowest index of the largest value, and -1 if a value is NaN
// or +Inf or all are -Inf.
func argmax(logits []float32) int {
	best, max := -1, float32(math.Inf(-1))
	for i, l := range logits {
		if !(l <= math.MaxFloat32) {
			return -1
		}
		if l > max {
			best, max = i, l
		}
	}
	return best
}

func (s *Sampler) repetition() bool {
	return s.p.RepetitionPenalty != 0 && s.p.RepetitionPenalty != 1
}

func (s *Sampler) slot(id int32) *count {
	i, ok := s.index[id]
	if !ok {
		i = len(s.counts)
		s.index[id] = i
		s.counts = append(s.counts, count{id: id})
	}
	return &s.counts[i]
}

// follow brings the counts up to generated: usually by the newest token, from
// the start where generated is not what was seen before.
func (s *Sampler) follow(generated []int32) error {
	if len(generated) < len(s.seen) || !slices.Equal(generated[:len(s.seen)], s.seen) {
		s.seen = s.seen[:0]
		for i := range s.counts {
			s.counts[i].generated = 0
		}
	}
	for i := len(s.seen); i < len(generated); i++ {
		id := generated[i]
		if id < 0 || int(id) >= s.vocab {
			return fmt.Errorf("%w: generated token %d, vocabulary of %d", ErrTokenID, i, s.vocab)
		}
		if s.repetition() || s.p.FrequencyPenalty != 0 || s.p.PresencePenalty != 0 {
			s.slot(id).generated++
		}
		s.seen = append(s.seen, id)
	}
	return nil
}

// adjust applies penalties, bias and masks to a copy of logits; it returns
// logits itself where there is nothing to apply.
func (s *Sampler) adjust(logits []float32, generated int) []float32 {
	mask := len(s.p.EOG) > 0 && (s.p.IgnoreEOS || generated < s.p.MinTokens)
	if len(s.counts) == 0 && len(s.p.LogitBias) == 0 && !mask {
		return logits
	}
	s.logits = append(s.logits[:0], logits...)
	for _, c := range s.counts {
		s.logits[c.id] = s.penalise(s.logits[c.id], c)
	}
	for _, b := range s.p.LogitBias {
		s.logits[b.ID] = finite(float64(s.logits[b.ID]) + float64(b.Bias))
	}
	if mask {
		for _, id := range s.p.EOG {
			s.logits[id] = float32(math.Inf(-1))
		}
	}
	return s.logits
}

func (s *Sampler) penalise(logit float32, c count) float32 {
	l := float64(logit)
	if s.repetition() && (c.inPrompt || c.generated > 0) {
		if l > 0 {
			l /= float64(s.p.RepetitionPenalty)
		} else {
			l *= float64(s.p.RepetitionPenalty)
		}
	}
	if c.generated > 0 {
		l -= float64(float64(s.p.FrequencyPenalty) * float64(c.generated))
		l -= float64(s.p.PresencePenalty)
	}
	return finite(l)
}

// finite rounds to f32 and keeps the result out of +Inf, which means a broken
// model here and must not come from a penalty.
func finite(l float64) float32 {
	return float32(min(l, math.MaxFloat32))
}

// draw picks a token by its share of the weights that min-p, top-k and top-p leave.
func (s *Sampler) draw(logits []float32, max float32, r uint64) int {
	s.cands = weigh(s.cands[:0], logits, max, s.p.Temperature)
	s.cands = cutMinP(s.cands, s.p.MinP)
	last, total := s.cutTop(s.cands)
	// r/2^64 of the total, by a 128-bit product: the bias is below 2^-64 of it.
	target, _ := bits.Mul64(r, total)
	var sum uint64
	for _, c := range s.cands { // ascending ids: the order is part of the promise
		if last.before(c) {
			continue
		}
		if sum += c.weight; sum > target {
			return int(c.id)
		}
	}
	panic("sample: internal error: weights do not add up to their total")
}
