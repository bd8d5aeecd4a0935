package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"bulkhead/internal/metrics"
)

// Admin is the listener of a role for machines that look after it: health
// checks and Prometheus. It shows no prompt, output, key or tenant name, and
// changes nothing.
type Admin struct {
	Version string
	Metrics *metrics.Registry
	Ready   func() error // why the role takes no work; nil is ready
	Log     *slog.Logger
}

// Handler is /livez, /readyz, /health, /metrics and /version.
func (a Admin) Handler() http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, status int, body map[string]string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(body); err != nil {
			a.Log.Debug("admin answer", "err", err)
		}
	}
	ready := func(w http.ResponseWriter, _ *http.Request) {
		if err := a.Ready(); err != nil {
			answer(w, http.StatusServiceUnavailable, map[string]string{"status": "not ready", "reason": err.Error()})
			return
		}
		answer(w, http.StatusOK, map[string]string{"status": "ready"})
	}
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]string{"status": "alive"})
	})
	mux.HandleFunc("GET /readyz", ready)
	mux.HandleFunc("GET /health", ready)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]string{"version": a.Version})
	})
	mux.Handle("GET /metrics", a.Metrics.Handler())
	return mux
}

// ListenAdmin takes the address of an Admin, so that a role whose address is
// taken says so at its start and not after it has joined.
func ListenAdmin(addr string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("cluster: admin listener: %w", err)
	}
	return ln, nil
}

// Serve answers on ln until ctx ends, and closes it.
func (a Admin) Serve(ctx context.Context, ln net.Listener) error {
	s := &http.Server{
		Handler: a.Handler(), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	if err := s.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
