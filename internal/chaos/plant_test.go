//go:build chaos

package chaos_test

import (
	"bufio"
	"context"
	"errors"
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
	"time"

	"bulkhead/internal/chaos"
	"bulkhead/internal/identity"
	"bulkhead/internal/tenant"
)

// plant is a cluster of real processes on loopback, each role's on a faulty network
// of its own: one nats-server, one router, and pools of prefill and decode nodes.
type plant struct {
	name    string
	dir     string
	bin     string
	url     string // of the router
	keys    *identity.Keys
	bus     string // the server's own address
	tenants []string
	procs   []*process // the nats-server first

	mu     sync.Mutex
	faults []string // what went wrong that nobody did; guarded by mu
}

// process is one role: its name stays, what runs under it changes.
type process struct {
	plant *plant
	role  string
	name  string
	args  []string
	admin string
	proxy *chaos.Proxy // nil: the nats-server
	log   string       // file

	mu     sync.Mutex
	cmd    *exec.Cmd     // guarded by mu, as the rest
	ended  chan struct{} // of cmd
	wanted bool          // its end is ours
	starts int
}

// plantConfig sizes a plant.
type plantConfig struct {
	name               string
	dir                string
	seed               uint64
	prefills, decodes  int
	prefillCap, decCap int // tokens
	window             int
	chunk              int
	routerFlags        []string
	observe            func(role string, d chaos.Direction, subject string, payload int)
}

// newPlant starts a cluster and waits until it is ready. Stop must be called, also after an error.
func newPlant(ctx context.Context, c plantConfig) (*plant, error) {
	bin, err := filepath.Abs(env("BULKHEAD_BIN", "../../bin/bulkhead"))
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(bin); err != nil {
		return nil, fmt.Errorf("no release binary (make build): %w", err)
	}
	p := &plant{name: c.name, dir: filepath.Join(c.dir, c.name), bin: bin}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return p, err
	}
	if p.keys, err = identity.NewMemory("chaos"); err != nil {
		return p, err
	}
	if err := p.keys.WriteTree(filepath.Join(p.dir, "keys")); err != nil {
		return p, err
	}
	reg := tenant.NewRegistry()
	for i := range 4 {
		key := fmt.Sprintf("sk-chaos-%s-%d-0123456789abcdef", c.name, i)
		if _, err := reg.Add(fmt.Sprintf("tenant-%d", i), key, tenant.Limits{}); err != nil {
			return p, err
		}
		p.tenants = append(p.tenants, key)
	}
	if err := reg.Save(filepath.Join(p.dir, "tenants.json")); err != nil {
		return p, err
	}
	addrs, err := addresses(3 + 1 + c.prefills + c.decodes)
	if err != nil {
		return p, err
	}
	p.bus, p.url = addrs[0], "http://"+addrs[1]
	add := func(role, name string, flags ...string) error {
		q := &process{plant: p, role: role, name: name, admin: addrs[2+len(p.procs)], log: filepath.Join(p.dir, name+".log")}
		q.args = append([]string{role, "--keys", "keys", "--admin", q.admin}, flags...)
		if role != "nats" {
			conf := chaos.Config{Upstream: p.bus, Seed: c.seed + uint64(len(p.procs))}
			if c.observe != nil {
				conf.Observe = func(d chaos.Direction, subject string, payload int) { c.observe(role, d, subject, payload) }
			}
			var err error
			if q.proxy, err = chaos.New(conf); err != nil {
				return err
			}
			q.args = append(q.args, "--engine", "provenance", "--provenance-window", strconv.Itoa(c.window), "--nats", "nats://"+q.proxy.Addr(), "--name", name, "--drain-timeout=5s")
		}
		p.procs = append(p.procs, q)
		return q.start()
	}
	if err := add("nats", "nats", "--listen", p.bus, "--store", filepath.Join(p.dir, "store")); err != nil {
		return p, err
	}
	if err := add("router", "r1", append([]string{"--listen", addrs[1], "--tenants-file", "tenants.json"}, c.routerFlags...)...); err != nil {
		return p, err
	}
	for i := range c.prefills {
		if err := add("prefill", fmt.Sprintf("p%d", i+1), "--capacity", strconv.Itoa(c.prefillCap), "--clamp-window", "--chunk", strconv.Itoa(c.chunk)); err != nil {
			return p, err
		}
	}
	for i := range c.decodes {
		if err := add("decode", fmt.Sprintf("d%d", i+1), "--capacity", strconv.Itoa(c.decCap), "--clamp-window"); err != nil {
			return p, err
		}
	}
	return p, p.ready(ctx)
}

// ready waits until every node announces itself to the router.
func (p *plant) ready(ctx context.Context) error {
	for {
		all := true
		for _, q := range p.procs {
			all = all && q.ask(ctx, "/readyz") == nil
		}
		if all {
			if _, err := get(ctx, p.url+"/readyz"); err == nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", p.name, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// pool returns the processes of a role.
func (p *plant) pool(role string) (all []*process) {
	for _, q := range p.procs {
		if q.role == role {
			all = append(all, q)
		}
	}
	return all
}

func (p *plant) fault(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, p.name+": "+fmt.Sprintf(format, args...))
}

// stop ends all processes, the bus last, and returns what went wrong on the way.
func (p *plant) stop() []string {
	for i := len(p.procs) - 1; i >= 0; i-- {
		p.procs[i].stop()
	}
	for _, q := range p.procs {
		if q.proxy != nil {
			q.proxy.Close()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults
}

// start runs the process. Its end, unless it is ours, is a fault of the plant.
func (q *process) start() error {
	log, err := os.OpenFile(q.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(q.plant.bin, q.args...)
	cmd.Dir, cmd.Stderr, cmd.Stdout = q.plant.dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // none is left behind
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	q.cmd, q.ended, q.wanted = cmd, ended, false
	q.starts++
	go func() {
		err := cmd.Wait()
		q.mu.Lock()
		wanted := q.wanted
		q.mu.Unlock()
		close(ended)
		if !wanted {
			q.plant.fault("%s ended by itself: %v", q.name, err)
		}
	}()
	return nil
}

// pid is the process id of what runs now.
func (q *process) pid() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.cmd.Process.Pid
}

func (q *process) signal(s syscall.Signal) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.cmd.Process.Signal(s)
}

// kill ends the process as a power cut would.
func (q *process) kill() {
	q.mu.Lock()
	q.wanted = true
	ended := q.ended
	err := q.cmd.Process.Kill()
	q.mu.Unlock()
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		q.plant.fault("kill %s: %v", q.name, err)
	}
	<-ended
}

// stop asks the process to end, and makes it.
func (q *process) stop() {
	q.mu.Lock()
	if q.cmd == nil {
		q.mu.Unlock()
		return
	}
	q.wanted = true
	ended := q.ended
	q.cmd.Process.Signal(syscall.SIGCONT) //nolint:errcheck // it may have ended
	q.cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended
	q.mu.Unlock()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		q.plant.fault("%s does not end on SIGTERM", q.name)
		q.kill()
	}
}

// hold pulls the process's cable; of the nats-server, everybody's.
func (q *process) hold(on bool) {
	for _, o := range q.plant.procs {
		if o.proxy != nil && (o == q || q.role == "nats") {
			o.proxy.Hold(on)
		}
	}
}

// sever ends the process's connections and refuses new ones; of the nats-server, everybody's.
func (q *process) sever(on bool) {
	for _, o := range q.plant.procs {
		if o.proxy != nil && (o == q || q.role == "nats") {
			o.proxy.Sever(on)
		}
	}
}

func (q *process) ask(ctx context.Context, path string) error {
	_, err := get(ctx, "http://"+q.admin+path)
	return err
}

// rss is the resident memory of the process in bytes.
func (q *process) rss() int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", q.pid()))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}

// metrics are the process's own, the sum over labels by name.
func (q *process) metrics(ctx context.Context) (map[string]float64, error) {
	text, err := get(ctx, "http://"+q.admin+"/metrics")
	if err != nil {
		return nil, err
	}
	m := map[string]float64{}
	for s := bufio.NewScanner(strings.NewReader(text)); s.Scan(); {
		line := s.Text()
		i := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || i < 0 {
			continue
		}
		v, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			return nil, err
		}
		name, _, _ := strings.Cut(line[:i], "{")
		m[name] += v
		m[line[:i]] = v
	}
	return m, nil
}

// brief is a client for questions that are answered at once or not at all.
var brief = &http.Client{Timeout: 2 * time.Second}

func get(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := brief.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", resp.StatusCode)
	}
	return string(b), err
}

// addresses are free ones on loopback.
func addresses(n int) (all []string, err error) {
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer ln.Close()
		all = append(all, ln.Addr().String())
	}
	return all, nil
}

func env(name, or string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return or
}
