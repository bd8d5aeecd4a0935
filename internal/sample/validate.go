package sample

import (
	"errors"
	"fmt"
	"math"
)

// ErrParams is what every *ParamError wraps.
var ErrParams = errors.New("sample: invalid parameter")

// ParamError says which field of Params is refused, its limit, and its value.
type ParamError struct {
	Field string // Go's name of the field
	Limit string
	Value string
}

func (e *ParamError) Error() string {
	return fmt.Sprintf("sample: %s is %s, want %s", e.Field, e.Value, e.Limit)
}

// Unwrap gives ErrParams.
func (e *ParamError) Unwrap() error { return ErrParams }

// Bounds that are not OpenAI's own.
const (
	// TemperatureMax is OpenAI's limit; beyond it text is noise.
	TemperatureMax = 2
	// LogitBiasMax is OpenAI's limit, enough to force or forbid a token.
	LogitBiasMax = 100
	// RepetitionPenaltyMin and Max hold a logit's scaling to four orders of
	// magnitude either way; useful values lie between 0.5 and 2.
	RepetitionPenaltyMin = 1e-4
	RepetitionPenaltyMax = 1e4
	// MaxNewMax is far over any context window, and keeps sums of lengths small.
	MaxNewMax = 1 << 28
)

// Validate checks every field against its bounds; vocab is the size of the
// model's vocabulary. The error is a *ParamError that names the first field at fault.
func (p Params) Validate(vocab int) error {
	bad := func(field, limit string, value any) error {
		return &ParamError{Field: field, Limit: limit, Value: fmt.Sprint(value)}
	}
	in := func(x, lo, hi float32) bool { return x >= lo && x <= hi } // false for NaN
	switch {
	case p.MaxNew < 1 || p.MaxNew > MaxNewMax:
		return bad("MaxNew", fmt.Sprintf("1 to %d", MaxNewMax), p.MaxNew)
	case p.MinTokens < 0 || p.MinTokens > p.MaxNew:
		return bad("MinTokens", fmt.Sprintf("0 to MaxNew (%d)", p.MaxNew), p.MinTokens)
	case !in(p.Temperature, 0, TemperatureMax):
		return bad("Temperature", fmt.Sprintf("0 to %d", TemperatureMax), p.Temperature)
	case !in(p.TopP, 0, 1):
		return bad("TopP", "0 to 1", p.TopP)
	case p.TopK < 0 || p.TopK > math.MaxInt32:
		return bad("TopK", fmt.Sprintf("0 to %d", math.MaxInt32), p.TopK)
	case !in(p.MinP, 0, 1):
		return bad("MinP", "0 to 1", p.MinP)
	case !in(p.FrequencyPenalty, -2, 2):
		return bad("FrequencyPenalty", "-2 to 2", p.FrequencyPenalty)
	case !in(p.PresencePenalty, -2, 2):
		return bad("PresencePenalty", "-2 to 2", p.PresencePenalty)
	case p.RepetitionPenalty != 0 && !in(p.RepetitionPenalty, RepetitionPenaltyMin, RepetitionPenaltyMax):
		return bad("RepetitionPenalty", fmt.Sprintf("0, or %v to %v", RepetitionPenaltyMin, RepetitionPenaltyMax), p.RepetitionPenalty)
	case len(p.LogitBias) > MaxLogitBias:
		return bad("LogitBias", fmt.Sprintf("at most %d entries", MaxLogitBias), len(p.LogitBias))
	case len(p.EOG) > MaxEOG:
		return bad("EOG", fmt.Sprintf("at most %d ids", MaxEOG), len(p.EOG))
	case p.TopLogprobs < 0 || p.TopLogprobs > MaxTopLogprobs:
		return bad("TopLogprobs", fmt.Sprintf("0 to %d", MaxTopLogprobs), p.TopLogprobs)
	}
	ids := func() string { return fmt.Sprintf("an id under %d", vocab) }
	seen := make(map[int32]bool, len(p.LogitBias))
	for i, b := range p.LogitBias {
		field := func(part string) string { return fmt.Sprintf("LogitBias[%d].%s", i, part) }
		switch {
		case b.ID < 0 || int(b.ID) >= vocab:
			return bad(field("ID"), ids(), b.ID)
		case seen[b.ID]:
			return bad(field("ID"), "an id named once", b.ID)
		case !in(b.Bias, -LogitBiasMax, LogitBiasMax):
			return bad(field("Bias"), fmt.Sprintf("-%d to %d", LogitBiasMax, LogitBiasMax), b.Bias)
		}
		seen[b.ID] = true
	}
	for i, id := range p.EOG {
		if id < 0 || int(id) >= vocab {
			return bad(fmt.Sprintf("EOG[%d]", i), ids(), id)
		}
	}
	return nil
}
