package router

import (
	"net/http"

	"bulkhead/internal/tokenizer"
)

// handleChat answers POST /v1/chat/completions. exchange.serve has its seven steps:
// authenticate, decode, tokenize, admit, place, submit, stream.
func (r *Router) handleChat(w http.ResponseWriter, req *http.Request) {
	r.open(w, req, chatShape{}).serve()
}

// shape is what differs between the answers of the two endpoints.
type shape interface {
	chat() bool
	endpoint() string
	opening(x *exchange, i int) any               // first event of a choice; nil: none
	delta(x *exchange, i int, p piece) any        // one piece of text
	ending(x *exchange, i int, finish string) any // last event of a choice
	usage(x *exchange) any                        // the event that stream_options.include_usage asks for
	whole(x *exchange) any                        // the answer of a request that does not stream
}

// chatShape is the chat.completion family of objects.
type chatShape struct{}

type chatChunk struct {
	ID          string        `json:"id"`
	Object      string        `json:"object"`
	Created     int64         `json:"created"`
	Model       string        `json:"model"`
	Fingerprint string        `json:"system_fingerprint"`
	Choices     []chunkChoice `json:"choices"`
	Usage       maybeUsage    `json:"usage,omitzero"`
}

type chunkChoice struct {
	Index    int           `json:"index"`
	Delta    chatDelta     `json:"delta"`
	Logprobs *chatLogprobs `json:"logprobs"`
	Finish   *string       `json:"finish_reason"`
}

type chatDelta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type chatCompletion struct {
	ID          string       `json:"id"`
	Object      string       `json:"object"`
	Created     int64        `json:"created"`
	Model       string       `json:"model"`
	Fingerprint string       `json:"system_fingerprint"`
	Choices     []chatChoice `json:"choices"`
	Usage       *usageObject `json:"usage"`
}

type chatChoice struct {
	Index    int           `json:"index"`
	Message  chatMessage   `json:"message"`
	Logprobs *chatLogprobs `json:"logprobs"`
	Finish   string        `json:"finish_reason"`
}

type chatMessage struct {
	Role    string  `json:"role"`
	Content string  `json:"content"`
	Refusal *string `json:"refusal"`
}

func (chatShape) endpoint() string { return "/v1/chat/completions" }
func (chatShape) chat() bool       { return true }

func (chatShape) chunk(x *exchange, i int, c ...chunkChoice) chatChunk {
	if c == nil {
		c = []chunkChoice{}
	}
	return chatChunk{
		ID: "chatcmpl-" + x.idText, Object: "chat.completion.chunk", Created: x.start.Unix(), Model: x.gen.model,
		Fingerprint: x.fingerprint(i), Choices: c, Usage: maybeUsage{asked: x.gen.includeUsage},
	}
}

func (s chatShape) opening(x *exchange, i int) any {
	empty := ""
	return s.chunk(x, i, chunkChoice{Index: i, Delta: chatDelta{Role: "assistant", Content: &empty}})
}

func (s chatShape) delta(x *exchange, i int, p piece) any {
	return s.chunk(x, i, chunkChoice{Index: i, Delta: chatDelta{Content: &p.text}, Logprobs: newChatLogprobs(x.r.tok, p.logprobs, x.gen.params.Logprobs)})
}

func (s chatShape) ending(x *exchange, i int, finish string) any {
	return s.chunk(x, i, chunkChoice{Index: i, Finish: &finish})
}

func (s chatShape) usage(x *exchange) any {
	c := s.chunk(x, 0)
	c.Usage.usage = x.usageObject()
	return c
}

func (chatShape) whole(x *exchange) any {
	out := chatCompletion{
		ID: "chatcmpl-" + x.idText, Object: "chat.completion", Created: x.start.Unix(), Model: x.gen.model,
		Fingerprint: x.fingerprint(0), Usage: x.usageObject(),
	}
	for i, c := range x.choices {
		out.Choices = append(out.Choices, chatChoice{
			Index: i, Message: chatMessage{Role: "assistant", Content: c.content.text},
			Logprobs: newChatLogprobs(x.r.tok, c.content.logprobs, x.gen.params.Logprobs), Finish: c.finish,
		})
	}
	return out
}

// chatLogprobs is the newer shape: one entry per sampled token, the end's included.
type chatLogprobs struct {
	Content []tokenLogprob `json:"content"`
	Refusal *string        `json:"refusal"`
}

type tokenLogprob struct {
	Token   string         `json:"token"`
	Logprob float32        `json:"logprob"`
	Bytes   []int          `json:"bytes"`
	Top     []tokenLogprob `json:"top_logprobs,omitzero"`
}

func newChatLogprobs(tok *tokenizer.Tokenizer, entries []logprob, asked bool) *chatLogprobs {
	if !asked {
		return nil
	}
	out := &chatLogprobs{Content: []tokenLogprob{}}
	for _, e := range entries {
		t := newTokenLogprob(tok, e.token.ID, e.token.Logprob)
		t.Top = []tokenLogprob{}
		for _, top := range e.token.Top {
			t.Top = append(t.Top, newTokenLogprob(tok, top.ID, top.Logprob))
		}
		out.Content = append(out.Content, t)
	}
	return out
}

func newTokenLogprob(tok *tokenizer.Tokenizer, id int32, p float32) tokenLogprob {
	raw := tok.Piece(id)
	t := tokenLogprob{Token: tokenText(raw), Logprob: finite(p), Bytes: make([]int, len(raw))}
	for i, b := range raw {
		t.Bytes[i] = int(b)
	}
	return t
}
