package loadgen

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"bulkhead/internal/openai"
)

// ServeConfig says what BenchServe sends.
type ServeConfig struct {
	URL   string // of an OpenAI-compatible server
	Key   string
	Model string // "" is the first one that the server lists

	// Rate > 0 is an open loop: requests begin at the times of a Poisson process of so many per
	// second, whether or not earlier ones are done. 0 is a closed loop: Concurrency
	// clients, each of which sends its next request when it has its answer.
	Rate        float64
	Concurrency int           // clients of a closed loop, 0 is 1; of an open loop the most in flight, 0 is 1024
	Duration    time.Duration // how long requests begin; > 0
	Requests    int           // at most so many; 0 is requestsMax
	Timeout     time.Duration // of one request, from when it was due; 0 is 2 min
	PromptLen   []int         // tokens of a prompt, chosen at random from these
	GenLen      []int         // tokens generated, chosen at random from these
	Chat        bool          // chats of words, even where token ids are taken
	Seed        uint64        // of arrivals, lengths and prompts

	// An answer counts for goodput when it came whole, its first token within SLOTTFT of
	// when it was due, and 99 in 100 of the gaps between its tokens within SLOITL. 0 is no limit.
	SLOTTFT, SLOITL time.Duration
}

// Bounds of a run: it ends by itself, and its measurements fit in memory.
const (
	requestsMax = 100_000
	flightMax   = 4096
	rateMax     = 100_000
	lengthMax   = 1 << 20
	gapsMax     = 1 << 24
)

func (c *ServeConfig) check() error {
	if c.Requests == 0 {
		c.Requests = requestsMax
	}
	if c.Timeout == 0 {
		c.Timeout = 2 * time.Minute
	}
	if c.Concurrency == 0 {
		if c.Concurrency = 1; c.Rate > 0 {
			c.Concurrency = 1024
		}
	}
	switch {
	case c.Rate < 0 || c.Rate > rateMax || math.IsNaN(c.Rate):
		return fmt.Errorf("%w: rate of %v a second, want 0 to %d", ErrConfig, c.Rate, rateMax)
	case c.Concurrency < 1 || c.Concurrency > flightMax:
		return fmt.Errorf("%w: concurrency of %d, want 1 to %d", ErrConfig, c.Concurrency, flightMax)
	case c.Duration <= 0 || c.Timeout < 0:
		return fmt.Errorf("%w: duration of %s and timeout of %s, want more than 0", ErrConfig, c.Duration, c.Timeout)
	case c.Requests < 1 || c.Requests > requestsMax:
		return fmt.Errorf("%w: %d requests, want 1 to %d", ErrConfig, c.Requests, requestsMax)
	case len(c.PromptLen) == 0 || len(c.GenLen) == 0:
		return fmt.Errorf("%w: no length of prompts or of answers", ErrConfig)
	case c.SLOTTFT < 0 || c.SLOITL < 0:
		return fmt.Errorf("%w: a limit under 0", ErrConfig)
	}
	for _, n := range append(append([]int{}, c.PromptLen...), c.GenLen...) {
		if n < 1 || n > lengthMax {
			return fmt.Errorf("%w: length of %d tokens, want 1 to %d", ErrConfig, n, lengthMax)
		}
	}
	return nil
}

// shot is one request: everything about it is fixed by the seed, before it is sent.
type shot struct {
	due     time.Duration // since the start; of a closed loop 0: when a client is free
	request openai.Request
}

// gun makes shots. Its randomness is its own, so that a run is the same requests
// whatever the server does.
type gun struct {
	c   *ServeConfig
	can openai.Abilities
	rng *rand.Rand
	due float64 // seconds
}

func newGun(c *ServeConfig, can openai.Abilities) *gun {
	return &gun{c: c, can: can, rng: rand.New(rand.NewPCG(c.Seed, 0xbe9c4))}
}

func (g *gun) next() shot {
	s := shot{request: openai.Request{
		Model: g.can.Model, Stream: true, IgnoreEOS: g.can.IgnoreEOS,
		MaxTokens: g.c.GenLen[g.rng.IntN(len(g.c.GenLen))],
	}}
	if g.c.Rate > 0 {
		g.due += g.rng.ExpFloat64() / g.c.Rate
		s.due = time.Duration(min(g.due*float64(time.Second), math.MaxInt64/2))
	}
	n := g.c.PromptLen[g.rng.IntN(len(g.c.PromptLen))]
	if g.can.IDs && !g.c.Chat {
		s.request.IDs = make([]int32, n)
		for i := range s.request.IDs {
			s.request.IDs[i] = int32(openai.LowID + g.rng.IntN(openai.HighID-openai.LowID))
		}
		return s
	}
	s.request.Chat = g.c.Chat || !g.can.Completions
	s.request.Text = openai.Filler(g.rng, n, g.can.TokensPerWord)
	return s
}

// BenchServe loads a server and measures what a client sees. It finds out first what the server
// takes, with a handful of requests that do not count. It ends by itself: requests begin
// for Duration, and the last one ends within Timeout. When ctx ends it stops at once
// and returns what it has. Errors are ErrConfig and those of openai.Client.Discover.
func BenchServe(ctx context.Context, c ServeConfig) (*ServeResult, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	client, err := openai.New(c.URL, c.Concurrency)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	client.Resend = true // a request counts from when it was due, however often it is sent
	can, err := client.Discover(ctx, c.Key, c.Model)
	if err != nil {
		return nil, err
	}
	if c.Chat && !can.Chat {
		return nil, fmt.Errorf("%w: the server takes no chats", ErrConfig)
	}
	m := &measured{c: &c}
	start := time.Now()
	b := &bench{c: &c, client: client, measured: m, start: start}
	if c.Rate > 0 {
		b.open(ctx, newGun(&c, can))
	} else {
		b.closed(ctx, newGun(&c, can))
	}
	return m.result(can, time.Since(start)), nil
}

type bench struct {
	c        *ServeConfig
	client   *openai.Client
	measured *measured
	start    time.Time
}

// open sends each request when it is due. One that would be over the most in flight
// is not sent and counted as shed: to wait for a place would make the loop a closed one.
func (b *bench) open(ctx context.Context, g *gun) {
	places := make(chan struct{}, b.c.Concurrency)
	var wg sync.WaitGroup
	defer wg.Wait()
	for range b.c.Requests {
		s := g.next()
		if s.due > b.c.Duration {
			return
		}
		if !sleep(ctx, time.Until(b.start.Add(s.due))) {
			return
		}
		select {
		case places <- struct{}{}:
			wg.Go(func() {
				b.fire(ctx, s, b.start.Add(s.due))
				<-places
			})
		default:
			b.measured.shed()
		}
	}
}

// closed has each client send when its last answer has come.
func (b *bench) closed(ctx context.Context, g *gun) {
	var mu sync.Mutex // guards g and left
	left := b.c.Requests
	next := func() (s shot, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if left == 0 || ctx.Err() != nil || time.Since(b.start) >= b.c.Duration {
			return s, false
		}
		left--
		return g.next(), true
	}
	var wg sync.WaitGroup
	for range b.c.Concurrency {
		wg.Go(func() {
			for s, ok := next(); ok; s, ok = next() {
				b.fire(ctx, s, time.Now())
			}
		})
	}
	wg.Wait()
}

// fire sends one request. Times count from when it was due: a client that is late because the
// machine is busy must not make the server look fast.
func (b *bench) fire(ctx context.Context, s shot, due time.Time) {
	ctx, cancel := context.WithDeadline(ctx, due.Add(b.c.Timeout))
	defer cancel()
	late := time.Since(due)
	a, err := b.client.Do(ctx, b.c.Key, s.request)
	b.measured.add(s, a, err, late)
}

// sleep waits, and returns whether ctx is still good.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
