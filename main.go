// Bulkhead serves large language models on separate prefill and decode pools.
//
// This file turns arguments into one role and runs it until a signal. Only
// package main reads arguments and the environment, and only main exits.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/alecthomas/kong"
)

// version is set by the linker (Makefile); warn adds to it.
var version = "dev"

// commands is the command line.
type commands struct {
	Up      upCmd      `cmd:"" help:"Run the whole cluster in one process: same code, same protocol, same checks."`
	Router  routerCmd  `cmd:"" help:"Run a router: the OpenAI-compatible HTTP edge."`
	Prefill prefillCmd `cmd:"" help:"Run a prefill node: prompts to sealed KV blocks."`
	Decode  decodeCmd  `cmd:"" help:"Run a decode node: verified KV blocks to tokens."`
	Nats    natsCmd    `cmd:"" help:"Run a nats-server with JetStream, set up for a cluster's keys."`
	Keys    keysCmd    `cmd:"" help:"Make a cluster's keys."`
	Tenant  tenantCmd  `cmd:"" help:"Manage the tenants file."`
	Bench   benchCmd   `cmd:"" help:"Measure."`
	Canary  canaryCmd  `cmd:"" help:"Look for leaks between the tenants of a live OpenAI-compatible server; exit status 2 if anything is found."`
	Sim     simCmd     `cmd:"" help:"Run simulated clusters under every fault of bus, nodes and clients, by seed."`
	Health  healthCmd  `cmd:"" help:"Ask a role whether it is well; the exit status says."`
	Version versionCmd `cmd:"" help:"Print the version."`
}

func main() {
	// Weights and pages are not the collector's; what is, is small and churned by
	// the bus, a frame at a time. Collecting at twice that size, Go's default, costs
	// a tenth of a transfer's CPU.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	var c commands
	k := kong.Parse(&c,
		kong.Name("bulkhead"),
		kong.Description("Large language models on separate prefill and decode pools: no response is ever computed from a KV page that was not written for that tenant, that request and that attempt."),
		kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.DefaultEnvars("BULKHEAD"),
	)
	// The first signal drains, the second ends at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	k.BindTo(ctx, (*context.Context)(nil))
	err := k.Run()
	var status exitStatus
	if errors.As(err, &status) {
		os.Exit(int(status))
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "bulkhead:", err)
		os.Exit(1)
	}
}

// exitStatus is an error of a command that has said what there is to say.
type exitStatus int

// Error implements error.
func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

type versionCmd struct{}

func (versionCmd) Run() error {
	fmt.Println(versionText())
	return nil
}
