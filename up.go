package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"bulkhead/decode"
	"bulkhead/internal/cluster"
	"bulkhead/internal/metrics"
	"bulkhead/internal/model"
	"bulkhead/internal/tenant"
	"bulkhead/prefill"
)

// upCmd is the whole cluster in one process.
type upCmd struct {
	modelFlags `embed:""`
	edgeFlags  `embed:""`
	logFlags   `embed:""`

	Prefill         int           `help:"Prefill nodes." default:"1"`
	Decode          int           `help:"Decode nodes." default:"1"`
	Tenant          []string      `help:"A tenant, NAME=KEY; repeat for more. Without any, one is made and its key printed." placeholder:"NAME=KEY"`
	TenantsFile     string        `help:"Tenants file to use instead; see bulkhead tenant." type:"existingfile"`
	Window          int           `help:"Longest prompt + max_new in tokens; 0 is the model's own." default:"0"`
	PrefillCapacity int           `help:"Tokens that each prefill node's KV pool holds; 0 sizes it from free memory." default:"0"`
	DecodeCapacity  int           `help:"Tokens that each decode node's KV pool holds; 0 sizes it from free memory." default:"0"`
	ClampWindow     bool          `help:"Where the window exceeds a capacity, start all the same and advertise the capacity."`
	Chunk           int           `help:"Prompt tokens computed in one prefill step." default:"512"`
	MaxBatch        int           `help:"Sequences in one decode step." default:"64"`
	DrainTimeout    time.Duration `help:"How long a shutdown waits for the work in hand." default:"30s"`
}

func (c upCmd) Run(ctx context.Context) error {
	log, err := c.logger("")
	if err != nil {
		return err
	}
	if c.Window < 0 || c.PrefillCapacity < 0 || c.DecodeCapacity < 0 || c.DrainTimeout < 0 {
		return fmt.Errorf("a window of %d, capacities of %d and %d, a drain timeout of %s: none can be negative", c.Window, c.PrefillCapacity, c.DecodeCapacity, c.DrainTimeout)
	}
	reg, key, err := c.tenants()
	if err != nil {
		return err
	}
	m, err := c.engineOf(log)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := c.sizes(m); err != nil {
		return err
	}
	rc, audit, err := c.config(c.sourceFlags, reg, c.DrainTimeout)
	if err != nil {
		return err
	}
	defer audit.Close()
	ln, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	defer ln.Close()
	cl, err := cluster.New(ctx, cluster.Config{
		Engine: m, Prefill: c.Prefill, Decode: c.Decode,
		PrefillNode: prefill.Config{Capacity: c.PrefillCapacity, Window: c.Window, ClampWindow: c.ClampWindow, Chunk: c.Chunk, Version: version, DrainTimeout: c.DrainTimeout},
		DecodeNode:  decode.Config{Capacity: c.DecodeCapacity, Window: c.Window, ClampWindow: c.ClampWindow, MaxBatch: c.MaxBatch, Version: version, DrainTimeout: c.DrainTimeout},
		Router:      rc, Listener: ln, Metrics: metrics.New(), Log: log,
	})
	if err != nil {
		return err
	}
	go func() {
		if err := cl.Ready(ctx); err == nil {
			c.greet(ln.Addr().String(), rc.ModelID, key, m)
		}
	}()
	return cl.Run(ctx)
}

// tenants makes the registry; key is one that may be shown, or "".
func (c upCmd) tenants() (reg *tenant.Registry, key string, err error) {
	if c.TenantsFile != "" {
		reg, err = tenant.Load(c.TenantsFile)
		return reg, "", err
	}
	if len(c.Tenant) == 0 {
		key = tenant.NewKey()
		c.Tenant = []string{"default=" + key}
	} else {
		_, key, _ = strings.Cut(c.Tenant[0], "=")
	}
	reg = tenant.NewRegistry()
	return reg, key, addTenants(reg, c.Tenant)
}

// sizes fills in the capacities that were not given.
func (c *upCmd) sizes(m model.Engine) (err error) {
	if c.Prefill < 1 || c.Decode < 1 {
		return fmt.Errorf("--prefill is %d and --decode is %d, want at least one node each", c.Prefill, c.Decode)
	}
	window := c.Window
	if window == 0 {
		window = m.Facts().Window
	}
	layout := m.Facts().Layout
	budget := freeMemory() / kvShare
	if c.PrefillCapacity == 0 {
		if c.PrefillCapacity, err = capacityTokens(budget/prefillPoolShare/uint64(c.Prefill), layout, window, prefillWindows); err != nil {
			return fmt.Errorf("--prefill-capacity: %w", err)
		}
	}
	if c.DecodeCapacity == 0 {
		if c.DecodeCapacity, err = capacityTokens((budget-budget/prefillPoolShare)/uint64(c.Decode), layout, window, decodeWindows); err != nil {
			return fmt.Errorf("--decode-capacity: %w", err)
		}
	}
	return nil
}

// greet says what a person needs to try it.
func (c upCmd) greet(addr, id, key string, m model.Engine) {
	window := c.Window
	if window == 0 {
		window = m.Facts().Window
	}
	window = min(window, c.PrefillCapacity, c.DecodeCapacity)
	fmt.Printf("\nBulkhead is ready at http://%s\n", addr)
	for _, w := range warnings {
		fmt.Printf("  WARNING   %s\n", w)
	}
	fmt.Printf("  model     %s (window %d tokens)\n", id, window)
	fmt.Printf("  capacity  %d prefill x %d tokens, %d decode x %d tokens\n", c.Prefill, c.PrefillCapacity, c.Decode, c.DecodeCapacity)
	shown := key
	if shown == "" {
		shown = "$BULKHEAD_KEY"
	} else {
		fmt.Printf("  key       %s\n", key)
	}
	fmt.Printf("\nTry it:\n  curl -Ni http://%s/v1/chat/completions -H 'Authorization: Bearer %s' -H 'Content-Type: application/json' \\\n"+
		"    -d '{\"model\":\"%s\",\"stream\":true,\"stream_options\":{\"include_usage\":true},\"temperature\":0,\"max_tokens\":64,\"messages\":[{\"role\":\"user\",\"content\":\"What is the capital of France?\"}]}'\n\n", addr, shown, id)
}
