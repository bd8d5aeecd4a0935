package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"bulkhead/internal/cluster"
	"bulkhead/internal/identity"
	"bulkhead/internal/tenant"
	"bulkhead/router"
)

// edgeFlags are the router's own, alone or in one process with the rest.
type edgeFlags struct {
	Listen            string        `help:"Address of the OpenAI-compatible API." default:"127.0.0.1:8080"`
	ModelID           string        `help:"The name that clients ask for; empty is the model file's."`
	AuditLog          string        `help:"File for the audit record, appended to; empty keeps none."`
	QueueTimeout      time.Duration `help:"How long a request may wait for a free pair of nodes." default:"30s"`
	FirstTokenTimeout time.Duration `help:"Deadline of the first token: queue, prefill and transfer together." default:"110s"`
	DefaultMaxTokens  int           `help:"For requests that name no maximum; 0 is up to the context limit." default:"0"`
	SSEHeartbeatAfter time.Duration `name:"sse-heartbeat-after" help:"A comment on a stream that is silent for so long; it commits the status. 0 is never." default:"15s"`
}

// config fills in what the flags say, and the tokenizer of the model file.
func (f edgeFlags) config(source sourceFlags, reg *tenant.Registry, drain time.Duration) (router.Config, io.Closer, error) {
	tok, header, err := source.tokenizer()
	if err != nil {
		return router.Config{}, nil, err
	}
	cfg := router.Config{
		Tenants: reg, Tokenizer: tok, Metadata: header, ModelID: f.ModelID, Version: version,
		QueueTimeout: f.QueueTimeout, FirstTokenTimeout: f.FirstTokenTimeout, DefaultMaxNew: f.DefaultMaxTokens,
		SSEHeartbeatAfter: f.SSEHeartbeatAfter, DrainTimeout: drain,
	}
	if cfg.ModelID == "" {
		cfg.ModelID = source.modelID()
	}
	var closer io.Closer = io.NopCloser(nil)
	if f.AuditLog != "" {
		file, err := os.OpenFile(f.AuditLog, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return router.Config{}, nil, fmt.Errorf("--audit-log: %w", err)
		}
		cfg.Audit, closer = file, file
	}
	return cfg, closer, nil
}

type routerCmd struct {
	nodeFlags   `embed:""`
	edgeFlags   `embed:""`
	sourceFlags `embed:""`
	TenantsFile string `help:"Tenants and the hashes of their keys; see bulkhead tenant." required:"" type:"existingfile"`
	StreamBytes int64  `help:"Hard bound of one decode node's KV stream, in bytes." default:"268435456"`
}

func (c routerCmd) Run(ctx context.Context) error {
	log, err := c.logger(identity.Router)
	if err != nil {
		return err
	}
	reg, err := tenant.Load(c.TenantsFile)
	if err != nil {
		return err
	}
	cfg, audit, err := c.config(c.sourceFlags, reg, c.DrainTimeout)
	if err != nil {
		return err
	}
	defer audit.Close()
	s, err := c.join(ctx, identity.Router, log)
	if err != nil {
		return err
	}
	cfg.Log, cfg.Metrics = s.log, s.metrics
	r, dir, err := cluster.NewRouter(s.Joined, cfg)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", c.Listen)
	if err != nil {
		s.Conn.Close()
		return err
	}
	keeper := cluster.Keeper{Bus: s.Conn, Dir: dir, MaxBytes: c.StreamBytes, Log: s.log}
	s.log.Info("router", "listen", ln.Addr().String(), "model", cfg.ModelID)
	return s.serve(ctx, r.Ready, r.Idle, func(ctx context.Context) error { return cluster.RunRouter(ctx, r, keeper, ln) })
}
