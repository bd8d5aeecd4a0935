package cluster_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/mutant"
	"bulkhead/internal/sample"
)

// build makes the binary as a release does.
func build(t *testing.T, flags ...string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "bulkhead")
	cmd := exec.Command("go", append(append([]string{"build", "-o", bin}, flags...), "bulkhead")...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return bin
}

// processes is a cluster of single roles on loopback.
type processes struct {
	t   *testing.T
	bin string
	dir string
}

// start runs a role; stop sends SIGTERM and wants a clean end.
func (p *processes) start(args ...string) (stop func()) {
	p.t.Helper()
	cmd := exec.Command(p.bin, args...)
	var log bytes.Buffer // read only when the process has ended
	cmd.Stderr, cmd.Dir = &log, p.dir
	must(p.t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			must(p.t, cmd.Process.Signal(syscall.SIGTERM))
			select {
			case err := <-ended:
				if err != nil {
					p.t.Errorf("%s: %v", args[0], err)
				}
				if p.t.Failed() {
					p.t.Logf("%s said:\n%s", args[0], tail(log.Bytes()))
				}
			case <-time.After(waitMax):
				cmd.Process.Kill() //nolint:errcheck // it is reported below
				<-ended
				p.t.Errorf("%s does not end on SIGTERM\n%s", args[0], tail(log.Bytes()))
			}
		})
	}
	p.t.Cleanup(stop)
	return stop
}

func tail(b []byte) []byte { return b[max(0, len(b)-4000):] }

// address is a free one on loopback.
func address(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer ln.Close()
	return ln.Addr().String()
}

// splitPrompts are 200: the shortest, each block border and its neighbours up
// to 2,000 tokens, and chance.
func splitPrompts() [][]int32 {
	rng := rand.New(rand.NewPCG(2026, 8))
	lengths := []int{1, 2, 3, 5, 8, 13, 21, 34, 1999, 2000}
	for border := 64; border < 2000; border += 64 {
		lengths = append(lengths, border-1, border, border+1)
	}
	for len(lengths) < 200 {
		lengths = append(lengths, 1+rng.IntN(2000))
	}
	prompts := make([][]int32, len(lengths))
	vocab := int32(engine().Facts().Vocab)
	for i, n := range lengths {
		for range n {
			prompts[i] = append(prompts[i], rng.Int32N(vocab))
		}
	}
	return prompts
}

// eog are the ids that a router tells the nodes of.
func eog() (ids []int32) {
	tok, _ := edge()
	for id := range int32(tok.VocabSize()) {
		if tok.EOG(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// goal: a generation split over processes and a real nats-server is, bit for
// bit, that of one process without a bus. method: the released binary, one
// process per role, 200 prompts over HTTP, greedy and sampled; text and every
// logprob compared. On the way: the binary has no switch in it that turns a check off, and
// every role ends cleanly.
func TestProcesses(t *testing.T) {
	bin := build(t)
	t.Run("no switches", func(t *testing.T) {
		b, err := os.ReadFile(bin)
		must(t, err)
		if !bytes.Contains(b, []byte("bulkhead kv prefix 1")) || !bytes.HasPrefix([]byte(mutant.PageOwner), []byte("mutant:")) {
			t.Fatal("texts are not found in the binary in this way")
		}
		if bytes.Contains(b, []byte("noisolation: this build")) {
			t.Error("a release binary is the bench build without isolation")
		}
		if i := bytes.Index(b, []byte("mutant:")); i >= 0 {
			t.Errorf("a release binary names a switch: %q", b[i:min(len(b), i+40)])
		}
	})

	dir := t.TempDir()
	p := &processes{t: t, bin: bin, dir: dir}
	keys, file := filepath.Join(dir, "keys"), filepath.Join(dir, "tenants.json")
	if out, err := exec.Command(bin, "keys", "init", "--dir", keys, "--tenants-file", file, "--tenant", "acme="+acmeKey).CombinedOutput(); err != nil {
		t.Fatalf("keys init: %v\n%s", err, out)
	}
	gguf, err := filepath.Abs(tinyChat)
	must(t, err)
	bus, web := address(t), address(t)
	nats := []string{"--nats", "nats://" + bus, "--keys", keys, "--admin=", "--log-level=warn", "--model", gguf}
	stops := []func(){p.start("nats", "--listen", bus, "--keys", keys, "--admin=", "--store", filepath.Join(dir, "store"))}
	stops = append(stops,
		p.start(append([]string{"router", "--listen", web, "--model-id", "tiny", "--tenants-file", file, "--drain-timeout=5s"}, nats...)...),
		p.start(append([]string{"prefill", "--capacity", "16384", "--threads", "2"}, nats...)...),
		p.start(append([]string{"decode", "--capacity", "32768", "--threads", "1", "--clamp-window", "--drain-timeout=5s"}, nats...)...))
	t.Cleanup(func() {
		for i := len(stops) - 1; i >= 0; i-- {
			stops[i]() // the bus last
		}
	})
	s := &site{t: t, url: "http://" + web, client: &http.Client{Timeout: 2 * waitMax}}
	t.Cleanup(s.client.CloseIdleConnections)
	s.eventually("the cluster is ready", func() bool {
		time.Sleep(20 * time.Millisecond)
		resp, err := s.client.Get(s.url + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == 200
	})

	prompts := splitPrompts()
	ids := eog()
	answers := make([]*response, len(prompts))
	params := func(i int) (b body, p sample.Params) {
		p = sample.Params{MaxNew: 5, Logprobs: true, TopLogprobs: 2, IgnoreEOS: true, EOG: ids}
		b = exact(prompts[i], 5).with(body{"logprobs": 2, "stream": i%3 == 0})
		if i%2 == 1 {
			b["temperature"], b["seed"], b["top_p"] = 0.75, i, 0.875
			p.Temperature, p.Seed, p.TopP = 0.75, uint64(i), 0.875
		}
		return b, p
	}
	t.Run("split equals whole", func(t *testing.T) {
		var wg sync.WaitGroup
		next := make(chan int)
		for range 8 {
			wg.Go(func() {
				for i := range next {
					b, _ := params(i)
					ctx, cancel := context.WithTimeout(context.Background(), waitMax)
					r, err := s.ask(ctx, acmeKey, completions, b, nil)
					cancel()
					if err != nil {
						r = &response{err: &gotError{Message: err.Error()}}
					}
					answers[i] = r
				}
			})
		}
		for i := range prompts {
			next <- i
		}
		close(next)
		wg.Wait()
		for i, r := range answers {
			_, p := params(i)
			if err := like(r, whole(t, prompts[i], p)); err != nil {
				t.Errorf("prompt %d of %d tokens: %v", i, len(prompts[i]), err)
			} else if r.usage != nil && r.usage.Prompt != len(prompts[i]) {
				t.Errorf("prompt %d of %d tokens: usage %+v", i, len(prompts[i]), r.usage)
			}
		}
	})
}
