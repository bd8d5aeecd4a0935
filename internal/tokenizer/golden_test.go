package tokenizer

import (
	"compress/gzip"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// extra adds vocabularies that are too large, or not free, to commit.
var extra = flag.String("extra", "", "directory of further golden files (scripts/tokenizer_goldens.py --extra-out)")

// goldenVocab is one vocabulary with the ids that Hugging Face gives for the strings.
type goldenVocab struct {
	Pre    string
	Tokens []string
	MadeAt int `json:"made_at"` // where the results of the merges stand among the tokens; -1: they are all in Tokens
	Types  []int32
	Merges []string
	IDs    [][]int32
	Decode [][2]json.RawMessage
}

func readGolden[T any](t testing.TB, path string) (v T) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(z).Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func loadVocab(t testing.TB, path string) (goldenVocab, meta) {
	t.Helper()
	g := readGolden[goldenVocab](t, path)
	if g.MadeAt >= 0 {
		made := make([]string, len(g.Merges))
		kinds := make([]int32, len(g.Merges))
		for i, m := range g.Merges {
			made[i], kinds[i] = strings.ReplaceAll(m, " ", ""), 1
		}
		g.Tokens = slices.Insert(g.Tokens, g.MadeAt, made...)
		g.Types = slices.Insert(g.Types, g.MadeAt, kinds...)
	}
	m := meta{
		keyModel: "gpt2", keyPre: g.Pre, keyTokens: g.Tokens, keyTypes: g.Types, keyMerges: g.Merges, keyAddBOS: false,
	}
	return g, m
}

func goldenFiles(t testing.TB) []string {
	files := []string{"testdata/smollm2.json.gz", "testdata/llama3-small.json.gz", "testdata/qwen-small.json.gz"}
	if *extra != "" {
		more, err := filepath.Glob(filepath.Join(*extra, "*.json.gz"))
		if err != nil || len(more) == 0 {
			t.Fatalf("no golden files in %s", *extra)
		}
		files = append(files, more...)
	}
	return files
}

// TestGoldenIDs compares ids with Hugging Face tokenizers, told that special tokens in
// the text are text.
func TestGoldenIDs(t *testing.T) {
	stringsIn := readGolden[[]string](t, "testdata/strings.json.gz")
	if len(stringsIn) < 2000 {
		t.Fatalf("only %d strings", len(stringsIn))
	}
	for _, file := range goldenFiles(t) {
		g, m := loadVocab(t, file)
		tok, err := New(m)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if len(g.IDs) != len(stringsIn) {
			t.Fatalf("%s: ids of %d strings for %d", file, len(g.IDs), len(stringsIn))
		}
		bad := 0
		for i, s := range stringsIn {
			got := tok.Encode(s)
			if !slices.Equal(got, g.IDs[i]) {
				if bad++; bad < 10 {
					t.Errorf("%s: string %d %.80q\n got %v\nwant %v", file, i, s, clipIDs(got), clipIDs(g.IDs[i]))
				}
			}
			for _, id := range got {
				if tok.IsControl(id) {
					t.Errorf("%s: string %d gives control token %d", file, i, id)
				}
			}
		}
		t.Logf("%s: %d tokens, %d of %d strings equal", file, tok.VocabSize(), len(stringsIn)-bad, len(stringsIn))
	}
}

func clipIDs(ids []int32) []int32 { return ids[:min(len(ids), 40)] }

// TestGoldenDecode compares text with Hugging Face's decoder, token by token pushed, on
// sequences that cut and mix characters.
func TestGoldenDecode(t *testing.T) {
	for _, file := range goldenFiles(t) {
		g, m := loadVocab(t, file)
		tok, err := New(m)
		if err != nil {
			t.Fatal(err)
		}
		if len(g.Decode) < 200 {
			t.Fatalf("%s: only %d sequences", file, len(g.Decode))
		}
		for _, row := range g.Decode {
			var ids []int32
			var want string
			if json.Unmarshal(row[0], &ids) != nil || json.Unmarshal(row[1], &want) != nil {
				t.Fatal("bad golden row")
			}
			d := tok.NewDecoder()
			var got strings.Builder
			for _, id := range ids {
				got.WriteString(d.Push(id))
			}
			got.WriteString(d.Flush())
			if got.String() != want {
				t.Errorf("%s: %v\n got %q\nwant %q", file, ids, got.String(), want)
			}
		}
	}
}

// TestGoldenSplits compares the words of the pre-tokenizers themselves: a small vocabulary
// does not show every border in its ids.
func TestGoldenSplits(t *testing.T) {
	stringsIn := readGolden[[]string](t, "testdata/strings.json.gz")
	for pre, rows := range readGolden[map[string][][]int](t, "testdata/splits.json.gz") {
		for i, want := range rows {
			var got []int
			preTokenizers[pre].split(stringsIn[i], func(w string) { got = append(got, len(w)) })
			if !slices.Equal(got, want) {
				t.Errorf("%s: %.80q is cut into %v, want %v", pre, stringsIn[i], got, want)
			}
		}
	}
}

// TestClasses asks for every code point whether this package and the reference agree on
// what it is. It goes red when Go's Unicode tables move.
func TestClasses(t *testing.T) {
	golden := readGolden[map[string][][2]rune](t, "testdata/classes.json.gz")
	in := func(name string, r rune) bool {
		_, ok := slices.BinarySearchFunc(golden[name], r, func(span [2]rune, r rune) int {
			switch {
			case span[1] < r:
				return -1
			case span[0] > r:
				return 1
			}
			return 0
		})
		return ok
	}
	for r := rune(0); r <= 0x10FFFF; r++ {
		if r >= 0xD800 && r < 0xE000 {
			continue
		}
		want := other
		switch {
		case in("letter", r):
			want = letter
		case in("number", r):
			want = number
		case in("space", r):
			want = space
		}
		if got := classOfRune(r); got != want {
			t.Errorf("U+%04X: class %d, want %d", r, got, want)
		}
		if got := isDigit(r); got != in("digit", r) {
			t.Errorf("U+%04X: digit %v", r, got)
		}
	}
}
