package tokenizer

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

func load(t testing.TB, name string) *Tokenizer {
	t.Helper()
	tok, err := New(vocab(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func pieces(tok *Tokenizer, ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		b.Write(tok.Piece(id))
	}
	return b.String()
}

// FuzzEncode: the pieces of an encoding are the text, and none is a control token. The
// small vocabularies have a token for every byte, so nothing may be lost.
func FuzzEncode(f *testing.F) {
	for _, s := range readGolden[[]string](f, "testdata/strings.json.gz")[:300] {
		f.Add(s)
	}
	f.Add("\xff\xfe\xc3(\xf0\x9f\x98")
	llama, qwen, smol := load(f, "llama3-small"), load(f, "qwen-small"), load(f, "smollm2")
	f.Fuzz(func(t *testing.T, s string) {
		for _, tok := range []*Tokenizer{llama, qwen, smol} {
			ids := tok.Encode(s)
			for _, id := range ids {
				if tok.IsControl(id) {
					t.Fatalf("%s: %q gives control token %d", tok.pre, s, id)
				}
			}
			switch got := pieces(tok, ids); {
			case tok == llama && got != s:
				t.Fatalf("llama: %q comes back as %q", s, got)
			case tok == qwen && composeNFC(got) != composeNFC(s):
				t.Fatalf("qwen: %q comes back as %q", s, got)
			case tok == smol && len(got) > len(s):
				t.Fatalf("smollm: %q grows to %q", s, got)
			}
			text := ""
			d := tok.NewDecoder()
			for _, id := range ids {
				text += d.Push(id)
			}
			if text += d.Flush(); !utf8.ValidString(text) {
				t.Fatalf("%s: decoder gives invalid text %q", tok.pre, text)
			}
		}
	})
}

// TestDecoder: pushed one by one, in any cut, bytes come out as decoded at once.
func TestDecoder(t *testing.T) {
	tok := load(t, "llama3-small")
	decode := func(b string) string {
		d := tok.NewDecoder()
		out := ""
		for i := range len(b) {
			part := d.Push(tok.byteID[b[i]])
			if !utf8.ValidString(part) {
				t.Errorf("%q: part %q is not whole", b, part)
			}
			out += part
			d.Push(int32(len(tok.text)) - 1) // a control token between two bytes adds nothing
			d.Push(-1)
			d.Push(1 << 30)
		}
		return out + d.Flush()
	}
	// Expected texts are Python's bytes.decode("utf-8", "replace").
	for in, want := range map[string]string{
		"":                 "",
		"a\x00b":           "a\x00b",
		"é😀":               "é😀",
		"\xff":             "\uFFFD",
		"\xe2\x82":         "\uFFFD",
		"\xe2\x82A":        "\uFFFDA",
		"\xe2\x28\xa1":     "\uFFFD(\uFFFD",
		"\xf0\x9f\x98":     "\uFFFD",
		"\xf0\x9f\x98\xf0": "\uFFFD\uFFFD",
		"\xf0\x80\x80\x80": "\uFFFD\uFFFD\uFFFD\uFFFD",
		"\xed\xa0\x80":     "\uFFFD\uFFFD\uFFFD",
		"\xf4\x90\x80\x80": "\uFFFD\uFFFD\uFFFD\uFFFD",
		"\xc0\xaf":         "\uFFFD\uFFFD",
		"\xe0\x9f\xbf":     "\uFFFD\uFFFD\uFFFD",
		"\x80\x80é":        "\uFFFD\uFFFDé",
		"\uFFFD":           "\uFFFD",
	} {
		if got := decode(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	rng := rand.New(rand.NewPCG(3, 4))
	alphabet := []byte{'a', 0, 0x80, 0x9f, 0xa0, 0xbf, 0xc2, 0xe0, 0xe2, 0xed, 0xf0, 0xf4, 0xf5, 0xff}
	for range 5000 {
		b := make([]byte, rng.IntN(12))
		for i := range b {
			b[i] = alphabet[rng.IntN(len(alphabet))]
		}
		whole, rest := decodeUTF8(bytes.Clone(b))
		if len(rest) > 0 {
			whole += "\uFFFD"
		}
		if got := decode(string(b)); got != whole {
			t.Errorf("%q: pushed %q, at once %q", b, got, whole)
		}
		if utf8.Valid(b) && whole != string(b) {
			t.Errorf("%q: valid text decodes to %q", b, whole)
		}
	}
}

// TestLinear counts work instead of time: one long word costs at most three times what as
// much text costs, and twice the text costs twice the work.
func TestLinear(t *testing.T) {
	tok := load(t, "smollm2")
	steps := func(s string) int {
		e := encoder{t: tok}
		e.plain(s)
		return e.bpe.steps
	}
	const size = 1 << 18
	rng := rand.New(rand.NewPCG(5, 6))
	var prose strings.Builder
	for prose.Len() < size { // words of 1 to 12 letters that no cache has seen
		for range 1 + rng.IntN(12) {
			prose.WriteByte("etaoinshrdlucmfw"[rng.IntN(16)])
		}
		prose.WriteByte(' ')
	}
	text := steps(prose.String()[:size])
	random := make([]byte, size)
	for i := range random {
		random[i] = byte('a' + rng.IntN(26))
	}
	for name, s := range map[string]string{
		"a": strings.Repeat("a", size), "space": strings.Repeat(" ", size), "newline": strings.Repeat("\n", size), "=": strings.Repeat("=", size),
		"ab": strings.Repeat("ab", size/2), "the": strings.Repeat("the", size/3), "é": strings.Repeat("é", size/2), "日": strings.Repeat("日", size/3),
		"random letters": string(random), "😀": strings.Repeat("😀", size/4),
	} {
		whole, half := steps(s), steps(s[:len(s)/2])
		if whole > 3*text {
			t.Errorf("%s: %d steps, text %d", name, whole, text)
		}
		if float64(whole) > 2.2*float64(half) {
			t.Errorf("%s: %d steps for twice the text of %d steps", name, whole, half)
		}
		t.Logf("%-15s %.2f times the steps of text", name, float64(whole)/float64(text))
	}
}

// TestQueueOrder: the queue hands entries out by rank, then position, whatever the order
// they came in.
func TestQueueOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 200 {
		var q rankQueue
		q.reset()
		var want []int64
		for range 300 {
			if rng.IntN(3) > 0 || len(want) == 0 {
				rank, pos := int32(rng.IntN(6)), int32(rng.IntN(50))
				q.push(rank, pos)
				want = append(want, int64(rank)<<32|int64(pos))
				slices.Sort(want)
				continue
			}
			pos, rank, ok := q.pop()
			if got := int64(rank)<<32 | int64(pos); !ok || got != want[0] {
				t.Fatalf("popped %x, want %x", got, want[0])
			}
			want = want[1:]
		}
	}
}

// TestLongEqualsShort: both ways to merge give the same tokens.
func TestLongEqualsShort(t *testing.T) {
	tok := load(t, "smollm2")
	rng := rand.New(rand.NewPCG(9, 10))
	var b bpe
	for range 3000 {
		w := make([]byte, 1+rng.IntN(maxCachedWord))
		for i := range w {
			w[i] = "aabetinos "[rng.IntN(10)]
		}
		short, long := b.short(tok, string(w), nil), b.long(tok, string(w), nil)
		if !slices.Equal(short, long) {
			t.Fatalf("%q: short %v, long %v", w, short, long)
		}
	}
}

// TestNFC compares with norm where norm does not break marks up, and with itself by parts
// where it does.
func TestNFC(t *testing.T) {
	for r := rune(0x80); r <= 0x10FFFF; r++ {
		if r >= 0xD800 && r < 0xE000 {
			continue
		}
		s := string(r)
		if got, want := composeNFC(norm.NFD.String(s)), norm.NFC.String(s); got != want {
			t.Errorf("U+%04X: %q, want %q", r, got, want)
		}
	}
	rng := rand.New(rand.NewPCG(11, 12))
	alphabet := []rune("aeoqAs\u0301\u0300\u0327\u0323\u0307\u0315\u0345\u1100\u1161\u11a8\uac00\u09c7\u09be\u0b47\u0b3e \u0344\u212b\ufb1d日\u0f71\u0f73\u0f80")
	for range 20000 {
		var s []rune
		for range rng.IntN(10) {
			s = append(s, alphabet[rng.IntN(len(alphabet))])
		}
		if got, want := composeNFC(string(s)), norm.NFC.String(string(s)); got != want {
			t.Fatalf("%+q: %+q, want %+q", string(s), got, want)
		}
	}
	if s := "q" + strings.Repeat("\u0301", 100); toNFC(s) != s {
		t.Error("a long run of marks was changed")
	}
}

func TestSpecials(t *testing.T) {
	tok, err := New(vocab(t, "smollm2").with(keyTemplate, goldenTemplate(t, "smollm2.jinja")))
	if err != nil {
		t.Fatal(err)
	}
	if id, add := tok.BOS(); id != 1 || add {
		t.Errorf("BOS is %d, %v", id, add)
	}
	for id, want := range map[int32]bool{0: true, 2: true, 1: false, 17: false, -1: false, 1 << 30: false} {
		if tok.EOG(id) != want {
			t.Errorf("EOG(%d) is %v", id, !want)
		}
	}
	for id, want := range map[int32]bool{0: true, 16: true, 17: false, -1: false, 49151: false, 49152: false} {
		if tok.IsControl(id) != want {
			t.Errorf("IsControl(%d) is %v", id, !want)
		}
	}
	if got := string(tok.Piece(2)); got != "<|im_end|>" {
		t.Errorf("piece of a control token is %q", got)
	}
	if tok.Piece(-1) != nil || tok.Piece(49152) != nil {
		t.Error("an unknown id has a piece")
	}
	if n := tok.VocabSize(); n != 49152 {
		t.Errorf("vocabulary of %d", n)
	}
	if tmpl, ok := tok.Template(); !ok || tmpl.Source() != goldenTemplate(t, "smollm2.jinja") {
		t.Error("no template, or another one")
	}
}

// tiny is a vocabulary small enough to damage by hand: 256 bytes, "ab", "abc", a control
// and a user-defined token.
func tiny() meta {
	var tokens []string
	var types []int32
	for b := range 256 {
		for r, to := range runeToByte {
			if int(to) == b {
				tokens = append(tokens, string(rune(r)))
			}
		}
		types = append(types, 1)
	}
	tokens = append(tokens, "ab", "abc", "<|end|>", "<u>")
	types = append(types, 1, 1, 3, 4)
	return meta{keyModel: "gpt2", keyPre: "qwen2", keyTokens: tokens, keyTypes: types, keyMerges: []string{"a b", "ab c"}}
}

func edit[T any](s []T, i int, v T) []T {
	s = slices.Clone(s)
	s[i] = v
	return s
}

func TestNewRefuses(t *testing.T) {
	good := tiny()
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	tokens, types := good[keyTokens].([]string), good[keyTypes].([]int32)
	long := strings.Repeat("x", maxTokenBytes+1)
	many := func(n int, kind int32) meta {
		t := slices.Clone(tokens)
		k := slices.Clone(types)
		for i := range n {
			t, k = append(t, fmt.Sprintf("<%d>", i)), append(k, kind)
		}
		return good.with(keyTokens, t).with(keyTypes, k)
	}
	for _, c := range []struct {
		name string
		m    meta
		want error
		key  string // named by the error
	}{
		{"no model", good.with(keyModel, nil), ErrMetadata, keyModel},
		{"model of another type", good.with(keyModel, uint64(1)), ErrMetadata, keyModel},
		{"sentencepiece", good.with(keyModel, "llama"), ErrUnsupportedModel, `"llama"`},
		{"no pre", good.with(keyPre, nil), ErrMetadata, keyPre},
		{"unknown pre", good.with(keyPre, "deepseek-coder"), ErrUnsupportedPre, "deepseek-coder"},
		{"endless pre", good.with(keyPre, long), ErrUnsupportedPre, "..."},
		{"no tokens", good.with(keyTokens, nil), ErrMetadata, keyTokens},
		{"empty tokens", good.with(keyTokens, []string{}), ErrMetadata, keyTokens},
		{"tokens of another type", good.with(keyTokens, "x"), ErrMetadata, keyTokens},
		{"too many tokens", good.with(keyTokens, make([]string, maxTokens+1)), ErrLimit, keyTokens},
		{"empty token", good.with(keyTokens, edit(tokens, 3, "")), ErrMetadata, keyTokens},
		{"long token", good.with(keyTokens, edit(tokens, 256, long)), ErrLimit, keyTokens},
		{"token twice", good.with(keyTokens, edit(tokens, 256, "a")), ErrMetadata, keyTokens},
		{"bytes twice", good.with(keyTokens, edit(edit(tokens, 256, "\u0120\u3042"), 257, " \u3042")), ErrMetadata, keyMerges},
		{"no token for a byte", good.with(keyTokens, edit(tokens, 'q', "qq")), ErrMetadata, keyTokens},
		{"no types", good.with(keyTypes, nil), ErrMetadata, keyTypes},
		{"few types", good.with(keyTypes, types[1:]), ErrMetadata, keyTypes},
		{"type 0", good.with(keyTypes, edit(types, 5, 0)), ErrMetadata, keyTypes},
		{"type 7", good.with(keyTypes, edit(types, 5, 7)), ErrMetadata, keyTypes},
		{"negative type", good.with(keyTypes, edit(types, 5, -1)), ErrMetadata, keyTypes},
		{"long control token", good.with(keyTokens, edit(tokens, 258, long[:maxAddedBytes+1])), ErrLimit, keyTokens},
		{"control token no text", good.with(keyTokens, edit(tokens, 258, "\xff")), ErrMetadata, keyTokens},
		{"too many control tokens", many(maxAddedTokens, 3), ErrLimit, keyTypes},
		{"no merges", good.with(keyMerges, nil), ErrMetadata, keyMerges},
		{"too many merges", good.with(keyMerges, make([]string, maxMerges+1)), ErrLimit, keyMerges},
		{"merge of nothing", good.with(keyMerges, []string{""}), ErrMetadata, keyMerges},
		{"merge of one part", good.with(keyMerges, []string{"ab"}), ErrMetadata, keyMerges},
		{"merge without left", good.with(keyMerges, []string{" a"}), ErrMetadata, keyMerges},
		{"merge without right", good.with(keyMerges, []string{"a "}), ErrMetadata, keyMerges},
		{"merge of unknown parts", good.with(keyMerges, []string{"zz b"}), ErrMetadata, keyMerges},
		{"merge into an unknown token", good.with(keyMerges, []string{"a c"}), ErrMetadata, keyMerges},
		{"merge twice", good.with(keyMerges, []string{"a b", "a b"}), ErrMetadata, keyMerges},
		{"endless merge", good.with(keyMerges, []string{long + long + long}), ErrLimit, keyMerges},
		{"merge into a control token", good.with(keyTypes, edit(types, 256, 3)), ErrMetadata, keyMerges},
		{"merge of a control token", good.with(keyTypes, edit(types, 'b', 3)), ErrMetadata, "tokenizer.ggml."},
		{"eos outside", good.with("tokenizer.ggml.eos_token_id", uint64(260)), ErrMetadata, "eos_token_id"},
		{"bos far outside", good.with("tokenizer.ggml.bos_token_id", uint64(1)<<63), ErrMetadata, "bos_token_id"},
		{"bos of another type", good.with("tokenizer.ggml.bos_token_id", "x"), ErrMetadata, "bos_token_id"},
		{"add_bos without bos", good.with(keyAddBOS, true), ErrMetadata, keyAddBOS},
		{"add_bos of another type", good.with(keyAddBOS, "x"), ErrMetadata, keyAddBOS},
		{"bad template", good.with(keyTemplate, "{% if %}"), ErrTemplate, ""},
		{"template of another type", good.with(keyTemplate, uint64(1)), ErrMetadata, keyTemplate},
		{"endless template", good.with(keyTemplate, strings.Repeat("x", maxTemplateBytes+1)), ErrLimit, keyTemplate},
	} {
		tok, err := New(c.m)
		if tok != nil || !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.key) {
			t.Errorf("%s: %v, want %v naming %q", c.name, err, c.want, c.key)
		}
	}
}

// TestFingerprint: it is the same for the same metadata, and another one whenever
// something changes that decides ids or rendering.
func TestFingerprint(t *testing.T) {
	base := tiny().with(keyTemplate, "{{ messages[0].content }}").with("tokenizer.ggml.bos_token_id", uint64(258))
	sum := func(m meta) [32]byte {
		t.Helper()
		tok, err := New(m)
		if err != nil {
			t.Fatal(err)
		}
		return tok.Fingerprint()
	}
	if first, second := sum(base), sum(base); first != second {
		t.Fatal("two fingerprints of one file")
	}
	tokens, types := base[keyTokens].([]string), base[keyTypes].([]int32)
	seen := map[[32]byte]string{sum(base): "base"}
	for name, m := range map[string]meta{
		"pre":         base.with(keyPre, "smollm"),
		"token":       base.with(keyTokens, edit(tokens, 259, "<v>")),
		"type":        base.with(keyTypes, edit(types, 259, 3)),
		"merges":      base.with(keyMerges, []string{"ab c", "a b"}),
		"fewer":       base.with(keyMerges, []string{"a b"}),
		"add bos":     base.with(keyAddBOS, true),
		"bos":         base.with("tokenizer.ggml.bos_token_id", uint64(259)),
		"eos":         base.with("tokenizer.ggml.eos_token_id", uint64(258)),
		"eot":         base.with("tokenizer.ggml.eot_token_id", uint64(257)),
		"pad":         base.with("tokenizer.ggml.padding_token_id", uint64(258)),
		"template":    base.with(keyTemplate, "{{ messages[0].content }} "),
		"no template": base.with(keyTemplate, nil),
		"empty":       base.with(keyTemplate, ""),
	} {
		f := sum(m)
		if other, dup := seen[f]; dup {
			t.Errorf("%s and %s have the same fingerprint", name, other)
		}
		seen[f] = name
	}
}

// FuzzNew: metadata of any shape is refused or makes a tokenizer that works.
func FuzzNew(f *testing.F) {
	f.Add("ab\nabc\n<|end|>", []byte{1, 1, 3}, "a b\nab c", uint64(258), "{{ messages[0].content }}", true)
	f.Add("ab\nab", []byte{1, 4}, "a b", uint64(1<<63), "{% for", false)
	f.Add(" \n\u0120\n\xff", []byte{3, 1, 2}, " \n  \na  b", uint64(0), "", true)
	base := tiny()
	f.Fuzz(func(t *testing.T, tokens string, types []byte, merges string, id uint64, template string, keepBytes bool) {
		m := base
		text, kinds := strings.Split(tokens, "\n"), []int32{}
		for _, k := range types {
			kinds = append(kinds, int32(int8(k)))
		}
		if keepBytes {
			text = append(slices.Clone(base[keyTokens].([]string)[:256]), text...)
			kinds = append(slices.Clone(base[keyTypes].([]int32)[:256]), kinds...)
		}
		m = m.with(keyTokens, text).with(keyTypes, kinds).with(keyMerges, strings.Split(merges, "\n"))
		m = m.with("tokenizer.ggml.bos_token_id", id).with(keyTemplate, template)
		tok, err := New(m)
		if err != nil {
			return
		}
		for _, s := range []string{tokens, merges, template, strings.Repeat(tokens, 20)} {
			for _, id := range tok.Encode(s) {
				if tok.IsControl(id) {
					t.Fatalf("control token %d from text", id)
				}
			}
		}
		tok.RenderChat([]Message{{"user", tokens}}, true)
	})
}

func BenchmarkEncode(b *testing.B) {
	tok := load(b, "smollm2")
	all := strings.Join(readGolden[[]string](b, "testdata/strings.json.gz"), "\n")
	for _, c := range []struct{ name, s string }{
		{"text", strings.Repeat(all, 1+(1<<20)/len(all))[:1<<20]},
		{"one-letter", strings.Repeat("a", 1<<20)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.s)))
			for b.Loop() {
				tok.Encode(c.s)
			}
		})
	}
}
