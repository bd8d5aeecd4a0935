package router

import "encoding/hex"

// usageObject is what clients are billed by. Prompt tokens are the router's own count, once
// per prompt however many choices; completion tokens are those of all choices.
type usageObject struct {
	Prompt     int           `json:"prompt_tokens"`
	Completion int           `json:"completion_tokens"`
	Total      int           `json:"total_tokens"`
	Details    promptDetails `json:"prompt_tokens_details"`
}

type promptDetails struct {
	Cached int `json:"cached_tokens"`
}

// maybeUsage is absent unless asked for, and then null until it is known.
type maybeUsage struct {
	asked bool
	usage *usageObject
}

// IsZero is what omitzero asks.
func (u maybeUsage) IsZero() bool { return !u.asked && u.usage == nil }

// MarshalJSON implements json.Marshaler.
func (u maybeUsage) MarshalJSON() ([]byte, error) {
	if u.usage == nil {
		return []byte("null"), nil
	}
	return marshal(u.usage)
}

// usageObject counts. Cached tokens of a prompt are those of its first choice.
func (x *exchange) usageObject() *usageObject {
	u := &usageObject{}
	for i, ids := range x.ids {
		u.Prompt += len(ids)
		if c := x.choices[i*x.gen.n]; c.receipt != nil {
			u.Details.Cached += c.receipt.cached
		}
	}
	for _, c := range x.choices {
		u.Completion += c.text.count
	}
	u.Total = u.Prompt + u.Completion
	return u
}

// fingerprint is what a client may compare to know that the same model answers: the
// beginning of the model fingerprint, which covers weights, tokenizer, template and kernels.
// It is known of a choice from its receipt on.
func (x *exchange) fingerprint(choice int) string {
	return "fp_" + hex.EncodeToString(x.choices[choice].receipt.model[:6])
}
