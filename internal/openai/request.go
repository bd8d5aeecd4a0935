package openai

import "encoding/json"

// Request is one greedy generation of one choice.
type Request struct {
	Model string
	Chat  bool    // /v1/chat/completions, with Text as the user's message; else /v1/completions
	Text  string  // prompt, where IDs is nil
	IDs   []int32 // prompt as token ids: not for Chat

	MaxTokens int
	Stream    bool // with usage at the end
	Logprobs  bool // of each chosen token
	IgnoreEOS bool // vLLM's member: go on to MaxTokens

	// OnText, if not nil, is called as each piece of a stream comes.
	OnText func()
}

func (r Request) path() string {
	if r.Chat {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type streamOptions struct {
	Usage bool `json:"include_usage"`
}

// wireRequest names the members that are sent; Prompt is a string or a list of ids.
type wireRequest struct {
	Model       string          `json:"model"`
	Messages    []message       `json:"messages,omitempty"`
	Prompt      json.RawMessage `json:"prompt,omitempty"`
	MaxTokens   int             `json:"max_tokens"`
	Temperature float64         `json:"temperature"`
	Stream      bool            `json:"stream,omitempty"`
	Options     *streamOptions  `json:"stream_options,omitempty"`
	Logprobs    json.RawMessage `json:"logprobs,omitempty"` // true of a chat, a number of a completion
	IgnoreEOS   bool            `json:"ignore_eos,omitempty"`
}

func (r Request) body() ([]byte, error) {
	w := wireRequest{Model: r.Model, MaxTokens: r.MaxTokens, Stream: r.Stream, IgnoreEOS: r.IgnoreEOS}
	if r.Stream {
		w.Options = &streamOptions{Usage: true}
	}
	var prompt any = r.Text
	if r.IDs != nil {
		prompt = r.IDs
	}
	switch {
	case r.Chat:
		w.Messages = []message{{Role: "user", Content: r.Text}}
	default:
		var err error
		if w.Prompt, err = json.Marshal(prompt); err != nil {
			return nil, err
		}
	}
	if r.Logprobs {
		w.Logprobs = json.RawMessage("true")
		if !r.Chat {
			w.Logprobs = json.RawMessage("1")
		}
	}
	return json.Marshal(w)
}
