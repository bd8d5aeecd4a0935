package tokenizer

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

type goldenChats struct {
	Conversations [][]Message
	Templates     map[string][]*string            // per conversation without and with generation prompt; nil: refused
	IDs           map[string]map[string][][]int32 // vocabulary -> template -> as Templates
}

// fixedNow is the moment at which the golden renderings were made.
func fixedNow() time.Time { return time.Date(2026, 7, 4, 9, 5, 7, 0, time.UTC) }

func goldenTemplate(t testing.TB, name string) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("testdata/templates", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(source)
}

// TestGoldenRender compares rendered text with Hugging Face's own renderer, for each
// template on each conversation.
func TestGoldenRender(t *testing.T) {
	golden := readGolden[goldenChats](t, "testdata/chats.json.gz")
	if len(golden.Templates) < 7 {
		t.Fatalf("only %d templates", len(golden.Templates))
	}
	for name, rows := range golden.Templates {
		tmpl, err := newTemplate(goldenTemplate(t, name), map[string]string{"bos_token": "<|begin_of_text|>", "eos_token": "<|im_end|>"})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		tmpl.now = fixedNow
		rendered := 0
		for i, want := range rows {
			got, err := tmpl.Render(golden.Conversations[i/2], i%2 == 1)
			switch {
			case want == nil && err == nil:
				t.Errorf("%s, conversation %d: rendered %q, the reference refuses", name, i/2, got)
			case want != nil && err != nil:
				t.Errorf("%s, conversation %d: %v", name, i/2, err)
			case want != nil && got != *want:
				t.Errorf("%s, conversation %d:\n got %q\nwant %q", name, i/2, got, *want)
			case want != nil:
				rendered++
			}
		}
		t.Logf("%s: %d of %d rendered and equal", name, rendered, len(rows))
	}
}

// TestChatIDs: for chats in which nobody types a control token, the ids are those of the
// rendered text with control tokens recognised everywhere, as apply_chat_template has it.
func TestChatIDs(t *testing.T) {
	golden := readGolden[goldenChats](t, "testdata/chats.json.gz")
	for _, vocabulary := range []string{"smollm2", "qwen-small", "llama3-small"} {
		for name, rows := range golden.Templates {
			tok, err := New(vocab(t, vocabulary).with(keyTemplate, goldenTemplate(t, name)))
			if err != nil {
				t.Fatal(err)
			}
			tok.template.now = fixedNow
			for i, want := range rows {
				if want == nil {
					continue
				}
				text, err := tok.template.Render(golden.Conversations[i/2], i%2 == 1)
				if err != nil {
					t.Fatal(err)
				}
				got, err := tok.RenderChat(golden.Conversations[i/2], i%2 == 1)
				if err != nil {
					t.Fatal(err)
				}
				all := tok.encode(text, func(int, int) bool { return true })
				if !slices.Equal(got, all) {
					t.Errorf("%s, %s, conversation %d: ids differ from those of the text", vocabulary, name, i/2)
				}
			}
		}
	}
}

// TestGoldenChatIDs compares whole chats with the ids of Hugging Face's apply_chat_template.
func TestGoldenChatIDs(t *testing.T) {
	golden := readGolden[goldenChats](t, "testdata/chats.json.gz")
	if len(golden.IDs) < 3 {
		t.Fatalf("ids of only %d vocabularies", len(golden.IDs))
	}
	for vocabulary, templates := range golden.IDs {
		for name, rows := range templates {
			m := vocab(t, vocabulary)
			tokens := m[keyTokens].([]string)
			if bos := slices.Index(tokens, "<|begin_of_text|>"); bos >= 0 {
				m = m.with("tokenizer.ggml.bos_token_id", uint64(bos))
			}
			tok, err := New(m.with(keyTemplate, goldenTemplate(t, name)))
			if err != nil {
				t.Fatal(err)
			}
			tok.template.now = fixedNow
			for i, want := range rows {
				got, err := tok.RenderChat(golden.Conversations[i/2], i%2 == 1)
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("%s, %s, conversation %d: %v\n got %v\nwant %v", vocabulary, name, i/2, err, clipIDs(got), clipIDs(want))
				}
			}
		}
	}
}
