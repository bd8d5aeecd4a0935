package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"

	"bulkhead/internal/cluster"
	"bulkhead/internal/loadgen"
	"bulkhead/kernels"
	"bulkhead/kernels/cpu"
)

type benchCmd struct {
	Engine    benchEngineCmd    `cmd:"" help:"Time the engine alone: prefill and decode of one model, no cluster."`
	Stream    benchStreamCmd    `cmd:"" help:"Time reading memory: the limit of decode, one sequence at a time."`
	Serve     benchServeCmd     `cmd:"" help:"Load any OpenAI-compatible server over HTTP and measure what its clients see."`
	Isolation benchIsolationCmd `cmd:"" help:"What isolation costs: TTFT and inter-token latency against a build without it, in turns."`
	Transfer  benchTransferCmd  `cmd:"" help:"Time ways of moving KV: bare TCP, core NATS, JetStream, sealed and verified over JetStream, the same with the server on decode's side, as decode --kv-server embedded does, and without sockets, as up does."`
}

type benchTransferCmd struct {
	Bytes int64 `help:"Bytes that each way moves, once in messages of 256 KiB and once of 1 MiB." default:"2147483648"`
	JSON  bool  `help:"Print one JSON array."`
}

// Run measures two frame sizes; each ratio is to be read within one of them.
func (c benchTransferCmd) Run(ctx context.Context) error {
	backend, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		return err
	}
	defer backend.Close()
	var all []cluster.TransferResult
	for _, payload := range []int{256 << 10, 1 << 20} {
		r, err := cluster.BenchTransfer(ctx, payload, c.Bytes, backend.NewPages)
		if err != nil {
			return err
		}
		all = append(all, r...)
	}
	if c.JSON {
		return json.NewEncoder(os.Stdout).Encode(all)
	}
	fmt.Println("way        payload KiB    GB/s  CPU s/GB  p50 ms  p99 ms")
	for _, r := range all {
		fmt.Printf("%-10s %11d %7.3f %9.2f %7.2f %7.2f\n", r.Way, r.Payload>>10, r.GBs, r.CPU, r.P50, r.P99)
	}
	return nil
}

type benchEngineCmd struct {
	Model    string `help:"The model, a GGUF file." required:"" type:"existingfile"`
	cpuFlags `embed:""`
	Prompt   int  `help:"Tokens of each prompt." default:"512"`
	Gen      int  `help:"Tokens generated after it." default:"64"`
	Batch    int  `help:"Sequences at once." default:"1"`
	Chunk    int  `help:"Rows of one prefill step." default:"512"`
	Repeat   int  `help:"Runs; medians are printed." default:"5"`
	JSON     bool `help:"Print one JSON object."`
	Cases    bool `help:"Load once, then read cases from standard input ({\"prompt\":512,\"gen\":64,\"batch\":1} and a newline) and answer each with a line of JSON."`
}

func (c benchEngineCmd) Run(ctx context.Context) error {
	config := loadgen.EngineConfig{
		Path: c.Model, Prompt: c.Prompt, Gen: c.Gen, Batch: c.Batch, Chunk: c.Chunk, Repeat: c.Repeat,
		NewBackend: func() (kernels.Backend, error) {
			return cpu.New(cpu.Config{Threads: c.Threads, Tier: c.CPUTier})
		},
	}
	if c.Cases {
		return loadgen.BenchCases(ctx, config, os.Stdin, os.Stdout)
	}
	r, err := loadgen.BenchEngine(ctx, config)
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

type benchStreamCmd struct {
	Bytes   int  `help:"Bytes that are read; more than the caches hold." default:"1073741824"`
	Threads int  `help:"Threads that read; 0 is one per core."`
	Repeat  int  `help:"Passes; the median is printed." default:"5"`
	JSON    bool `help:"Print one JSON object."`
}

func (c benchStreamCmd) Run() error {
	if c.Threads == 0 {
		c.Threads = runtime.GOMAXPROCS(0)
	}
	r, err := loadgen.Stream(loadgen.StreamConfig{Bytes: c.Bytes, Threads: c.Threads, Repeat: c.Repeat})
	if err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(os.Stdout).Encode(r)
	}
	fmt.Printf("read %.1f GB/s (best %.1f), %d threads\n", r.Median, r.Best, r.Threads)
	return nil
}
