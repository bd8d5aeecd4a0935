package sample

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// The known answers that the authors publish with Random123 (kat_vectors, philox4x32 10).
func TestPhiloxVectors(t *testing.T) {
	const f = 0xffffffff
	for _, v := range []struct {
		ctr  [4]uint32
		key  [2]uint32
		want [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{f, f, f, f}, [2]uint32{f, f}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := philox(v.ctr, v.key); got != v.want {
			t.Errorf("philox(%x, %x) = %x, want %x", v.ctr, v.key, got, v.want)
		}
	}
}

// Every part of the key and counter changes the bits.
func TestRandomKeyed(t *testing.T) {
	seen := map[uint64]bool{}
	for _, in := range [][3]uint64{{0, 0, 0}, {1, 0, 0}, {1 << 32, 0, 0}, {0, 1, 0}, {0, 0, 1}, {0, 0, 1 << 32}} {
		seen[random(in[0], uint32(in[1]), in[2])] = true
	}
	if len(seen) != 6 {
		t.Fatalf("6 keys gave %d values", len(seen))
	}
}

// A weight is the exponential to within its last bit and 2^-45 of itself.
func TestWeight(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 200000 {
		temperature := []float32{1, 0.3, 2}[i%3]
		p := weighing{top: r.NormFloat64() * 10, inverse: 1 / float64(temperature), floor: -math.MaxFloat32}
		l := float32(p.top - r.Float64()*[]float64{1e-9, 0.1, 1, 30, 80}[i%5]*float64(temperature))
		want := math.Exp((float64(l)-p.top)*p.inverse) * weightOne
		if got := float64(p.weight(l)); math.Abs(got-want) > 0.5+math.Ldexp(want, -45) {
			t.Fatalf("weight of %v under %v, temperature %v: %v, want %v", l, p.top, temperature, got, want)
		}
	}
	p := weighing{top: 2, inverse: 1, floor: -math.MaxFloat32}
	if p.weight(2) != weightOne || p.weight(float32(math.Inf(-1))) != 0 || p.weight(-math.MaxFloat32) != 0 {
		t.Error("ends of the range")
	}
	// Pinned: any node of any architecture must compute these.
	for l, want := range map[float32]uint64{1: 404487723188, 1.7: 814538286548, -18.5: 1375, -26: 1} {
		if got := p.weight(l); got != want {
			t.Errorf("weight(%v) is %d, want %d", l, got, want)
		}
	}
}

// No token below the floor has a weight, at temperatures and logits of any size.
func TestFloor(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 200000 {
		temperature := float32(math.Ldexp(1+r.Float64(), -r.IntN(150)))
		top := float32(math.Ldexp(r.Float64()*2-1, r.IntN(240)-120))
		p := weighing{top: float64(top), inverse: 1 / float64(temperature), floor: -math.MaxFloat32}
		floor := floorOf(top, temperature)
		if below := math.Nextafter32(floor, float32(math.Inf(-1))); p.weight(below) != 0 || floor > top {
			t.Fatalf("top %v, temperature %v: floor %v, but %v weighs %d", top, temperature, floor, below, p.weight(below))
		}
	}
}

// rank against a full sort, for every k and many masses, with equal logits among them.
func TestRank(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for n := 1; n < 60; n++ {
		c := make([]cand, n)
		for i := range c {
			l := float32(r.IntN(n))
			c[i] = cand{int32(i), l, uint64(l) + 1}
		}
		sorted := slices.Clone(c)
		slices.SortFunc(sorted, func(a, b cand) int {
			if a.before(b) {
				return -1
			}
			return 1
		})
		for k := 1; k <= n; k++ {
			for _, mass := range []uint64{1, uint64(r.IntN(n*n) + 1), math.MaxUint64} {
				var sum uint64
				keep := 0
				for keep < k && (keep == 0 || sum < mass) {
					sum += sorted[keep].weight
					keep++
				}
				shuffled := slices.Clone(c)
				r.Shuffle(n, func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
				total, last := rank(shuffled, k, mass)
				if total != sum || last != sorted[keep-1] {
					t.Fatalf("n %d k %d mass %d: total %d last %+v, want %d %+v", n, k, mass, total, last, sum, sorted[keep-1])
				}
				for i := range keep {
					if last.before(shuffled[i]) {
						t.Fatalf("n %d k %d: the kept are not in front", n, k)
					}
				}
			}
		}
	}
}

func TestValidate(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	good := Params{MaxNew: 10, MinTokens: 10, Temperature: 2, TopP: 1, TopK: math.MaxInt32, MinP: 1, FrequencyPenalty: -2,
		PresencePenalty: 2, RepetitionPenalty: 1.1, LogitBias: []Bias{{99, -100}, {0, 100}}, EOG: []int32{99}, TopLogprobs: 20}
	if err := good.Validate(100); err != nil {
		t.Fatal(err)
	}
	many := make([]Bias, MaxLogitBias+1)
	for i := range many {
		many[i].ID = int32(i)
	}
	for _, c := range []struct {
		field, value string
		change       func(*Params)
	}{
		{"MaxNew", "0", func(p *Params) { p.MaxNew, p.MinTokens = 0, 0 }},
		{"MaxNew", "268435457", func(p *Params) { p.MaxNew = MaxNewMax + 1 }},
		{"MinTokens", "-1", func(p *Params) { p.MinTokens = -1 }},
		{"MinTokens", "11", func(p *Params) { p.MinTokens = 11 }},
		{"Temperature", "-0.1", func(p *Params) { p.Temperature = -0.1 }},
		{"Temperature", "2.1", func(p *Params) { p.Temperature = 2.1 }},
		{"Temperature", "NaN", func(p *Params) { p.Temperature = nan }},
		{"Temperature", "+Inf", func(p *Params) { p.Temperature = inf }},
		{"TopP", "1.1", func(p *Params) { p.TopP = 1.1 }},
		{"TopP", "NaN", func(p *Params) { p.TopP = nan }},
		{"TopK", "-1", func(p *Params) { p.TopK = -1 }},
		{"MinP", "-1", func(p *Params) { p.MinP = -1 }},
		{"FrequencyPenalty", "2.5", func(p *Params) { p.FrequencyPenalty = 2.5 }},
		{"PresencePenalty", "-3", func(p *Params) { p.PresencePenalty = -3 }},
		{"PresencePenalty", "NaN", func(p *Params) { p.PresencePenalty = nan }},
		{"RepetitionPenalty", "-1", func(p *Params) { p.RepetitionPenalty = -1 }},
		{"RepetitionPenalty", "1e-05", func(p *Params) { p.RepetitionPenalty = 1e-5 }},
		{"RepetitionPenalty", "+Inf", func(p *Params) { p.RepetitionPenalty = inf }},
		{"LogitBias", "301", func(p *Params) { p.LogitBias = many }},
		{"LogitBias[0].ID", "100", func(p *Params) { p.LogitBias = []Bias{{100, 0}} }},
		{"LogitBias[1].ID", "-1", func(p *Params) { p.LogitBias = []Bias{{1, 0}, {-1, 0}} }},
		{"LogitBias[1].ID", "1", func(p *Params) { p.LogitBias = []Bias{{1, 0}, {1, 0}} }},
		{"LogitBias[0].Bias", "101", func(p *Params) { p.LogitBias = []Bias{{1, 101}} }},
		{"LogitBias[0].Bias", "NaN", func(p *Params) { p.LogitBias = []Bias{{1, nan}} }},
		{"EOG", "17", func(p *Params) { p.EOG = make([]int32, MaxEOG+1) }},
		{"EOG[0]", "100", func(p *Params) { p.EOG = []int32{100} }},
		{"TopLogprobs", "21", func(p *Params) { p.TopLogprobs = 21 }},
		{"TopLogprobs", "-1", func(p *Params) { p.TopLogprobs = -1 }},
	} {
		p := good
		c.change(&p)
		err := p.Validate(100)
		var pe *ParamError
		if !errors.As(err, &pe) || !errors.Is(err, ErrParams) || pe.Field != c.field || pe.Value != c.value || pe.Limit == "" {
			t.Errorf("want %s is %s, got %v", c.field, c.value, err)
			continue
		}
		if !strings.Contains(err.Error(), c.field) || !strings.Contains(err.Error(), c.value) {
			t.Errorf("message %q", err)
		}
		if _, err := New(p, 100, nil); !errors.Is(err, ErrParams) {
			t.Errorf("New accepts %s = %s", c.field, c.value)
		}
	}
}
