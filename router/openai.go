package router

import (
	"math"
	"strconv"
	"strings"

	"bulkhead/internal/sample"
	"bulkhead/internal/tokenizer"
)

// Limits of a request's fields.
const (
	messagesMax  = 1024
	partsMax     = 64
	choicesMax   = 8 // n, and n times the prompts of a completion
	stopMax      = 4
	stopBytesMax = 1024
	penaltyMax   = 2
	modelNameMax = 256
)

// prompt is one prompt of a completion: text or token ids.
type prompt struct {
	text string
	ids  []int32 // nil: text
}

// generation is a parsed request of either endpoint, before anything is looked
// up. It holds what the client said; defaults are in it already.
type generation struct {
	chat     bool
	model    string
	messages []tokenizer.Message // chat
	prompts  []prompt            // completion; 1 to choicesMax

	n            int
	params       sample.Params // MaxNew, Seed, Child and EOG are set later
	maxNew       int           // 0: up to the context limit
	maxNewParam  string        // the field that said so
	minTokens    int
	seed         *int64
	stop         []string
	stream       bool
	includeUsage bool

	ignored []string // members that were read past, for x-ignored-params
}

// promptParam is the field that a too long prompt came in.
func (g *generation) promptParam() string {
	if g.chat {
		return "messages"
	}
	return "prompt"
}

// textBytes is how much text there is to tokenize.
func (g *generation) textBytes() (n int) {
	for _, m := range g.messages {
		n += len(m.Content)
	}
	for _, p := range g.prompts {
		n += len(p.text)
	}
	return n
}

// requestParser reads one body. Fields with a null are as good as absent.
type requestParser struct {
	g             generation
	streamOptions bool
	maxTokens     int
	maxCompletion int
	topLogprobs   bool
	bestOf        int
	hasMessages   bool
	hasPrompt     bool
}

// reader reads one member's value.
type reader = func(c *cursor, param string) error

// optional makes a reader that takes a null for absent.
func optional(read reader) reader {
	return func(c *cursor, param string) error {
		if c.null() {
			return nil
		}
		return read(c, param)
	}
}

func readInt[T int | int64 | uint32](to *T, low, high int64) reader {
	return optional(func(c *cursor, param string) error {
		n, err := c.integer(param, low, high)
		*to = T(n)
		return err
	})
}

func readFloat(to *float32, low, high float64) reader {
	return optional(func(c *cursor, param string) (err error) {
		*to, err = c.float(param, low, high)
		return err
	})
}

func readBool(to *bool) reader {
	return optional(func(c *cursor, param string) (err error) {
		*to, err = c.boolean(param)
		return err
	})
}

// unsupported refuses a member that we know and do not offer. Silence would let a
// client believe that it had an effect.
func unsupported(c *cursor, param string) error {
	if c.null() {
		return nil
	}
	return fail(kindUnsupported, param, "Unsupported parameter: '%s' is not supported by this server.", param)
}

// unsupportedFields are known to the OpenAI API or to other servers, and change
// what a request means.
var unsupportedFields = strings.Fields(`
	tools tool_choice parallel_tool_calls functions function_call modalities audio prediction
	web_search_options reasoning_effort verbosity moderation suffix echo use_beam_search length_penalty
	early_stopping stop_token_ids bad_words allowed_token_ids include_stop_str_in_output
	skip_special_tokens spaces_between_special_tokens add_special_tokens prompt_logprobs logits_processors
	truncate_prompt_tokens guided_json guided_regex guided_choice guided_grammar structured_outputs
	chat_template chat_template_kwargs add_generation_prompt continue_final_message documents
	mm_processor_kwargs priority return_token_ids return_tokens_as_token_ids prompt_embeds lora_path
	typical_p top_a tfs mirostat grammar json_schema id_slot cache_prompt`)

// ignoredFields are safe to read past: they are for the provider's books, or hints.
var ignoredFields = strings.Fields(`user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention`)

// internalNames begin names that belong to the inside of a serving cluster.
// A client that sends one tries, knowingly or not, to steer what is not its own.
var internalNames = []string{"kv_", "bulkhead", "bootstrap_", "tenant", "cache_salt", "request_id", "rid", "prefill", "decode", "attempt", "data_parallel_rank", "disagg", "remote_", "do_remote"}

// other takes members that this program does not know. New SDKs add some every
// month, so they pass, but the client is told of each.
func (p *requestParser) other(c *cursor, name, param string) error {
	lower := strings.ToLower(name)
	for _, internal := range internalNames {
		if strings.HasPrefix(lower, internal) {
			return fail(kindUnsupported, param, "Unsupported parameter: '%s' is internal to the server.", param)
		}
	}
	return p.ignore(c, param)
}

func (p *requestParser) ignore(c *cursor, param string) error {
	if c.null() {
		return nil
	}
	if len(p.g.ignored) < 32 {
		p.g.ignored = append(p.g.ignored, param)
	}
	return c.skip(param)
}

// parseRequest reads a body of /v1/chat/completions or, if not chat, of
// /v1/completions. Errors are *apiError and name the field.
func parseRequest(body []byte, chat bool) (*generation, error) {
	c, err := newCursor(body)
	if err != nil {
		return nil, err
	}
	p := &requestParser{g: generation{chat: chat, n: 1, params: sample.Params{Temperature: 1}}}
	known := p.common()
	if chat {
		p.chatFields(known)
	} else {
		p.completionFields(known)
	}
	if err := c.object("", fields{known: known, other: p.other}); err != nil {
		return nil, err
	}
	if err := c.end(); err != nil {
		return nil, err
	}
	if err := p.finish(); err != nil {
		return nil, err
	}
	return &p.g, nil
}

// common returns the readers of the members that both endpoints have.
func (p *requestParser) common() map[string]reader {
	s := &p.g.params
	known := map[string]reader{
		"model": func(c *cursor, param string) (err error) {
			if p.g.model, err = c.str(param); err == nil && len(p.g.model) > modelNameMax {
				err = fail(kindMalformed, param, "'%s' is longer than %d bytes", param, modelNameMax)
			}
			return err
		},
		"max_tokens":         readInt(&p.maxTokens, 1, math.MaxInt32),
		"temperature":        readFloat(&s.Temperature, 0, 2),
		"top_p":              optional(func(c *cursor, param string) error { return readTopP(c, param, &s.TopP) }),
		"top_k":              optional(func(c *cursor, param string) error { return readTopK(c, param, &s.TopK) }),
		"min_p":              readFloat(&s.MinP, 0, 1),
		"frequency_penalty":  readFloat(&s.FrequencyPenalty, -penaltyMax, penaltyMax),
		"presence_penalty":   readFloat(&s.PresencePenalty, -penaltyMax, penaltyMax),
		"repetition_penalty": optional(func(c *cursor, param string) error { return readRepetition(c, param, &s.RepetitionPenalty) }),
		"seed": optional(func(c *cursor, param string) error {
			n, err := c.integer(param, math.MinInt64, math.MaxInt64)
			p.g.seed = &n
			return err
		}),
		"stop":            optional(p.readStop),
		"n":               readInt(&p.g.n, 1, choicesMax),
		"stream":          readBool(&p.g.stream),
		"stream_options":  optional(p.readStreamOptions),
		"logit_bias":      optional(p.readLogitBias),
		"ignore_eos":      readBool(&s.IgnoreEOS),
		"min_tokens":      readInt(&p.g.minTokens, 0, math.MaxInt32),
		"response_format": optional(readResponseFormat),
	}
	for _, name := range unsupportedFields {
		known[name] = unsupported
	}
	for _, name := range ignoredFields {
		known[name] = (&requestParser{}).ignore // expected, so not worth a header
	}
	return known
}

func (p *requestParser) chatFields(known map[string]reader) {
	s := &p.g.params
	known["messages"] = p.readMessages
	known["max_completion_tokens"] = readInt(&p.maxCompletion, 1, math.MaxInt32)
	known["logprobs"] = readBool(&s.Logprobs)
	known["top_logprobs"] = optional(func(c *cursor, param string) error {
		p.topLogprobs = true
		return readInt(&s.TopLogprobs, 0, sample.MaxTopLogprobs)(c, param)
	})
	known["best_of"] = unsupported
}

func (p *requestParser) completionFields(known map[string]reader) {
	s := &p.g.params
	known["prompt"] = p.readPrompt
	known["best_of"] = readInt(&p.bestOf, 1, math.MaxInt32)
	known["echo"] = func(c *cursor, param string) error { // false is what everybody gets
		if c.peek() == 'f' && c.literal("false") {
			return nil
		}
		return unsupported(c, param)
	}
	known["logprobs"] = optional(func(c *cursor, param string) error {
		s.Logprobs = true
		return readInt(&s.TopLogprobs, 0, sample.MaxTopLogprobs)(c, param)
	})
}

// finish checks what needs more than one member.
func (p *requestParser) finish() error {
	g := &p.g
	if p.g.maxNew, g.maxNewParam = p.maxTokens, "max_tokens"; p.maxCompletion > 0 {
		g.maxNew, g.maxNewParam = p.maxCompletion, "max_completion_tokens"
	}
	g.params.MinTokens = g.minTokens
	switch {
	case g.model == "":
		return fail(kindMalformed, "model", "you must provide a model parameter")
	case g.chat && !p.hasMessages:
		return fail(kindMalformed, "messages", "Missing required parameter: 'messages'.")
	case !g.chat && !p.hasPrompt:
		return fail(kindMalformed, "prompt", "Missing required parameter: 'prompt'.")
	case p.streamOptions && !g.stream:
		return fail(kindMalformed, "stream_options", "The 'stream_options' parameter is only allowed when 'stream' is enabled.")
	case p.topLogprobs && !g.params.Logprobs:
		return fail(kindMalformed, "top_logprobs", "'top_logprobs' needs 'logprobs' to be true")
	case g.maxNew > 0 && g.minTokens > g.maxNew:
		return fail(kindMalformed, "min_tokens", "'min_tokens' is %d, more than '%s', %d", g.minTokens, g.maxNewParam, g.maxNew)
	case p.bestOf > 1 && p.bestOf != g.n:
		return fail(kindUnsupported, "best_of", "Unsupported parameter: 'best_of' is %d, only the value of 'n' (%d) is supported.", p.bestOf, g.n)
	case g.n*len(g.prompts) > choicesMax:
		return fail(kindMalformed, "n", "'n' times the number of prompts is %d, at most %d", g.n*len(g.prompts), choicesMax)
	}
	return nil
}

// readTopP reads nucleus mass. 0 means "only the best token" to a client and
// "off" to the sampler, so the smallest mass stands for it.
func readTopP(c *cursor, param string, to *float32) error {
	f, err := c.float(param, 0, 1)
	if *to = f; err == nil && f == 0 {
		*to = math.SmallestNonzeroFloat32
	}
	return err
}

// readTopK reads a count; 0 and -1 are both in use for "off".
func readTopK(c *cursor, param string, to *int) error {
	n, err := c.integer(param, -1, math.MaxInt32)
	*to = int(max(n, 0))
	return err
}

func readRepetition(c *cursor, param string, to *float32) (err error) {
	*to, err = c.float(param, sample.RepetitionPenaltyMin, sample.RepetitionPenaltyMax)
	return err
}

// readStop reads a string or up to four.
func (p *requestParser) readStop(c *cursor, param string) error {
	add := func(param string) error {
		s, err := c.str(param)
		switch {
		case err != nil:
		case s == "":
			err = fail(kindMalformed, param, "'%s' must not be empty", param)
		case len(s) > stopBytesMax:
			err = fail(kindMalformed, param, "'%s' is longer than %d bytes", param, stopBytesMax)
		}
		p.g.stop = append(p.g.stop, s)
		return err
	}
	switch c.peek() {
	case '"':
		return add(param)
	case '[':
		return c.array(param, stopMax, func(i int) error { return add(index(param, i)) })
	}
	return wrongType(param, "a string or an array of strings")
}

func (p *requestParser) readStreamOptions(c *cursor, param string) error {
	p.streamOptions = true
	return c.object(param+".", fields{
		known: map[string]reader{"include_usage": readBool(&p.g.includeUsage), "include_obfuscation": p.ignoreFalse},
		other: p.other,
	})
}

// ignoreFalse takes a flag that can only be off here.
func (p *requestParser) ignoreFalse(c *cursor, param string) error {
	if c.peek() == 'f' && c.literal("false") {
		return nil
	}
	return unsupported(c, param)
}

func (p *requestParser) readLogitBias(c *cursor, param string) error {
	seen := make(map[int32]bool)
	return c.members(param, func(name string) error {
		id, err := strconv.ParseInt(name, 10, 32)
		if err != nil || id < 0 || strconv.FormatInt(id, 10) != name {
			return fail(kindMalformed, param, "a key of '%s' is not a token id", param)
		}
		if seen[int32(id)] {
			return fail(kindMalformed, param, "token id %d is in '%s' twice", id, param)
		}
		seen[int32(id)] = true
		if len(p.g.params.LogitBias) == sample.MaxLogitBias {
			return fail(kindMalformed, param, "'%s' has more than %d entries", param, sample.MaxLogitBias)
		}
		bias, err := c.float(param+"."+name, -100, 100)
		p.g.params.LogitBias = append(p.g.params.LogitBias, sample.Bias{ID: int32(id), Bias: bias})
		return err
	})
}

// readResponseFormat takes {"type":"text"} and names everything else.
func readResponseFormat(c *cursor, param string) error {
	typ := ""
	err := c.object(param+".", fields{
		known: map[string]reader{"type": func(c *cursor, param string) (err error) {
			typ, err = c.str(param)
			return err
		}},
		other: func(c *cursor, _, param string) error { return c.skip(param) },
	})
	if err != nil {
		return err
	}
	if typ != "text" {
		return fail(kindUnsupported, param, "Unsupported parameter: '%s' other than {\"type\":\"text\"} is not supported by this server.", param)
	}
	return nil
}

func (p *requestParser) readPrompt(c *cursor, param string) error {
	p.hasPrompt = true
	switch c.peek() {
	case '"':
		return p.addText(c, param)
	case '[':
	default:
		return wrongType(param, "a string or an array of strings or token ids")
	}
	var ids []int32 // of [1, 2, 3], which is one prompt
	err := c.array(param, tokenIDsMax, func(i int) error {
		if c.isNumber() && (i == 0 || ids != nil) {
			id, err := c.integer(index(param, i), 0, math.MaxInt32)
			ids = append(ids, int32(id))
			return err
		}
		if ids != nil {
			return wrongType(index(param, i), "a token id, as its neighbours are")
		}
		if i >= choicesMax {
			return fail(kindMalformed, param, "'%s' has more than %d prompts", param, choicesMax)
		}
		if c.peek() == '[' {
			return p.addIDs(c, index(param, i))
		}
		return p.addText(c, index(param, i))
	})
	if err != nil {
		return err
	}
	if ids != nil {
		p.g.prompts = append(p.g.prompts, prompt{ids: ids})
	}
	if len(p.g.prompts) == 0 {
		return fail(kindMalformed, param, "'%s' must not be empty", param)
	}
	return nil
}

// tokenIDsMax bounds a prompt of ids before the context limit is known: more
// than any model's window, and small enough for the body limit to matter first.
const tokenIDsMax = 4 << 20

func (p *requestParser) addText(c *cursor, param string) error {
	s, err := c.str(param)
	if err == nil && s == "" {
		err = fail(kindMalformed, param, "'%s' must not be empty", param)
	}
	p.g.prompts = append(p.g.prompts, prompt{text: s})
	return err
}

func (p *requestParser) addIDs(c *cursor, param string) error {
	ids := []int32{}
	err := c.array(param, tokenIDsMax, func(i int) error {
		id, err := c.integer(index(param, i), 0, math.MaxInt32)
		ids = append(ids, int32(id))
		return err
	})
	if err == nil && len(ids) == 0 {
		err = fail(kindMalformed, param, "'%s' must not be empty", param)
	}
	p.g.prompts = append(p.g.prompts, prompt{ids: ids})
	return err
}

// index names an element of an array.
func index(param string, i int) string { return param + "[" + strconv.Itoa(i) + "]" }
