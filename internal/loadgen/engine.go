// Package loadgen measures. [BenchEngine] times the engine alone, without a cluster
// around it, and [BenchCases] the same case by case, as they are asked for;
// [Stream] times the memory that decode waits for; [BenchServe] loads any OpenAI-compatible server over HTTP, in an open or a
// closed loop, and reports what its clients see.
package loadgen

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"bulkhead/internal/model"
	"bulkhead/internal/sample"
	"bulkhead/kernels"
)

// ErrConfig is a configuration outside its limits.
var ErrConfig = errors.New("loadgen: invalid benchmark")

// EngineConfig says what BenchEngine runs.
type EngineConfig struct {
	Path   string // GGUF file
	Prompt int    // tokens of each prompt, >= 1
	Gen    int    // tokens generated after each prompt, >= 1: each is one step
	Batch  int    // sequences at once; 0 is 1
	Chunk  int    // rows of a prefill step; 0 is 512, prefill's default
	Repeat int    // runs, whose medians count; 0 is 1

	// NewBackend makes the backend of one run, which the run closes.
	NewBackend func() (kernels.Backend, error)
}

// EngineResult is the medians over the runs.
type EngineResult struct {
	PromptTokS float64 `json:"prompt_tok_s"` // prompt tokens of all sequences per second of prefill
	GenTokS    float64 `json:"gen_tok_s"`    // generated tokens of all sequences per second of decode, greedy choice included
	LoadS      float64 `json:"load_s"`       // from opening the file to a usable engine, fingerprint included
	RSSBytes   int64   `json:"rss_bytes"`    // resident memory at the end of a run
}

// limits of a benchmark: enough for any machine, and no slip of a key fills its memory.
const (
	batchMax  = 4096
	repeatMax = 1000
)

func (c *EngineConfig) check() error {
	if c.Batch == 0 {
		c.Batch = 1
	}
	if c.Chunk == 0 {
		c.Chunk = 512
	}
	if c.Repeat == 0 {
		c.Repeat = 1
	}
	switch {
	case c.NewBackend == nil:
		return fmt.Errorf("%w: no backend", ErrConfig)
	case c.Prompt < 1 || c.Gen < 1:
		return fmt.Errorf("%w: %d prompt and %d generated tokens, want at least 1 of each", ErrConfig, c.Prompt, c.Gen)
	case c.Batch < 1 || c.Batch > batchMax:
		return fmt.Errorf("%w: batch of %d, want 1 to %d", ErrConfig, c.Batch, batchMax)
	case c.Chunk < 1 || c.Repeat < 1 || c.Repeat > repeatMax:
		return fmt.Errorf("%w: chunk of %d and %d runs, want at least 1 of each and at most %d runs", ErrConfig, c.Chunk, c.Repeat, repeatMax)
	}
	return nil
}

// BenchEngine loads the model and times prefill and decode, Repeat times over.
// It stops between steps when ctx is done. Errors are ErrConfig, those of loading,
// and model.ErrWindow where prompt and output do not fit the window.
func BenchEngine(ctx context.Context, c EngineConfig) (EngineResult, error) {
	if err := c.check(); err != nil {
		return EngineResult{}, err
	}
	var prompt, gen, load []float64
	var rss []int64
	for range c.Repeat {
		r, err := c.fresh(ctx)
		if err != nil {
			return EngineResult{}, err
		}
		prompt, gen, load = append(prompt, r.PromptTokS), append(gen, r.GenTokS), append(load, r.LoadS)
		rss = append(rss, r.RSSBytes)
	}
	return EngineResult{PromptTokS: median(prompt), GenTokS: median(gen), LoadS: median(load), RSSBytes: median(rss)}, nil
}

// median of an even count is the lower of the two in the middle.
func median[T int64 | float64](x []T) T {
	slices.Sort(x)
	return x[(len(x)-1)/2]
}

// fresh loads, prefills, decodes, and frees everything again.
func (c EngineConfig) fresh(ctx context.Context) (r EngineResult, err error) {
	m, seconds, err := c.load()
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	r, err = c.once(ctx, m)
	r.LoadS = seconds
	return r, err
}

// load opens the model on a backend of its own, which the model closes, and times that.
func (c EngineConfig) load() (*model.Model, float64, error) {
	start := time.Now()
	backend, err := c.NewBackend()
	if err != nil {
		return nil, 0, err
	}
	m, err := model.Open(c.Path, backend)
	if err != nil {
		return nil, 0, errors.Join(err, backend.Close())
	}
	return m, time.Since(start).Seconds(), nil
}

// once prefills and decodes, in pages of its own.
func (c EngineConfig) once(ctx context.Context, m *model.Model) (r EngineResult, err error) {
	run, err := c.newRun(m)
	if err != nil {
		return r, err
	}
	defer run.runner.Close()
	start := time.Now()
	if err := run.prefill(ctx, c); err != nil {
		return r, err
	}
	r.PromptTokS = float64(c.Batch*c.Prompt) / time.Since(start).Seconds()
	start = time.Now()
	for range c.Gen {
		if err := run.decode(ctx); err != nil {
			return r, err
		}
	}
	r.GenTokS = float64(c.Batch*c.Gen) / time.Since(start).Seconds()
	r.RSSBytes, err = residentBytes()
	return r, err
}

// engineRun is one run: Batch sequences with pages and samplers of their own.
type engineRun struct {
	runner    model.Runner
	pages     kernels.Pages
	seqs      []model.Seq
	prompts   [][]int32
	samplers  []*sample.Sampler
	generated [][]int32
}

func (c EngineConfig) newRun(m *model.Model) (*engineRun, error) {
	facts := m.Facts()
	if total := c.Prompt + c.Gen; total > facts.Window {
		return nil, fmt.Errorf("%w: %d prompt and %d generated tokens, window of %d", model.ErrWindow, c.Prompt, c.Gen, facts.Window)
	}
	perSeq := (c.Prompt + c.Gen + kernels.BlockTokens - 1) / kernels.BlockTokens
	run := &engineRun{}
	var err error
	if run.pages, err = m.NewPages(c.Batch * perSeq); err != nil {
		return nil, err
	}
	for i := range c.Batch {
		table := make([]kernels.Entry, perSeq)
		for j := range table {
			e := kernels.Entry{Page: kernels.PageID(i*perSeq + j), Owner: kernels.Owner(i + 1), Generation: 1}
			run.pages.Claim(e.Page, kernels.Tag{Owner: e.Owner, Generation: e.Generation, Index: uint32(j)})
			table[j] = e
		}
		prompt := make([]int32, c.Prompt)
		for j := range prompt { // spread over the vocabulary: the embedding is read as by text
			prompt[j] = int32((j*7919 + i*104729) % facts.Vocab)
		}
		sampler, err := sample.New(sample.Params{MaxNew: c.Gen}, facts.Vocab, prompt)
		if err != nil {
			return nil, err
		}
		run.seqs = append(run.seqs, model.Seq{Table: table})
		run.prompts = append(run.prompts, prompt)
		run.samplers = append(run.samplers, sampler)
	}
	run.generated = make([][]int32, c.Batch)
	run.runner, err = m.NewRunner(max(c.Chunk, c.Batch), c.Batch)
	return run, err
}

// prefill computes the prompts one after another, in chunks, and each one's first token.
func (r *engineRun) prefill(ctx context.Context, c EngineConfig) error {
	for i := range r.seqs {
		for pos := 0; pos < c.Prompt; pos += c.Chunk {
			s := r.seqs[i]
			s.Tokens, s.Pos = r.prompts[i][pos:min(pos+c.Chunk, c.Prompt)], pos
			s.Logits = pos+c.Chunk >= c.Prompt
			if err := r.step(ctx, []model.Seq{s}, i); err != nil {
				return err
			}
		}
		r.seqs[i].Pos, r.seqs[i].Logits = c.Prompt, true
	}
	return nil
}

// decode computes one more token of every sequence.
func (r *engineRun) decode(ctx context.Context) error {
	for i := range r.seqs {
		g := r.generated[i]
		r.seqs[i].Tokens = g[len(g)-1:]
	}
	if err := r.step(ctx, r.seqs, 0); err != nil {
		return err
	}
	for i := range r.seqs {
		r.seqs[i].Pos++
	}
	return nil
}

// step runs seqs, the first of which is number first, and samples where logits are wanted.
func (r *engineRun) step(ctx context.Context, seqs []model.Seq, first int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	outs, err := r.runner.Forward(r.pages, seqs)
	if err != nil {
		return err
	}
	for i, out := range outs {
		if out.Err != nil {
			return out.Err
		}
		if !seqs[i].Logits {
			continue
		}
		token, err := r.samplers[first+i].Sample(out.Logits, r.generated[first+i])
		if err != nil {
			return err
		}
		r.generated[first+i] = append(r.generated[first+i], token.ID)
	}
	return nil
}
