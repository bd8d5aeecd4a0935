package sample

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// scans gives what this processor runs, plain Go last.
func scans() []*scan {
	var all []*scan
	for _, s := range append(archScans(), &genericScan) {
		if s.supported() {
			all = append(all, s)
		}
	}
	return all
}

// vocabularies are logits of the kinds that could go wrong, n of each.
func vocabularies(n int) map[string][]float32 {
	r := rand.New(rand.NewPCG(uint64(n), 11))
	inf := float32(math.Inf(1))
	make := func(f func(i int) float32) []float32 {
		l := make([]float32, n)
		for i := range l {
			l[i] = f(i)
		}
		return l
	}
	return map[string][]float32{
		"normal":    make(func(int) float32 { return float32(r.NormFloat64() * 3) }),
		"peaked":    make(func(int) float32 { return float32(20 * math.Log(r.Float64())) }),
		"equal":     make(func(int) float32 { return -1.25 }),
		"steps":     make(func(int) float32 { return float32(r.IntN(7)) }),
		"zeros":     make(func(i int) float32 { return float32(math.Copysign(0, float64(i%3)-1)) }),
		"denormal":  make(func(int) float32 { return math.Float32frombits(r.Uint32N(1<<20) | r.Uint32N(2)<<31) }),
		"huge":      make(func(int) float32 { return float32((r.Float64()*2 - 1) * math.MaxFloat32) }),
		"any":       make(func(int) float32 { return math.Float32frombits(r.Uint32N(0x7f800000) | r.Uint32N(2)<<31) }),
		"forbidden": make(func(i int) float32 { return []float32{-inf, -inf, 1, -inf, float32(i % 5)}[r.IntN(5)] }),
		"lonely":    make(func(i int) float32 { return map[bool]float32{true: 3, false: -inf}[i == n/2] }),
	}
}

// goal: every set of instructions has the bits of plain Go. method: each pass over
// unaligned tokens in sixteens, with outputs that were poisoned, and cuts that
// are among the logits.
func TestScansAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for _, k := range scans() {
		for _, n := range []int{16, 32, 48, 1008, 1024, 4096} {
			for name, all := range vocabularies(n + 3) {
				l := all[3:] // not on a border of vectors
				what := fmt.Sprintf("%s, %d %s logits", k.name, n, name)
				most, ok := k.most(l)
				if want, _ := genericMost(l); !ok || most != want {
					t.Fatalf("%s: largest %v, %v, want %v", what, most, ok, want)
				}
				for _, temperature := range []float32{1, 0.01, 2, math.SmallestNonzeroFloat32} {
					p := weighing{top: float64(most), inverse: 1 / float64(temperature), floor: floorOf(most, temperature)}
					switch r.IntN(3) {
					case 1:
						p.least = weightOne >> r.IntN(41)
					case 2:
						p.floor = max(p.floor, l[r.IntN(n)])
					}
					got, want := make([]uint64, n), make([]uint64, n)
					for i := range got {
						got[i] = math.MaxUint64
					}
					sum, wantSum := k.weigh(got, l, &p), genericWeigh(want, l, &p)
					if !slices.Equal(got, want) || sum != wantSum {
						t.Fatalf("%s, temperature %v: weights differ, sum %d, want %d", what, temperature, sum, wantSum)
					}
					var cuts [scanCuts]float32
					for j := range cuts {
						cuts[j] = l[r.IntN(n)]
					}
					cuts[5] = float32(math.Inf(1))
					slices.SortFunc(cuts[:], func(a, b float32) int { return cmp.Compare(b, a) })
					poison := [scanCuts]uint64{1, 2, 3, 4, 5, 6, 7, 8}
					sums, wantSums := poison, poison
					k.above(l, got, &cuts, &sums)
					genericAbove(l, got, &cuts, &wantSums)
					counts, wantCounts := poison, poison
					k.count(l, &cuts, &counts)
					genericCount(l, &cuts, &wantCounts)
					if sums != wantSums || counts != wantCounts {
						t.Fatalf("%s: above %v: %d and %d, want %d and %d", what, cuts, sums, counts, wantSums, wantCounts)
					}
					bits, wantBits := slices.Repeat([]uint16{0xaaaa}, n/16), slices.Repeat([]uint16{0x5555}, n/16)
					k.mask(bits, l, cuts[7], cuts[1])
					genericMask(wantBits, l, cuts[7], cuts[1])
					if !slices.Equal(bits, wantBits) {
						t.Fatalf("%s: from %v to %v: bits differ", what, cuts[7], cuts[1])
					}
				}
			}
		}
	}
}

// A value that is not a number shows wherever it stands.
func TestScansRefuse(t *testing.T) {
	for _, k := range scans() {
		for at := range 64 {
			for _, bad := range []float32{float32(math.NaN()), -float32(math.NaN()), float32(math.Inf(1)), math.Float32frombits(0x7f800001)} {
				l := make([]float32, 64)
				l[at] = bad
				if _, ok := k.most(l); ok {
					t.Errorf("%s: %v at %d is taken", k.name, bad, at)
				}
			}
		}
	}
}

// goal: top-k and top-p keep exactly the tokens that a full sort keeps, ties and all,
// and the draw is over these. method: the extremes, vocabularies that do not end at a
// block, and a uniform sweep of the random number, against a sort.
func TestCuts(t *testing.T) {
	for _, n := range []int{1, 15, 37, 1023, 3000} {
		for name, l := range vocabularies(n) {
			for _, p := range []Params{
				{Temperature: 1}, {Temperature: 0.2, TopP: 0.9}, {Temperature: 2, TopP: 0.5}, {Temperature: 1, TopP: 0.999}, {Temperature: 1, TopP: 1e-30},
				{Temperature: 1, TopK: 1}, {Temperature: 2, TopK: 40}, {Temperature: 1, TopK: 400, TopP: 0.7, MinP: 0.01}, {Temperature: 1.5, TopK: n - 1, MinP: 1e-9, TopP: 0.97},
			} {
				p.MaxNew, p.TopK = 1, max(p.TopK, 0)
				var first []int
				for _, k := range scans() {
					s := mustNew(t, p, n, nil)
					s.scan = k
					sc := new(scratch)
					sc.grow(n)
					at := k.best(sc.most, l)
					if name == "lonely" && at != n/2 {
						t.Fatalf("%s: the only token is %d, got %d", k.name, n/2, at)
					}
					var drawn []int
					stay, weights, total := sorted(p, l, l[at])
					for i := range 20 {
						random := uint64(i) * (math.MaxUint64 / 20)
						if i == 19 {
							random = math.MaxUint64
						}
						id := s.draw(sc, l, l[at], random)
						if !slices.Contains(stay, int32(id)) {
							t.Fatalf("%s, %d %s logits, %+v: drew %d, which a sort does not keep", k.name, n, name, p, id)
						}
						if kept := sum(sc.sums); kept != total {
							t.Fatalf("%s, %d %s logits, %+v: kept %d, a sort keeps %d", k.name, n, name, p, kept, total)
						}
						drawn = append(drawn, id)
					}
					// The last random number draws the last token.
					if last := stay[len(stay)-1]; drawn[19] != int(last) {
						t.Fatalf("%s, %d %s logits, %+v: the end of the distribution is %d, want %d (weight %d)", k.name, n, name, p, drawn[19], last, weights[last])
					}
					if first != nil && !slices.Equal(first, drawn) {
						t.Fatalf("%s, %d %s logits, %+v: drew %v, others %v", k.name, n, name, p, drawn, first)
					}
					first = drawn
				}
			}
		}
	}
}

// sorted gives the ids that stay, ascending, by a full sort.
func sorted(p Params, l []float32, top float32) (kept []int32, weights []uint64, total uint64) {
	w := weighing{top: float64(top), inverse: 1 / float64(p.Temperature), least: uint64(float64(p.MinP) * weightOne), floor: lowest32}
	var c []cand
	weights = make([]uint64, len(l))
	for i, x := range l {
		weights[i] = w.weight(x)
		c = append(c, cand{int32(i), x, weights[i]})
	}
	slices.SortFunc(c, func(a, b cand) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	if p.TopK > 0 {
		c = c[:min(p.TopK, len(c))]
	}
	c = slices.DeleteFunc(c, func(x cand) bool { return x.weight == 0 })
	total = weightOf(c)
	if p.TopP > 0 && p.TopP < 1 {
		target, n := max(uint64(float64(p.TopP)*float64(total)), 1), 0
		for total = 0; total < target; n++ {
			total += c[n].weight
		}
		c = c[:n]
	}
	for _, x := range c {
		kept = append(kept, x.id)
	}
	slices.Sort(kept)
	return kept, weights, total
}

// goal: weights are the distribution. method: the share of each token of the plain
// float64 softmax.
func TestDistribution(t *testing.T) {
	const n = 5000
	for _, k := range scans() {
		for _, name := range []string{"normal", "peaked", "steps", "denormal"} {
			for _, temperature := range []float32{0.5, 1, 2} {
				l := vocabularies(n)[name]
				sc := new(scratch)
				sc.grow(n)
				top := l[k.best(sc.most, l)]
				p := weighing{top: float64(top), inverse: 1 / float64(temperature), floor: floorOf(top, temperature)}
				total := k.weighAll(sc.sums, sc.weights, l, &p)
				var sum float64
				for _, x := range l {
					sum += math.Exp((float64(x) - float64(top)) / float64(temperature))
				}
				for i, x := range l {
					want := math.Exp((float64(x)-float64(top))/float64(temperature)) / sum
					if got := float64(sc.weights[i]) / float64(total); math.Abs(got-want) > 1e-12+1e-9*want {
						t.Fatalf("%s, %s, temperature %v: token %d has a share of %v, want %v", k.name, name, temperature, i, got, want)
					}
				}
			}
		}
	}
}

// The alternatives are the first of a full sort, for vocabularies of fewer and of more
// blocks than alternatives.
func TestTop(t *testing.T) {
	for _, k := range scans() {
		for _, vocab := range []int{3000, 9001} {
			for name, l := range vocabularies(vocab) {
				sc := new(scratch)
				sc.grow(vocab)
				k.best(sc.most, l)
				var all []cand
				for i, x := range l {
					if x >= lowest32 {
						all = append(all, cand{id: int32(i), logit: x})
					}
				}
				slices.SortFunc(all, func(a, b cand) int {
					if a.before(b) {
						return -1
					}
					return 1
				})
				for _, n := range []int{1, 2, 5, MaxTopLogprobs} {
					got := sc.top(k, l, n, 0)
					for i, want := range all[:min(n, len(all))] {
						if len(got) != min(n, len(all)) || got[i].ID != want.id {
							t.Fatalf("%s, %d %s logits: %d alternatives are %v, want %+v in place %d", k.name, vocab, name, n, got, want, i)
						}
					}
				}
			}
		}
	}
}
