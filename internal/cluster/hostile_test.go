package cluster_test

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"bulkhead/decode"
	"bulkhead/internal/identity"
	"bulkhead/internal/metrics"
	"bulkhead/internal/model"
	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
	"bulkhead/kernels"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// Here a test is the prefill node: it has the identity that was granted, the
// right KV, and the product's own calls to seal and sign, so that everything it
// sends is right but for what a case makes wrong.

// message is one message of a KV stream as it lies on the wire.
type message struct {
	subject string
	data    []byte
}

// tap keeps what would go into a stream, so that it can be changed first.
type tap struct {
	transfer.Bus
	mu  sync.Mutex
	got []message // guarded by mu
}

func (b *tap) PublishKV(subject string, data []byte, done func(error)) error {
	b.mu.Lock()
	b.got = append(b.got, message{subject, bytes.Clone(data)})
	b.mu.Unlock()
	go done(nil)
	return nil
}

// arena is one decode node under attack, with the router and the prefill nodes
// in the test's hands.
type arena struct {
	*driver
	p1, p2 *node // hostile prefill nodes; p1 is granted what is granted
	node   *decode.Node
	q      transfer.Announce
	stop   func() // of the decode node
}

const arenaCapacity = 4096

func newArena(t *testing.T) *arena {
	w := newWorld(t)
	a := &arena{driver: w.driver("r1"), p1: w.node(identity.Prefill, "p1"), p2: w.node(identity.Prefill, "p2")}
	a.boot()
	return a
}

// boot starts the decode node, again if it ran before.
func (a *arena) boot() {
	a.t.Helper()
	if a.stop != nil {
		a.stop()
	}
	old := a.q.Epoch
	j := a.w.join("decode", "d1")
	n, err := decode.New(decode.Config{Peer: j.Peer, Engine: engine(), Capacity: arenaCapacity, ClampWindow: true, DrainTimeout: 50 * time.Millisecond, Metrics: decode.NewMetrics(metrics.New()), Log: testLog()})
	must(a.t, err)
	a.stop, a.node = a.w.run(j, n.Run), n
	must(a.t, a.bus.EnsureKV(within(a.t), "d1", 64<<20))
	for end := time.Now().Add(waitMax); ; time.Sleep(2 * time.Millisecond) {
		q, _, ok := a.dir.Get(transfer.RoleDecode, "d1")
		if ok && q.Ready && q.Epoch != old {
			a.q = q
			return
		}
		if time.Now().After(end) {
			a.t.Fatal("the decode node does not become ready")
		}
	}
}

// try grants an attempt to p1 and d1 and submits it to decode alone.
func (a *arena) try(prompt []int32, change ...func(*tenant.Claims, *transfer.Job)) *try {
	a.t.Helper()
	x := a.grant(transfer.Announce{Node: "p1"}, a.q, prompt, arenaParams, change...)
	_, err := a.SubmitJob(within(a.t), a.q, x.job)
	must(a.t, err)
	return x
}

var arenaParams = sample.Params{MaxNew: 3, Logprobs: true}

// recipe is what a prefill node seals and signs; each hook may be nil.
type recipe struct {
	by        *node // who signs; nil: p1
	sealedFor transfer.Hash
	header    func(i int, h *seal.Header, plain *[]byte)
	open      func(*transfer.Open)
	first     func([]byte) []byte // plaintext of the first token
	manifest  func(*seal.Manifest)
	statement func([]byte) []byte
	reject    *transfer.Reject // instead of the manifest
}

// craft makes all messages of an attempt: [0] opens, then one per frame, the
// last one ends.
func (a *arena) craft(x *try, r recipe) []message {
	a.t.Helper()
	if r.by == nil {
		r.by = a.p1
	}
	claims := a.claims(x)
	g := transfer.Grant{Job: x.job, Claims: claims, Hash: x.hash, Prefix: tenant.PrefixDigests(x.job.Salt, x.job.Prompt)}
	layout := engine().Facts().Layout
	plan, err := seal.NewPlan(len(x.job.Prompt), layout.Layers, layout.TokenLayerBytes())
	must(a.t, err)
	sealedFor := r.sealedFor
	if sealedFor == (transfer.Hash{}) {
		sealedFor = x.hash
	}
	keys, enc, err := seal.NewSender(x.q.HPKE, sealedFor)
	must(a.t, err)

	bus := &tap{Bus: r.by.bus}
	peer := transfer.NewPeer(transfer.Options{Bus: bus, Node: r.by.id, Authority: a.w.auth, Cluster: "test"})
	subject := transfer.KVSubject{Decode: claims.Decode, Request: transfer.ID(claims.Request), Attempt: claims.Attempt, Token: transfer.Fingerprint(x.hash)}
	out, err := peer.NewKVSender(claims.Decode, nil).Attempt(subject, x.hash, 1<<40)
	must(a.t, err)
	defer out.Close()
	ctx := within(a.t)

	open := transfer.Open{Token: x.job.Token, Prefill: r.by.id.Name, PrefillEpoch: r.by.id.Epoch, Enc: enc, Frames: plan.Frames(), Layout: layout.Fingerprint()}
	if r.open != nil {
		r.open(&open)
	}
	must(a.t, out.Open(ctx, open))
	k := kvOf(a.t, x.job.Prompt, x.job.Params)
	chain := seal.NewChain()
	for i := range plan.Frames() {
		h, plain := g.Header(plan, i, r.by.id.Epoch), bytes.Clone(k.frames[i])
		if r.header != nil {
			r.header(i, &h, &plain)
		}
		frame, err := keys.SealFrame(nil, h, plain)
		must(a.t, err)
		if err := chain.Add(frame); err != nil && !errors.Is(err, seal.ErrPlan) {
			a.t.Fatal(err)
		}
		must(a.t, out.Frame(ctx, frame))
	}
	if r.reject != nil {
		must(a.t, out.Reject(ctx, *r.reject))
		return bus.got
	}
	plain, err := transfer.EncodeFirst(k.first)
	must(a.t, err)
	if r.first != nil {
		plain = r.first(plain)
	}
	first, err := keys.SealFirst(plain)
	must(a.t, err)
	m := seal.Manifest{TokenHash: x.hash, Blocks: plan.Blocks(), Tokens: plan.PromptLen, Frames: plan.Frames(), Chain: chain.Sum(), First: first}
	if r.manifest != nil {
		r.manifest(&m)
	}
	statement, err := m.Append(nil)
	must(a.t, err)
	if r.statement != nil {
		statement = r.statement(statement)
	}
	must(a.t, out.Manifest(ctx, statement))
	return bus.got
}

// send publishes messages as they are, each after the one before is stored.
func (a *arena) send(by *node, messages []message) {
	a.t.Helper()
	for _, m := range messages {
		done := make(chan error, 1)
		must(a.t, by.bus.PublishKV(m.subject, m.data, func(err error) { done <- err }))
		select {
		case err := <-done:
			must(a.t, err)
		case <-time.After(waitMax):
			a.t.Fatal("the stream does not answer")
		}
	}
}

// refused is the end that every case must have: one typed no, of this reason,
// and before it neither a receipt nor a token.
func (a *arena) refused(x *try, want ...transfer.Reason) error {
	got, err := a.wait(x)
	switch {
	case err != nil:
		return err
	case got.receipt || len(got.tokens) > 0 || got.finish != nil:
		return fmt.Errorf("LEAK: receipt %v, %d tokens, finish %v, fail %+v; want %q and nothing before it", got.receipt, len(got.tokens), got.finish, got.fail, want)
	case !slices.Contains(want, got.fail.Reason):
		return fmt.Errorf("refused with %q (%s), want %q", got.fail.Reason, got.fail.Detail, want)
	}
	return nil
}

// baseline: every page is free, nobody holds one, none is in quarantine.
func (a *arena) baseline() error {
	s := a.node.Stats()
	for end := time.Now().Add(waitMax); s.Free != s.Pages && time.Now().Before(end); s = a.node.Stats() {
		time.Sleep(time.Millisecond) // a finished sequence's pages follow its last message
	}
	if s.Free != s.Pages || s.Quarantined != 0 || s.Tables != 0 || s.Held != 0 || s.Dirty != 0 {
		return fmt.Errorf("the pool is not at its baseline: %+v", s)
	}
	return nil
}

// right: the attempt ends with the very tokens of one process.
func (a *arena) right(x *try) error {
	got, err := a.wait(x)
	if err != nil {
		return err
	}
	want := kvOf(a.t, x.job.Prompt, x.job.Params).answer
	if got.fail != nil || !got.receipt || !slices.EqualFunc(got.tokens, want, sameToken) {
		return fmt.Errorf("answer %v (fail %+v), want %v", got.tokens, got.fail, want)
	}
	return nil
}

func sameToken(a, b sample.Token) bool {
	return a.ID == b.ID && a.Logprob == b.Logprob && a.EOG == b.EOG && slices.Equal(a.Top, b.Top)
}

// honest runs one good attempt through the same hands: the node still works.
func (a *arena) honest() error {
	x := a.try(arenaPrompt)
	a.send(a.p1, a.craft(x, recipe{}))
	return a.right(x)
}

// arenaPrompt fills two blocks and a part of a third.
var arenaPrompt = tokens(150)

// kvResult is a prompt's KV as frames, and what follows it.
type kvResult struct {
	frames [][]byte
	first  sample.Token
	answer []sample.Token
}

var kvResults sync.Map // by prompt

// kvOf computes a prompt's frames and answer without any bus, once.
func kvOf(t *testing.T, prompt []int32, params sample.Params) kvResult {
	t.Helper()
	key := fmt.Sprint(prompt, params)
	if k, ok := kvResults.Load(key); ok {
		return k.(kvResult)
	}
	m := engine()
	n := tenant.Blocks(len(prompt))
	pages, err := m.NewPages(n)
	must(t, err)
	table := make([]kernels.Entry, n)
	for i := range table {
		table[i] = kernels.Entry{Page: kernels.PageID(i), Owner: 7, Generation: 1}
		pages.Claim(kernels.PageID(i), kernels.Tag{Owner: 7, Generation: 1, Index: uint32(i)})
	}
	r, err := m.NewRunner(len(prompt), 1)
	must(t, err)
	defer r.Close()
	o, err := r.Forward(pages, []model.Seq{{Tokens: prompt, Table: table}})
	must(t, errors.Join(err, o[0].Err))
	layout := m.Facts().Layout
	plan, err := seal.NewPlan(len(prompt), layout.Layers, layout.TokenLayerBytes())
	must(t, err)
	var k kvResult
	for i := range plan.Frames() {
		f := plan.Frame(i)
		b := make([]byte, f.Bytes)
		must(t, pages.Export(b, table[f.Block], f.Block, f.LayerStart, f.LayerEnd, f.TokenEnd-f.TokenStart))
		k.frames = append(k.frames, b)
	}
	k.answer = whole(t, prompt, params)
	k.first = k.answer[0]
	kvResults.Store(key, k)
	return k
}

// retoken gives a try another token and the reply subject that goes with it.
func (d *driver) retoken(x *try, c tenant.Claims, key ed25519.PrivateKey, cluster string) {
	d.t.Helper()
	var err error
	x.job.Token, err = tenant.Sign(c, key, cluster)
	must(d.t, err)
	d.rename(x, transfer.ID(c.Request))
}

// rename makes the reply subject of a changed token, so that the job is not
// dropped for that alone.
func (d *driver) rename(x *try, request transfer.ID) {
	x.hash = transfer.TokenHash(x.job.Token)
	x.job.Reply = transfer.OutSubject{Router: d.id.Name, Request: request, Token: transfer.Fingerprint(x.hash)}.String()
}
