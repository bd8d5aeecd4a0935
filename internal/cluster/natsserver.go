package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"bulkhead/internal/identity"
	"bulkhead/transfer"
)

// NATSConfig says how a nats-server is embedded.
type NATSConfig struct {
	Name     string // shown in logs; "" is "bulkhead"
	Host     string // "" is 127.0.0.1
	Port     int    // 0 is 4222, -1 is any free one
	StoreDir string // of JetStream's files; must not be ""
	Auth     identity.ServerAuth

	MaxMemory  int64 // bytes of all memory streams; 0: decided by the server from the machine's
	MaxStore   int64 // bytes of all file streams; 0 likewise
	MaxPayload int   // bytes; 0 is 8 MiB, less than transfer.MaxPayload is refused

	// NoListen keeps the server off the network: only in-process connections.
	NoListen bool
	Log      *slog.Logger // nil: silent

	gate *kvGate // of a decode node's KV server, instead of Auth
}

// natsStart is how long the server may take to be ready.
const natsStart = 20 * time.Second

// NATS is an embedded nats-server in operator mode: it lets in who shows a JWT
// that the account vouches for, with the rights of that JWT's role; or a decode node's KV server.
type NATS struct {
	s *server.Server
}

// StartNATS starts a server and returns when it takes connections.
func StartNATS(cfg NATSConfig) (*NATS, error) {
	opts, err := natsOptions(cfg)
	if err != nil {
		return nil, err
	}
	if !opts.DontListen && opts.Port > 0 {
		// The server itself would only log that the port is taken, and wait.
		ln, err := net.Listen("tcp", net.JoinHostPort(opts.Host, strconv.Itoa(opts.Port)))
		if err != nil {
			return nil, fmt.Errorf("cluster: nats-server: %w", err)
		}
		if err := ln.Close(); err != nil {
			return nil, fmt.Errorf("cluster: nats-server: %w", err)
		}
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("cluster: nats-server: %w", err)
	}
	if cfg.Log != nil {
		s.SetLoggerV2(natsLogger{cfg.Log}, false, false, false)
	}
	s.Start()
	if !s.ReadyForConnections(natsStart) {
		s.Shutdown()
		s.WaitForShutdown()
		return nil, fmt.Errorf("cluster: nats-server is not ready after %s at %s:%d", natsStart, opts.Host, opts.Port)
	}
	return &NATS{s: s}, nil
}

func natsOptions(cfg NATSConfig) (_ *server.Options, err error) {
	if cfg.Name == "" {
		cfg.Name = "bulkhead"
	}
	if cfg.Host == "" {
		cfg.Host = "127.0.0.1"
	}
	if cfg.Port == 0 {
		cfg.Port = server.DEFAULT_PORT
	}
	if cfg.MaxPayload == 0 {
		cfg.MaxPayload = 8 << 20
	}
	if cfg.MaxPayload < transfer.MaxPayload {
		return nil, fmt.Errorf("cluster: nats-server max_payload of %d bytes, needs at least %d", cfg.MaxPayload, transfer.MaxPayload)
	}
	if cfg.StoreDir == "" {
		return nil, errors.New("cluster: nats-server needs a store directory")
	}
	opts := &server.Options{
		ServerName: cfg.Name,
		Host:       cfg.Host,
		Port:       cfg.Port,
		DontListen: cfg.NoListen,
		NoSigs:     true, // signals are the program's, not the server's
		NoLog:      cfg.Log == nil,

		JetStream:          true,
		StoreDir:           cfg.StoreDir,
		JetStreamMaxMemory: cfg.MaxMemory,
		JetStreamMaxStore:  cfg.MaxStore,

		MaxPayload: int32(cfg.MaxPayload),
		// A decode node that is slow for a moment must not be cut off with a
		// window's worth of frames waiting for it.
		MaxPending: 256 << 20,
	}
	if cfg.gate != nil {
		opts.CustomClientAuthentication, opts.AlwaysEnableNonce = cfg.gate, true
		opts.MaxConn = kvConns
		return opts, nil
	}
	if opts.TrustedOperators, err = cfg.Auth.Operators(); err != nil {
		return nil, fmt.Errorf("cluster: nats-server: %w", err)
	}
	resolver := &server.MemAccResolver{}
	for key, jwt := range map[string]string{cfg.Auth.Account: cfg.Auth.AccountJWT, cfg.Auth.System: cfg.Auth.SystemJWT} {
		if err := resolver.Store(key, jwt); err != nil {
			return nil, fmt.Errorf("cluster: nats-server: account: %w", err)
		}
	}
	opts.AccountResolver, opts.SystemAccount = resolver, cfg.Auth.System
	return opts, nil
}

// ClientURL is where clients connect.
func (n *NATS) ClientURL() string { return n.s.ClientURL() }

// InProcessConn makes a connection without a socket; it is what
// transfer.Config.InProcess wants.
func (n *NATS) InProcessConn() (net.Conn, error) { return n.s.InProcessConn() }

// Shutdown stops the server and waits until it is gone. Its memory streams are
// gone with it.
func (n *NATS) Shutdown() {
	n.s.Shutdown()
	n.s.WaitForShutdown()
}

// natsLogger passes the server's log on. Its notices are debug lines here:
// they greet and say goodbye.
type natsLogger struct{ log *slog.Logger }

func (l natsLogger) Noticef(f string, v ...any) { l.log.Debug("nats-server: " + fmt.Sprintf(f, v...)) }
func (l natsLogger) Warnf(f string, v ...any)   { l.log.Warn("nats-server: " + fmt.Sprintf(f, v...)) }
func (l natsLogger) Errorf(f string, v ...any)  { l.log.Error("nats-server: " + fmt.Sprintf(f, v...)) }
func (l natsLogger) Fatalf(f string, v ...any) {
	l.log.Error("nats-server: fatal: " + fmt.Sprintf(f, v...))
}
func (l natsLogger) Debugf(string, ...any) {}
func (l natsLogger) Tracef(string, ...any) {}
