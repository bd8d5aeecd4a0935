package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"
)

// Template is a chat template: a Jinja program that came with the model. It is compiled
// once and safe for concurrent use.
//
// A template is code from a file somebody downloaded. It is never taken from a client,
// and even so it is held to limits: rewrite.go refuses what could recurse or change its
// input, and counts the rest while it runs.
//
// Rendering follows Hugging Face's apply_chat_template: trim_blocks and lstrip_blocks on,
// no trailing newline, the same variables and functions. Goldens compare it.
type Template struct {
	source   string
	compiled *jinja.Template
	special  map[string]string // bos_token ...
	literals []string          // string literals in the template's tags
	now      func() time.Time  // for strftime_now; replaced in tests
	clock    func() time.Time  // for the limit of time; replaced in tests
	timeMax  time.Duration
}

// Message is one turn of a chat.
type Message struct {
	Role    string // system, developer, user, assistant or tool
	Content string // UTF-8; invalid bytes become U+FFFD
}

// Limits of one rendering, for input of n bytes: each value it keeps and everything it
// writes stay under baseBytes + perInputByte*n, and it takes at most maxSteps loop turns
// and macro calls. Real templates write each message once or twice. The clock is for what
// those leave: many slow expressions, each within bounds.
const (
	maxTemplateBytes = 256 << 10
	baseBytes        = 1 << 20
	perInputByte     = 8
	maxSteps         = 1 << 20
	maxRenderTime    = 10 * time.Second
)

// newTemplate compiles source. The error matches ErrTemplate.
func newTemplate(source string, special map[string]string) (t *Template, err error) {
	if len(source) > maxTemplateBytes {
		return nil, overLimit(keyTemplate, "length", len(source), maxTemplateBytes)
	}
	program, literals, err := rewrite(source)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: the compiler gave up", ErrTemplate)
		}
	}()
	compiled, err := jinja.Compile(program)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	return &Template{source: source, compiled: compiled, special: special, literals: literals, now: time.Now, clock: time.Now, timeMax: maxRenderTime}, nil
}

// Source is the template as the file has it.
func (t *Template) Source() string { return t.source }

// Render returns the chat as text. addGenerationPrompt ends it where the assistant
// speaks next. Use [Tokenizer.RenderChat] to get ids: text alone no longer shows which
// control tokens a user typed.
//
// Errors: ErrNoMessages, ErrRole, a *RenderError (ErrRender), ErrRenderLimit.
func (t *Template) Render(messages []Message, addGenerationPrompt bool) (string, error) {
	return t.render(messages, addGenerationPrompt, nil)
}

// render renders messages whose content has been put into shadows; nil: it has not.
func (t *Template) render(messages []Message, addGenerationPrompt bool, s *shadows) (text string, err error) {
	if len(messages) == 0 {
		return "", ErrNoMessages // most templates look at the first one
	}
	n := 0
	list := make([]jinja.Value, len(messages))
	for i, m := range messages {
		switch m.Role {
		case "system", "developer", "user", "assistant", "tool":
		default:
			return "", fmt.Errorf("%w: message %d", ErrRole, i)
		}
		content := strings.ToValidUTF8(m.Content, "\uFFFD")
		n += len(content)
		list[i] = jinja.NewDict()
		d := list[i].AsDict()
		d.Set("role", jinja.NewString(m.Role))
		d.Set("content", jinja.NewString(content))
	}
	run := &run{t: t, shadows: s, left: baseBytes + perInputByte*n, limit: baseBytes + perInputByte*n, steps: maxSteps, clock: newStopwatch(t.clock, t.timeMax)}
	globals := run.globals()
	for name, text := range t.special {
		globals[name] = jinja.NewString(text)
	}
	globals["messages"] = jinja.NewList(list)
	globals["add_generation_prompt"] = jinja.NewBool(addGenerationPrompt)
	globals["tools"] = jinja.None()
	globals["documents"] = jinja.None()

	// The library panics on some calls with odd arguments. Its messages may quote values,
	// so neither those nor its errors are passed on.
	defer func() {
		if r := recover(); r != nil {
			text, err = "", &RenderError{}
		}
	}()
	text, err = t.compiled.RenderValues(globals)
	var raised *RenderError
	switch {
	case err == nil:
		return text, nil
	case errors.Is(err, ErrRenderLimit):
		return "", ErrRenderLimit
	case errors.As(err, &raised):
		return "", raised
	}
	return "", &RenderError{}
}
