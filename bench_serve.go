package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"bulkhead/internal/loadgen"
)

type benchServeCmd struct {
	URL         string        `help:"Address of an OpenAI-compatible server." required:"" placeholder:"http://HOST:PORT"`
	Key         string        `help:"Its key; better in the environment."`
	Model       string        `help:"Name of the model; empty is the first that the server lists."`
	Rate        float64       `help:"Open loop: requests per second, at the times of a Poisson process. 0 is a closed loop."`
	Concurrency int           `help:"Closed loop: clients, each with one request at a time (0: 1). Open loop: most in flight; what is over is shed and counted (0: 1024)."`
	Duration    time.Duration `help:"How long requests begin." default:"30s"`
	Requests    int           `help:"At most so many; 0 is 100000." short:"n"`
	Timeout     time.Duration `help:"Of one request." default:"2m"`
	PromptLen   []int         `help:"Tokens of a prompt; of several, one at random." default:"512"`
	GenLen      []int         `help:"Tokens to generate; of several, one at random." default:"64"`
	Chat        bool          `help:"Send chats of words, even where token ids are taken."`
	Seed        uint64        `help:"Of arrivals, lengths and prompts." default:"1"`
	SLOTTFT     time.Duration `name:"slo-ttft" help:"Goodput counts answers whose first token came within this; 0 is no limit."`
	SLOITL      time.Duration `name:"slo-itl" help:"... and 99 in 100 of whose gaps between tokens are within this; 0 is no limit."`
	JSON        bool          `help:"Print one JSON object."`
}

func (c benchServeCmd) Run(ctx context.Context) error {
	r, err := loadgen.BenchServe(ctx, loadgen.ServeConfig{
		URL: c.URL, Key: c.Key, Model: c.Model, Rate: c.Rate, Concurrency: c.Concurrency, Duration: c.Duration,
		Requests: c.Requests, Timeout: c.Timeout, PromptLen: c.PromptLen, GenLen: c.GenLen, Chat: c.Chat, Seed: c.Seed,
		SLOTTFT: c.SLOTTFT, SLOITL: c.SLOITL,
	})
	if err != nil {
		return err
	}
	if c.JSON {
		err = json.NewEncoder(os.Stdout).Encode(r)
	} else {
		c.print(r)
	}
	if err == nil && r.Done == 0 {
		err = fmt.Errorf("none of %d requests was answered", r.Sent+r.Shed)
	}
	return err
}

func (c benchServeCmd) print(r *loadgen.ServeResult) {
	load := fmt.Sprintf("closed loop, %d at once", max(c.Concurrency, 1))
	if c.Rate > 0 {
		load = fmt.Sprintf("open loop, %g a second", c.Rate)
	}
	fmt.Printf("%s: %s, %.1f s\n", r.Model, load, r.Elapsed)
	fmt.Printf("requests   %d sent, %d completed (%d ended early), %d refused, %d failed, %d shed\n", r.Sent, r.Done, r.Short, r.Refused, r.Failed, r.Shed)
	for _, why := range slices.Sorted(maps.Keys(r.Failures)) {
		fmt.Printf("failed     %d: %s\n", r.Failures[why], why)
	}
	fmt.Printf("tokens     %.1f prompt (%s), %.1f generated, on average\n", r.PromptMean, r.Prompts, r.GenMean)
	fmt.Printf("throughput %.2f requests/s, %.1f prompt tok/s, %.1f generated tok/s\n", r.RequestRate, r.PromptRate, r.GenRate)
	if c.SLOTTFT > 0 || c.SLOITL > 0 {
		fmt.Printf("goodput    %.2f requests/s: %d of %d completed within TTFT %s, ITL %s (0s: no limit)\n", r.Goodput, r.Within, r.Done, c.SLOTTFT, c.SLOITL)
	}
	fmt.Printf("%-6s %10s %10s %10s %10s %8s\n", "ms", "p50", "p90", "p99", "max", "n")
	for _, row := range []struct {
		name string
		p    loadgen.Percentiles
	}{{"TTFT", r.TTFT}, {"ITL", r.ITL}, {"TPOT", r.TPOT}, {"E2E", r.E2E}} {
		fmt.Printf("%-6s %10.2f %10.2f %10.2f %10.2f %8d\n", row.name, row.p.P50, row.p.P90, row.p.P99, row.p.Max, row.p.N)
	}
	if r.MaxLate > 10 {
		fmt.Printf("note: this client was up to %.0f ms late itself; the times include that\n", r.MaxLate)
	}
}
