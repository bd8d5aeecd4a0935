// Package sample chooses the next token from logits, reproducibly.
//
// Nothing here remembers: a [Sampler] is a pure function of the request's
// [Params], its prompt, and the tokens generated so far. Randomness is a counter-based
// generator keyed by (seed, child, position), so that the same request gives
// the same text whatever the load, the node or the retry, and prefill (which
// samples the first token) and decode (which samples the rest) agree without
// shipping state.
//
// A vocabulary is passed over in vectors, by AVX-512, AVX2 or plain Go as the
// processor allows. They agree to the bit: a token's weight is one exponential of
// fixed operations, rounded to an integer (weight.go), and sums of integers know no
// order. Top-k and top-p rank only the tokens near their borders (nucleus.go).
package sample

// Params are the sampling parameters of one sequence. The zero value is greedy.
// Fields travel in the router's job, so every one is bounded by Validate.
type Params struct {
	MaxNew    int // tokens to generate at most, >= 1
	MinTokens int // no end-of-generation token before so many

	Temperature float32 // 0 = greedy
	TopP        float32 // nucleus mass in (0, 1]; 0 = off
	TopK        int     // 0 = off
	MinP        float32 // relative to the best token, [0, 1]; 0 = off
	Seed        uint64
	Child       uint32 // index of the sequence within its request (n > 1)

	FrequencyPenalty  float32 // [-2, 2], counts of generated tokens
	PresencePenalty   float32 // [-2, 2], generated tokens
	RepetitionPenalty float32 // > 0, prompt and generated tokens; 0 or 1 = off

	LogitBias []Bias  // at most MaxLogitBias entries, ids inside the vocabulary
	EOG       []int32 // end-of-generation ids of the model
	IgnoreEOS bool    // EOG ids are never sampled

	Logprobs    bool // report the sampled token's log probability
	TopLogprobs int  // 0..20 alternatives
}

// Bias is added to one token's logit.
type Bias struct {
	ID   int32
	Bias float32
}

// Limits of Params.
const (
	MaxLogitBias   = 300 // OpenAI's own limit on logit_bias
	MaxTopLogprobs = 20
	MaxEOG         = 16
)

// Token is one sampled token.
type Token struct {
	ID      int32
	Logprob float32 // of the model's own distribution (before penalties and temperature)
	Top     []TopToken
	EOG     bool
}

// TopToken is one alternative, best first.
type TopToken struct {
	ID      int32
	Logprob float32
}
