package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"time"

	"bulkhead/internal/loadgen"
	"bulkhead/internal/tenant"
)

type benchIsolationCmd struct {
	Model     string        `help:"The model, a GGUF file." required:"" type:"existingfile"`
	Without   string        `help:"Binary of the bench build in which seal, token and tags are compiled out: go build -tags noisolation." required:"" type:"existingfile"`
	PromptLen []int         `help:"Tokens of the prompts; each is a case." default:"512,1024,2048,4096"`
	Gen       int           `help:"Tokens generated." default:"24"`
	Rounds    int           `help:"Pairs of requests of each case." default:"3"`
	Starts    int           `help:"How often both clusters are started anew: two processes of one binary differ for as long as they live." default:"5"`
	Threads   int           `help:"Threads of each engine; 0 is one per core." default:"0"`
	Capacity  int           `help:"Tokens of each pool." default:"8192"`
	Seed      uint64        `help:"Of the prompts." default:"1"`
	Start     time.Duration `help:"How long the two clusters may take to be ready." default:"30s"`
	JSON      bool          `help:"Print one JSON array."`
}

// Run measures what isolation costs: this binary, with everything on, against one without, each a whole cluster in
// a process of its own, in turns.
func (c benchIsolationCmd) Run(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// The two must be what they are taken for.
	for path, bare := range map[string]bool{self: false, c.Without: true} {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if bytes.Contains(b, bareText()) != bare {
			return fmt.Errorf("%s is a build without isolation: %v, want %v", path, !bare, bare)
		}
	}
	key := tenant.NewKey()
	all, err := loadgen.BenchPair(ctx, loadgen.PairConfig{
		Key: key, PromptLen: c.PromptLen, Gen: c.Gen, Rounds: c.Rounds, Seed: c.Seed, Starts: c.Starts,
		Start: func(ctx context.Context, n int) (with, without string, stop func(), err error) {
			var stops [2]func()
			for i := range 2 { // each is the first to start in turn
				arm := (i + n) % 2
				to, bin := &with, self
				if arm == 1 {
					to, bin = &without, c.Without
				}
				if *to, stops[i], err = c.start(ctx, bin, key); err != nil {
					if i == 1 {
						stops[0]()
					}
					return "", "", nil, err
				}
			}
			return with, without, func() { stops[1](); stops[0]() }, nil
		},
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(os.Stdout).Encode(all)
	}
	fmt.Printf("%d starts of both; cost: median over the starts (least, most)\n", c.Starts)
	fmt.Println("prompt  pairs   TTFT ms  without  cost                       ITL ms  without  cost")
	cost := func(c loadgen.Cost) string {
		return fmt.Sprintf("%+.2f%% (%+.2f%%, %+.2f%%)", c.Median, c.Least, c.Most)
	}
	for _, r := range all {
		fmt.Printf("%6d %6d %9.2f %8.2f  %-24s %8.3f %8.3f  %s\n", r.Prompt, r.Pairs, r.TTFT, r.TTFTWithout, cost(r.TTFTCost), r.ITL, r.ITLWithout, cost(r.ITLCost))
	}
	return nil
}

// bareText is what bare.go says and a release does not: written otherwise here, so that it
// is not in this binary for its own sake.
func bareText() []byte { return bytes.ToLower([]byte("NOISOLATION: this build")) }

// start runs a whole cluster in one process on a free port of loopback.
func (c benchIsolationCmd) start(ctx context.Context, bin, key string) (url string, stop func(), err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	address := ln.Addr().String()
	ln.Close()
	cmd := exec.Command(bin, "up", "--listen", address, "--model", c.Model, "--threads", strconv.Itoa(c.Threads), "--clamp-window", "--log-level=warn",
		"--prefill-capacity", strconv.Itoa(c.Capacity), "--decode-capacity", strconv.Itoa(c.Capacity), "--drain-timeout=1s")
	cmd.Env = append(os.Environ(), "BULKHEAD_TENANT=bench="+key) // not in the arguments, which all can read
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stop = func() {
		cmd.Process.Signal(os.Interrupt) //nolint:errcheck // it may have ended
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			cmd.Process.Kill() //nolint:errcheck // as above
			<-ended
		}
	}
	for deadline := time.Now().Add(c.Start); ; {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
		if err != nil {
			stop()
			return "", nil, err
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return "http://" + address, stop, nil
			}
		}
		select {
		case err := <-ended:
			return "", nil, fmt.Errorf("%s ended: %w", bin, errors.Join(err, errors.New("it did not become ready")))
		case <-ctx.Done():
			stop()
			return "", nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			stop()
			return "", nil, fmt.Errorf("%s is not ready after %s", bin, c.Start)
		}
	}
}
