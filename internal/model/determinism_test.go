package model

import (
	"errors"
	"fmt"
	"testing"

	"bulkhead/kernels"
	"bulkhead/kernels/cpu"
)

// deterministic are the models on which bitwise equality is tried: f32 and
// quantised weights, both RoPE pairings, and more layers.
var deterministic = []string{"llama-gqa", "llama-q4_1", "qwen3", "tiny-chat"}

// prompt lengths cross the border of a page; the last row decides.
const detLength = 70

// alone is what everything else must equal: the logits after each token when
// the sequence is computed by itself, token by token, with one thread.
func alone(t *testing.T, m *Model, tokens []int32) [][]float32 {
	t.Helper()
	pages := newPages(t, m, 2)
	return run(t, newRunner(t, m, 1, 1), pages, claim(pages, 9, 0, 1), tokens, 1)
}

func compare(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if at := sameBits(got, want); at >= 0 {
		t.Fatalf("%s: logit %d differs", what, at)
	}
}

// Chunk sizes, threads and page placement change no bit of any row's logits.
func TestChunksThreadsPages(t *testing.T) {
	for _, name := range deterministic {
		t.Run(name, func(t *testing.T) {
			one := openWith(t, name, cpu.Config{Threads: 1}, true)
			tokens := sequence(detLength, one.Spec().Vocab, 1)
			want := alone(t, one, tokens)
			compare(t, "self", want[0], want[0])
			if sameBits(want[detLength-1], want[detLength-2]) < 0 {
				t.Fatal("two rows with the same logits: the model does not look at its input")
			}
			for _, threads := range []int{1, 2, 3} {
				m := openWith(t, name, cpu.Config{Threads: threads}, true)
				pages := newPages(t, m, 5)
				r := newRunner(t, m, detLength, 1)
				for chunk := 1; chunk <= detLength; chunk += 1 + chunk/7 {
					placement := []kernels.PageID{kernels.PageID(chunk % 5), kernels.PageID((chunk + 3) % 5)}
					table := claim(pages, kernels.Owner(chunk), placement...)
					for row, got := range run(t, r, pages, table, tokens, chunk) {
						if got != nil {
							compare(t, fmt.Sprintf("%d threads, chunks of %d, row %d", threads, chunk, row), got, want[row])
						}
					}
					for _, p := range placement {
						pages.Scrub(p)
					}
				}
			}
		})
	}
}

// A step that mixes prefill chunks and decode rows of several sequences gives
// each the bits of its solo run, in whatever order they stand.
func TestBatchMix(t *testing.T) {
	for _, name := range deterministic {
		t.Run(name, func(t *testing.T) {
			m := openWith(t, name, cpu.Config{Threads: 2}, true)
			const n = 5
			chunks := [n]int{1, 3, 17, 64, 29} // each sequence advances by its own chunk
			var tokens [n][]int32
			var want [n][][]float32
			var seqs [n]Seq
			pages := newPages(t, m, 2*n)
			for i := range n {
				tokens[i] = sequence(detLength, m.Spec().Vocab, i)
				want[i] = alone(t, m, tokens[i])
				seqs[i] = Seq{Table: claim(pages, kernels.Owner(i+1), kernels.PageID(2*n-1-i), kernels.PageID(i)), Logits: true}
			}
			r := newRunner(t, m, 128, n)
			for step := 0; ; step++ {
				var batch []Seq
				var who []int
				for j := range n {
					i := (j*3 + step) % n // another order at each step
					left := detLength - seqs[i].Pos
					if left == 0 {
						continue
					}
					s := seqs[i]
					s.Tokens = tokens[i][s.Pos : s.Pos+min(chunks[i], left)]
					s.Logits = (step+i)%3 != 0 || left <= chunks[i]
					batch, who = append(batch, s), append(who, i)
				}
				if len(batch) == 0 {
					break
				}
				outs, err := r.Forward(pages, batch)
				if err != nil {
					t.Fatal(err)
				}
				for j, out := range outs {
					i := who[j]
					if out.Err != nil {
						t.Fatal(out.Err)
					}
					seqs[i].Pos += len(batch[j].Tokens)
					if (out.Logits != nil) != batch[j].Logits {
						t.Fatalf("step %d: logits asked %v, given %v", step, batch[j].Logits, out.Logits != nil)
					}
					if out.Logits != nil {
						compare(t, fmt.Sprintf("step %d, sequence %d", step, i), out.Logits, want[i][seqs[i].Pos-1])
					}
				}
			}
		})
	}
}

// Split equals whole: pages exported from one pool and imported into another,
// of another engine, go on as if nothing had happened; in one piece and by layer ranges.
func TestExportImport(t *testing.T) {
	for _, name := range deterministic {
		t.Run(name, func(t *testing.T) {
			prefill := openWith(t, name, cpu.Config{Threads: 1}, true)
			decode := openWith(t, name, cpu.Config{Threads: 2}, true)
			if prefill.Facts().Fingerprint != decode.Facts().Fingerprint {
				t.Fatal("two nodes of one model have two fingerprints")
			}
			tokens := sequence(detLength, prefill.Spec().Vocab, 4)
			want := alone(t, prefill, tokens)
			layout := prefill.Facts().Layout
			for _, split := range []int{1, 63, 64, 65, detLength - 1} {
				from, to := newPages(t, prefill, 2), newPages(t, decode, 3)
				src, dst := claim(from, 5, 1, 0), claim(to, 6, 2, 1)
				run(t, newRunner(t, prefill, 16, 1), from, src, tokens[:split], 16)
				for block := 0; block*kernels.BlockTokens < split; block++ {
					count := min(kernels.BlockTokens, split-block*kernels.BlockTokens)
					for lo := range layout.Layers {
						wire := make([]byte, count*layout.TokenLayerBytes())
						if err := from.Export(wire, src[block], block, lo, lo+1, count); err != nil {
							t.Fatal(err)
						}
						if err := to.Import(dst[block], block, lo, lo+1, count, wire); err != nil {
							t.Fatal(err)
						}
					}
				}
				r := newRunner(t, decode, 1, 1)
				for pos := split; pos < detLength; pos++ {
					outs, err := r.Forward(to, []Seq{{Tokens: tokens[pos : pos+1], Pos: pos, Table: dst, Logits: true}})
					if err != nil || outs[0].Err != nil {
						t.Fatal(err, outs[0].Err)
					}
					compare(t, fmt.Sprintf("split at %d, position %d", split, pos), outs[0].Logits, want[pos])
				}
			}
		})
	}
}

// One changed bit of one imported value must show: otherwise the tests above
// could not fail. (Positive control.)
func TestExportImportControl(t *testing.T) {
	m := openWith(t, "llama-gqa", cpu.Config{Threads: 1}, true)
	tokens := sequence(10, m.Spec().Vocab, 4)
	want := alone(t, m, tokens)
	layout := m.Facts().Layout
	from, to := newPages(t, m, 1), newPages(t, m, 1)
	src, dst := claim(from, 5, 0), claim(to, 6, 0)
	run(t, newRunner(t, m, 9, 1), from, src, tokens[:9], 9)
	wire := make([]byte, 9*layout.Layers*layout.TokenLayerBytes())
	if err := from.Export(wire, src[0], 0, 0, layout.Layers, 9); err != nil {
		t.Fatal(err)
	}
	wire[3] ^= 0x02
	if err := to.Import(dst[0], 0, 0, layout.Layers, 9, wire); err != nil {
		t.Fatal(err)
	}
	outs, err := newRunner(t, m, 1, 1).Forward(to, []Seq{{Tokens: tokens[9:], Pos: 9, Table: dst, Logits: true}})
	if err != nil || outs[0].Err != nil {
		t.Fatal(err, outs[0].Err)
	}
	if sameBits(outs[0].Logits, want[9]) < 0 {
		t.Fatal("a changed key did not change the logits")
	}
}

// A sequence whose table names another's page, a freed page, an unwritten slot or
// nonsense gets its own fault and no logits; its neighbours keep every bit.
func TestFaultsAreTheSequencesOwn(t *testing.T) {
	m := openWith(t, "tiny-chat", cpu.Config{Threads: 2}, true)
	tokens := sequence(detLength, m.Spec().Vocab, 2)
	want := alone(t, m, tokens)
	vocab := m.Spec().Vocab
	for _, c := range []struct {
		name string
		want error
		harm func(p kernels.Pages, s *Seq)
	}{
		{"another's page", kernels.ErrForeignPage, func(p kernels.Pages, s *Seq) { s.Table[0].Page = 0 }},
		{"another owner", kernels.ErrForeignPage, func(p kernels.Pages, s *Seq) { s.Table[0].Owner++ }},
		{"old generation", kernels.ErrStalePage, func(p kernels.Pages, s *Seq) { s.Table[0].Generation-- }},
		{"freed page", kernels.ErrStalePage, func(p kernels.Pages, s *Seq) { p.Scrub(s.Table[0].Page) }},
		{"emptied page", kernels.ErrUnwrittenPage, func(p kernels.Pages, s *Seq) {
			e := s.Table[0]
			p.Scrub(e.Page)
			p.Claim(e.Page, kernels.Tag{Owner: e.Owner, Generation: e.Generation})
		}},
		{"gap", kernels.ErrAppendGap, func(p kernels.Pages, s *Seq) { s.Pos++ }},
		{"swapped blocks", kernels.ErrForeignPage, func(p kernels.Pages, s *Seq) { s.Table[0], s.Table[1] = s.Table[1], s.Table[0] }},
		{"page outside", kernels.ErrPageRange, func(p kernels.Pages, s *Seq) { s.Table[0].Page = 99 }},
		{"negative page", kernels.ErrPageRange, func(p kernels.Pages, s *Seq) { s.Table[1].Page = -1 }},
		{"no tokens", ErrNoTokens, func(p kernels.Pages, s *Seq) { s.Tokens = nil }},
		{"token too large", ErrTokenID, func(p kernels.Pages, s *Seq) { s.Tokens = []int32{int32(vocab)} }},
		{"negative token", ErrTokenID, func(p kernels.Pages, s *Seq) { s.Tokens = []int32{-1} }},
		{"short table", ErrTable, func(p kernels.Pages, s *Seq) { s.Table = s.Table[:1] }},
		{"negative position", ErrWindow, func(p kernels.Pages, s *Seq) { s.Pos = -1 }},
		{"past the window", ErrWindow, func(p kernels.Pages, s *Seq) { s.Pos = m.Spec().Window }},
		{"overflowing position", ErrWindow, func(p kernels.Pages, s *Seq) { s.Pos = int(^uint(0) >> 1) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			pages := newPages(t, m, 6)
			r := newRunner(t, m, detLength, 3)
			var seqs []Seq
			for i := range 3 {
				table := claim(pages, kernels.Owner(10*(i+1)), kernels.PageID(2*i), kernels.PageID(2*i+1))
				run(t, r, pages, table, tokens[:66], 66)
				seqs = append(seqs, Seq{Tokens: tokens[66:68], Pos: 66, Table: table, Logits: true})
			}
			c.harm(pages, &seqs[1])
			outs, err := r.Forward(pages, seqs)
			if err != nil {
				t.Fatal(err)
			}
			if !errors.Is(outs[1].Err, c.want) || outs[1].Logits != nil {
				t.Fatalf("error %v, logits %v; want %v and none", outs[1].Err, outs[1].Logits != nil, c.want)
			}
			var f kernels.Fault
			if errors.As(outs[1].Err, &f) && f.Span != 1 {
				t.Errorf("the fault names sequence %d, want 1", f.Span)
			}
			for _, i := range []int{0, 2} {
				if outs[i].Err != nil {
					t.Fatalf("neighbour %d: %v", i, outs[i].Err)
				}
				compare(t, "neighbour", outs[i].Logits, want[67])
			}
		})
	}
}
