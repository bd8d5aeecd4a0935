package tokenizer

import (
	"bytes"
	"errors"
	"flag"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/gguf"
	"bulkhead/internal/negative"
)

var _ = flag.Bool("rewrite", false, "write testdata/negative anew")

var gaps = regexp.MustCompile(`[^a-z0-9]+`)

// TestNegativeVectors: metadata of a GGUF file, chat templates, and chats, that
// must be refused. Metadata is kept as GGUF, and so read as a node reads it; a
// chat is one message a line, role and content parted by a tab.
func TestNegativeVectors(t *testing.T) {
	classes := []struct {
		name string
		err  error
	}{
		{"unsupported model", ErrUnsupportedModel}, {"unsupported pre", ErrUnsupportedPre}, {"limit", ErrLimit}, {"metadata", ErrMetadata}, {"template", ErrTemplate},
		{"render limit", ErrRenderLimit}, {"render", ErrRender}, {"no messages", ErrNoMessages}, {"role", ErrRole},
	}
	chatter := chatTokenizer(t, "{% if messages[0].role == 'tool' %}{{ raise_exception('No tools.') }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}")
	s := negative.Set{
		Dir: "testdata/negative",
		Decoders: map[string]negative.Decoder{
			"metadata": {Honest: asGGUF(t, tiny()), Decode: func(b []byte) error {
				f, err := gguf.Parse(b)
				if err != nil {
					return err
				}
				_, err = New(f)
				return err
			}},
			"template": {Honest: []byte("{% for m in messages %}{{ m.content }}{% endfor %}"), Decode: func(b []byte) error {
				tmpl, err := newTemplate(string(b), nil)
				if err == nil {
					_, err = tmpl.Render([]Message{{"user", "secret"}}, true)
				}
				if err != nil && strings.Contains(err.Error(), "secret") {
					return errors.New("the error repeats the prompt")
				}
				return err
			}},
			"chat": {Honest: []byte("user\thello"), Decode: func(b []byte) error {
				var chat []Message
				for line := range strings.Lines(string(b)) {
					role, content, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
					chat = append(chat, Message{role, content})
				}
				_, err := chatter.RenderChat(chat, true)
				return err
			}},
		},
		Classify: func(err error) string {
			for _, c := range classes {
				if errors.Is(err, c.err) {
					return c.name
				}
			}
			return ""
		},
	}
	for _, c := range classes {
		s.Classes = append(s.Classes, c.name)
	}
	add := func(what, name, expect, says string, data []byte) {
		s.Made = append(s.Made, negative.Vector{
			Name: what + "-" + strings.Trim(gaps.ReplaceAllString(strings.ToLower(name), "-"), "-"), What: what, Expect: expect, Says: says, Comment: name, Data: data,
		})
	}
	for _, c := range badMetadata() {
		add("metadata", c.name, c.expect, c.says, asGGUF(t, c.m))
	}
	for _, c := range hostileTemplates {
		expect := "template"
		if c.name == "length" {
			expect = "limit"
		}
		if c.runs {
			expect = "render limit"
			if failsAlone[c.name] {
				expect = "render"
			}
		}
		add("template", c.name, expect, "", []byte(c.source))
	}
	for _, c := range [][4]string{
		{"of nobody", "no messages", "", ""}, {"by root", "role", "message 0", "root\tx"}, {"by a role in capitals", "role", "message 0", "User\tx"},
		{"by a control token", "role", "message 0", "user<|im_end|>\tx"}, {"by nobody", "role", "message 1", "user\tx\n\ty"}, {"that the template refuses", "render", "No tools.", "tool\tx"},
	} {
		add("chat", c[0], c[1], c[2], []byte(c[3]))
	}
	negative.Run(t, s, 100)
}

// failsAlone names the hostile templates that the library ends before a limit does.
var failsAlone = map[string]bool{"macro calls": true, "range without step": true, "call of a string": true, "strftime": true}

// asGGUF writes metadata as a file without tensors.
func asGGUF(t *testing.T, m meta) []byte {
	t.Helper()
	w := gguf.NewWriter()
	for _, key := range slices.Sorted(maps.Keys(m)) {
		switch v := m[key].(type) {
		case string:
			w.Str(key, v)
		case []string:
			w.Strs(key, v)
		case []int32:
			w.Ints(key, v)
		case uint64:
			w.Uint64(key, v)
		case bool:
			w.Bool(key, v)
		default:
			t.Fatalf("%s is a %T", key, v)
		}
	}
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type badMeta struct {
	name, expect, says string
	m                  meta
}

// badMetadata are small changes of a good vocabulary.
func badMetadata() []badMeta {
	good := tiny()
	tokens, types := good[keyTokens].([]string), good[keyTypes].([]int32)
	long := strings.Repeat("x", maxTokenBytes+1)
	out := []badMeta{
		{"sentencepiece", "unsupported model", `"llama"`, good.with(keyModel, "llama")},
		{"model of no name", "unsupported model", `""`, good.with(keyModel, "")},
		{"unknown pre", "unsupported pre", "deepseek-coder", good.with(keyPre, "deepseek-coder")},
		{"pre in capitals", "unsupported pre", "Qwen2", good.with(keyPre, "Qwen2")},
		{"endless pre", "unsupported pre", "...", good.with(keyPre, long)},
		{"empty tokens", "metadata", "no tokens", good.with(keyTokens, []string{})},
		{"empty token", "metadata", "token 3 is empty", good.with(keyTokens, edit(tokens, 3, ""))},
		{"long token", "limit", "length of token 256", good.with(keyTokens, edit(tokens, 256, long))},
		{"token twice", "metadata", "token 256 repeats", good.with(keyTokens, edit(tokens, 256, "a"))},
		{"no token for a byte", "metadata", "no token for byte 0x71", good.with(keyTokens, edit(tokens, 'q', "qq"))},
		{"one type short", "metadata", "has 259 entries for 260 tokens", good.with(keyTypes, types[1:])},
		{"one token short", "metadata", "has 260 entries for 259 tokens", good.with(keyTokens, tokens[:259])},
		{"type 0", "metadata", "unknown type 0", good.with(keyTypes, edit(types, 5, 0))},
		{"type 7", "metadata", "unknown type 7", good.with(keyTypes, edit(types, 5, 7))},
		{"negative type", "metadata", "unknown type -1", good.with(keyTypes, edit(types, 5, -1))},
		{"long control token", "limit", "token 258", good.with(keyTokens, edit(tokens, 258, long[:maxAddedBytes+1]))},
		{"control token no text", "metadata", "token 258 is not UTF-8", good.with(keyTokens, edit(tokens, 258, "\xff"))},
		{"merge of nothing", "metadata", "merge 0 is not two parts", good.with(keyMerges, []string{""})},
		{"merge of one part", "metadata", "merge 0 is not two parts", good.with(keyMerges, []string{"ab"})},
		{"merge without left", "metadata", "merge 0", good.with(keyMerges, []string{" a"})},
		{"merge without right", "metadata", "merge 0", good.with(keyMerges, []string{"a "})},
		{"merge of unknown parts", "metadata", "merge 0", good.with(keyMerges, []string{"zz b"})},
		{"merge into an unknown token", "metadata", "merge 0", good.with(keyMerges, []string{"a c"})},
		{"merge twice", "metadata", "merge 1 repeats", good.with(keyMerges, []string{"a b", "a b"})},
		{"endless merge", "limit", "length of merge 0", good.with(keyMerges, []string{long + long + long})},
		{"merge into a control token", "metadata", "merge 0", good.with(keyTypes, edit(types, 256, 3))},
		{"eos outside", "metadata", "id 260 is outside", good.with("tokenizer.ggml.eos_token_id", uint64(260))},
		{"bos far outside", "metadata", "bos_token_id", good.with("tokenizer.ggml.bos_token_id", uint64(1)<<63)},
		{"bos of another type", "metadata", "bos_token_id", good.with("tokenizer.ggml.bos_token_id", "x")},
		{"add bos without bos", "metadata", keyAddBOS, good.with(keyAddBOS, true)},
		{"add bos of another type", "metadata", keyAddBOS, good.with(keyAddBOS, "x")},
		{"template of another type", "metadata", keyTemplate, good.with(keyTemplate, uint64(1))},
		{"template that does not compile", "template", "", good.with(keyTemplate, "{% for")},
		{"endless template", "limit", keyTemplate, good.with(keyTemplate, strings.Repeat("x", maxTemplateBytes+1))},
	}
	for _, key := range []string{keyModel, keyPre, keyTokens, keyTypes, keyMerges} {
		short := strings.TrimPrefix(key, "tokenizer.ggml.")
		out = append(out,
			badMeta{short + " missing", "metadata", key + ": missing", good.with(key, nil)},
			badMeta{short + " of another type", "metadata", key, good.with(key, true)})
	}
	return out
}
