package router

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"bulkhead/internal/tenant"
	"bulkhead/internal/tokenizer"
	"bulkhead/transfer"
)

// exchange is one generation request, from its first header to its last byte.
type exchange struct {
	r     *Router
	w     http.ResponseWriter
	req   *http.Request
	shape shape
	id    [16]byte // 128 random bits, made here: never the client's
	// idText is the id as it is in subjects, logs and the x-request-id header.
	idText string
	start  time.Time

	ctx    context.Context // ends with the client, the exchange or the router
	cancel context.CancelCauseFunc

	tenant *tenant.Tenant
	slots  int // taken at the desk
	gen    *generation
	ids    [][]int32 // the prompts
	maxNew []int     // by prompt

	out       *outbox
	sequences []*sequence
	running   sync.WaitGroup // of the sequences
	choices   []*choice
	sse       *sse
	begun     bool // the status is sent
	late      bool // it was sent by a heartbeat, before the receipts
	pending   []any
	first     time.Time // of the first text sent
	last      time.Time
}

// Causes of an exchange's end, for its sequences.
var (
	errOver       = errors.New("router: the exchange is over")
	errDrainOver  = errors.New("router: the drain timeout is over")
	errWriteStuck = errors.New("router: the client does not read")
)

// open begins an exchange. It is registered with the router until close.
func (r *Router) open(w http.ResponseWriter, req *http.Request, s shape) *exchange {
	x := &exchange{r: r, w: w, req: req, shape: s, start: time.Now()}
	_, _ = rand.Read(x.id[:]) // never fails
	x.idText = transfer.ID(x.id).String()
	x.ctx, x.cancel = context.WithCancelCause(req.Context())
	w.Header().Set("x-request-id", x.idText)
	r.exchanges.add(x)
	return x
}

// serve answers one request: seven steps, each of which may end it.
func (x *exchange) serve() {
	defer x.r.exchanges.remove(x)
	var err error
	for _, step := range []func() error{
		x.authenticate,
		x.decode,
		x.tokenize,
		x.admit,
		x.place,
		x.submit,
		x.stream,
	} {
		if err = step(); err != nil {
			break
		}
	}
	x.close(err)
}

// authenticate finds the tenant of the key, and takes the request in under its limits. Every
// failure looks the same.
func (x *exchange) authenticate() error {
	if x.r.draining.Load() {
		return fail(kindDraining, "", "the server is shutting down; retry elsewhere")
	}
	t, err := x.r.authenticate(x.req)
	if err != nil {
		return err
	}
	x.tenant = t
	if err := x.r.desk.enter(t); err != nil {
		return err
	}
	x.slots = 1
	return nil
}

// authenticate returns the tenant whose key is in the Authorization header.
func (r *Router) authenticate(req *http.Request) (*tenant.Tenant, error) {
	values := req.Header.Values("Authorization")
	if len(values) == 1 {
		scheme, key, ok := strings.Cut(values[0], " ")
		if ok && strings.EqualFold(scheme, "Bearer") {
			if t, ok := r.cfg.Tenants.Lookup(strings.TrimSpace(key)); ok {
				return t, nil
			}
		}
	}
	return nil, fail(kindNoKey, "", "Incorrect API key provided. Send a valid key as 'Authorization: Bearer KEY'.")
}

// decode reads the body and parses it.
func (x *exchange) decode() error {
	body, err := x.readBody()
	if err != nil {
		return err
	}
	if x.gen, err = parseRequest(body, x.shape.chat()); err != nil {
		return err
	}
	x.out = newOutbox(outboxBound(x.gen.stream, x.r.cfg.StreamBuffer))
	for _, name := range x.gen.ignored {
		x.r.metrics.ignored.Inc(x.r.fieldLabel.Value(name))
	}
	if len(x.gen.ignored) > 0 {
		x.w.Header().Set("x-ignored-params", headerText(strings.Join(x.gen.ignored, ",")))
	}
	if x.gen.model != x.r.cfg.ModelID {
		return fail(kindModelNotFound, "model", "The model does not exist or you do not have access to it.")
	}
	return nil
}

// headerText makes client text fit for a header: printable ASCII, bounded.
func headerText(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, s[:min(len(s), 512)])
}

func (x *exchange) readBody() ([]byte, error) {
	h, most := x.req.Header, x.r.cfg.BodyMax
	if enc := h.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return nil, fail(kindContentType, "", "Content-Encoding is not supported: send the body as it is")
	}
	if typ, params, err := mime.ParseMediaType(h.Get("Content-Type")); err != nil || typ != "application/json" ||
		params["charset"] != "" && !strings.EqualFold(params["charset"], "utf-8") {
		return nil, fail(kindContentType, "", "Content-Type must be application/json")
	}
	tooLarge := fail(kindTooLarge, "", "the request body is larger than %d bytes", most)
	if x.req.ContentLength > most {
		return nil, tooLarge
	}
	rc := http.NewResponseController(x.w)
	if err := ignoreUnsupported(rc.SetReadDeadline(time.Now().Add(x.r.cfg.BodyTimeout))); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(x.w, x.req.Body, most))
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return nil, tooLarge
	case err != nil && x.req.Context().Err() != nil && !errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fail(kindClientGone, "", "the client is gone") // a late body ends the context too
	case err != nil:
		return nil, fail(kindSlowBody, "", "the request body did not come in time or was cut short")
	}
	// The server now reads on in the background to see the client go; a deadline left
	// behind would look like that.
	return body, ignoreUnsupported(rc.SetReadDeadline(time.Time{}))
}

// ignoreUnsupported lets writers without deadlines or flushing pass: those of tests.
func ignoreUnsupported(err error) error {
	if errors.Is(err, http.ErrNotSupported) {
		return nil
	}
	return err
}

// largeText is how many bytes of text make a request wait its turn to be tokenized. A long
// word costs up to 30 bytes of memory for each of its own, so a few full bodies at a
// time would take gigabytes; one after the other they take the memory of one.
const largeText = 256 << 10

// tokenize turns the prompts into token ids, so that their length is known exactly before
// anything is promised.
func (x *exchange) tokenize() error {
	g, tok := x.gen, x.r.tok
	if g.textBytes() > largeText {
		select {
		case x.r.large <- struct{}{}:
			defer func() { <-x.r.large }()
		case <-x.ctx.Done():
			return fail(kindClientGone, "", "the client is gone")
		}
	}
	vocab := tok.VocabSize()
	for _, b := range g.params.LogitBias {
		if int(b.ID) >= vocab {
			return fail(kindMalformed, "logit_bias", "token id %d in 'logit_bias' is not below the vocabulary's size, %d", b.ID, vocab)
		}
	}
	if g.chat {
		ids, err := tok.RenderChat(g.messages, true)
		if err != nil {
			return renderError(err)
		}
		x.ids = [][]int32{ids}
		return nil
	}
	for _, p := range g.prompts {
		ids := p.ids
		if ids == nil {
			if bos, add := tok.BOS(); add {
				ids = append(ids, bos)
			}
			ids = append(ids, tok.Encode(p.text)...)
		}
		for _, id := range ids {
			if int(id) >= vocab {
				return fail(kindMalformed, "prompt", "token id %d in 'prompt' is not below the vocabulary's size, %d", id, vocab)
			}
		}
		x.ids = append(x.ids, ids)
	}
	return nil
}

// renderError says what the chat template had against the messages.
func renderError(err error) error {
	var refused *tokenizer.RenderError
	switch {
	case errors.As(err, &refused) && refused.Reason != "":
		return fail(kindMalformed, "messages", "the model's chat template refused the messages: %s", refused.Reason)
	case errors.Is(err, tokenizer.ErrNoTemplate):
		return fail(kindUnsupported, "messages", "the model has no chat template; use /v1/completions")
	case errors.Is(err, tokenizer.ErrRenderLimit):
		return fail(kindMalformed, "messages", "the messages are too large for the model's chat template")
	}
	return fail(kindMalformed, "messages", "the model's chat template cannot render the messages")
}

// admit decides whether the cluster can take the request at all: the limits of the best
// pair, then those of the tenant. Nothing has been sent to anybody yet.
func (x *exchange) admit() error {
	best, ok := x.r.desk.best()
	if !ok {
		return fail(kindOverloaded, "", "no node is ready to serve the model; retry later")
	}
	prompts := 0
	for _, ids := range x.ids {
		maxNew, err := budget(best.limit(), len(ids), x.gen, x.tenant.Limits.MaxNewTokens, x.r.cfg.DefaultMaxNew)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			return fail(kindMalformed, x.gen.promptParam(), "'%s' has no tokens", x.gen.promptParam())
		}
		x.maxNew = append(x.maxNew, maxNew)
		prompts += len(ids)
	}
	if more := x.gen.n*len(x.ids) - 1; more > 0 {
		if err := x.r.desk.grow(x.tenant, more); err != nil {
			return err
		}
		x.slots += more
	}
	if err := x.r.desk.charge(x.tenant, prompts); err != nil {
		return err
	}
	x.r.metrics.admission.Inc("admitted", "ok")
	return nil
}

// place makes the sequences and asks for a pair for each.
func (x *exchange) place() error {
	p := x.gen.params
	p.Seed = x.seed()
	p.EOG = x.r.eog
	for i, ids := range x.ids {
		p.MaxNew = x.maxNew[i]
		if err := p.Validate(x.r.tok.VocabSize()); err != nil {
			return fail(kindMalformed, "", "the sampling parameters are out of range: %v", err)
		}
		for range x.gen.n {
			s := newSequence(x, len(x.sequences), ids, p)
			x.sequences = append(x.sequences, s)
			x.choices = append(x.choices, &choice{text: newAssembler(x.r.tok, x.gen.stop, p.Logprobs)})
			if err := s.place(); err != nil {
				return err
			}
		}
	}
	return nil
}

// seed is the client's, or a new one for every request.
func (x *exchange) seed() uint64 {
	if x.gen.seed != nil {
		return uint64(*x.gen.seed)
	}
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

func (x *exchange) tie() uint64 { return binary.LittleEndian.Uint64(x.id[:]) }

// submit sets the sequences to work. From here they post to the outbox, and end by
// themselves when the exchange's context does.
func (x *exchange) submit() error {
	for _, s := range x.sequences {
		x.running.Go(func() { s.run(x.ctx) })
	}
	return nil
}

// whyEnded tells a sequence why its context ended.
func (x *exchange) whyEnded() eventKind {
	switch context.Cause(x.ctx) {
	case errDrainOver:
		return evShutdown
	case errWriteStuck:
		return evSlowReader
	}
	return evClientGone
}

// close ends the exchange: its sequences (and with them what they hold anywhere), the
// error to the client if there is one, the slots to the tenant, one line to the log.
func (x *exchange) close(err error) {
	x.cancel(errOver)
	x.running.Wait()
	for _, s := range x.sequences {
		s.close()
	}
	if err != nil {
		x.fail(asAPIError(err), err)
	}
	if x.slots > 0 {
		x.r.desk.leave(x.tenant, x.slots)
	}
	x.report(err)
}

// fail tells the client of the error: a status if none is sent yet, an error event
// behind a stream's beginning.
func (x *exchange) fail(e *apiError, err error) {
	if x.tenant != nil {
		x.r.desk.rateHeaders(x.tenant, x.w.Header())
	}
	switch {
	case !x.begun: // also for a client that is gone: to write nothing would be a 200
		writeError(x.w, e)
	case e.kind == kindClientGone:
	default:
		_ = x.sse.data(e.body()) // without [DONE]: the stream's end is not an answer's end
	}
	if e.kind == kindInternal {
		x.r.log.Error("request failed", "request_id", x.idText, "err", err)
	}
}
