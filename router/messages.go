package router

import (
	"strings"

	"bulkhead/internal/tokenizer"
)

// readMessages reads the turns of a chat.
func (p *requestParser) readMessages(c *cursor, param string) error {
	p.hasMessages = true
	err := c.array(param, messagesMax, func(i int) error {
		m, err := p.readMessage(c, index(param, i))
		p.g.messages = append(p.g.messages, m)
		return err
	})
	if err == nil && len(p.g.messages) == 0 {
		err = fail(kindMalformed, param, "'%s' must not be empty", param)
	}
	return err
}

// readMessage reads one turn. SDKs send an assistant's message back as they got
// it, with nulls in the members it did not use; those are taken.
func (p *requestParser) readMessage(c *cursor, param string) (tokenizer.Message, error) {
	var m tokenizer.Message
	hasContent := false
	err := c.object(param+".", fields{
		known: map[string]reader{
			"role": func(c *cursor, param string) (err error) {
				m.Role, err = c.str(param)
				return err
			},
			"content": optional(func(c *cursor, param string) (err error) {
				hasContent = true
				m.Content, err = p.readContent(c, param)
				return err
			}),
			"name": p.ignore, "annotations": p.ignore, "reasoning_content": p.ignore,
			"tool_calls": unsupported, "tool_call_id": unsupported, "function_call": unsupported,
			"refusal": unsupported, "audio": unsupported,
		},
		other: p.other,
	})
	if err != nil {
		return m, err
	}
	switch m.Role {
	case "system", "user", "assistant":
	case "developer": // OpenAI's newer word; templates know the older one
		m.Role = "system"
	case "tool", "function":
		return m, fail(kindUnsupported, param+".role", "Unsupported parameter: '%s.role' %q is not supported by this server.", param, m.Role)
	case "":
		return m, fail(kindMalformed, param+".role", "Missing required parameter: '%s.role'.", param)
	default:
		return m, fail(kindMalformed, param+".role", "'%s.role' must be one of system, developer, user, assistant", param)
	}
	if !hasContent {
		return m, fail(kindMalformed, param+".content", "Missing required parameter: '%s.content'.", param)
	}
	return m, nil
}

// readContent reads a string, or text parts, which are joined by newlines as
// templates that know only strings get them elsewhere (vLLM).
func (p *requestParser) readContent(c *cursor, param string) (string, error) {
	if c.peek() == '"' {
		return c.str(param)
	}
	if c.peek() != '[' {
		return "", wrongType(param, "a string or an array of content parts")
	}
	var texts []string
	err := c.array(param, partsMax, func(i int) error {
		text, err := p.readPart(c, index(param, i))
		texts = append(texts, text)
		return err
	})
	if err == nil && len(texts) == 0 {
		err = fail(kindMalformed, param, "'%s' must not be empty", param)
	}
	return strings.Join(texts, "\n"), err
}

func (p *requestParser) readPart(c *cursor, param string) (string, error) {
	var typ, text string
	hasText := false
	err := c.object(param+".", fields{
		known: map[string]reader{
			"type": func(c *cursor, param string) (err error) {
				typ, err = c.str(param)
				return err
			},
			"text": func(c *cursor, param string) (err error) {
				hasText = true
				text, err = c.str(param)
				return err
			},
			"image_url": unsupported, "input_audio": unsupported, "file": unsupported, "video_url": unsupported, "refusal": unsupported,
		},
		other: p.other,
	})
	switch {
	case err != nil:
	case typ == "":
		err = fail(kindMalformed, param+".type", "Missing required parameter: '%s.type'.", param)
	case typ != "text":
		err = fail(kindUnsupported, param+".type", "Unsupported parameter: '%s.type' other than \"text\" is not supported by this server.", param)
	case !hasText:
		err = fail(kindMalformed, param+".text", "Missing required parameter: '%s.text'.", param)
	}
	return text, err
}
