//go:build e2e

// Package deploy_test runs the compose cluster end to end, as somebody who
// installs it would: build, up, ask, kill, scale, down.
//
// TestAnswers is the real model: a question answered, streamed and refused.
// TestFaults keeps a bounded load on a running cluster while nodes are killed,
// added and drained; its oracle is determinism: whatever happens, each answer is
// the one that the idle cluster gave, or a proper error.
//
// compose_test.go drives Docker, client_test.go speaks HTTP and judges answers,
// load_test.go keeps the load up, placement_test.go reads who did the work.
//
// Needs Docker with compose (docker compose, or docker-compose 1.29) and
// bin/bulkhead. Environment:
//
//	BULKHEAD_MODEL      model of TestAnswers (default: what scripts/get-model fetched)
//	BULKHEAD_E2E_MODEL  model of TestFaults (default: a tiny one from testdata, for speed)
//	BULKHEAD_E2E_PORT   first of two ports on 127.0.0.1 (default 18080)
package deploy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	realModel = "../models/smollm2-135m-instruct.gguf"
	tinyModel = "../internal/model/testdata/tiny-chat.gguf"
)

// goal: the cluster that the README starts answers on the real model as the API
// promises, and shows nothing of it anywhere else. method: one cluster, each
// promise once, then everything it logged is searched.
func TestAnswers(t *testing.T) {
	c := start(t, "bulkhead-e2e-answers", env("BULKHEAD_MODEL", realModel), 0)

	t.Run("Containers", func(t *testing.T) { checkHardening(t, c) })
	t.Run("Chat", func(t *testing.T) { checkChat(t, c) })
	t.Run("Stream", func(t *testing.T) { checkStream(t, c) })
	t.Run("OverLength", func(t *testing.T) { checkOverLength(t, c) })
	t.Run("WrongKey", func(t *testing.T) { checkWrongKey(t, c) })
	t.Run("NewTenant", func(t *testing.T) { checkNewTenant(t, c) })
	t.Run("Logs", func(t *testing.T) { checkLogs(t, c) })
	t.Run("Down", func(t *testing.T) { checkDown(t, c) })
}

// goal: no request is lost, cut short or left hanging by what happens to nodes.
// method: the same few prompts all the time, from two tenants, streamed and not;
// the events of a bad week one after another; each answer compared with the idle one.
func TestFaults(t *testing.T) {
	c := start(t, "bulkhead-e2e-faults", env("BULKHEAD_E2E_MODEL", tinyModel), 1)
	jobs := reference(t, c)

	t.Run("KillPrefill", func(t *testing.T) { checkKill(t, c, jobs, "prefill") })
	t.Run("KillDecode", func(t *testing.T) { checkKill(t, c, jobs, "decode") })
	t.Run("ScaleUp", func(t *testing.T) { checkScaleUp(t, c, jobs) })
	t.Run("ScaleDown", func(t *testing.T) { checkScaleDown(t, c, jobs) })
	t.Run("Containers", func(t *testing.T) { checkHardening(t, c) })
	t.Run("Logs", func(t *testing.T) { checkLogs(t, c) })
	t.Run("Down", func(t *testing.T) { checkDown(t, c) })
}

// start builds the image, brings a cluster up and waits until all its nodes are well.
func start(t *testing.T, project, model string, port int) *compose {
	t.Helper()
	model, err := filepath.Abs(model)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(model); err != nil {
		t.Fatalf("no model (make model fetches one): %v", err)
	}
	c := newCompose(t, project, model, port)
	c.cluster(t, "up")
	c.waitHealthy(t, map[string]int{"nats": 1, "router": 1, "prefill": 2, "decode": 2}, 2*time.Minute)
	c.waitReady(t, time.Minute)
	return c
}

func env(name, otherwise string) string {
	if v := strings.TrimSpace(os.Getenv(name)); v != "" {
		return v
	}
	return otherwise
}
