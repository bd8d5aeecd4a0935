package loadgen

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"bulkhead/internal/model"
	"bulkhead/kernels"
	"bulkhead/kernels/cpu"
)

func newCPU() (kernels.Backend, error) { return cpu.New(cpu.Config{Threads: 2}) }

const tinyChat = "../model/testdata/tiny-chat.gguf"

func TestBenchEngine(t *testing.T) {
	c := EngineConfig{Path: tinyChat, Prompt: 100, Gen: 40, Batch: 3, Chunk: 33, Repeat: 3, NewBackend: newCPU}
	r, err := BenchEngine(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if !(r.PromptTokS > 0) || !(r.GenTokS > 0) || !(r.LoadS > 0) || r.RSSBytes < 1<<20 {
		t.Errorf("%+v", r)
	}
	out, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{`"prompt_tok_s"`, `"gen_tok_s"`, `"load_s"`, `"rss_bytes"`} {
		if !strings.Contains(string(out), key) {
			t.Errorf("%s lacks %s", out, key)
		}
	}
}

func TestBenchEngineRefuses(t *testing.T) {
	good := EngineConfig{Path: tinyChat, Prompt: 10, Gen: 1, NewBackend: newCPU}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for _, c := range []struct {
		name   string
		ctx    context.Context
		want   error
		change func(*EngineConfig)
	}{
		{"no prompt", nil, ErrConfig, func(c *EngineConfig) { c.Prompt = 0 }},
		{"no output", nil, ErrConfig, func(c *EngineConfig) { c.Gen = -1 }},
		{"large batch", nil, ErrConfig, func(c *EngineConfig) { c.Batch = batchMax + 1 }},
		{"negative chunk", nil, ErrConfig, func(c *EngineConfig) { c.Chunk = -1 }},
		{"many runs", nil, ErrConfig, func(c *EngineConfig) { c.Repeat = repeatMax + 1 }},
		{"no backend", nil, ErrConfig, func(c *EngineConfig) { c.NewBackend = nil }},
		{"past the window", nil, model.ErrWindow, func(c *EngineConfig) { c.Prompt = 16384 }},
		{"cancelled", cancelled, context.Canceled, func(*EngineConfig) {}},
	} {
		cfg, ctx := good, c.ctx
		c.change(&cfg)
		if ctx == nil {
			ctx = context.Background()
		}
		if _, err := BenchEngine(ctx, cfg); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{{[]float64{5}, 5}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 3, 2, 1}, 2}} {
		if got := median(c.in); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.in, got, c.want)
		}
	}
}
