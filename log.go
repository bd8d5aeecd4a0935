package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
)

// logFlags are shared by every role.
type logFlags struct {
	LogFormat string `help:"Log format." enum:"text,json" default:"json"`
	LogLevel  string `help:"Log level." enum:"debug,info,warn,error" default:"info"`
}

// logger writes to stderr: stdout is for what a command prints. Each role makes one before
// all else, and so a build that is not a release says it first.
func (f logFlags) logger(role string) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.LogLevel)); err != nil {
		return nil, fmt.Errorf("--log-level: %w", err)
	}
	log := newLogger(os.Stderr, f.LogFormat, level)
	if role != "" { // one process with all roles: each names itself
		log = log.With("role", role)
	}
	for _, w := range warnings {
		log.Error(w, "version", version)
	}
	return log, nil
}

func newLogger(w io.Writer, format string, level slog.Level) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if format == "text" {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}
