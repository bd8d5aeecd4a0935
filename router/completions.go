package router

import "net/http"

// handleCompletions answers POST /v1/completions, in the same steps as handleChat.
func (r *Router) handleCompletions(w http.ResponseWriter, req *http.Request) {
	r.open(w, req, textShape{}).serve()
}

// textShape is the older text_completion object, the same in streams and not.
type textShape struct{}

type textCompletion struct {
	ID          string       `json:"id"`
	Object      string       `json:"object"`
	Created     int64        `json:"created"`
	Model       string       `json:"model"`
	Fingerprint string       `json:"system_fingerprint"`
	Choices     []textChoice `json:"choices"`
	Usage       maybeUsage   `json:"usage,omitzero"`
}

type textChoice struct {
	Text     string        `json:"text"`
	Index    int           `json:"index"`
	Logprobs *textLogprobs `json:"logprobs"`
	Finish   *string       `json:"finish_reason"`
}

func (textShape) endpoint() string { return "/v1/completions" }
func (textShape) chat() bool       { return false }

func (textShape) object(x *exchange, i int, c ...textChoice) textCompletion {
	if c == nil {
		c = []textChoice{}
	}
	return textCompletion{
		ID: "cmpl-" + x.idText, Object: "text_completion", Created: x.start.Unix(), Model: x.gen.model,
		Fingerprint: x.fingerprint(i), Choices: c, Usage: maybeUsage{asked: x.gen.includeUsage},
	}
}

func (textShape) opening(*exchange, int) any { return nil }

func (s textShape) delta(x *exchange, i int, p piece) any {
	return s.object(x, i, textChoice{Index: i, Text: p.text, Logprobs: newTextLogprobs(x, p.logprobs)})
}

func (s textShape) ending(x *exchange, i int, finish string) any {
	return s.object(x, i, textChoice{Index: i, Finish: &finish})
}

func (s textShape) usage(x *exchange) any {
	c := s.object(x, 0)
	c.Usage.usage = x.usageObject()
	return c
}

func (s textShape) whole(x *exchange) any {
	out := s.object(x, 0)
	out.Usage.usage = x.usageObject()
	for i, c := range x.choices {
		out.Choices = append(out.Choices, textChoice{
			Index: i, Text: c.content.text, Logprobs: newTextLogprobs(x, c.content.logprobs), Finish: &c.finish,
		})
	}
	return out
}

// textLogprobs is the older shape: lists side by side, one element per sampled token.
type textLogprobs struct {
	Tokens  []string             `json:"tokens"`
	Values  []float32            `json:"token_logprobs"`
	Top     []map[string]float32 `json:"top_logprobs"`
	Offsets []int                `json:"text_offset"` // in characters
}

func newTextLogprobs(x *exchange, entries []logprob) *textLogprobs {
	if !x.gen.params.Logprobs {
		return nil
	}
	out := &textLogprobs{Tokens: []string{}, Values: []float32{}, Offsets: []int{}}
	if x.gen.params.TopLogprobs > 0 {
		out.Top = []map[string]float32{}
	}
	for _, e := range entries {
		out.Tokens = append(out.Tokens, tokenText(x.r.tok.Piece(e.token.ID)))
		out.Values = append(out.Values, finite(e.token.Logprob))
		out.Offsets = append(out.Offsets, e.offset)
		if out.Top == nil {
			continue
		}
		top := make(map[string]float32, len(e.token.Top)+1)
		for _, t := range e.token.Top {
			top[tokenText(x.r.tok.Piece(t.ID))] = finite(t.Logprob)
		}
		top[out.Tokens[len(out.Tokens)-1]] = finite(e.token.Logprob) // the sampled one is always there
		out.Top = append(out.Top, top)
	}
	return out
}
