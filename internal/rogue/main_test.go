//go:build rogue

package rogue

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"testing"
)

// rogueEnv makes this test binary a rogue peer: its value is the Config.
const rogueEnv = "BULKHEAD_ROGUE"

func TestMain(m *testing.M) {
	text, ok := os.LookupEnv(rogueEnv)
	if !ok {
		os.Exit(m.Run())
	}
	var cfg Config
	err := json.Unmarshal([]byte(text), &cfg)
	if err == nil {
		log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
		err = Main(cfg, os.Stdin, os.Stdout, log)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
