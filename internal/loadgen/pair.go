package loadgen

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"bulkhead/internal/openai"
)

// PairConfig says how BenchPair compares two servers.
type PairConfig struct {
	// Start starts both and gives their addresses. It is called Starts times, because two processes of
	// one binary differ, for as long as they live, by more than what is to be measured.
	Start     func(ctx context.Context, n int) (with, without string, stop func(), err error)
	Starts    int
	Key       string // the same for both
	PromptLen []int  // tokens; each is a case
	Gen       int    // tokens generated
	Rounds    int    // pairs of requests of each case and start
	Seed      uint64
}

// PairResult is one length of prompts: medians over all rounds, times in ms.
type PairResult struct {
	Prompt      int     `json:"prompt_tokens"`
	Pairs       int     `json:"pairs"`
	TTFT        float64 `json:"ttft_ms"`         // with
	TTFTWithout float64 `json:"ttft_without_ms"` // without
	ITL         float64 `json:"itl_ms"`          // median gap between pieces of text
	ITLWithout  float64 `json:"itl_without_ms"`
	TTFTCost    Cost    `json:"ttft_cost_pct"`
	ITLCost     Cost    `json:"itl_cost_pct"`
}

// Cost is how much longer it takes with than without, in percent: of each start the
// median over its rounds, and of those the median, the least and the most. A median between a least below zero
// and a most above it is not told from nothing.
type Cost struct {
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
}

func costOf(starts []float64) Cost {
	return Cost{middle(starts), slices.Min(starts), slices.Max(starts)}
}

// BenchPair sends the same requests to two servers in turns, one at a time, and
// compares what a client sees: whatever else changes on the machine changes for
// both. Who is first alternates. Prompts are new in every round, so that no cache has them.
// Errors are ErrConfig, those of Start and of openai.Client.Discover, and an answer that is none.
func BenchPair(ctx context.Context, c PairConfig) ([]PairResult, error) {
	if len(c.PromptLen) == 0 || c.Gen < 2 || c.Rounds < 1 || c.Starts < 1 {
		return nil, fmt.Errorf("%w: %d lengths, %d tokens generated, %d rounds, %d starts; want at least 1, 2, 1 and 1", ErrConfig, len(c.PromptLen), c.Gen, c.Rounds, c.Starts)
	}
	rng := rand.New(rand.NewPCG(c.Seed, 0x9a12))
	cases := make([]pairCase, len(c.PromptLen))
	for n := range c.Starts {
		if err := c.once(ctx, n, cases, rng); err != nil {
			return nil, err
		}
	}
	var all []PairResult
	for i, k := range cases {
		all = append(all, PairResult{
			Prompt: c.PromptLen[i], Pairs: c.Starts * c.Rounds,
			TTFT: middle(k.ttft[0]), TTFTWithout: middle(k.ttft[1]), ITL: middle(k.itl[0]), ITLWithout: middle(k.itl[1]),
			TTFTCost: costOf(k.ttftCost), ITLCost: costOf(k.itlCost),
		})
	}
	return all, nil
}

// pairArm is one of the two servers.
type pairArm struct {
	client *openai.Client
	key    string
	can    openai.Abilities
}

// pairCase is what was measured of one length: times by arm and round, costs by start.
type pairCase struct {
	ttft, itl         [2][]float64
	ttftCost, itlCost []float64
}

// once is one start of both servers: all rounds of all lengths.
func (c PairConfig) once(ctx context.Context, n int, cases []pairCase, rng *rand.Rand) error {
	with, without, stop, err := c.Start(ctx, n)
	if err != nil {
		return err
	}
	defer stop()
	var arms [2]pairArm
	for i, url := range []string{with, without} {
		client, err := openai.New(url, 1)
		if err != nil {
			return err
		}
		defer client.Close()
		can, err := client.Discover(ctx, c.Key, "")
		if err != nil {
			return err
		}
		arms[i] = pairArm{client: client, key: c.Key, can: can}
		if _, _, err := arms[i].ask(ctx, prompt(rng, 200), c.Gen); err != nil { // warms it up
			return err
		}
	}
	for i, length := range c.PromptLen {
		k := &cases[i]
		var ttftCost, itlCost []float64
		for round := range c.Rounds {
			ids := prompt(rng, length)
			var first, gap [2]float64
			for turn := range 2 {
				arm := (turn + round + n) % 2
				if first[arm], gap[arm], err = arms[arm].ask(ctx, ids, c.Gen); err != nil {
					return err
				}
				k.ttft[arm], k.itl[arm] = append(k.ttft[arm], first[arm]), append(k.itl[arm], gap[arm])
			}
			ttftCost, itlCost = append(ttftCost, 100*(first[0]/first[1]-1)), append(itlCost, 100*(gap[0]/gap[1]-1))
		}
		k.ttftCost, k.itlCost = append(k.ttftCost, middle(ttftCost)), append(k.itlCost, middle(itlCost))
	}
	return nil
}

// prompt is a new one.
func prompt(rng *rand.Rand, n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(openai.LowID + rng.IntN(openai.HighID-openai.LowID))
	}
	return ids
}

// ask measures one request: ms to the first text, and the median gap after it.
func (a pairArm) ask(ctx context.Context, ids []int32, gen int) (ttft, itl float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	got, err := a.client.Do(ctx, a.key, openai.Request{Model: a.can.Model, IDs: ids, MaxTokens: gen, Stream: true, IgnoreEOS: a.can.IgnoreEOS})
	if err != nil {
		return 0, 0, err
	}
	if got.Status != http.StatusOK || got.Err != nil || !got.Done || len(got.Events) < 2 {
		return 0, 0, fmt.Errorf("loadgen: a prompt of %d tokens: status %d, [DONE] %v, %d pieces of text; want an answer of %d tokens", len(ids), got.Status, got.Done, len(got.Events), gen)
	}
	var between []float64
	for _, d := range gaps(got.Events) {
		between = append(between, ms(d))
	}
	return ms(got.Events[0]), middle(between), nil
}

// middle is the median, of an even count the mean of the two.
func middle(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}
