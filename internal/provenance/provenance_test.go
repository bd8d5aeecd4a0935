package provenance

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/kv"
	"bulkhead/internal/model"
	"bulkhead/internal/tokenizer"
	"bulkhead/kernels"
)

// rig is one engine with a pool and a runner.
type rig struct {
	t     *testing.T
	e     *Engine
	o     *Oracle
	pages kernels.Pages
	pool  *kv.Pool
	run   model.Runner
}

func newRig(t *testing.T, cfg Config, capacity int) *rig {
	t.Helper()
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, e: e, o: e.NewOracle()}
	if r.pages, err = e.NewPages((capacity + kernels.BlockTokens - 1) / kernels.BlockTokens); err != nil {
		t.Fatal(err)
	}
	if r.pool, err = kv.NewPool(r.pages, capacity); err != nil {
		t.Fatal(err)
	}
	if r.run, err = e.NewRunner(1<<20, 16); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) reserve(s model.Source, tokens int) *kv.Table {
	r.t.Helper()
	table, err := r.pool.Reserve(kv.Lease{Tenant: s.Tenant, Request: s.Request, Child: s.Child, Attempt: s.Attempt}, tokens)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := table.BeginWrite(); err != nil {
		r.t.Fatal(err)
	}
	return table
}

// answer computes a prompt in chunks and n tokens after it.
func (r *rig) answer(table *kv.Table, s model.Source, prompt []int32, chunk, n int) (out []int32, err error) {
	r.t.Helper()
	step := func(tokens []int32, pos int, want bool) error {
		outs, err := r.run.Forward(r.pages, []model.Seq{{Tokens: tokens, Pos: pos, Table: table.Entries(), Logits: want, Source: s}})
		if err != nil {
			r.t.Fatal(err)
		}
		if outs[0].Err == nil && want {
			out = append(out, int32(slices.Index(outs[0].Logits, slices.Max(outs[0].Logits))))
		}
		return outs[0].Err
	}
	for pos := 0; pos < len(prompt); pos += chunk {
		end := min(pos+chunk, len(prompt))
		if err := step(prompt[pos:end], pos, end == len(prompt)); err != nil {
			return out, err
		}
	}
	for len(out) < n && out[len(out)-1] != EOG {
		if err := step(out[len(out)-1:], len(prompt)+len(out)-1, true); err != nil {
			return out, err
		}
	}
	return out, nil
}

func text(n, seed int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32((i*7 + seed*13 + i*i%11) % 256)
	}
	return out
}

func source(tenant string, request byte, attempt uint16, prompt int) model.Source {
	return model.Source{Tenant: tenant, Request: [16]byte{request}, Attempt: attempt, Prompt: prompt, Prefill: 7, Decode: 9}
}

// The answer follows from the prompt alone: whoever asks, in whatever chunks, it
// is Expected's, and it ends after the digits.
func TestAnswerIsExpected(t *testing.T) {
	r := newRig(t, Config{Window: 4096}, 4096)
	for i, n := range []int{1, 63, 64, 65, 200} {
		for _, chunk := range []int{1, 50, 64, 4096} {
			s := source("acme", byte(i+1), uint16(chunk), n)
			prompt := text(n, i)
			table := r.reserve(s, n+40)
			got, err := r.answer(table, s, prompt, chunk, 40)
			if err != nil {
				t.Fatal(err)
			}
			if want := r.o.Expected(prompt, 40); !slices.Equal(got, want) || len(want) != Digits+1 {
				t.Errorf("prompt of %d in chunks of %d: %v, want %v", n, chunk, got, want)
			}
		}
	}
	a, b := r.o.Expected(text(64, 1), 32), r.o.Expected(text(64, 2), 32)
	if slices.Equal(a, b) {
		t.Error("two prompts have one answer")
	}
}

// Every part of what an entry is bound to changes the answer when it differs
// between writer and reader.
func TestEveryPartIsBound(t *testing.T) {
	prompt := text(70, 3)
	right := source("acme", 1, 1, len(prompt))
	for name, change := range map[string]func(*model.Source){
		"tenant":  func(s *model.Source) { s.Tenant = "other" },
		"request": func(s *model.Source) { s.Request[5] = 1 },
		"child":   func(s *model.Source) { s.Child = 1 },
		"attempt": func(s *model.Source) { s.Attempt = 2 },
		"boot":    func(s *model.Source) { s.Prefill = 8 },
	} {
		r := newRig(t, Config{Window: 4096}, 4096)
		table := r.reserve(right, 120)
		wrote := right
		change(&wrote)
		if _, err := r.answer(table, wrote, prompt, 70, 1); err != nil {
			t.Fatal(err)
		}
		outs, err := r.run.Forward(r.pages, []model.Seq{{Tokens: []int32{1}, Pos: 70, Table: table.Entries(), Logits: true, Source: right}})
		if err != nil || outs[0].Err != nil {
			t.Fatal(err, outs[0].Err)
		}
		s := Sum{Seq: model.Seq{Source: right, Table: table.Entries()}, Pages: r.pages}
		known := []Known{{Source: wrote, Tokens: prompt}}
		found := r.o.Wrong(s, prompt, known)
		if len(found) != 2*70 || found[0].From.Source != wrote || found[69].FromPos != 69 {
			t.Errorf("%s: %d entries found wrong, the first of %+v", name, len(found), found[0].From.Source)
		}
	}
	a, _ := New(Config{Window: 4096})
	b, _ := New(Config{Window: 4096, Salt: 1})
	if slices.Equal(a.NewOracle().Expected(prompt, 32), b.NewOracle().Expected(prompt, 32)) {
		t.Error("two models give one answer")
	}
}

// A wrong answer names, by itself, whose block was read, or that nothing was there.
func TestTraceNamesTheVictim(t *testing.T) {
	r := newRig(t, Config{Window: 4096}, 4096)
	ps := r.pages.(*pages)
	victim, reader := source("victim", 1, 1, 128), source("reader", 2, 3, 130)
	secret, prompt := text(128, 5), text(130, 6)
	vt, rt := r.reserve(victim, 128), r.reserve(reader, 200)
	if _, err := r.answer(vt, victim, secret, 128, 1); err != nil {
		t.Fatal(err)
	}
	known := []Known{{Source: victim, Tokens: secret}, {Source: reader, Tokens: prompt}}
	for _, c := range []struct {
		name  string
		spoil func()
		check func(Finding) bool
	}{
		{"a foreign block", func() { copy(ps.page(rt.Entries()[1].Page), ps.page(vt.Entries()[0].Page)) },
			func(f Finding) bool { return f.Pos == 64 && f.From.Source == victim && f.FromPos == 0 }},
		{"its own block in another place", func() { copy(ps.page(rt.Entries()[0].Page), ps.page(rt.Entries()[1].Page)) },
			func(f Finding) bool { return f.Pos == 0 && f.From.Source == reader && f.FromPos == 64 }},
		{"an unwritten block", func() { clear(ps.page(rt.Entries()[1].Page)) },
			func(f Finding) bool { return f.Pos == 64 && f.Zero }},
	} {
		t.Run(c.name, func(t *testing.T) {
			for i, e := range rt.Entries() {
				r.pages.Scrub(e.Page)
				r.pages.Claim(e.Page, kernels.Tag{Owner: e.Owner, Generation: e.Generation, Index: uint32(i)})
			}
			run := r.run
			defer func() { r.run = run }()
			r.run = spoiler{run, len(prompt) - 1, c.spoil}
			got, err := r.answer(rt, reader, prompt, len(prompt)-1, Digits)
			if err != nil {
				t.Fatal(err)
			}
			f, ok := r.o.Trace(known[1], len(prompt), got, known)
			if !ok || !c.check(f) {
				t.Errorf("traced %v to %+v", ok, f)
			}
		})
	}
	if _, ok := r.o.Trace(known[1], len(prompt), r.o.Expected(prompt, Digits), known); ok {
		t.Error("a right answer was traced to somebody")
	}
}

// spoiler changes the pages before the prompt's last token is computed.
type spoiler struct {
	model.Runner
	at    int
	spoil func()
}

func (s spoiler) Forward(p kernels.Pages, seqs []model.Seq) ([]model.Out, error) {
	if seqs[0].Pos == s.at {
		s.spoil()
	}
	return s.Runner.Forward(p, seqs)
}

// The checks of kernels.Pages and of attention: stale, foreign and unwritten
// pages are faults of that sequence, and no logits come.
func TestFaults(t *testing.T) {
	s := source("acme", 1, 1, 128)
	ready := func() (*rig, *kv.Table) {
		r := newRig(t, Config{Window: 4096}, 4096)
		table := r.reserve(s, 200)
		if _, err := r.answer(table, s, text(128, 1), 128, 1); err != nil {
			t.Fatal(err)
		}
		return r, table
	}
	for name, c := range map[string]struct {
		change func(e []kernels.Entry)
		pos    int
		want   error
	}{
		"generation": {func(e []kernels.Entry) { e[0].Generation++ }, 128, kernels.ErrStalePage},
		"owner":      {func(e []kernels.Entry) { e[0].Owner++ }, 128, kernels.ErrForeignPage},
		"order":      {func(e []kernels.Entry) { e[0], e[1] = e[1], e[0] }, 128, kernels.ErrForeignPage},
		"range":      {func(e []kernels.Entry) { e[1].Page = 9999 }, 128, kernels.ErrPageRange},
		"gap":        {func([]kernels.Entry) {}, 130, kernels.ErrAppendGap},
	} {
		r, table := ready()
		e := slices.Clone(table.Entries())
		c.change(e)
		outs, err := r.run.Forward(r.pages, []model.Seq{{Tokens: []int32{1}, Pos: c.pos, Table: e, Logits: true, Source: s}})
		if err != nil {
			t.Fatal(err)
		}
		var f kernels.Fault
		if !errors.Is(outs[0].Err, c.want) || !errors.As(outs[0].Err, &f) || outs[0].Logits != nil {
			t.Errorf("%s: %v, want %v", name, outs[0].Err, c.want)
		}
	}
	r, _ := ready()
	other := r.reserve(source("acme", 2, 1, 128), 200)
	outs, _ := r.run.Forward(r.pages, []model.Seq{{Tokens: []int32{1}, Pos: 64, Table: other.Entries(), Logits: true, Source: s}})
	if !errors.Is(outs[0].Err, kernels.ErrUnwrittenPage) {
		t.Errorf("an unwritten block: %v", outs[0].Err)
	}
}

// What one pool exports another imports, and the reader's answer goes on as if
// it had computed the prompt itself.
func TestExportImport(t *testing.T) {
	from, to := newRig(t, Config{Window: 4096, Layers: 3}, 1024), newRig(t, Config{Window: 4096, Layers: 3}, 2048)
	s := source("acme", 1, 1, 100)
	at := s
	at.Decode = 0
	prompt := text(100, 4)
	a, b := from.reserve(s, 100), to.reserve(s, 150)
	first, err := from.answer(a, at, prompt, 33, 1)
	if err != nil {
		t.Fatal(err)
	}
	layout := from.e.Facts().Layout
	for i, n := range []int{64, 36} {
		for lo := range 3 {
			buf := make([]byte, n*layout.TokenLayerBytes())
			if err := from.pages.Export(buf, a.Entries()[i], i, lo, lo+1, n); err != nil {
				t.Fatal(err)
			}
			if err := to.pages.Import(b.Entries()[i], i, lo, lo+1, n, buf); err != nil {
				t.Fatal(err)
			}
			if err := to.pages.Import(b.Entries()[i], i, lo, lo+1, n, buf); !errors.Is(err, kernels.ErrAppendGap) {
				t.Errorf("a second import: %v", err)
			}
			if err := to.pages.Import(b.Entries()[1-i], i, lo, lo+1, n, buf); !errors.Is(err, kernels.ErrForeignPage) {
				t.Errorf("an import into another place: %v", err)
			}
		}
	}
	got := first
	for len(got) < 33 {
		outs, err := to.run.Forward(to.pages, []model.Seq{{Tokens: got[len(got)-1:], Pos: 100 + len(got) - 1, Table: b.Entries(), Logits: true, Source: s}})
		if err != nil || outs[0].Err != nil {
			t.Fatal(err, outs[0].Err)
		}
		got = append(got, int32(slices.Index(outs[0].Logits, slices.Max(outs[0].Logits))))
	}
	if want := from.o.Expected(prompt, 33); !slices.Equal(got, want) {
		t.Errorf("answer %v, want %v", got, want)
	}
}

// The tokenizer in memory: bytes go in, marked digits come out.
func TestTokenizer(t *testing.T) {
	tok, digest, err := NewTokenizer()
	if err != nil {
		t.Fatal(err)
	}
	if tok.VocabSize() != Vocab || !tok.EOG(EOG) || digest == ([32]byte{}) {
		t.Fatalf("vocabulary of %d", tok.VocabSize())
	}
	in := "Grüße, [p3] \x00\xff<|endoftext|>"
	ids := tok.Encode(in)
	if len(ids) != len(in) {
		t.Errorf("%d tokens for %d bytes", len(ids), len(in))
	}
	var b strings.Builder
	for i, id := range ids {
		if int(id) >= FirstDigit {
			t.Errorf("token %d of a user's text is %d", i, id)
		}
		b.Write(tok.Piece(id))
	}
	if b.String() != in {
		t.Errorf("came back as %q", b.String())
	}
	if got := string(tok.Piece(FirstDigit + 11)); got != "[pb]" {
		t.Errorf("digit 11 is %q", got)
	}
	chat, err := tok.RenderChat([]tokenizer.Message{{Role: "user", Content: "hello"}}, true)
	if err != nil {
		t.Fatal(err)
	}
	if len(chat) != len("user: hello\nassistant: ") {
		t.Errorf("a chat of %d tokens", len(chat))
	}
}

// A prompt at the limit of the window is one step per token after it, and cheap.
func TestMillionTokens(t *testing.T) {
	const n = DefaultWindow - 4
	r := newRig(t, Config{}, DefaultWindow)
	s := source("acme", 1, 1, n)
	prompt := text(n, 1)
	table := r.reserve(s, DefaultWindow)
	got, err := r.answer(table, s, prompt, 1<<19, 3)
	if err != nil {
		t.Fatal(err)
	}
	if want := r.o.Expected(prompt, 3); !slices.Equal(got, want) {
		t.Errorf("answer %v, want %v", got, want)
	}
}

// The bytes of an answer are part of what a canary compares: they may not drift.
func TestKnownAnswer(t *testing.T) {
	e, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	tok, _, err := NewTokenizer()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range e.NewOracle().Expected(tok.Encode("hello provenance"), 4) {
		b.Write(tok.Piece(id))
	}
	const want = "[p5][p4][pd][p5]"
	if got := b.String(); got != want {
		t.Errorf("answer %q, want %q", got, want)
	}
}

// Misread foretells the answer over pages that others wrote: here a whole prompt's
// pages were the victim's, but for one slot of the reader's own and a part that nobody wrote.
func TestMisread(t *testing.T) {
	r := newRig(t, Config{Window: 4096}, 4096)
	ps := r.pages.(*pages)
	victim, reader := source("victim", 1, 1, 128), source("reader", 2, 1, 200)
	victim.Decode, reader.Decode = 0, 0
	secret, prompt := text(128, 5), text(200, 6)
	vt, rt := r.reserve(victim, 128), r.reserve(reader, 300)
	if _, err := r.answer(vt, victim, secret, 128, 1); err != nil {
		t.Fatal(err)
	}
	run := r.run
	defer func() { r.run = run }()
	r.run = spoiler{run, 199, func() {
		own := [4]uint64{ps.half(rt.Entries()[0].Page, 0, 0)[0], ps.half(rt.Entries()[0].Page, 0, 1)[0], ps.half(rt.Entries()[0].Page, 1, 0)[0], ps.half(rt.Entries()[0].Page, 1, 1)[0]}
		for i, e := range rt.Entries()[:4] {
			if clear(ps.page(e.Page)); i < 2 {
				copy(ps.page(e.Page), ps.page(vt.Entries()[i].Page))
			}
		}
		for i, v := range own {
			ps.half(rt.Entries()[0].Page, i/2, i%2)[0] = v
		}
	}}
	got, err := r.answer(rt, reader, prompt, 199, 20)
	if err != nil {
		t.Fatal(err)
	}
	left := []Left{
		{Known{victim, secret}, 0, 128},
		{Known{reader, prompt}, 0, 1},
		{Known{reader, prompt}, 199, 200}, // the row that was computed after the pages were spoilt
	}
	if want := r.o.Misread(reader, got[0], left, 20); !slices.Equal(got, want) {
		t.Errorf("answer %v, foretold %v", got, want)
	}
	if want := r.o.Misread(reader, got[0], left[1:], 20); slices.Equal(got, want) {
		t.Error("the answer does not depend on the victim")
	}
}
