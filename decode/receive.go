package decode

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/internal/kv"
	"bulkhead/internal/model"
	"bulkhead/internal/mutant"
	"bulkhead/internal/tenant"
	"bulkhead/kernels"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// creditWindow is how far an attempt may be ahead of what this node has
// consumed: with transfer.FirstCredit, the bytes of one attempt that the stream
// can be made to hold.
const creditWindow = transfer.FirstCredit

// errOvertaken is a job whose cancellation came first.
var errOvertaken = errors.New("cancelled before it came")

// attempt is one reservation, from the router's job to the end of its pages.
type attempt struct {
	grant    *transfer.Grant
	in       *inbound
	table    *kv.Table
	writer   *kv.Writer // the receive side's; nil once committed
	keys     *seal.Receiver
	out      *transfer.OutputSender
	deadline time.Time // of the first token
	started  time.Time

	order              uint64 // of its reservation
	consumed, credited int64  // bytes of frames
	running            bool   // the engine has it
}

// source says for whom the attempt is computed.
func (a *attempt) source(epoch uint64) model.Source {
	c := &a.grant.Claims
	return model.Source{
		Tenant: c.Tenant, Request: c.Request, Child: c.Child, Attempt: c.Attempt,
		Prompt: len(a.grant.Job.Prompt), Prefill: a.in.prefillEpoch, Decode: epoch,
	}
}

// sequenceKey names what at most one attempt may work on at a time.
type sequenceKey struct {
	request [16]byte
	child   uint16
}

// receiver owns all attempts of the node until the engine takes them over.
type receiver struct {
	self   transfer.Self
	peer   *transfer.Peer
	key    transfer.BootKey
	pool   *kv.Pool
	pages  kernels.Pages
	layout transfer.Hash
	window int // most tokens of one sequence
	now    func() time.Time
	log    *slog.Logger
	stats  *Metrics
	engine *worker
	once   transfer.Once
	gone   transfer.Once // attempts that were cancelled before their job came

	mu sync.Mutex
	// Below: guarded by mu.
	attempts map[transfer.ID]*attempt
	current  map[sequenceKey]*attempt
	staging  []byte
	draining bool
	accepted uint64 // reservations so far
}

// reserve takes a router's job: DESIGN.md section 4's order, then pages for
// prompt + max_new, before prefill is even asked.
func (r *receiver) reserve(job transfer.Job, from identity.Peer) (*transfer.Accept, *transfer.Reject) {
	g, no := r.peer.VerifyJob(job, from, r.self, r.now())
	if no != nil {
		return nil, no
	}
	if no := g.CheckLength(r.window); no != nil && !mutant.Off(mutant.DecodeCapacity) {
		return nil, no
	}
	layout := r.pages.Layout()
	plan, err := seal.NewPlan(len(job.Prompt), layout.Layers, layout.TokenLayerBytes())
	if err != nil {
		return nil, g.Reject(transfer.ReasonProtocol, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		return nil, g.Reject(transfer.ReasonDraining, nil)
	}
	if err := r.once.Use(g.Hash, g.Claims.Expires, r.now()); err != nil && !mutant.Off(mutant.DecodeOnce) {
		return nil, g.Reject(transfer.ReasonDuplicate, err)
	}
	if r.gone.Has(transfer.CancelledBy(g.Hash, g.Claims.Router)) {
		return nil, g.Reject(transfer.ReasonCancelled, errOvertaken)
	}
	seq := sequenceKey{g.Claims.Request, g.Claims.Child}
	if old := r.current[seq]; old != nil {
		if old.grant.Claims.Attempt >= g.Claims.Attempt && !mutant.Off(mutant.AttemptOrder) {
			return nil, g.Reject(transfer.ReasonDuplicate, fmt.Errorf("attempt %d while attempt %d is in work", g.Claims.Attempt, old.grant.Claims.Attempt))
		}
		r.end(old, transfer.ReasonCancelled, errors.New("a later attempt has come"))
	}
	table, err := r.pool.Reserve(kv.Lease{Tenant: g.Claims.Tenant, Request: g.Claims.Request, Child: g.Claims.Child, Attempt: g.Claims.Attempt}, len(job.Prompt)+g.Claims.MaxNew)
	if err != nil {
		return nil, poolReject(g, err)
	}
	a := &attempt{
		grant: g, in: newInbound(g, plan, r.layout), table: table,
		out:      r.peer.NewOutput(job, g.Hash),
		deadline: job.Deadline, started: r.now(),
		credited: transfer.FirstCredit,
	}
	r.accepted++
	a.order = r.accepted
	r.attempts[transfer.Fingerprint(g.Hash)] = a
	r.current[seq] = a
	return &transfer.Accept{TokenHash: g.Hash, Pages: len(table.Entries())}, nil
}

// take handles one message of this node's KV stream. Cheap checks come first;
// a message that no job announced costs a map lookup.
func (r *receiver) take(m transfer.KVMsg) {
	msg, err := r.peer.ParseKVMessage(m)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.malformed(m, err)
		return
	}
	a := r.attempts[msg.Subject.Token]
	if (mutant.Off(mutant.AttemptBinding) || mutant.Off(mutant.SubjectToken)) && a == nil {
		a = r.anyAttempt(msg.Subject)
	}
	if a == nil || msg.Subject.Decode != r.self.Node && !mutant.Off(mutant.SubjectNode) {
		r.stats.refused("unknown")
		m.Term()
		return
	}
	if c := a.grant.Claims; (msg.Subject.Request != transfer.ID(c.Request) || msg.Subject.Attempt != c.Attempt) && !mutant.Off(mutant.AttemptBinding) && !mutant.Off(mutant.SubjectGrant) {
		m.Term()
		r.fail(a, transfer.ReasonProtocol, errors.New("subject disagrees with the token it names"))
		return
	}
	if a.running && !mutant.Off(mutant.KVLate) {
		r.stats.refused("late") // a repeat after the manifest; the pages are no longer the receiver's
		m.Term()
		return
	}
	if !r.now().Before(a.deadline) && !mutant.Off(mutant.KVDeadline) {
		m.Term()
		r.fail(a, transfer.ReasonTimeout, errors.New("deadline passed while blocks arrived"))
		return
	}
	if reason, err := r.handle(a, msg); err != nil {
		m.Term()
		r.fail(a, reason, err)
		return
	}
	m.Ack()
}

// malformed drops what cannot be read. Under the subject of an attempt in work
// it stands where a good message was to come, so the attempt ends now rather
// than at its deadline. Caller holds mu.
func (r *receiver) malformed(m transfer.KVMsg, err error) {
	m.Term()
	s, serr := transfer.ParseKV(m.Subject)
	a := r.attempts[s.Token]
	if serr != nil || a == nil || a.running {
		r.stats.refused("malformed")
		return
	}
	r.fail(a, transfer.ReasonProtocol, err)
}

// anyAttempt is the attempt at the request of a subject, whichever it is. Only a
// test build without the binding calls it.
func (r *receiver) anyAttempt(s transfer.KVSubject) *attempt {
	for _, a := range r.inOrder() {
		if transfer.ID(a.grant.Claims.Request) == s.Request {
			return a
		}
	}
	return nil
}

// handle does what one message asks. An error ends the attempt.
func (r *receiver) handle(a *attempt, msg transfer.KVMessage) (transfer.Reason, error) {
	switch msg.Kind {
	case transfer.KVOpen:
		return r.open(a, msg)
	case transfer.KVFrame:
		return r.frame(a, msg.Frame)
	case transfer.KVManifest:
		return r.commit(a, msg)
	case transfer.KVReject:
		no, from, err := r.peer.VerifyReject(msg)
		if err == nil && from.Name != a.grant.Claims.Prefill && !mutant.Off(mutant.RejectSigner) {
			err = fmt.Errorf("reject signed by %q, granted to %q", from.Name, a.grant.Claims.Prefill)
		}
		if err != nil {
			return transfer.ReasonProtocol, err
		}
		return no.Reason, fmt.Errorf("prefill refused: %s", no.Detail)
	}
	return transfer.ReasonProtocol, fmt.Errorf("message of kind %v", msg.Kind)
}

func (r *receiver) open(a *attempt, msg transfer.KVMessage) (transfer.Reason, error) {
	o, from, err := r.peer.VerifyOpen(msg)
	if err != nil {
		return transfer.ReasonProtocol, err
	}
	if from.Name != a.grant.Claims.Prefill && !mutant.Off(mutant.OpenSigner) {
		return transfer.ReasonProtocol, fmt.Errorf("%w: signed by %q", ErrOpen, from.Name)
	}
	first, err := a.in.open(o, r.peer.TokenHash(o.Token), openDigest(o))
	if err != nil || !first {
		return transfer.ReasonProtocol, err
	}
	if a.keys, err = r.key.NewReceiver(o.Enc, a.grant.Hash); err != nil {
		return transfer.ReasonIntegrity, err
	}
	a.writer, err = a.table.BeginWrite()
	return transfer.ReasonInternal, err
}

// openDigest tells two opening messages apart. The token is fixed by then.
func openDigest(o transfer.Open) transfer.Hash {
	var room [256]byte
	b := append(append(room[:0], o.Prefill...), '|')
	b = append(strconv.AppendUint(b, o.PrefillEpoch, 10), '|')
	b = append(strconv.AppendInt(b, int64(o.Frames), 10), '|')
	b = append(append(b, o.Layout[:]...), o.Enc...)
	return sha256.Sum256(b)
}

// frame opens one frame into staging and copies it into its page.
func (r *receiver) frame(a *attempt, frame []byte) (transfer.Reason, error) {
	h, err := seal.ParseFrame(frame)
	if err != nil {
		return transfer.ReasonProtocol, err
	}
	link, err := seal.Link(frame)
	if err != nil {
		return transfer.ReasonProtocol, err
	}
	want, err := a.in.frame(h, link)
	if err != nil {
		return transfer.ReasonProtocol, err
	}
	if !want {
		return "", nil
	}
	_, plain, err := a.keys.OpenFrame(r.staging[:0], frame)
	if err != nil {
		clear(r.staging[:cap(r.staging)])
		return transfer.ReasonIntegrity, err
	}
	defer clear(plain)
	index := int(h.Block)
	err = r.pages.Import(a.table.Entries()[index], index, int(h.LayerStart), int(h.LayerEnd), int(h.TokenEnd-h.TokenStart), plain)
	if err != nil {
		// The header was the expected one, so it is the page that is not what the
		// books say: it is never used again.
		a.table.Quarantine("import: " + err.Error())
		return transfer.ReasonIntegrity, err
	}
	a.in.hold(h.Seq, link)
	r.stats.received(len(frame))
	a.consumed += int64(len(frame))
	if a.credited-a.consumed < creditWindow/2 {
		r.credit(a)
	}
	return "", nil
}

// credit lets prefill go on; a lost one is repeated by tick.
func (r *receiver) credit(a *attempt) {
	a.credited = a.consumed + creditWindow
	c := transfer.Credit{TokenHash: a.grant.Hash, Limit: a.credited, MAC: a.keys.CreditMAC(a.credited)}
	if err := r.peer.SendCredit(a.grant.Claims.Prefill, c); err != nil {
		r.log.Warn("credit not sent", "err", err)
	}
}

// commit is the only way into the running batch: signed manifest, all frames,
// equal chain, pages filled as the books say.
func (r *receiver) commit(a *attempt, msg transfer.KVMessage) (transfer.Reason, error) {
	statement, from, err := r.peer.VerifyManifest(msg)
	if err != nil {
		return transfer.ReasonProtocol, err
	}
	if from.Name != a.grant.Claims.Prefill && !mutant.Off(mutant.ManifestSigner) {
		return transfer.ReasonProtocol, fmt.Errorf("manifest signed by %q, granted to %q", from.Name, a.grant.Claims.Prefill)
	}
	m, err := seal.ParseManifest(statement)
	if err != nil {
		return transfer.ReasonProtocol, err
	}
	if err := a.in.manifest(m); err != nil {
		return transfer.ReasonIntegrity, err
	}
	plain, err := a.keys.OpenFirst(m.First)
	if err != nil {
		return transfer.ReasonIntegrity, err
	}
	first, err := transfer.DecodeFirst(plain)
	if err != nil {
		return transfer.ReasonProtocol, err
	}
	if (first.ID < 0 || int(first.ID) >= r.self.Vocab) && !mutant.Off(mutant.FirstVocabulary) {
		return transfer.ReasonProtocol, fmt.Errorf("first token %d is outside the vocabulary of %d", first.ID, r.self.Vocab)
	}
	a.writer.Done()
	a.writer = nil
	if err := a.table.MarkReady(len(a.grant.Job.Prompt)); err != nil && !mutant.Off(mutant.DecodeCount) && !mutant.Off(mutant.ReadyFilled) {
		a.table.Quarantine("commit: " + err.Error())
		return transfer.ReasonIntegrity, err
	}
	receipt, err := seal.Receipt{
		TokenHash: a.grant.Hash, ManifestHash: seal.ManifestHash(statement),
		Pages: a.in.plan.Blocks(), Decode: r.self.Node, Epoch: r.self.Epoch,
	}.Append(nil)
	if err != nil {
		return transfer.ReasonInternal, err
	}
	signed, err := r.peer.SignReceipt(receipt, a.grant.Job.Reply, m.Cached)
	if err != nil {
		return transfer.ReasonInternal, err
	}
	if err := a.out.Send(transfer.OutputBody{Receipt: signed}); err != nil {
		return transfer.BusReason(err), err
	}
	r.stats.committed(r.now().Sub(a.started))
	a.running = true
	r.engine.start(a, first)
	return "", nil
}

// cancel ends an attempt for its router. done is called when the pages are on
// their way back: at once, or after the engine's step in flight.
func (r *receiver) cancel(hash transfer.Hash, from string, reason transfer.Reason, done func()) {
	r.mu.Lock()
	a := r.attempts[transfer.Fingerprint(hash)]
	foreign := a != nil && a.grant.Claims.Router != from && !mutant.Off(mutant.DecodeCancel)
	if foreign {
		r.stats.refused("foreign_cancel")
	}
	if a == nil || foreign {
		// Its job may be behind it: messages of different subjects overtake each other, and
		// nobody would cancel it again. Where there is no room to remember, the deadline ends it.
		if now := r.now(); a == nil {
			_ = r.gone.Use(transfer.CancelledBy(hash, from), now.Add(tenant.MaxLifetime), now)
		}
		r.mu.Unlock()
		done()
		return
	}
	if a.running {
		r.mu.Unlock()
		r.engine.cancel(a, reason, done)
		return
	}
	r.end(a, reason, nil)
	r.mu.Unlock()
	done()
}

// tick ends attempts whose time is over and repeats credits.
func (r *receiver) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	r.once.Prune(now)
	r.gone.Prune(now)
	for _, a := range r.inOrder() {
		switch {
		case a.running:
		case !now.Before(a.deadline):
			r.fail(a, transfer.ReasonTimeout, errors.New("blocks did not arrive in time"))
		case a.keys != nil:
			r.credit(a)
		}
	}
}

// fail ends an attempt with an error that its router hears. Caller holds mu.
func (r *receiver) fail(a *attempt, reason transfer.Reason, err error) {
	r.stats.refused(string(reason))
	r.log.Warn("attempt refused", "request", transfer.ID(a.grant.Claims.Request), "attempt", a.grant.Claims.Attempt,
		"prefill", a.grant.Claims.Prefill, "reason", reason, "err", err)
	r.end(a, reason, err)
}

// end takes an attempt that the engine does not have out of the books. Caller
// holds mu.
func (r *receiver) end(a *attempt, reason transfer.Reason, err error) {
	if a.running {
		r.engine.cancel(a, reason, func() {})
		return
	}
	r.forgetLocked(a)
	if a.writer != nil {
		a.writer.Done()
	}
	a.table.Release()
	if err != nil {
		if serr := a.out.Send(transfer.OutputBody{Fail: a.grant.Reject(reason, err)}); serr != nil {
			r.log.Warn("failure not sent", "err", serr)
		}
	}
}

// forget is called by the engine when a sequence has ended.
func (r *receiver) forget(a *attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetLocked(a)
}

func (r *receiver) forgetLocked(a *attempt) {
	delete(r.attempts, transfer.Fingerprint(a.grant.Hash))
	seq := sequenceKey{a.grant.Claims.Request, a.grant.Claims.Child}
	if r.current[seq] == a {
		delete(r.current, seq)
	}
}

// load is what the node announces: attempts in work, and those without their KV.
func (r *receiver) load() (running, waiting int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.attempts {
		if a.running {
			running++
		} else {
			waiting++
		}
	}
	return running, waiting
}

// inOrder lists the attempts by reservation, so that a run can be repeated.
// Caller holds mu.
func (r *receiver) inOrder() []*attempt {
	if len(r.attempts) == 0 {
		return nil
	}
	return slices.SortedFunc(maps.Values(r.attempts), func(a, b *attempt) int { return cmp.Compare(a.order, b.order) })
}

// drain refuses new jobs from now on.
func (r *receiver) drain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.draining = true
}

// abandonAll ends what is left at the end of a drain.
func (r *receiver) abandonAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.inOrder() {
		r.end(a, transfer.ReasonDraining, errors.New("the node is shutting down"))
	}
}

func poolReject(g *transfer.Grant, err error) *transfer.Reject {
	var long *kv.TooLongError
	var pages *kv.NoPagesError
	switch {
	case errors.As(err, &long):
		return &transfer.Reject{TokenHash: g.Hash, Reason: transfer.ReasonContextLength, Limit: int64(long.Limit), Value: int64(long.Value), Detail: err.Error()}
	case errors.As(err, &pages):
		return &transfer.Reject{TokenHash: g.Hash, Reason: transfer.ReasonNoPages, Limit: int64(pages.Free), Value: int64(pages.Need), Detail: err.Error()}
	}
	return g.Reject(transfer.ReasonInternal, err)
}
