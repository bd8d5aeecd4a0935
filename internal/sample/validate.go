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
	check := func(ok bool, field, limit string, value any) error {
		if ok {
			return nil
		}
		return &ParamError{Field: field, Limit: limit, Value: fmt.Sprint(value)}
	}
	in := func(x, lo, hi float32) bool { return x >= lo && x <= hi } // false for NaN
	for _, err := range []error{
		check(p.MaxNew >= 1 && p.MaxNew <= MaxNewMax, "MaxNew", fmt.Sprintf("1 to %d", MaxNewMax), p.MaxNew),
		check(p.MinTokens >= 0 && p.MinTokens <= p.MaxNew, "MinTokens", fmt.Sprintf("0 to MaxNew (%d)", p.MaxNew), p.MinTokens),
		check(in(p.Temperature, 0, TemperatureMax), "Temperature", fmt.Sprintf("0 to %d", TemperatureMax), p.Temperature),
		check(in(p.TopP, 0, 1), "TopP", "0 to 1", p.TopP),
		check(p.TopK >= 0 && p.TopK <= math.MaxInt32, "TopK", fmt.Sprintf("0 to %d", math.MaxInt32), p.TopK),
		check(in(p.MinP, 0, 1), "MinP", "0 to 1", p.MinP),
		check(in(p.FrequencyPenalty, -2, 2), "FrequencyPenalty", "-2 to 2", p.FrequencyPenalty),
		check(in(p.PresencePenalty, -2, 2), "PresencePenalty", "-2 to 2", p.PresencePenalty),
		check(p.RepetitionPenalty == 0 || in(p.RepetitionPenalty, RepetitionPenaltyMin, RepetitionPenaltyMax),
			"RepetitionPenalty", fmt.Sprintf("0, or %v to %v", RepetitionPenaltyMin, RepetitionPenaltyMax), p.RepetitionPenalty),
		check(len(p.LogitBias) <= MaxLogitBias, "LogitBias", fmt.Sprintf("at most %d entries", MaxLogitBias), len(p.LogitBias)),
		check(len(p.EOG) <= MaxEOG, "EOG", fmt.Sprintf("at most %d ids", MaxEOG), len(p.EOG)),
		check(p.TopLogprobs >= 0 && p.TopLogprobs <= MaxTopLogprobs, "TopLogprobs", fmt.Sprintf("0 to %d", MaxTopLogprobs), p.TopLogprobs),
	} {
		if err != nil {
			return err
		}
	}
	ids := fmt.Sprintf("an id under %d", vocab)
	seen := make(map[int32]bool, len(p.LogitBias))
	for i, b := range p.LogitBias {
		field := fmt.Sprintf("LogitBias[%d]", i)
		if err := check(b.ID >= 0 && int(b.ID) < vocab, field+".ID", ids, b.ID); err != nil {
			return err
		}
		if err := check(!seen[b.ID], field+".ID", "an id named once", b.ID); err != nil {
			return err
		}
		seen[b.ID] = true
		if err := check(in(b.Bias, -LogitBiasMax, LogitBiasMax), field+".Bias", fmt.Sprintf("-%d to %d", LogitBiasMax, LogitBiasMax), b.Bias); err != nil {
			return err
		}
	}
	for i, id := range p.EOG {
		if err := check(id >= 0 && int(id) < vocab, fmt.Sprintf("EOG[%d]", i), ids, id); err != nil {
			return err
		}
	}
	return nil
}
