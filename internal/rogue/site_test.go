//go:build rogue

package rogue

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/openai"
	"bulkhead/internal/tenant"
	"bulkhead/transfer"
)

const (
	waitMax = 30 * time.Second // for what should come at once
	window  = 16384            // tokens of the engine and of the honest pools
)

var tenantKeys = []string{"sk-acme-000000000000000000000001", "sk-umbrella-00000000000000000002"}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// site is a cluster of honest processes with one idle rogue of each role beside them.
type site struct {
	t      *testing.T
	dir    string
	web    *openai.Client                  // of the honest router
	edge   *openai.Client                  // of the rogue one
	admin  map[string]string               // of the honest nodes, by name
	rogues map[transfer.Role]*rogueProcess // by role
	pages  map[string]float64              // of the honest nodes' pools when nothing is in work
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir(), admin: map[string]string{}, rogues: map[transfer.Role]*rogueProcess{}}
	bin := filepath.Join(s.dir, "bulkhead")
	cmd := exec.Command("go", "build", "-o", bin, "bulkhead")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	keys, file := filepath.Join(s.dir, "keys"), filepath.Join(s.dir, "tenants.json")
	if out, err := exec.Command(bin, "keys", "init", "--dir", keys, "--tenants-file", file,
		"--tenant", "acme="+tenantKeys[0], "--tenant", "umbrella="+tenantKeys[1]).CombinedOutput(); err != nil {
		t.Fatalf("keys init: %v\n%s", err, out)
	}
	reg, err := tenant.Load(file)
	must(t, err)
	var ids []string
	for _, who := range reg.Tenants() {
		ids = append(ids, who.ID)
	}
	bus, web, edge := address(t), address(t), address(t)
	s.start("bus", bin, nil, "nats", "--listen", bus, "--keys", keys, "--admin=", "--log-level=warn", "--store", filepath.Join(s.dir, "store"))
	role := func(name, role string, flags ...string) {
		s.admin[name] = address(t)
		s.start(name, bin, nil, append([]string{role, "--name", name, "--nats", "nats://" + bus, "--keys", keys, "--admin", s.admin[name],
			"--engine=provenance", "--provenance-window", strconv.Itoa(window), "--log-level=info", "--drain-timeout=5s"}, flags...)...)
	}
	role("r1", "router", "--listen", web, "--tenants-file", file, "--first-token-timeout=10s")
	role("p1", "prefill", "--capacity", strconv.Itoa(16*window))
	role("d1", "decode", "--capacity", strconv.Itoa(16*window))
	s.web, err = openai.New("http://"+web, 512)
	must(t, err)
	t.Cleanup(s.web.Close)
	s.edge, err = openai.New("http://"+edge, 256)
	must(t, err)
	t.Cleanup(s.edge.Close)
	for name, r := range map[string]transfer.Role{"x-prefill": transfer.RolePrefill, "x-decode": transfer.RoleDecode, "x-router": transfer.RoleRouter} {
		s.rogues[r] = s.rogue(Config{Role: r, Name: name, Keys: keys, NATS: "nats://" + bus, Window: window, Tenants: ids, Listen: edge})
	}
	s.eventually("the cluster is ready", func() bool {
		resp, err := http.Get("http://" + web + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	s.eventually("both pools are announced", func() bool { s.pages = s.free(); return len(s.pages) == 4 })
	return s
}

// address is a free one on loopback.
func address(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer ln.Close()
	return ln.Addr().String()
}

// process is one node; its log is a file.
type process struct {
	name, log string
	cmd       *exec.Cmd
	ended     chan error
}

// start runs a node until the test ends, and holds that it did not end before.
func (s *site) start(name, bin string, prepare func(*exec.Cmd), args ...string) *process {
	s.t.Helper()
	p := &process{name: name, log: filepath.Join(s.dir, name+".log"), cmd: exec.Command(bin, args...), ended: make(chan error, 1)}
	log, err := os.Create(p.log)
	must(s.t, err)
	p.cmd.Stderr, p.cmd.Dir = log, s.dir
	if prepare != nil {
		prepare(p.cmd)
	}
	must(s.t, p.cmd.Start())
	log.Close()
	go func() { p.ended <- p.cmd.Wait() }()
	s.t.Cleanup(func() {
		select {
		case err := <-p.ended:
			s.t.Errorf("%s ended by itself: %v\n%s", name, err, p.tail())
			return
		default:
		}
		p.cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it is killed below
		select {
		case <-p.ended:
		case <-time.After(waitMax):
			p.cmd.Process.Kill() //nolint:errcheck // it may just have ended
			<-p.ended
			s.t.Errorf("%s does not end on SIGTERM", name)
		}
		if s.t.Failed() {
			s.t.Logf("%s said last:\n%s", name, p.tail())
		}
		if dir := os.Getenv("BULKHEAD_ROGUE_LOGS"); dir != "" { // to look at after a run
			if b, err := os.ReadFile(p.log); err == nil {
				os.WriteFile(filepath.Join(dir, name+".log"), b, 0o644) //nolint:errcheck // a help only
			}
		}
	})
	return p
}

func (p *process) tail() []byte {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return []byte(err.Error())
	}
	return b[max(0, len(b)-3000):]
}

// rogueProcess is this test binary as a rogue.
type rogueProcess struct {
	*process
	in  io.Writer
	out *bufio.Scanner
}

func (s *site) rogue(cfg Config) *rogueProcess {
	s.t.Helper()
	text, err := json.Marshal(cfg)
	must(s.t, err)
	self, err := os.Executable()
	must(s.t, err)
	r := &rogueProcess{}
	r.process = s.start(cfg.Name, self, func(cmd *exec.Cmd) {
		cmd.Env = append(os.Environ(), rogueEnv+"="+string(text))
		in, err := cmd.StdinPipe()
		must(s.t, err)
		out, err := cmd.StdoutPipe()
		must(s.t, err)
		r.in, r.out = in, bufio.NewScanner(out)
	})
	if !r.out.Scan() {
		s.t.Fatalf("%s does not start: %s", cfg.Name, r.tail())
	}
	return r
}

// set gives a rogue a mode and returns how many requests have met it.
func (s *site) set(r transfer.Role, mode string) int {
	s.t.Helper()
	p := s.rogues[r]
	fmt.Fprintln(p.in, mode)
	if !p.out.Scan() {
		s.t.Fatalf("%s is gone:\n%s", p.name, p.tail())
	}
	n, err := strconv.Atoi(p.out.Text())
	must(s.t, err)
	return n
}

func (s *site) eventually(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(waitMax); !ok(); time.Sleep(25 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("not within %s: %s", waitMax, what)
		}
	}
}

// series are all counts of the honest nodes, those of the same name added up.
func (s *site) series() map[string]float64 {
	s.t.Helper()
	all := map[string]float64{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, addr := range s.admin {
		wg.Go(func() {
			resp, err := http.Get("http://" + addr + "/metrics")
			if err != nil {
				return // what is missing is seen by who looks for it
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			mu.Lock()
			defer mu.Unlock()
			for line := range bytes.Lines(b) {
				name, value, ok := strings.Cut(strings.TrimSpace(string(line)), " ")
				if name, ours := strings.CutPrefix(name, "bulkhead_"); ok && ours {
					if v, err := strconv.ParseFloat(value, 64); err == nil {
						all[name] += v
					}
				}
			}
		})
	}
	wg.Wait()
	return all
}

// free are the pages of the honest pools that nobody holds, and those out of use.
func (s *site) free() map[string]float64 {
	out := map[string]float64{}
	for name, v := range s.series() {
		if strings.Contains(name, "_free_tokens{") || strings.Contains(name, "_quarantined_pages{") {
			out[name] = v
		}
	}
	return out
}

// ask sends one request to a router.
func (s *site) ask(c *openai.Client, key string, prompt string, maxNew int, stream bool) (*openai.Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	return c.Do(ctx, key, openai.Request{Model: "provenance", Text: prompt, MaxTokens: maxNew, Stream: stream})
}
