//go:build e2e

package deploy_test

import (
	"slices"
	"strings"
	"testing"
)

// checkHardening asks Docker what each container may do.
func checkHardening(t *testing.T, c *compose) {
	all := c.containers(t, "")
	if len(all) < 7 { // keys, nats, router, two of each pool
		t.Fatalf("only %d containers", len(all))
	}
	for _, k := range all {
		h := k.HostConfig
		switch {
		case k.Config.User != "65532:65532":
			t.Errorf("%s runs as %q", k.Name, k.Config.User)
		case !h.ReadonlyRootfs:
			t.Errorf("%s may write to its root", k.Name)
		case !slices.Contains(h.CapDrop, "ALL") || len(h.CapAdd) > 0 || h.Privileged:
			t.Errorf("%s has capabilities: drop %v, add %v, privileged %t", k.Name, h.CapDrop, h.CapAdd, h.Privileged)
		case !slices.ContainsFunc(h.SecurityOpt, func(s string) bool {
			return strings.HasPrefix(s, "no-new-privileges") && !strings.HasSuffix(s, "false")
		}):
			t.Errorf("%s may gain privileges: %v", k.Name, h.SecurityOpt)
		case h.PidMode == "host" || h.NetworkMode == "host":
			t.Errorf("%s shares the host's processes or network", k.Name)
		}
		for port, bindings := range h.PortBindings {
			for _, b := range bindings {
				if k.service() != "router" || port != "8080/tcp" || b.HostIP != "127.0.0.1" {
					t.Errorf("%s publishes %s on %s:%s", k.Name, port, b.HostIP, b.HostPort)
				}
			}
		}
		checkMounts(t, k)
	}
}

// checkMounts wants each role to see the public keys and its own, and to write nothing that stays.
func checkMounts(t *testing.T, k container) {
	for _, m := range k.Mounts {
		if k.service() == "keys" || m.Type == "tmpfs" {
			continue
		}
		if m.RW {
			t.Errorf("%s may write to %s", k.Name, m.Destination)
		}
		if key, ok := strings.CutPrefix(m.Destination, "/keys/"); ok && key != "public" && key != k.service() {
			t.Errorf("%s sees %s", k.Name, m.Destination)
		}
	}
}

// checkLogs searches all that was logged for prompts, answers and keys. That the search finds
// what is there is shown by what must be there: each role's beginning and the requests.
func checkLogs(t *testing.T, c *compose) {
	logs := c.logs(t)
	whole := map[string]string{}
	for _, k := range c.containers(t, "") {
		whole[k.service()] += logs[k.Name]
	}
	for _, service := range []string{"nats", "router", "prefill", "decode"} {
		if !strings.Contains(whole[service], `"msg":"started"`) {
			t.Errorf("%s logged no beginning: was its log read?", service)
		}
	}
	if !strings.Contains(whole["router"], `"msg":"request"`) {
		t.Error("the router logged no request")
	}
	for name, log := range logs {
		for i, secret := range c.secrets {
			if strings.Contains(log, secret) {
				t.Errorf("%s logged secret %d (prompt mark, keys, answers)", name, i)
			}
		}
	}
}

// checkDown stops the cluster: each container ends by itself with status 0 and
// nothing is left behind.
func checkDown(t *testing.T, c *compose) {
	c.mustRun(t, "stop")
	for _, k := range c.containers(t, "") {
		if k.State.Running || k.State.ExitCode != 0 || k.State.OOMKilled {
			t.Errorf("%s: running %t, exit status %d, out of memory %t\n%s", k.Name, k.State.Running, k.State.ExitCode, k.State.OOMKilled, tail(docker(t, "logs", k.ID), 2000))
		}
	}
	c.mustRun(t, "down", "-v")
	label := "label=com.docker.compose.project=" + c.project
	for _, kind := range []string{"container", "network", "volume"} {
		if left := strings.TrimSpace(docker(t, kind, "ls", "-q", "--filter", label)); left != "" {
			t.Errorf("left behind: %s %s", kind, left)
		}
	}
}
