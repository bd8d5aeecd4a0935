package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/canary"
)

// statusFound is the exit status of a run that found something, so that a
// script can tell it from one that could not be (1).
const statusFound exitStatus = 2

type canaryCmd struct {
	URL            string            `help:"Address of an OpenAI-compatible server." required:"" placeholder:"http://HOST:PORT"`
	Key            map[string]string `help:"A tenant's key, NAME=KEY; two or more. Better in the environment, with ; between them." required:"" placeholder:"NAME=KEY"`
	Model          string            `help:"Name of the model; empty is the first that the server lists."`
	N              int               `short:"n" help:"Requests in all; 0 is 1000, or without end where there is a duration."`
	Duration       time.Duration     `help:"How long to go on; 0 is until all requests are sent."`
	Concurrency    int               `help:"Requests at once under load." default:"8"`
	Repeat         int               `help:"Answers of each prompt under load, beside the one alone." default:"3"`
	Timeout        time.Duration     `help:"Of one request." default:"5m"`
	Window         int               `help:"Longest prompt and output in tokens; 0 is what the server says (max_model_len)."`
	Long           int               `help:"Tokens of the prompts that fill the pools." default:"4096"`
	Boundary       int               `help:"Requests exactly at the window are sent where it is no larger than this; 1: never." default:"16384"`
	Prefix         int               `help:"Tokens of the prompts whose beginnings other tenants try." default:"512"`
	Seed           uint64            `help:"Of markers and order; 0 is random. The report names it."`
	Determinism    string            `help:"What must be the same when a request is repeated: bitwise (text and log probabilities), text, or off." enum:"bitwise,text,off" default:"bitwise"`
	ExpectReceipts bool              `help:"Every answer must have an x-bulkhead-receipt; else only if the server ever sends one."`
	AllowAnyKey    bool              `help:"The server is known not to check keys."`
	JSON           string            `help:"File for the report as JSON; - is standard output." placeholder:"FILE"`
}

func (c canaryCmd) Run(ctx context.Context) error {
	cfg := canary.Config{
		URL: c.URL, Model: c.Model, N: c.N, Duration: c.Duration, Concurrency: c.Concurrency, Repeat: c.Repeat,
		Timeout: c.Timeout, Window: c.Window, Long: c.Long, Boundary: c.Boundary, Prefix: c.Prefix, Seed: c.Seed,
		Determinism: canary.Determinism(c.Determinism), ExpectReceipts: c.ExpectReceipts, AllowAnyKey: c.AllowAnyKey,
	}
	for _, name := range slices.Sorted(maps.Keys(c.Key)) {
		cfg.Tenants = append(cfg.Tenants, canary.Tenant{Name: name, Key: c.Key[name]})
	}
	bar := newProgressBar(os.Stderr)
	cfg.Progress = bar.show
	rep, err := canary.Run(ctx, cfg)
	bar.end()
	if err != nil {
		if ctx.Err() != nil { // main takes an interrupt for a good end, but nothing was looked at
			err = errors.New("interrupted before there was anything to report")
		}
		return err
	}
	human := io.Writer(os.Stdout)
	if c.JSON == "-" {
		human = os.Stderr
	}
	printCanary(human, rep)
	if c.JSON != "" {
		if err := writeReport(c.JSON, rep); err != nil {
			return fmt.Errorf("--json: %w", err)
		}
	}
	switch {
	case !rep.Clean():
		return statusFound
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted after %d requests; nothing was found so far", rep.Sent)
	}
	return nil
}

func writeReport(path string, rep *canary.Report) error {
	raw, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return err
	}
	raw = append(raw, '\n')
	if path == "-" {
		_, err = os.Stdout.Write(raw)
		return err
	}
	return os.WriteFile(path, raw, 0o600)
}

// printCanary is the report for a person.
func printCanary(w io.Writer, r *canary.Report) {
	fmt.Fprintf(w, "%s, window %d, tenants %s, seed %d; the server takes %s\n", r.Model, r.Window, strings.Join(r.Tenants, " "), r.Seed, strings.Join(r.Takes, ", "))
	fmt.Fprintf(w, "requests  %d in %.1f s: %d answered, %d rejected as they had to be, %d cancelled, %d refused, %d failed\n", r.Sent, r.Seconds, r.OK, r.Rejected, r.Canceled, r.Refused, r.Failed)
	fmt.Fprintf(w, "compared  %d answers under load with the same one alone; %d over-length requests\n", r.Compared, r.Over)
	p := r.Prefix
	fmt.Fprintf(w, "prefixes  %d of other tenants tried: %d found in the cache (the tenant's own: %d); first text after %.1f ms (own %.1f, new %.1f)\n", p.Probes, p.Hits, p.OwnHits, p.ProbeMs, p.OwnMs, p.NewMs)
	if r.Window == 0 {
		fmt.Fprintln(w, "note      the window is not known: no over-length request was sent; --window names it")
	}
	if p.Probes > 0 && p.OwnHits == 0 {
		fmt.Fprintln(w, "note      cached_tokens shows no cache at all here: of prefixes only the times say something")
	}
	if r.Clean() {
		fmt.Fprintln(w, "findings  none")
		return
	}
	for _, k := range r.Kinds() {
		fmt.Fprintf(w, "FINDING   %-22s %d\n", k, r.Counts[k])
		shown := 0
		for _, f := range r.Findings {
			if f.Kind != k {
				continue
			}
			if shown++; shown > 3 {
				fmt.Fprintln(w, "          ...")
				break
			}
			of := ""
			if f.Of != "" {
				of = " of " + f.Of
			}
			if f.Tenant == "" { // about no one request
				fmt.Fprintf(w, "          %s\n", f.Detail)
				continue
			}
			fmt.Fprintf(w, "          tenant %s%s, prompt %d, %s: %s\n", f.Tenant, of, f.Prompt, f.Request, f.Detail)
		}
	}
	if r.Leak {
		fmt.Fprintln(w, "LEAK: one tenant's data reached another, or a prompt was answered that was never computed")
	}
}

// progressBar is one line that is rewritten on a terminal, and a line now and then elsewhere.
type progressBar struct {
	to   *os.File
	tty  bool
	last time.Time
}

// How often the bar moves, and how often a line is printed where there is no terminal.
const (
	barEvery  = 100 * time.Millisecond
	lineEvery = 10 * time.Second
)

func newProgressBar(to *os.File) *progressBar {
	info, err := to.Stat()
	return &progressBar{to: to, tty: err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb", last: time.Now()}
}

func (b *progressBar) show(p canary.Progress) {
	every := lineEvery
	if b.tty {
		every = barEvery
	}
	if time.Since(b.last) < every {
		return
	}
	b.last = time.Now()
	line := progressLine(p)
	if b.tty {
		fmt.Fprintf(b.to, "\r\x1b[K%s", line)
		return
	}
	fmt.Fprintln(b.to, line)
}

func (b *progressBar) end() {
	if b.tty {
		fmt.Fprint(b.to, "\r\x1b[K")
	}
}

// progressLine shows the part of the run that is done: of its requests or of its time, whichever is further.
func progressLine(p canary.Progress) string {
	part := 0.0
	if p.Of > 0 {
		part = float64(p.Sent) / float64(p.Of)
	}
	if p.Duration > 0 {
		part = max(part, float64(p.Elapsed)/float64(p.Duration))
	}
	const width = 24
	done := min(int(part*width), width)
	return fmt.Sprintf("[%s%s] %3.0f%% %6d requests %5.0f s %4d findings %s", strings.Repeat("#", done), strings.Repeat(".", width-done), 100*min(part, 1), p.Sent, p.Elapsed.Seconds(), p.Findings, p.Phase)
}
