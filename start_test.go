package main

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

const tinyModel = "internal/model/testdata/tiny-chat.gguf"

// TestUpRefuses: what cannot work is an error of the start that names the flag or
// the value, never a panic.
func TestUpRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*upCmd)
		want   string
	}{
		"no prefill node":    {func(c *upCmd) { c.Prefill = 0 }, "--prefill is 0"},
		"no decode node":     {func(c *upCmd) { c.Decode = -1 }, "--decode is -1"},
		"negative chunk":     {func(c *upCmd) { c.Chunk = -1 }, "chunk of -1"},
		"negative batch":     {func(c *upCmd) { c.MaxBatch = -1 }, "-1 sequences"},
		"negative window":    {func(c *upCmd) { c.Window = -1 }, "window of -1"},
		"window > capacity":  {func(c *upCmd) { c.Window, c.DecodeCapacity = 4096, 1000 }, "--clamp-window"},
		"window > the model": {func(c *upCmd) { c.Window, c.PrefillCapacity, c.DecodeCapacity = 1<<20, 1<<20, 1<<20 }, "model's own"},
		"short key":          {func(c *upCmd) { c.Tenant = []string{"acme=short"} }, "16 to 256"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := upCmd{
				modelFlags: modelFlags{sourceFlags: sourceFlags{Model: tinyModel}, cpuFlags: cpuFlags{Threads: 1}},
				edgeFlags:  edgeFlags{Listen: "127.0.0.1:0"},
				logFlags:   logFlags{LogFormat: "json", LogLevel: "error"},
				Prefill:    1, Decode: 1, PrefillCapacity: 1 << 14, DecodeCapacity: 1 << 14,
			}
			c.change(&cmd)
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // should it start after all, it ends at once
			if err := cmd.Run(ctx); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

// TestKVServerFlags: what cannot be an embedded KV server's address is said before anything else is done.
func TestKVServerFlags(t *testing.T) {
	for _, c := range []struct {
		flags kvServerFlags
		want  string
	}{
		{kvServerFlags{KVServer: "embedded", KVListen: "127.0.0.1"}, "--kv-listen"},
		{kvServerFlags{KVServer: "embedded", KVListen: "127.0.0.1:70000"}, "--kv-listen"},
		{kvServerFlags{KVServer: "embedded", KVListen: "127.0.0.1:0", KVAdvertise: "http://h:80"}, "--kv-advertise"},
		{kvServerFlags{KVServer: "embedded", KVListen: "0.0.0.0:0", KVAdvertise: "nats://0.0.0.0:4333"}, "--kv-advertise"},
	} {
		err := decodeCmd{nodeFlags: nodeFlags{logFlags: logFlags{LogFormat: "json", LogLevel: "error"}}, kvServerFlags: c.flags}.Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error %v, want one of %s", c.flags, err, c.want)
		}
	}
}

// TestAdminTaken: a role whose admin address is taken does not start. It would be
// one that no health check reaches.
func TestAdminTaken(t *testing.T) {
	dir := t.TempDir()
	if err := (keysInitCmd{Dir: filepath.Join(dir, "keys"), Cluster: "test"}).Run(); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // without the check, the join fails with this and not with the address
	err = decodeCmd{
		nodeFlags: nodeFlags{
			Nats: "nats://127.0.0.1:1", Keys: filepath.Join(dir, "keys"), Name: "d0", Admin: taken.Addr().String(),
			logFlags: logFlags{LogFormat: "json", LogLevel: "error"},
		},
		modelFlags: modelFlags{sourceFlags: sourceFlags{Model: tinyModel}},
	}.Run(ctx)
	if err == nil || !strings.Contains(err.Error(), "admin listener") {
		t.Errorf("error %v, want one of the admin listener", err)
	}
}
