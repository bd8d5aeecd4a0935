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

	scan   *scan
	logits []float32 // scratch [vocab]: after penalties, bias and masks
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
	s := &Sampler{p: p, vocab: vocab, prompt: len(prompt), index: map[int32]int{}, scan: bestScan()}
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
// masks (MinTokens, IgnoreEOS), then temperature, top-k, min-p, top-p; greedy
// takes the lowest id among equals. The error is ErrBadLogits, ErrNoToken or ErrTokenID.
func (s *Sampler) Sample(logits []float32, generated []int32) (Token, error) {
	if len(logits) != s.vocab {
		return Token{}, fmt.Errorf("%w: %d values, vocabulary of %d", ErrBadLogits, len(logits), s.vocab)
	}
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	sc.grow(s.vocab)
	best := s.scan.best(sc.most, logits)
	if best < 0 {
		return Token{}, ErrBadLogits
	}
	if err := s.follow(generated); err != nil {
		return Token{}, err
	}
	final := s.adjust(logits, len(generated))
	var t Token
	var norm float64
	if s.p.Logprobs || s.p.TopLogprobs > 0 {
		norm = sc.logNorm(s.scan, logits, logits[best])
		t.Top = sc.top(s.scan, logits, s.p.TopLogprobs, norm)
	}
	id := best
	if &final[0] != &logits[0] {
		if id = s.scan.best(sc.most, final); id < 0 {
			return Token{}, ErrNoToken
		}
	}
	if s.p.Temperature > 0 {
		position := uint64(s.prompt) + uint64(len(generated))
		id = s.draw(sc, final, final[id], random(s.p.Seed, s.p.Child, position))
	}
	if s.p.Logprobs || s.p.TopLogprobs > 0 {
		t.Logprob = logprob(logits[id], norm)
	}
	t.ID, t.EOG = int32(id), slices.Contains(s.p.EOG, int32(id))
	return t, nil
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

// draw picks a token by its share of the weights that top-k, min-p and top-p leave.
func (s *Sampler) draw(sc *scratch, logits []float32, top float32, r uint64) int {
	p := weighing{
		top: float64(top), inverse: 1 / float64(s.p.Temperature),
		least: uint64(float64(s.p.MinP) * weightOne), floor: floorOf(top, s.p.Temperature),
	}
	last := nothing
	if s.p.TopK > 0 && s.p.TopK < s.vocab {
		last = sc.topK(s.scan, logits, s.p.TopK, top, p.floor)
		p.floor = max(p.floor, last.logit)
	}
	total := s.scan.weighAll(sc.sums, sc.weights, logits, &p)
	if last != nothing { // equals of the k-th token that rank below it
		for _, c := range sc.cands {
			if c.logit == last.logit && last.before(c) {
				sc.sums[c.id/scanBlock] -= sc.weights[c.id]
				total -= sc.weights[c.id]
				sc.weights[c.id] = 0
			}
		}
	}
	last = nothing
	if s.p.TopP > 0 && s.p.TopP < 1 {
		// float64(TopP)*total is exact enough: total < 2^63 and both sides of a
		// comparison anywhere compute the same product.
		target := max(uint64(float64(float64(s.p.TopP)*float64(total))), 1)
		if target < total {
			last, total = sc.topP(s.scan, logits, target, total, top, p.floor)
		}
	}
	// r/2^64 of the total, by a 128-bit product: the bias is below 2^-64 of it.
	target, _ := bits.Mul64(r, total)
	return sc.pick(logits, last, target)
}

// pick finds the token at which the weights, by ascending ids, exceed target: the
// order is part of the promise. Tokens that rank below last do not count.
func (s *scratch) pick(logits []float32, last cand, target uint64) int {
	i := 0
	for i < len(s.sums) && s.sums[i] <= target {
		target -= s.sums[i]
		i++
	}
	for id := i * scanBlock; id < min((i+1)*scanBlock, len(logits)); id++ {
		if w := s.weights[id]; w > 0 && !last.before(cand{id: int32(id), logit: logits[id]}) {
			if w > target {
				return id
			}
			target -= w
		}
	}
	panic("sample: internal error: weights do not add up to their total")
}
