package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"bulkhead/internal/sim"
)

// simCmd runs the simulator.
type simCmd struct {
	N      uint64 `short:"n" help:"Schedules." default:"10000"`
	Seed   uint64 `help:"Seed of the first schedule; the others follow." default:"1"`
	Cores  int    `help:"Schedules at a time." default:"1"`
	JSON   bool   `help:"Print one JSON object."`
	Replay bool   `help:"Run the one schedule of the seed and print what happens."`
}

var errSim = errors.New("a schedule broke a promise")

func (c simCmd) Run(ctx context.Context) error {
	if c.Replay {
		v, err := sim.Replay(c.Seed, os.Stdout)
		if err == nil && v.Bad() {
			err = errSim
		}
		return err
	}
	cfg := sim.Config{Schedules: c.N, Seed: c.Seed, Cores: c.Cores}
	if !c.JSON {
		started := time.Now()
		cfg.Progress = func(done uint64) {
			fmt.Fprintf(os.Stderr, "\r%d of %d schedules, %.0f/s", done, c.N, float64(done)/time.Since(started).Seconds())
		}
	}
	r, err := sim.Run(ctx, cfg)
	if err != nil {
		return err
	}
	if c.JSON {
		if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
			return err
		}
	} else {
		fmt.Printf("\r%d schedules, %d requests of which %d were answered, %d readings of KV checked, %.0f schedules/s\n"+
			"wrong readings %d, of others' pages %d, requests without one right end %d, pages leaked %d\n",
			r.Schedules, r.Requests, r.Answered, r.Readings, r.PerSecond, r.Wrong, r.Foreign, r.Unfinished, r.LeakedPages)
	}
	if r.FirstBad != nil {
		if !c.JSON {
			for _, v := range r.FirstBad.Violations {
				fmt.Println(" ", v)
			}
			fmt.Printf("see: bulkhead sim --replay --seed %d\n", r.FirstBad.Seed)
		}
		return errSim
	}
	return nil
}
