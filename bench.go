package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"bulkhead/internal/loadgen"
	"bulkhead/kernels"
	"bulkhead/kernels/cpu"
)

type benchCmd struct {
	Engine benchEngineCmd `cmd:"" help:"Time the engine alone: prefill and decode of one model, no cluster."`
	Serve  benchServeCmd  `cmd:"" help:"Load any OpenAI-compatible server over HTTP and measure what its clients see."`
}

type benchEngineCmd struct {
	modelFlags `embed:""`
	Prompt     int  `help:"Tokens of each prompt." default:"512"`
	Gen        int  `help:"Tokens generated after it." default:"64"`
	Batch      int  `help:"Sequences at once." default:"1"`
	Chunk      int  `help:"Rows of one prefill step." default:"512"`
	Repeat     int  `help:"Runs; medians are printed." default:"5"`
	JSON       bool `help:"Print one JSON object."`
}

func (c benchEngineCmd) Run(ctx context.Context) error {
	r, err := loadgen.BenchEngine(ctx, loadgen.EngineConfig{
		Path: c.Model, Prompt: c.Prompt, Gen: c.Gen, Batch: c.Batch, Chunk: c.Chunk, Repeat: c.Repeat,
		NewBackend: func() (kernels.Backend, error) {
			return cpu.New(cpu.Config{Threads: c.Threads, Tier: c.CPUTier})
		},
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(os.Stdout).Encode(r)
	}
	fmt.Printf("prefill  %8.1f tok/s\ndecode   %8.1f tok/s\nload     %8.3f s\nmemory   %8.1f MiB\n",
		r.PromptTokS, r.GenTokS, r.LoadS, float64(r.RSSBytes)/(1<<20))
	return nil
}
