package sample

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func mustNew(t testing.TB, p Params, vocab int, prompt []int32) *Sampler {
	t.Helper()
	if p.MaxNew == 0 {
		p.MaxNew = 1 << 20
	}
	s, err := New(p, vocab, prompt)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// logitsAt gives the same random logits for the same position, so that a
// sequence can be replayed from any place.
func logitsAt(vocab, position int) []float32 {
	r := rand.New(rand.NewPCG(uint64(position), 99))
	l := make([]float32, vocab)
	for i := range l {
		l[i] = float32(r.NormFloat64() * 3)
	}
	return l
}

// many are parameters that between them use every feature.
func many(vocab int) []Params {
	r := rand.New(rand.NewPCG(1, 2))
	ps := []Params{{}, {Temperature: 1}, {Temperature: 0.7, TopP: 0.9}, {Temperature: 1.5, TopK: 5}, {Temperature: 1, MinP: 0.1}}
	for range 60 {
		p := Params{
			Temperature: float32(r.IntN(3)) * 0.6, Seed: r.Uint64(), Child: r.Uint32N(3),
			TopP: []float32{0, 0.1, 0.5, 0.95, 1}[r.IntN(5)], TopK: []int{0, 1, 2, 40, 5 * vocab}[r.IntN(5)],
			MinP:             []float32{0, 0.01, 0.3, 1}[r.IntN(4)],
			FrequencyPenalty: []float32{0, 1.1, -2}[r.IntN(3)], PresencePenalty: []float32{0, 0.7, -0.5}[r.IntN(3)],
			RepetitionPenalty: []float32{0, 1, 1.3, 0.8}[r.IntN(4)],
			EOG:               []int32{3, 7}, IgnoreEOS: r.IntN(4) == 0, MinTokens: r.IntN(5),
			Logprobs: r.IntN(2) == 0, TopLogprobs: r.IntN(6),
		}
		for i := range r.IntN(4) {
			p.LogitBias = append(p.LogitBias, Bias{int32(i * 5), float32(r.NormFloat64() * 4)})
		}
		ps = append(ps, p)
	}
	return ps
}

// reference is Sample as its doc says it, with a full sort and no state.
func reference(p Params, prompt, generated []int32, raw []float32) int32 {
	l := slices.Clone(raw)
	inPrompt, count := map[int32]bool{}, map[int32]int{}
	for _, id := range prompt {
		inPrompt[id] = true
	}
	for _, id := range generated {
		count[id]++
	}
	for i := range l {
		id, x := int32(i), float64(l[i])
		if r := float64(p.RepetitionPenalty); r != 0 && (inPrompt[id] || count[id] > 0) {
			if x > 0 {
				x /= r
			} else {
				x *= r
			}
		}
		if count[id] > 0 {
			x -= float64(float64(p.FrequencyPenalty) * float64(count[id]))
			x -= float64(p.PresencePenalty)
		}
		l[i] = float32(x)
	}
	for _, b := range p.LogitBias {
		l[b.ID] += b.Bias
	}
	if p.IgnoreEOS || len(generated) < p.MinTokens {
		for _, id := range p.EOG {
			l[id] = float32(math.Inf(-1))
		}
	}
	order := make([]int32, len(l))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int {
		switch {
		case l[a] > l[b]:
			return -1
		case l[a] < l[b]:
			return 1
		}
		return 0
	})
	if p.Temperature == 0 {
		return order[0]
	}
	best := float64(l[order[0]])
	w := weighing{top: best, inverse: 1 / float64(p.Temperature), floor: -math.MaxFloat32}
	weight := func(id int32) uint64 { return w.weight(l[id]) }
	cut := func(keep int) { order = order[:keep] }
	for i, id := range order {
		if w := weight(id); w == 0 || w < uint64(float64(p.MinP)*weightOne) {
			cut(i)
			break
		}
	}
	if p.TopK > 0 && p.TopK < len(order) {
		cut(p.TopK)
	}
	var total uint64
	for _, id := range order {
		total += weight(id)
	}
	if p.TopP > 0 && p.TopP < 1 {
		target, sum := max(uint64(float64(p.TopP)*float64(total)), 1), uint64(0)
		for i, id := range order {
			if sum += weight(id); sum >= target {
				cut(i + 1)
				break
			}
		}
		total = sum
	}
	slices.Sort(order)
	out := philox([4]uint32{uint32(len(prompt) + len(generated)), 0, p.Child, 0}, [2]uint32{uint32(p.Seed), uint32(p.Seed >> 32)})
	u := (float64(uint64(out[1])<<32|uint64(out[0])) / (1 << 64)) * float64(total)
	sum := 0.0
	for _, id := range order {
		if sum += float64(weight(id)); sum > u {
			return id
		}
	}
	return order[len(order)-1]
}

// The sampler's partial selection, sparse penalties and integer weights must
// choose what the plain definition chooses.
func TestSampleMatchesDefinition(t *testing.T) {
	prompt := []int32{1, 2, 3, 2, 30}
	for _, vocab := range []int{37, 500, 2500} {
		for n, p := range many(vocab) {
			s := mustNew(t, p, vocab, prompt)
			s.scan = scans()[n%len(scans())]
			var generated []int32
			for i := range 24 {
				logits := logitsAt(vocab, i)
				want := reference(p, prompt, generated, logits)
				got, err := s.Sample(logits, generated)
				if err != nil {
					t.Fatalf("params %d, token %d: %v", n, i, err)
				}
				if got.ID != want {
					t.Fatalf("vocab %d params %d %+v, token %d: got %d, want %d", vocab, n, p, i, got.ID, want)
				}
				generated = append(generated, got.ID)
			}
		}
	}
}

// A sampler made anew at any position, and one that is asked out of order, give
// the tokens of the one that ran through: nothing but params, prompt and output counts.
func TestSamplePure(t *testing.T) {
	const vocab, length = 300, 20
	prompt := []int32{5, 6, 7, 6}
	for n, p := range many(vocab) {
		through := mustNew(t, p, vocab, prompt)
		var ids []int32
		var tokens []Token
		for i := range length {
			tok, err := through.Sample(logitsAt(vocab, i), ids)
			if err != nil {
				t.Fatal(err)
			}
			ids, tokens = append(ids, tok.ID), append(tokens, tok)
		}
		jumping := mustNew(t, p, vocab, prompt)
		for i := range length {
			at := (i * 7) % length
			for name, s := range map[string]*Sampler{"rebuilt": mustNew(t, p, vocab, prompt), "jumping": jumping} {
				got, err := s.Sample(logitsAt(vocab, at), ids[:at])
				if err != nil {
					t.Fatal(err)
				}
				if got.ID != tokens[at].ID || got.Logprob != tokens[at].Logprob || !slices.Equal(got.Top, tokens[at].Top) {
					t.Fatalf("params %d, %s at %d: %+v, want %+v", n, name, at, got, tokens[at])
				}
			}
		}
		// Another output of the same length: what was counted for the first must be gone.
		other := slices.Clone(ids)
		other[0] = (other[0] + 1) % vocab
		want, _ := mustNew(t, p, vocab, prompt).Sample(logitsAt(vocab, 50), other)
		got, _ := through.Sample(logitsAt(vocab, 50), other)
		if got.ID != want.ID {
			t.Fatalf("params %d: a sampler that saw another output chose %d, a new one %d", n, got.ID, want.ID)
		}
	}
}

// Migration relies on it: with the tokens so far moved into the prompt, the
// randomness goes on where it stopped.
func TestSampleContinues(t *testing.T) {
	const vocab = 100
	p := Params{Temperature: 1, Seed: 42}
	prompt, generated := []int32{1, 2, 3}, []int32{4, 5}
	a, _ := mustNew(t, p, vocab, prompt).Sample(logitsAt(vocab, 0), generated)
	b, _ := mustNew(t, p, vocab, append(prompt, generated...)).Sample(logitsAt(vocab, 0), nil)
	if a.ID != b.ID {
		t.Fatalf("got %d, want %d", b.ID, a.ID)
	}
}

func TestBadLogits(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, p := range []Params{{}, {Temperature: 1}, {Temperature: 1, TopK: 1, Logprobs: true}, {LogitBias: []Bias{{2, -100}}}} {
		s := mustNew(t, p, 4, nil)
		for at := range 4 {
			for _, bad := range []float32{nan, -nan, inf} {
				l := []float32{1, 2, 3, 0}
				l[at] = bad
				if tok, err := s.Sample(l, nil); !errors.Is(err, ErrBadLogits) {
					t.Errorf("%v at %d: token %d, error %v", bad, at, tok.ID, err)
				}
			}
		}
		for _, l := range [][]float32{{-inf, -inf, -inf, -inf}, {1, 2, 3}, {1, 2, 3, 4, 5}, nil} {
			if _, err := s.Sample(l, nil); !errors.Is(err, ErrBadLogits) {
				t.Errorf("logits %v: error %v", l, err)
			}
		}
		if tok, err := s.Sample([]float32{-inf, 0, -inf, -inf}, nil); err != nil || tok.ID != 1 {
			t.Errorf("one possible token: %d, %v", tok.ID, err)
		}
	}
}

func TestGreedyTie(t *testing.T) {
	s := mustNew(t, Params{}, 6, nil)
	if tok, _ := s.Sample([]float32{1, 4, 2, 4, 4, 0}, nil); tok.ID != 1 {
		t.Fatalf("got %d, want the lowest of the best, 1", tok.ID)
	}
	// A cut between equals keeps the lower ids, too.
	for seed := range uint64(50) {
		s := mustNew(t, Params{Temperature: 1, TopK: 2, Seed: seed}, 6, nil)
		if tok, _ := s.Sample([]float32{1, 4, 2, 4, 4, 0}, nil); tok.ID != 1 && tok.ID != 3 {
			t.Fatalf("top-k 2 among equals drew %d, want 1 or 3", tok.ID)
		}
	}
}

func TestMasks(t *testing.T) {
	l := []float32{9, 8, 1, 0}
	p := Params{EOG: []int32{0, 1}, MinTokens: 2}
	s := mustNew(t, p, 4, nil)
	for n, want := range []int32{2, 2, 0, 0} {
		tok, err := s.Sample(l, make([]int32, n))
		if err != nil || tok.ID != want || tok.EOG != (want == 0) {
			t.Errorf("after %d tokens: %+v, %v; want id %d", n, tok, err, want)
		}
	}
	p = Params{EOG: []int32{0, 1, 2, 3}, IgnoreEOS: true}
	if _, err := mustNew(t, p, 4, nil).Sample(l, nil); !errors.Is(err, ErrNoToken) {
		t.Errorf("all forbidden: %v", err)
	}
}

// Penalties that overflow must not look like a broken model, nor yield one.
func TestExtremes(t *testing.T) {
	l := []float32{math.MaxFloat32, -math.MaxFloat32, 1e-45, 0}
	for _, p := range []Params{
		{RepetitionPenalty: RepetitionPenaltyMin}, {RepetitionPenalty: RepetitionPenaltyMax},
		{Temperature: math.SmallestNonzeroFloat32}, {Temperature: 2, RepetitionPenalty: RepetitionPenaltyMin, TopP: math.SmallestNonzeroFloat32},
		{Temperature: 1, FrequencyPenalty: -2, LogitBias: []Bias{{0, 100}}},
	} {
		tok, err := mustNew(t, p, 4, []int32{0, 1, 2, 3}).Sample(l, []int32{0, 0, 1})
		if err != nil || tok.ID != 0 {
			t.Errorf("%+v: %+v, %v", p, tok, err)
		}
	}
}

func TestTokenIDs(t *testing.T) {
	for _, id := range []int32{-1, 4, math.MaxInt32, math.MinInt32} {
		if _, err := New(Params{MaxNew: 1}, 4, []int32{0, id}); !errors.Is(err, ErrTokenID) {
			t.Errorf("prompt id %d: %v", id, err)
		}
		if _, err := mustNew(t, Params{PresencePenalty: 1}, 4, nil).Sample(make([]float32, 4), []int32{id}); !errors.Is(err, ErrTokenID) {
			t.Errorf("generated id %d: %v", id, err)
		}
	}
}

func TestLogprobs(t *testing.T) {
	const vocab = 1000
	l := logitsAt(vocab, 3)
	// Penalties, bias and temperature must not show in logprobs.
	p := Params{Temperature: 0.3, Logprobs: true, TopLogprobs: 5, LogitBias: []Bias{{17, 100}}, Seed: 1}
	tok, err := mustNew(t, p, vocab, nil).Sample(l, nil)
	if err != nil || tok.ID != 17 {
		t.Fatalf("%+v, %v", tok, err)
	}
	sum := 0.0
	for _, x := range l {
		sum += math.Exp(float64(x))
	}
	if want := float64(l[17]) - math.Log(sum); math.Abs(float64(tok.Logprob)-want) > 1e-5 {
		t.Errorf("logprob %v, want %v", tok.Logprob, want)
	}
	order := make([]int, vocab)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return int(math.Copysign(1, float64(l[b]-l[a]))) })
	if len(tok.Top) != 5 {
		t.Fatalf("%d alternatives, want 5", len(tok.Top))
	}
	for i, alt := range tok.Top {
		want := float64(l[order[i]]) - math.Log(sum)
		if int(alt.ID) != order[i] || math.Abs(float64(alt.Logprob)-want) > 1e-5 {
			t.Errorf("alternative %d: %+v, want id %d, %v", i, alt, order[i], want)
		}
	}
	// No probability at all is still a number.
	l[17] = float32(math.Inf(-1))
	p.LogitBias, p.TopLogprobs = nil, 20
	tok, _ = mustNew(t, p, vocab, nil).Sample(l, nil)
	for _, alt := range tok.Top {
		if math.IsInf(float64(alt.Logprob), 0) || alt.ID == 17 {
			t.Errorf("alternative %+v", alt)
		}
	}
}

// Over many seeds each token comes up as often as its probability says.
func TestDrawDistribution(t *testing.T) {
	const draws = 40000
	l := []float32{0, 1, 2, -1, 0.5}
	var sum float64
	for _, x := range l {
		sum += math.Exp(float64(x) / 0.8)
	}
	var got [5]int
	for seed := range uint64(draws) {
		tok, err := mustNew(t, Params{Temperature: 0.8, Seed: seed}, 5, nil).Sample(l, nil)
		if err != nil {
			t.Fatal(err)
		}
		got[tok.ID]++
	}
	for id, x := range l {
		p := math.Exp(float64(x)/0.8) / sum
		sigma := math.Sqrt(draws * p * (1 - p))
		if d := math.Abs(float64(got[id]) - draws*p); d > 4*sigma {
			t.Errorf("token %d drawn %d times, expected %.0f +- %.0f", id, got[id], draws*p, sigma)
		}
	}
}

func BenchmarkSample(b *testing.B) {
	for _, vocab := range []int{49152, 128256} {
		l := logitsAt(vocab, 0)
		for _, c := range []struct {
			name string
			p    Params
		}{
			{"greedy", Params{}},
			{"temperature", Params{Temperature: 1}},
			{"topp", Params{Temperature: 1, TopP: 0.95}},
			{"topk", Params{Temperature: 1, TopK: 50}},
			{"all", Params{Temperature: 0.8, TopP: 0.95, TopK: 50, MinP: 0.01, RepetitionPenalty: 1.1, Logprobs: true, TopLogprobs: 5}},
		} {
			for _, k := range scans() {
				b.Run(fmt.Sprintf("%d/%s/%s", vocab, c.name, k.name), func(b *testing.B) {
					s := mustNew(b, c.p, vocab, []int32{1, 2, 3})
					s.scan = k
					for b.Loop() {
						if _, err := s.Sample(l, []int32{4, 5}); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}
