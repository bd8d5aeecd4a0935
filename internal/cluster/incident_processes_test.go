package cluster_test

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"bulkhead/internal/cluster"
	"bulkhead/internal/identity"
	"bulkhead/internal/provenance"
	"bulkhead/internal/tenant"
	"bulkhead/internal/tokenizer"
	"bulkhead/transfer"
)

// The incident of 2026 in its own numbers; docs/incident.md tells it.
const (
	trueWindow  = 1_048_576 // of the model
	truePrefill = 681_280   // tokens of the prefill pool
	trueDecode  = 1_048_640 // tokens of the decode pool: it would hold a whole window
)

// incidentRequests is how many requests tenant B sends: six rounds, or with
// make incident as many as there were responses.
var incidentRequests = flag.Int("incident-requests", 36, "requests of tenant B in TestIncidentProcesses")

// trueLengths are what tenant B asks for: prompt + max_new, the number that the limit is
// about. The first two can be served.
var trueLengths = []int{truePrefill - 1, truePrefill, truePrefill + 1, 1_000_000, trueWindow, trueWindow + 1}

// trueScale is a cluster of processes, one role each, with the provenance engine.
type trueScale struct {
	*site
	tok    *tokenizer.Tokenizer
	oracle *provenance.Oracle
	dir    *transfer.Directory
	ids    map[string]string // of the tenants, by their keys
	conn   *nats.Conn
	work   atomic.Int64 // messages that a router sent to a node about a request
}

// newTrueScale starts the processes of a binary; the environment is added to theirs.
func newTrueScale(t *testing.T, bin string, env ...string) *trueScale {
	t.Helper()
	dir := t.TempDir()
	s := &trueScale{site: &site{t: t, client: &http.Client{Timeout: 4 * waitMax}}, ids: map[string]string{}}
	keys, err := identity.NewMemory("incident")
	must(t, err)
	must(t, keys.WriteTree(filepath.Join(dir, "keys")))
	reg := tenant.NewRegistry()
	for name, key := range map[string]string{"acme": acmeKey, "umbrella": umbrellaKey} {
		who, err := reg.Add(name, key, tenant.Limits{})
		must(t, err)
		s.ids[key] = who.ID
	}
	must(t, reg.Save(filepath.Join(dir, "tenants.json")))
	e, err := provenance.New(provenance.Config{})
	must(t, err)
	s.oracle = e.NewOracle()
	s.tok, _, err = provenance.NewTokenizer()
	must(t, err)

	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	p := &processes{t: t, bin: bin, dir: dir}
	bus, web := address(t), address(t)
	join := func(role string, flags ...string) func() {
		return p.start(append([]string{role, "--nats", "nats://" + bus, "--keys", "keys", "--engine", "provenance", "--admin=", "--log-level=warn"}, flags...)...)
	}
	stops := []func(){
		p.start("nats", "--listen", bus, "--keys", "keys", "--admin=", "--log-level=warn", "--store", "store"),
		join("router", "--listen", web, "--tenants-file", "tenants.json", "--drain-timeout=5s"),
		join("prefill", "--name=p1", "--capacity", fmt.Sprint(truePrefill), "--clamp-window", "--chunk=8192"),
		join("decode", "--name=d1", "--capacity", fmt.Sprint(trueDecode), "--drain-timeout=5s"),
	}
	t.Cleanup(func() {
		for i := len(stops) - 1; i >= 0; i-- {
			stops[i]() // the bus last
		}
	})
	s.url = "http://" + web
	t.Cleanup(s.client.CloseIdleConnections)
	s.eventually("the cluster is ready", func() bool {
		time.Sleep(20 * time.Millisecond)
		resp, err := s.client.Get(s.url + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	s.watch(keys, "nats://"+bus)
	return s
}

// watch counts what a router says to the nodes, and hears who they are.
func (s *trueScale) watch(keys *identity.Keys, bus string) {
	s.t.Helper()
	s.conn = newForger(s.t, keys).everything(bus)
	for _, subject := range []string{"job.>", "cancel.>"} {
		_, err := s.conn.Subscribe(subject, func(*nats.Msg) { s.work.Add(1) })
		must(s.t, err)
	}
	must(s.t, s.conn.Flush())
	m, err := keys.Minter(identity.Router)
	must(s.t, err)
	j, err := cluster.Join{Minter: m, Name: "watcher", URL: bus, Log: testLog(), Counters: new(transfer.Counters)}.Connect(within(s.t))
	must(s.t, err)
	s.t.Cleanup(j.Conn.Close)
	s.dir, err = j.Peer.WatchPeers(transfer.RolePrefill, transfer.RoleDecode)
	must(s.t, err)
	s.t.Cleanup(s.dir.Close)
	s.eventually("both nodes' announcements", func() bool {
		_, _, p := s.dir.Get(transfer.RolePrefill, "p1")
		_, _, d := s.dir.Get(transfer.RoleDecode, "d1")
		return p && d
	})
}

// exchanged is one request with its answer.
type exchanged struct {
	*response
	key    string
	length int
	prompt []int32
	answer []int32 // the tokens of the text
}

// ask sends a prompt of marks so long that with max tokens it is of the length.
func (s *trueScale) ask(key, mark string, length, maxNew int, stream bool) (*exchanged, error) {
	n := length - maxNew
	text := strings.Repeat(mark, n/len(mark)+1)[:n]
	r, err := s.site.ask(within(s.t), key, completions, body{"model": "provenance", "prompt": text, "max_tokens": maxNew, "stream": stream}, nil)
	if err != nil {
		return nil, err
	}
	a := &exchanged{response: r, key: key, length: length, prompt: s.tok.Encode(text)}
	if c := r.choices[0]; c != nil {
		a.answer, err = digits(c.text)
	}
	return a, err
}

// digits are the tokens of an answer's text.
func digits(text string) (ids []int32, err error) {
	for len(text) > 0 {
		var d int32
		if _, err := fmt.Sscanf(text, "[p%1x]", &d); err != nil || len(text) < 4 {
			return nil, fmt.Errorf("%q is no answer of this engine", text)
		}
		ids, text = append(ids, provenance.FirstDigit+d), text[4:]
	}
	return ids, nil
}

// right says what is wrong with the answer to a request that can be served.
func (s *trueScale) right(a *exchanged, maxNew int, stream bool) error {
	want := s.oracle.Expected(a.prompt, maxNew)
	if n := len(want); want[n-1] == provenance.EOG {
		want = want[:n-1]
	}
	switch {
	case a.status != http.StatusOK || a.err != nil:
		return fmt.Errorf("status %d, error %+v, want an answer", a.status, a.err)
	case !slices.Equal(a.answer, want):
		return fmt.Errorf("answer %v, want %v", a.answer, want)
	case !stream && a.usage.Prompt != len(a.prompt):
		return fmt.Errorf("%d prompt tokens are reported, %d were sent", a.usage.Prompt, len(a.prompt))
	case a.done != stream || a.header.Get("x-bulkhead-receipt") == "":
		return fmt.Errorf("[DONE] %v, receipt %q", a.done, a.header.Get("x-bulkhead-receipt"))
	}
	return nil
}

// round is one turn through trueLengths: first those over the limit, each as A left
// the pools, then those at it.
var round = []int{2, 3, 4, 5, 0, 1}

// goal: the incident cannot happen, at the scale at which it did, on the released binary. method: a
// cluster of processes whose window and pools are the incident's. Tenant A fills the prefill pool with
// marked prompts again and again; between, and while it does, tenant B asks for lengths on both sides of the limit, streaming
// or not. At the limit B's answer is right in every token, and every page of it was A's before. Over it: 400 that
// names both numbers, and not one message to any node.
func TestIncidentProcesses(t *testing.T) {
	const maxNew = 4
	bin := build(t)
	t.Run("a node with the mismatch does not start", func(t *testing.T) { mismatchRefused(t, bin) })
	s := newTrueScale(t, bin)
	if got := s.advertised(); got != truePrefill {
		t.Errorf("/v1/models shows a window of %d, want %d", got, truePrefill)
	}
	served, refused := 0, 0
	fill := func(turn int) {
		a, err := s.ask(acmeKey, fmt.Sprintf("CNRY-acme-%d ", turn), truePrefill, maxNew, turn%2 == 0)
		if err == nil {
			err = s.right(a, maxNew, turn%2 == 0)
		}
		if err != nil {
			t.Errorf("tenant A, turn %d: %v", turn, err)
		}
	}
	for i := range *incidentRequests {
		turn, step := i/len(round), i%len(round)
		length, stream := trueLengths[round[step]], turn%2 == 1
		var beside sync.WaitGroup
		switch step {
		case 0: // while A works, B asks for too much
			beside.Go(func() { fill(turn) })
			served++
		case 5:
			fill(turn)
			served++
		}
		b, err := s.ask(umbrellaKey, fmt.Sprintf("CNRY-umbrella-%d ", i), length, maxNew, stream)
		must(t, err)
		beside.Wait()
		name := fmt.Sprintf("request %d: length %d, stream %v", i, length, stream)
		if length <= truePrefill {
			served++
			if err := s.right(b, maxNew, stream); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		refused++
		value := length
		if len(b.prompt) > truePrefill {
			value = len(b.prompt) // alone over the limit
		}
		wantTooLong(t, b.response, truePrefill, value)
		if len(b.choices) != 0 || t.Failed() {
			t.Fatalf("%s: %+v", name, b.choices)
		}
	}
	// A job goes to two nodes; what was refused went to none.
	if got := s.sent(); got != int64(2*served) {
		t.Errorf("%d messages to the nodes for %d requests that were served, want %d", got, served, 2*served)
	}
	t.Logf("%d requests of B: %d refused before anything was sent; with A's, %d served and right", *incidentRequests, refused, served)
}

// sent is how many messages about requests the nodes were sent so far.
func (s *trueScale) sent() int64 {
	must(s.t, s.conn.Flush())
	return s.work.Load()
}

// advertised is the window that clients are told.
func (s *trueScale) advertised() int {
	req, err := http.NewRequestWithContext(within(s.t), http.MethodGet, s.url+"/v1/models", nil)
	must(s.t, err)
	req.Header.Set("Authorization", "Bearer "+umbrellaKey)
	resp, err := s.client.Do(req)
	must(s.t, err)
	defer resp.Body.Close()
	var list struct {
		Data []struct {
			Max int `json:"max_model_len"`
		}
	}
	must(s.t, decodeJSON(resp.Body, &list))
	if len(list.Data) != 1 {
		s.t.Fatalf("/v1/models lists %+v", list.Data)
	}
	return list.Data[0].Max
}

// mismatchRefused starts a node as those of the incident were: it must end, and say why.
func mismatchRefused(t *testing.T, bin string) {
	dir := t.TempDir()
	keys, err := identity.NewMemory("incident")
	must(t, err)
	must(t, keys.WriteTree(filepath.Join(dir, "keys")))
	for _, role := range []string{"prefill", "decode"} {
		cmd := exec.CommandContext(within(t), bin, role, "--keys", "keys", "--admin=", "--engine=provenance", "--capacity", fmt.Sprint(truePrefill))
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("%s: %v, want exit status 1", role, err)
		}
		for _, want := range []string{fmt.Sprint(truePrefill), fmt.Sprint(trueWindow), "--clamp-window"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s says %q, which does not name %s", role, out, want)
			}
		}
	}
}
