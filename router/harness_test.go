package router

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/internal/metrics"
	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
	"bulkhead/internal/tokenizer"
	"bulkhead/transfer"
	"bulkhead/transfer/membus"
	"bulkhead/transfer/seal"
)

// The router under test speaks its real protocol, with real identities, tokens and
// seals, over a bus in memory, to scripted nodes: a node that computes nothing
// and says what the test wants. So nothing of the router is replaced.

const (
	testKey      = "sk-test-0123456789abcdef"
	otherKey     = "sk-other-0123456789abcdef"
	testModel    = "org/test:model"
	testWindow   = 256
	testCapacity = 1024
	waitMax      = 30 * time.Second // for what takes milliseconds: reaching it is a failure
)

var testMetadata = transfer.Hash{1}

// vocabulary is the metadata of a tokenizer with one token per byte: ids are the bytes'
// values, so tests can write tokens as text. Then come the control tokens.
type vocabulary struct{ bos bool }

const (
	idStart = 256 + iota // <|im_start|>
	idEnd                // <|im_end|>, which ends a generation
	vocabSize
)

func (vocabulary) Strs(key string) ([]string, bool, error) {
	if key != "tokenizer.ggml.tokens" {
		return []string{}, key == "tokenizer.ggml.merges", nil
	}
	tokens := make([]string, 0, vocabSize)
	next := rune(256)
	for b := range rune(256) { // GPT-2's byte-level alphabet
		if b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE {
			tokens = append(tokens, string(b))
		} else {
			tokens = append(tokens, string(next))
			next++
		}
	}
	return append(tokens, "<|im_start|>", "<|im_end|>"), true, nil
}

func (vocabulary) Ints(key string) ([]int32, bool, error) {
	types := slices.Repeat([]int32{1}, vocabSize)
	types[idStart], types[idEnd] = 3, 3
	return types, key == "tokenizer.ggml.token_type", nil
}

func (vocabulary) Str(key string) (string, bool, error) {
	v, ok := map[string]string{
		"tokenizer.ggml.model":    "gpt2",
		"tokenizer.ggml.pre":      "smollm",
		"tokenizer.chat_template": "{% for m in messages %}{% if m.content == 'refuse me' %}{{ raise_exception('No refusals.') }}{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
	}[key]
	return v, ok, nil
}

func (v vocabulary) Uint(key string) (uint64, bool, error) {
	switch key {
	case "tokenizer.ggml.eos_token_id":
		return idEnd, true, nil
	case "tokenizer.ggml.bos_token_id":
		return idStart, v.bos, nil
	}
	return 0, false, nil
}

func (v vocabulary) Bool(key string) (bool, bool, error) {
	return v.bos, key == "tokenizer.ggml.add_bos_token", nil
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func bosTokenizer() *tokenizer.Tokenizer { return must(tokenizer.New(vocabulary{bos: true})) }

func testTokenizer() *tokenizer.Tokenizer { return must(tokenizer.New(vocabulary{})) }

// keys are made once: they are the slow part and hold nothing of a test.
var testKeys = sync.OnceValue(func() *identity.Keys { return must(identity.NewMemory("test")) })

// world is a router on a bus with scripted nodes.
type world struct {
	t       testing.TB
	bus     *membus.Bus
	router  *Router
	dir     *transfer.Directory
	log     lockedBuffer
	audit   lockedBuffer
	tenants *tenant.Registry
	nodes   map[string]*node
	stops   []func()
	clock   time.Time
	spoken  time.Duration // makes every announcement's expiry a new one

	mu     sync.Mutex
	losing chan struct{} // guarded by mu: the next message of output is lost, and this closed
}

// lose makes the bus lose the next message of an output.
func (w *world) lose(lost chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.losing = lost
}

func (w *world) faults(m membus.Message) (v membus.Verdict) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.losing != nil && strings.HasPrefix(m.Subject, "out.") {
		close(w.losing)
		w.losing, v.Drop = nil, true
	}
	return v
}

// lockedBuffer is a log that goroutines may share.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newWorld makes a router, and one prefill (p0) and one decode node (d0) that
// answer every job with the text "hello".
func newWorld(t testing.TB, change func(*Config)) *world {
	w := &world{t: t, tenants: tenant.NewRegistry(), nodes: map[string]*node{}}
	w.bus = membus.New(membus.Options{Faults: w.faults})
	must(w.tenants.Add("acme", testKey, tenant.Limits{}))
	// The router's clock stands still, so that no announcement is ever too old, however slow the machine.
	w.clock = time.Now()
	id, peer := w.peer(identity.Router, "r0")
	w.dir = must(peer.WatchPeers(transfer.RolePrefill, transfer.RoleDecode))
	cfg := Config{
		Name: "r0", Key: id.Private(), ClusterID: id.Authority().ClusterID(), Cluster: Bus{peer, w.dir},
		Tenants: w.tenants, Tokenizer: testTokenizer(), Metadata: testMetadata, ModelID: testModel, Version: "test",
		Log: slog.New(slog.NewJSONHandler(&w.log, nil)), Audit: &w.audit, Metrics: metrics.New(),
	}
	if change != nil {
		change(&cfg)
	}
	w.router = must(New(cfg))
	w.add(transfer.RolePrefill, "p0")
	w.add(transfer.RoleDecode, "d0")
	return w
}

// close ends everything; a request still in work would hang here.
func (w *world) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_ = w.router.Drain(ctx) // says when it had to cut requests off, which some tests mean to
	for _, stop := range w.stops {
		stop()
	}
	w.dir.Close()
	w.bus.Close()
}

func (w *world) peer(role identity.Role, name string) (*identity.Node, *transfer.Peer) {
	m := must(testKeys().Minter(role))
	id := must(m.NewNode(name))
	return id, transfer.NewPeer(transfer.Options{Bus: w.bus.Client(name), Node: id, Authority: id.Authority(), Cluster: id.Authority().ClusterID(), Clock: func() time.Time { return w.clock }})
}

// node is a scripted node. Its functions may be replaced before requests come.
type node struct {
	w    *world
	peer *transfer.Peer
	key  *seal.Key
	ann  transfer.Announce

	onJob    func(j *gotJob) // nil for prefill: accept; for decode: accept, and answer when prefill has the job too
	onCancel func(c transfer.Cancel)
	deaf     func() // takes it off the bus

	mu      sync.Mutex
	jobs    []*gotJob // guarded by mu
	cancels []transfer.Cancel
}

// gotJob is a job at a node.
type gotJob struct {
	transfer.Job
	n      *node
	hash   transfer.Hash
	answer func(*transfer.Accept, *transfer.Reject)
	out    *transfer.OutputSender
}

func (w *world) add(role transfer.Role, name string) *node {
	id, peer := w.peer(identity.Role(role), name)
	n := &node{w: w, peer: peer, key: must(seal.NewKey())}
	w.nodes[name] = n
	n.ann = transfer.Announce{
		Node: name, Role: role, Epoch: id.Epoch, HPKE: n.key.Public(),
		Model: transfer.Hash{0xab, 0xcd}, Layout: transfer.Hash{3}, Metadata: testMetadata, ModelName: "test",
		Capacity: testCapacity, Window: testWindow, Vocab: vocabSize, Ready: true, FreeTokens: testCapacity, Version: "test",
	}
	stops := []func(){
		must(peer.ServeJobs(n.key, func(_ context.Context, job transfer.Job, _ identity.Peer, answer func(*transfer.Accept, *transfer.Reject)) {
			n.job(job, answer)
		})),
		must(peer.ServeCancel(func(c transfer.Cancel, _ identity.Peer, done func()) {
			n.mu.Lock()
			n.cancels = append(n.cancels, c)
			n.mu.Unlock()
			if n.onCancel != nil {
				n.onCancel(c)
			}
			done()
		})),
		must(peer.ServePing(func() transfer.Pong { return transfer.Pong{Epoch: id.Epoch} })),
	}
	n.deaf = sync.OnceFunc(func() {
		for _, stop := range stops {
			stop()
		}
	})
	w.stops = append(w.stops, n.deaf)
	w.announce(n)
	return n
}

// announce publishes what the node is now and waits until the router knows.
func (w *world) announce(n *node) {
	w.spoken += time.Millisecond
	n.ann.Expires = w.clock.Add(transfer.AnnounceTTL + w.spoken)
	if err := n.peer.Announce(n.ann); err != nil {
		w.t.Fatal(err)
	}
	w.eventually("an announcement", func() bool {
		a, _, ok := w.dir.Get(n.ann.Role, n.ann.Node)
		return ok && a.Expires.Equal(n.ann.Expires)
	})
}

func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(waitMax); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("waited %s for %s; log:\n%s", waitMax, what, w.log.String())
		}
	}
}

func (n *node) job(job transfer.Job, answer func(*transfer.Accept, *transfer.Reject)) {
	j := &gotJob{Job: job, n: n, hash: transfer.TokenHash(job.Token), answer: answer}
	j.out = n.peer.NewOutput(job, j.hash)
	n.mu.Lock()
	n.jobs = append(n.jobs, j)
	n.mu.Unlock()
	switch {
	case n.onJob != nil:
		n.onJob(j)
	case n.ann.Role == transfer.RolePrefill:
		j.accept()
		for _, d := range n.w.nodes { // the KV is there now
			if k := d.find(j.hash); d.ann.Role == transfer.RoleDecode && k != nil && d.onJob == nil {
				k.reply("hello")
			}
		}
	default:
		j.accept()
	}
}

func (n *node) find(hash transfer.Hash) *gotJob {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, j := range n.jobs {
		if j.hash == hash {
			return j
		}
	}
	return nil
}

func (n *node) got() (jobs []*gotJob, cancels []transfer.Cancel) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.jobs), slices.Clone(n.cancels)
}

func (j *gotJob) accept() {
	j.answer(&transfer.Accept{Pages: tenant.Blocks(len(j.Prompt) + j.Params.MaxNew)}, nil)
}

func (j *gotJob) reject(r transfer.Reason) {
	j.answer(nil, &transfer.Reject{Reason: r})
}

func (j *gotJob) send(b transfer.OutputBody) {
	if err := j.out.Send(b); err != nil {
		panic(err)
	}
}

// receipt is a good one.
func (j *gotJob) receipt() {
	j.send(transfer.OutputBody{Receipt: j.signed(seal.Receipt{
		TokenHash: j.hash, ManifestHash: [32]byte{9}, Pages: tenant.Blocks(len(j.Prompt)),
		Decode: j.n.ann.Node, Epoch: j.n.ann.Epoch,
	})})
}

func (j *gotJob) signed(r seal.Receipt) *transfer.SignedReceipt {
	return must(j.n.peer.SignReceipt(must(r.Append(nil)), j.Reply, min(3, len(j.Prompt))))
}

func (j *gotJob) tokens(t ...sample.Token) { j.send(transfer.OutputBody{Tokens: t}) }

// text is text as tokens, one per byte.
func text(s string) (t []sample.Token) {
	for _, b := range []byte(s) {
		t = append(t, sample.Token{ID: int32(b), Logprob: -0.5})
	}
	return t
}

// reply sends receipt, text, the end token and the finish.
func (j *gotJob) reply(s string) {
	j.receipt()
	j.tokens(text(s)...)
	j.tokens(sample.Token{ID: idEnd, EOG: true, Logprob: -0.25})
	j.finish("stop", len(s)+1)
}

func (j *gotJob) finish(reason string, generated int) {
	j.send(transfer.OutputBody{Finish: &transfer.Finish{Reason: reason, Generated: generated, Prompt: len(j.Prompt)}})
}

// answer is a response of the router.
type answer struct {
	*httptest.ResponseRecorder
}

func (w *world) post(path, body string, header ...string) answer {
	return w.do(context.Background(), path, body, header...)
}

func (w *world) do(ctx context.Context, path, body string, header ...string) answer {
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+testKey)
	for i := 0; i+1 < len(header); i += 2 {
		if req.Header.Del(header[i]); header[i+1] != "" {
			req.Header.Set(header[i], header[i+1])
		}
	}
	rec := httptest.NewRecorder()
	w.router.Handler().ServeHTTP(rec, req)
	return answer{rec}
}

const chatPath, textPath = "/v1/chat/completions", "/v1/completions"

// chat is a chat request with more members.
func chat(more string) string {
	return `{"model":"` + testModel + `","messages":[{"role":"user","content":"hi"}]` + more + `}`
}

// completion is a completion request with more members.
func completion(more string) string {
	return `{"model":"` + testModel + `","prompt":"hi"` + more + `}`
}

func (a answer) errorObject(t testing.TB) errorObject {
	t.Helper()
	var e errorBody
	d := json.NewDecoder(strings.NewReader(a.Body.String()))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		t.Fatalf("no error envelope: %v in %q", err, a.Body)
	}
	return e.Error
}

// events are the data of a stream's events, comments as they are.
func events(r io.Reader) (out []string) {
	s := bufio.NewScanner(r)
	for s.Scan() {
		if line := s.Text(); line != "" {
			out = append(out, strings.TrimPrefix(line, "data: "))
		}
	}
	return out
}

func str(p *string) string {
	if p == nil {
		return "null"
	}
	return *p
}
