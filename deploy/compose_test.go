//go:build e2e

package deploy_test

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// compose is one cluster under a project name of its own.
type compose struct {
	project string
	command []string // docker compose, or docker-compose
	env     []string
	url     string // of the router

	keys   [2]string // of the two tenants
	canary string    // stands in every prompt, and must stand in no log

	secrets []string          // texts that no log may hold: keys, canary, answers
	gone    map[string]string // logs of containers that were removed, by name
}

// newCompose prepares a cluster; nothing runs yet. When the test ends it is removed with
// all it had, and when the test failed its logs are shown.
func newCompose(t *testing.T, project, model string, port int) *compose {
	t.Helper()
	c := &compose{project: project, command: []string{"docker", "compose"}, canary: "canary" + random(), gone: map[string]string{}}
	if exec.Command("docker", "compose", "version").Run() != nil {
		if _, err := exec.LookPath("docker-compose"); err != nil {
			t.Fatal("neither docker compose nor docker-compose is there")
		}
		c.command = []string{"docker-compose"}
	}
	first, err := strconv.Atoi(env("BULKHEAD_E2E_PORT", "18080"))
	if err != nil {
		t.Fatalf("BULKHEAD_E2E_PORT: %v", err)
	}
	port += first
	c.url = fmt.Sprintf("http://127.0.0.1:%d", port)
	c.keys = [2]string{"sk-e2e-" + random(), "sk-e2e-" + random()}
	c.secrets = []string{c.canary, c.keys[0], c.keys[1]}
	c.env = append(os.Environ(),
		"COMPOSE_PROJECT_NAME="+project, "BULKHEAD_IMAGE=bulkhead:e2e", "BULKHEAD_PORT="+strconv.Itoa(port),
		"BULKHEAD_MODEL="+model, "BULKHEAD_MODEL_ID=e2e", "BULKHEAD_TENANT=acme="+c.keys[0]+",other="+c.keys[1])
	c.mustRun(t, "down", "-v", "--remove-orphans") // of a run that was cut off
	t.Cleanup(func() {
		if t.Failed() {
			for name, log := range c.logs(t) {
				t.Logf("the end of what %s logged:\n%s", name, tail(log, 4000))
			}
		}
		c.mustRun(t, "down", "-v", "--remove-orphans", "--timeout", "5")
	})
	return c
}

func random() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// mustRun runs a compose command.
func (c *compose) mustRun(t *testing.T, args ...string) string {
	t.Helper()
	argv := append(append(append([]string{}, c.command...), "-f", "compose.yaml"), args...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = c.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return string(out)
}

// docker runs a docker command and returns its output.
func docker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("docker", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("docker %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// cluster runs deploy/cluster, which is what people run.
func (c *compose) cluster(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("./cluster", args...)
	cmd.Env = c.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("deploy/cluster %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// container is what docker inspect says of one.
type container struct {
	ID    string `json:"Id"`
	Name  string
	State struct {
		Running   bool
		OOMKilled bool
		ExitCode  int
		Pid       int
		Health    *struct{ Status string }
	}
	Config struct {
		User   string
		Labels map[string]string
	}
	HostConfig struct {
		ReadonlyRootfs, Privileged bool
		CapAdd, CapDrop            []string
		SecurityOpt                []string
		PidMode, NetworkMode       string
		PortBindings               map[string][]struct{ HostIP, HostPort string }
	}
	Mounts []struct {
		Type, Source, Destination string
		RW                        bool
	}
}

func (c container) service() string { return c.Config.Labels["com.docker.compose.service"] }

// host is the container's host name, which stands in the name of its node.
func (c container) host() string { return c.ID[:12] }

// containers returns those of a service, or of all with "", stopped ones too.
func (c *compose) containers(t *testing.T, service string) []container {
	t.Helper()
	args := []string{"ps", "-aq", "--no-trunc", "--filter", "label=com.docker.compose.project=" + c.project}
	if service != "" {
		args = append(args, "--filter", "label=com.docker.compose.service="+service)
	}
	ids := strings.Fields(docker(t, args...))
	if len(ids) == 0 {
		return nil
	}
	var out []container
	if err := json.Unmarshal([]byte(docker(t, append([]string{"inspect"}, ids...)...)), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// waitHealthy waits until each service has so many containers that run and are well.
func (c *compose) waitHealthy(t *testing.T, want map[string]int, most time.Duration) {
	t.Helper()
	waitFor(t, most, func() error {
		well := map[string]int{}
		for _, k := range c.containers(t, "") {
			if k.State.Running && k.State.Health != nil && k.State.Health.Status == "healthy" {
				well[k.service()]++
			}
		}
		for service, n := range want {
			if well[service] != n {
				return fmt.Errorf("%d of %d %s containers are healthy", well[service], n, service)
			}
		}
		return nil
	})
}

// waitReady waits until the router would take a request.
func (c *compose) waitReady(t *testing.T, most time.Duration) {
	t.Helper()
	waitFor(t, most, func() error {
		resp, err := http.Get(c.url + "/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("/readyz answers %s", resp.Status)
		}
		return nil
	})
}

// waitFor asks again and again; it fails the test with the last answer when most is over.
func waitFor(t *testing.T, most time.Duration, ask func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(most); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if err = ask(); err == nil {
			return
		}
	}
	t.Fatalf("not within %s: %v", most, err)
}

// logs returns what each container wrote, those that are gone too.
func (c *compose) logs(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, log := range c.gone {
		all[name] = log
	}
	for _, k := range c.containers(t, "") {
		all[k.Name] = docker(t, "logs", k.ID)
	}
	return all
}
