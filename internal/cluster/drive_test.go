package cluster_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/decode"
	"bulkhead/internal/cluster"
	"bulkhead/internal/metrics"
	"bulkhead/internal/model"
	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
	"bulkhead/kernels"
	"bulkhead/kernels/cpu"
	"bulkhead/prefill"
	"bulkhead/transfer"
)

// Here a test is the router: it grants, reserves, submits and listens with the
// product's own calls, one step at a time, so that it can do each step wrongly.

const tinyChat = "../model/testdata/tiny-chat.gguf"

// engine is the tiny model, once per test process.
var engine = sync.OnceValue(func() *model.Model {
	b, err := cpu.New(cpu.Config{Threads: 2})
	if err != nil {
		panic(err)
	}
	m, err := model.Open(tinyChat, b)
	if err != nil {
		panic(err)
	}
	return m
})

// testLog shows what roles log when BULKHEAD_TEST_LOG is set.
func testLog() *slog.Logger {
	if os.Getenv("BULKHEAD_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// driver is the router's side of the protocol, in a test's hands.
type driver struct {
	*node
	t   *testing.T
	w   *world
	dir *transfer.Directory
}

func (w *world) join(role, name string) *cluster.Joined {
	w.t.Helper()
	m, err := w.keys.Minter(role)
	must(w.t, err)
	ctx, cancel := context.WithTimeout(context.Background(), waitMax)
	defer cancel()
	j, err := cluster.Join{Minter: m, Name: name, URL: w.nats.ClientURL(), Log: testLog(), Counters: new(transfer.Counters)}.Connect(ctx)
	must(w.t, err)
	return j
}

// drained is what a node leaves behind: run it and check its pages at the end.
func (w *world) run(j *cluster.Joined, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				w.t.Errorf("%s: %v", j.Node.Name, err)
			}
			j.Conn.Close()
		})
	}
	w.t.Cleanup(stop)
	return stop
}

func (w *world) prefill(name string, capacity int, change ...func(*prefill.Config)) *prefill.Node {
	w.t.Helper()
	j := w.join("prefill", name)
	cfg := prefill.Config{Peer: j.Peer, Engine: engine(), Capacity: capacity, ClampWindow: true, Metrics: prefill.NewMetrics(metrics.New()), Log: testLog()}
	for _, f := range change {
		f(&cfg)
	}
	n, err := prefill.New(cfg)
	must(w.t, err)
	w.run(j, n.Run)
	return n
}

func (w *world) decode(name string, capacity int, change ...func(*decode.Config)) *decode.Node {
	w.t.Helper()
	j := w.join("decode", name)
	cfg := decode.Config{Peer: j.Peer, Engine: engine(), Capacity: capacity, ClampWindow: true, Metrics: decode.NewMetrics(metrics.New()), Log: testLog()}
	for _, f := range change {
		f(&cfg)
	}
	n, err := decode.New(cfg)
	must(w.t, err)
	w.run(j, n.Run)
	return n
}

func (w *world) driver(name string) *driver {
	w.t.Helper()
	d := &driver{node: w.node("router", name), t: w.t, w: w}
	var err error
	d.dir, err = d.WatchPeers(transfer.RolePrefill, transfer.RoleDecode)
	must(w.t, err)
	w.t.Cleanup(d.dir.Close)
	return d
}

// pair waits until both nodes can be used.
func (d *driver) pair(prefill, decode string) (p, q transfer.Announce) {
	d.t.Helper()
	made := false
	for end := time.Now().Add(waitMax); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		var ok1, ok2 bool
		p, _, ok1 = d.dir.Get(transfer.RolePrefill, prefill)
		q, _, ok2 = d.dir.Get(transfer.RoleDecode, decode)
		if ok2 && !made {
			must(d.t, d.bus.EnsureKV(context.Background(), decode, 64<<20))
			made = true
		}
		if ok1 && ok2 && p.Ready && q.Ready {
			return p, q
		}
	}
	d.t.Fatalf("%s and %s are not both there", prefill, decode)
	return p, q
}

// try is one attempt, as the router would make it.
type try struct {
	job  transfer.Job
	hash transfer.Hash
	p, q transfer.Announce
	out  chan heard
}

type heard struct {
	from transfer.Role
	body transfer.OutputBody
	err  error
}

// grant makes an attempt's token and job, and listens for its output.
func (d *driver) grant(p, q transfer.Announce, prompt []int32, params sample.Params, change ...func(*tenant.Claims, *transfer.Job)) *try {
	d.t.Helper()
	t := &try{p: p, q: q, out: make(chan heard, 4096)}
	c := tenant.Claims{
		Tenant: "acme", Attempt: 1, Model: q.Model, PromptLen: len(prompt),
		BlockTokens: tenant.BlockTokens, Blocks: tenant.Blocks(len(prompt)), MaxNew: params.MaxNew,
		Prefill: p.Node, Decode: q.Node, DecodeEpoch: q.Epoch, PrefixScope: [32]byte{1},
		IssuedAt: time.Now(), NotBefore: time.Now().Add(-time.Second), Expires: time.Now().Add(time.Minute),
		Router: d.id.Name,
	}
	c.NotBefore = c.IssuedAt
	rand.Read(c.Request[:])
	t.job = transfer.Job{Prompt: prompt, Params: params, Deadline: time.Now().Add(waitMax)}
	rand.Read(t.job.Salt[:])
	rand.Read(t.job.ReplyKey[:])
	c.PromptDigest = tenant.PromptDigest(t.job.Salt, prompt)
	for _, f := range change {
		f(&c, &t.job)
	}
	d.seal(t, c)
	return t
}

// seal signs the token and listens.
func (d *driver) seal(t *try, c tenant.Claims) {
	d.t.Helper()
	reply := transfer.OutSubject{Router: d.id.Name, Request: transfer.ID(c.Request)}
	c.ReplyBinding = tenant.ReplyBinding(reply.Scope(), t.job.ReplyKey)
	var err error
	t.job.Token, err = tenant.Sign(c, d.id.Private(), d.w.auth.ClusterID())
	must(d.t, err)
	t.hash = transfer.TokenHash(t.job.Token)
	reply.Token = transfer.Fingerprint(t.hash)
	t.job.Reply = reply.String()
	stop, err := d.ReceiveOutput(t.job.Reply, t.job.ReplyKey, t.hash,
		func(from transfer.Role, b transfer.OutputBody) { t.out <- heard{from: from, body: b} },
		func(err error) { t.out <- heard{err: err} })
	must(d.t, err)
	d.t.Cleanup(stop)
}

func (d *driver) submit(t *try) error {
	ctx, cancel := context.WithTimeout(context.Background(), waitMax)
	defer cancel()
	if _, err := d.SubmitJob(ctx, t.q, t.job); err != nil {
		return err
	}
	// A decode node that has just come may be known here and not yet there; a router's retry has the same effect.
	for end := time.Now().Add(waitMax); ; time.Sleep(20 * time.Millisecond) {
		_, err := d.SubmitJob(ctx, t.p, t.job)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("decode node %q is not known here", t.q.Node)) || time.Now().After(end) {
			return err
		}
	}
}

// answer is how an attempt ended.
type answer struct {
	tokens  []sample.Token
	receipt bool
	finish  *transfer.Finish
	fail    *transfer.Reject
}

// wait listens until the attempt's end.
func (d *driver) wait(t *try) (a answer, err error) {
	timeout := time.After(waitMax)
	for {
		select {
		case h := <-t.out:
			switch {
			case h.err != nil:
				return a, h.err
			case h.body.Fail != nil:
				a.fail = h.body.Fail
				return a, nil
			case h.body.Receipt != nil:
				if _, _, err := d.VerifyReceipt(h.body.Receipt, t.job.Reply, t.hash, t.q.Node, t.q.Epoch, tenant.Blocks(len(t.job.Prompt))); err != nil {
					return a, err
				}
				a.receipt = true
			case h.body.Finish != nil:
				a.finish = h.body.Finish
				return a, nil
			default:
				if !a.receipt {
					return a, fmt.Errorf("tokens before the receipt")
				}
				a.tokens = append(a.tokens, h.body.Tokens...)
			}
		case <-timeout:
			return a, fmt.Errorf("no end of the attempt within %s", waitMax)
		}
	}
}

// whole is the same generation on one engine without any bus: the oracle.
func whole(t *testing.T, prompt []int32, params sample.Params) []sample.Token {
	t.Helper()
	m := engine()
	n := tenant.Blocks(len(prompt) + params.MaxNew)
	pages, err := m.NewPages(n)
	must(t, err)
	table := make([]kernels.Entry, n)
	for i := range table {
		table[i] = kernels.Entry{Page: kernels.PageID(i), Owner: 7, Generation: 1}
		pages.Claim(kernels.PageID(i), kernels.Tag{Owner: 7, Generation: 1, Index: uint32(i)})
	}
	r, err := m.NewRunner(max(len(prompt), 1), 1)
	must(t, err)
	defer r.Close()
	s, err := sample.New(params, m.Facts().Vocab, prompt)
	must(t, err)
	var out []sample.Token
	var ids []int32
	seq := model.Seq{Tokens: prompt, Table: table, Logits: true}
	for {
		o, err := r.Forward(pages, []model.Seq{seq})
		must(t, err)
		must(t, o[0].Err)
		tok, err := s.Sample(o[0].Logits, ids)
		must(t, err)
		out, ids = append(out, tok), append(ids, tok.ID)
		if tok.EOG || len(out) == params.MaxNew {
			return out
		}
		seq = model.Seq{Tokens: ids[len(ids)-1:], Pos: len(prompt) + len(ids) - 1, Table: table, Logits: true}
	}
}

func tokens(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32((i*31 + n*7) % 256)
	}
	return out
}

// goal: a generation split over a bus gives bitwise the logprobs and tokens of
// one process. method: prompts around block borders, two nodes, real server.
func TestSplitEqualsWhole(t *testing.T) {
	w := newWorld(t)
	w.prefill("p1", 4096)
	w.decode("d1", 8192)
	d := w.driver("r1")
	p, q := d.pair("p1", "d1")
	for _, n := range []int{1, 2, 63, 64, 65, 127, 128, 129, 511, 512, 513, 700} {
		params := sample.Params{MaxNew: 12, Logprobs: true, TopLogprobs: 3}
		if n%2 == 0 {
			params.Temperature, params.Seed = 0.8, uint64(n)
		}
		prompt := tokens(n)
		x := d.grant(p, q, prompt, params)
		must(t, d.submit(x))
		got, err := d.wait(x)
		must(t, err)
		if got.fail != nil {
			t.Fatalf("prompt of %d: %+v", n, got.fail)
		}
		want := whole(t, prompt, params)
		if !slices.EqualFunc(got.tokens, want, func(a, b sample.Token) bool {
			return a.ID == b.ID && a.Logprob == b.Logprob && a.EOG == b.EOG && slices.Equal(a.Top, b.Top)
		}) {
			t.Errorf("prompt of %d tokens: split\n%v\nwhole\n%v", n, got.tokens, want)
		}
		if got.finish.Prompt != n || got.finish.Generated != len(want) {
			t.Errorf("prompt of %d tokens: %+v, want %d generated", n, got.finish, len(want))
		}
	}
}
