package sim

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"bulkhead/decode"
	"bulkhead/internal/identity"
	"bulkhead/internal/kv"
	"bulkhead/internal/metrics"
	"bulkhead/internal/model"
	"bulkhead/internal/provenance"
	"bulkhead/internal/tenant"
	"bulkhead/kernels"
	"bulkhead/prefill"
	"bulkhead/router"
	"bulkhead/transfer"
)

// The tenants and the words that every prompt begins with: no one who reads the
// bus may find them.
var (
	tenants = []string{"tenantname-north", "tenantname-south", "tenantname-west"}
	marker  = "PrOmPt!"
	secrets = []string{"tenantname", marker}
	eog     = []int32{provenance.EOG}
	needles = [][]byte{[]byte("tenantname"), []byte(marker)}
)

// The names of nodes, at most so many of a role.
var (
	decodeNames  = []string{"d1", "d2"}
	prefillNames = []string{"p1", "p2"}
	routerNames  = []string{"r1", "r2"}
)

// start is when every schedule begins: so far ahead that no timer of the real
// clock can fire in it.
var start = time.Date(2101, 1, 1, 0, 0, 0, 0, time.UTC)

// stepsMax bounds a schedule before its quiet end.
const stepsMax = 20_000

// kit is what one goroutine's worlds share: nothing of it has a memory of a
// schedule, but the engines call the world of the moment.
type kit struct {
	w       *world
	engines [2]*provenance.Engine // private, shared
	other   *provenance.Engine    // another model, in the same layout
	oracles [2]*provenance.Oracle
	prefill *prefill.Metrics
	decode  *decode.Metrics
	log     *slog.Logger
	keys    *identity.Keys // not nil: the product's own public-key operations

	flights []flight // empty, as tape: room for what the next world sends
	tape    []taped

	bytes arena // of what is under way

	suspicious bool // finds out whether shared bytes are changed
	fresh      bool // each schedule has memory of its own
}

func newKit() (*kit, error) { return (&kit{log: slog.New(slog.DiscardHandler)}).make() }

func (k *kit) make() (*kit, error) {
	reg := metrics.New()
	k.prefill, k.decode = prefill.NewMetrics(reg), decode.NewMetrics(reg)
	for i := range k.engines {
		e, err := provenance.New(provenance.Config{
			Window: 4096, Share: i == 1, Reuse: !k.fresh,
			Between: func() { k.w.between() },
			Stray:   func(s model.Seq, block int) { k.w.stray(s, block) },
			Watch:   func(s provenance.Sum) { k.w.watch(s) },
		})
		if err != nil {
			return nil, err
		}
		k.engines[i], k.oracles[i] = e, e.NewOracle()
	}
	var err error
	k.other, err = provenance.New(provenance.Config{Window: 4096, Salt: 1, Reuse: !k.fresh, Watch: func(s provenance.Sum) { k.w.watch(s) }})
	return k, err
}

// recycle makes memory that a schedule had ready for the next.
func (k *kit) recycle() {
	for _, e := range []*provenance.Engine{k.engines[0], k.engines[1], k.other} {
		if !k.fresh {
			e.Recycle()
		}
	}
	if !k.fresh {
		k.bytes.reset()
	}
}

// world is one schedule.
type world struct {
	kit    *kit
	rng    *rand.Rand
	f      faults
	out    io.Writer // transcript; nil: none
	engine *provenance.Engine
	oracle *provenance.Oracle
	auth   *authority
	bus    *bus
	now    time.Time
	start  time.Time
	step   int
	inStep bool // an engine step is under way

	routers   []*routerNode
	prefills  []*prefillNode
	decodes   []*decodeNode
	timers    []timer
	shipments []*prefill.Shipping // scratch
	requests  []*request
	toStart   int
	said      time.Time // when the nodes last announced themselves

	big    bool
	common int // in eighths: how many prompts begin alike
	swaps  int
	liars  map[uint64]string // boots of prefill nodes none of whose attempts may be believed

	verdict Verdict
}

type timer struct {
	at time.Time
	f  func()
}

// node is what all nodes have.
type node struct {
	name  string
	epoch uint64
	c     *client
	skew  time.Duration
}

type routerNode struct {
	node
	m   *router.Manual
	dir *transfer.Directory
}

type prefillNode struct {
	node
	n        *prefill.Node
	m        *prefill.Manual
	capacity int
	other    bool // has another model
}

type decodeNode struct {
	node
	n        *decode.Node
	m        *decode.Manual
	capacity int
}

// request is one client's.
type request struct {
	n      int
	tenant string
	id     [16]byte
	child  int
	prompt []int32
	maxNew int
	sum    provenance.Value
	answer []int32
	at     *routerNode
	g      *router.Generation
	lost   map[uint64]bool // boots that the watch was told of
	told   bool            // its end is in the transcript
	orphan bool            // its router died: the client saw the connection break
}

// Verdict is what a schedule came to.
type Verdict struct {
	Seed       uint64
	Wrong      int // readings that were not all the reader's own entries
	Foreign    int // of those, with entries of another tenant or request
	Unfinished int // requests without exactly one end, or with an end that is not right
	Leaked     int // pages that are not back
	Violations []string

	Requests, Answered, Failed int
	Readings                   int
}

// Bad reports whether anything broke.
func (v *Verdict) Bad() bool { return len(v.Violations) > 0 }

func (w *world) violate(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	if len(w.verdict.Violations) < 32 {
		w.verdict.Violations = append(w.verdict.Violations, s)
	}
	w.logf("VIOLATION  %s", s)
}

func (w *world) logf(format string, args ...any) {
	if w.out != nil {
		fmt.Fprintf(w.out, "%5d %8s  %s\n", w.step, w.now.Sub(w.start).Truncate(time.Millisecond), fmt.Sprintf(format, args...))
	}
}

func (w *world) chance(rate int) bool { return rate > 0 && w.rng.IntN(1024) < rate }

func (w *world) random(b []byte) {
	for i := range b {
		if i%8 == 0 {
			x := w.rng.Uint64()
			for j := i; j < min(i+8, len(b)); j++ {
				b[j] = byte(x >> (8 * (j - i)))
			}
		}
	}
}

// newWorld makes the cluster of a seed.
func (k *kit) newWorld(seed uint64, out io.Writer) (*world, error) {
	w := &world{kit: k, rng: rand.New(rand.NewPCG(seed, 0x6275_6c6b_6865_6164)), out: out, now: start, liars: map[uint64]string{}}
	k.w = w
	w.verdict.Seed = seed
	if k.keys != nil {
		w.now = time.Now() // real certificates have real times
	}
	w.start = w.now
	w.big = w.rng.IntN(bigOneIn) == 0
	w.f = w.draw()
	which := 0
	if w.rng.IntN(4) == 0 {
		which = 1
	}
	w.engine, w.oracle = k.engines[which], k.oracles[which]
	w.common = 4
	if !w.big {
		w.common = 2 + 5*which // where blocks are shared there should be some to share
	}
	w.auth = &authority{nodes: map[string]identity.Peer{}, random: w.random, bytes: &k.bytes}
	w.random(w.auth.secret[:])
	w.bus = newBus(w)
	if out != nil {
		w.logf("seed %d, shared prefixes %t, faults %+v", seed, which == 1, w.f)
	}
	size := w.size()
	for i := range size.decodes {
		name := decodeNames[i]
		w.bus.made++
		s := &stream{w: w, id: w.bus.made * laneCount, node: name, max: 1 << 20}
		if w.f.small {
			s.max = 4000 + w.rng.IntN(6000)
		}
		w.bus.streams = append(w.bus.streams, s)
		d := &decodeNode{node: node{name: name}, capacity: w.decodeCapacity()}
		w.decodes = append(w.decodes, d)
		if err := w.bootDecode(d); err != nil {
			return nil, err
		}
	}
	for i := range size.prefills {
		p := &prefillNode{node: node{name: prefillNames[i]}, capacity: w.prefillCapacity()}
		w.prefills = append(w.prefills, p)
		if err := w.bootPrefill(p); err != nil {
			return nil, err
		}
	}
	for i := range size.routers {
		r := &routerNode{node: node{name: routerNames[i]}}
		w.routers = append(w.routers, r)
		if err := w.bootRouter(r); err != nil {
			return nil, err
		}
	}
	w.announce()
	for i := 0; i < 64 && w.bus.land(); i++ { // most are heard before the first request
	}
	w.toStart = size.requests
	return w, nil
}

// peer makes a node's peer in a new boot.
func (w *world) peer(n *node, role transfer.Role) (*transfer.Peer, func(tenant.Claims) (string, error)) {
	if n.c != nil {
		n.c.Close()
	}
	n.c = w.bus.client(n.name)
	n.skew = 0
	if w.f.skew > 0 {
		n.skew = time.Duration(w.rng.Int64N(int64(w.f.skew))) - w.f.skew/2
	}
	skew := n.skew
	o := transfer.Options{
		Bus: n.c, Cluster: "sim",
		Clock: func() time.Time { return w.now.Add(skew) },
		After: func(d time.Duration, f func()) { w.timers = append(w.timers, timer{w.now.Add(d), f}) },
	}
	var sign func(tenant.Claims) (string, error)
	if w.kit.keys != nil {
		m, err := w.kit.keys.Minter(identity.Role(role))
		if err == nil {
			o.Node, err = m.NewNode(n.name)
		}
		if err != nil {
			panic("sim: internal error: " + err.Error())
		}
		o.Authority = o.Node.Authority()
		sign = func(c tenant.Claims) (string, error) {
			return tenant.Sign(c, o.Node.Private(), o.Authority.ClusterID())
		}
	} else {
		s := w.auth.enrol(role, n.name)
		o.Node, o.Suite = &identity.Node{Name: n.name, Role: identity.Role(role), Epoch: w.rng.Uint64() | 1}, s
		sign = s.signToken
	}
	n.epoch = o.Node.Epoch
	return transfer.NewPeer(o), sign
}

// key is a boot key; nil lets the node make a real one.
func (w *world) key() transfer.BootKey {
	if w.kit.keys != nil {
		return nil
	}
	return w.auth.newKey()
}

func (w *world) bootDecode(d *decodeNode) (err error) {
	p, _ := w.peer(&d.node, transfer.RoleDecode)
	d.n, err = decode.New(decode.Config{
		Peer: p, Engine: w.engine, Key: w.key(), Capacity: d.capacity, ClampWindow: true, MaxBatch: 1 + w.rng.IntN(4),
		Metrics: w.kit.decode, Log: w.kit.log,
	})
	if err == nil {
		d.m, err = d.n.Manual()
	}
	return err
}

func (w *world) bootPrefill(p *prefillNode) (err error) {
	peer, _ := w.peer(&p.node, transfer.RolePrefill)
	engine := w.engine
	if p.other {
		engine = w.kit.other
	}
	p.n, err = prefill.New(prefill.Config{
		Peer: peer, Engine: engine, Key: w.key(), Capacity: p.capacity, ClampWindow: true, Chunk: 32 << w.rng.IntN(4),
		Metrics: w.kit.prefill, Log: w.kit.log,
	})
	if err != nil {
		return err
	}
	lies, name, always := w.drawLies()
	w.logf("boot       %s: %s", p.name, name)
	if always {
		w.liars[p.epoch] = name
	}
	p.m, err = p.n.Manual(lies)
	return err
}

func (w *world) bootRouter(r *routerNode) (err error) {
	p, sign := w.peer(&r.node, transfer.RoleRouter)
	if r.dir, err = p.WatchPeers(transfer.RolePrefill, transfer.RoleDecode); err != nil {
		return err
	}
	c := r.c
	r.m = router.NewManual(router.ManualConfig{
		Peer: p, Directory: r.dir, Metadata: w.engine.Facts().Metadata,
		Ask:  c.ask,
		Sign: sign,
		Scope: func(tenant string, m transfer.Hash) [32]byte {
			return w.auth.shared(nil, nil, tenant, m[:])
		},
		Random: w.random,
		Accept: 3 * time.Second, FirstToken: 20 * time.Second, Stall: 10 * time.Second, Queue: 6 * time.Second,
	})
	return nil
}

// announce lets every node say what it is.
func (w *world) announce() {
	w.said = w.now
	for _, d := range w.decodes {
		w.check(d.m.Announce())
	}
	for _, p := range w.prefills {
		w.check(p.m.Announce())
	}
}

func (w *world) check(err error) {
	if err != nil && w.out != nil {
		w.logf("error      %v", err)
	}
}

// begin sends a new request.
func (w *world) begin() {
	w.toStart--
	r := w.rng
	q := &request{n: len(w.requests) + 1, tenant: tenants[r.IntN(len(tenants))], maxNew: w.maxNew()}
	w.random(q.id[:])
	if len(w.requests) > 0 && w.chance(40) { // an id that another tenant had: must not matter
		old := w.requests[r.IntN(len(w.requests))]
		if !slices.ContainsFunc(w.requests, func(x *request) bool { return x.id == old.id && x.tenant == q.tenant }) {
			q.id = old.id
		}
	}
	n := w.promptLen()
	q.prompt = make([]int32, n)
	for i := range min(n, len(marker)) {
		q.prompt[i] = int32(marker[i])
	}
	common := r.IntN(8) < w.common // the same system prompt for several requests, so that blocks are shared
	for i := len(marker); i < n; i++ {
		if common && i < 130 {
			q.prompt[i] = int32(i)
			continue
		}
		q.prompt[i] = int32(r.IntN(250))
	}
	q.sum = w.oracle.PromptSum(q.prompt)
	q.answer = w.oracle.Answer(q.sum, n, q.maxNew)
	q.at = w.routers[r.IntN(len(w.routers))]
	w.send(q)
	if w.chance(120) { // n = 2: another sequence of the same request
		twin := *q
		twin.n, twin.child, twin.lost = len(w.requests)+1, 1, nil
		w.send(&twin)
	}
}

func (w *world) send(q *request) {
	w.requests = append(w.requests, q)
	if w.out != nil {
		w.logf("request    %d of %s at %s: %d + %d tokens, child %d", q.n, q.tenant, q.at.name, len(q.prompt), q.maxNew, q.child)
	}
	q.g = q.at.m.Start(router.Request{Tenant: q.tenant, ID: q.id, Child: q.child, Prompt: q.prompt, MaxNew: q.maxNew, EOG: eog})
}

// run carries the schedule to its quiet end and judges it.
func (w *world) run() *Verdict {
	for w.step = 1; w.step < stepsMax && !w.ended(); w.step++ {
		w.once()
		w.tell()
	}
	w.quiet()
	w.tell()
	w.judge()
	return &w.verdict
}

// tell writes down which requests have ended since.
func (w *world) tell() {
	if w.out == nil {
		return
	}
	for _, q := range w.requests {
		if q.told || !q.over() {
			continue
		}
		q.told = true
		switch {
		case q.orphan:
			w.logf("end        request %d: its router died", q.n)
		case q.g.Err != nil:
			w.logf("end        request %d after %d tokens: %v", q.n, len(q.g.Tokens), q.g.Err)
		default:
			w.logf("end        request %d after %d tokens: %s", q.n, len(q.g.Tokens), q.g.Finish)
		}
	}
}

func (w *world) ended() bool {
	if w.toStart > 0 {
		return false
	}
	for _, q := range w.requests {
		if !q.over() {
			return false
		}
	}
	return true
}

// over says that nobody waits for the request any more.
func (q *request) over() bool { return q.orphan || q.g.Done() }

// once does one thing, chosen by the seed.
func (w *world) once() {
	w.harm()
	r := w.rng
	for range 10 { // what was chosen may have nothing to do
		switch n := r.IntN(64); {
		case n < 4 && w.toStart > 0 && !w.big: // soon, so that requests meet
			w.begin()
			return
		case n < 34:
			if w.bus.land() {
				return
			}
		case n < 44:
			if w.shipOne() {
				return
			}
		case n < 52:
			if p := w.prefills[r.IntN(len(w.prefills))]; p.m.Busy() {
				w.inStep = true
				moved := p.m.Step()
				w.inStep = false
				if moved {
					return
				}
			}
		case n < 60:
			if d := w.decodes[r.IntN(len(w.decodes))]; d.m.Busy() {
				w.inStep = true
				d.m.Step()
				w.inStep = false
				return
			}
		case n < 62:
			if w.toStart > 0 {
				w.begin()
				return
			}
		case n == 62:
			w.tick(time.Duration(r.IntN(400)) * time.Millisecond)
			return
		}
	}
	w.tick(time.Duration(20+r.IntN(1200)) * time.Millisecond)
}

func (w *world) shipOne() bool {
	p := w.prefills[w.rng.IntN(len(w.prefills))]
	s := p.m.Shipments()
	return len(s) > 0 && s[w.rng.IntN(len(s))].Step()
}

// tick lets time pass.
func (w *world) tick(d time.Duration) {
	w.now = w.now.Add(d)
	if due := w.timers; len(due) > 0 {
		w.timers = nil
		for _, t := range due {
			if t.at.After(w.now) {
				w.timers = append(w.timers, t)
			} else {
				t.f()
			}
		}
	}
	for _, x := range w.decodes {
		x.m.Tick()
	}
	for _, x := range w.prefills {
		x.m.Tick()
	}
	for _, x := range w.routers {
		x.m.Tick()
	}
	for _, q := range w.requests {
		if !q.over() {
			w.watchNodes(q)
			q.g.Tick()
		}
	}
	if w.now.Sub(w.said) > 2200*time.Millisecond {
		w.announce()
	}
	if w.rng.IntN(6) == 0 {
		w.bus.redeliver(w.bus.streams[w.rng.IntN(len(w.bus.streams))])
	}
}

// watchNodes is the router's watch: it notices boots that are gone, not at once.
func (w *world) watchNodes(q *request) {
	tried := q.g.Attempts()
	if len(tried) == 0 {
		return
	}
	a := tried[len(tried)-1]
	for _, b := range []struct {
		name  string
		epoch uint64
	}{{a.Prefill, a.PrefillEpoch}, {a.Decode, a.DecodeEpoch}} {
		if !w.alive(b.name, b.epoch) && !q.lost[b.epoch] && w.rng.IntN(3) == 0 {
			if q.lost == nil {
				q.lost = map[uint64]bool{}
			}
			q.lost[b.epoch] = true
			w.logf("lost node  %s, request %d", b.name, q.n)
			q.g.Lost(b.name, b.epoch)
		}
	}
}

func (w *world) alive(name string, epoch uint64) bool {
	for _, d := range w.decodes {
		if d.name == name {
			return d.epoch == epoch
		}
	}
	for _, p := range w.prefills {
		if p.name == name {
			return p.epoch == epoch
		}
	}
	return false
}

// harm lets the faults happen that are not the bus's.
func (w *world) harm() {
	f, r := &w.f, w.rng
	if w.chance(f.replay) {
		w.bus.replay()
	}
	if w.chance(f.cancel) && len(w.requests) > 0 {
		if q := w.requests[r.IntN(len(w.requests))]; !q.over() {
			w.logf("cancel     request %d, %s", q.n, q.g.State())
			q.g.Cancel()
		}
	}
	if w.chance(f.crash) {
		w.crash()
	}
	if w.chance(f.swap) && !kv.Asserts { // such a build panics at the fault itself
		w.swap()
	}
	if w.chance(f.wipe) {
		w.logf("wiped      all streams: the server began anew")
		for _, s := range w.bus.streams {
			for _, m := range s.msgs {
				m.gone = true
			}
			s.msgs, s.bytes = nil, 0
		}
	}
	if w.chance(f.partition) {
		c := w.bus.clients[r.IntN(len(w.bus.clients))]
		c.cut = w.step + r.IntN(200)
		w.logf("cut off    %s until step %d", c.name, c.cut)
	}
}

// swap lets two pages of a node change places. Shared pages are left alone: the
// cache is found out only when somebody reads it, which may be never.
func (w *world) swap() {
	r := w.rng
	name, pages, swap := "", 0, (func(a, b kernels.PageID) bool)(nil)
	if r.IntN(2) == 0 || w.engine != w.kit.engines[0] {
		d := w.decodes[r.IntN(len(w.decodes))]
		name, pages, swap = d.name, d.n.Stats().Pages, d.m.Swap
	} else {
		p := w.prefills[r.IntN(len(w.prefills))]
		name, pages, swap = p.name, p.n.Stats().Pages, p.m.Swap
	}
	for range 4 { // most are free
		a, b := r.IntN(pages), r.IntN(pages)
		if a != b && swap(kernels.PageID(a), kernels.PageID(b)) {
			w.swaps++
			w.logf("swapped    pages %d and %d of %s", a, b, name)
			return
		}
	}
}

// crash ends a node at this very moment and boots it again under its name.
func (w *world) crash() {
	r := w.rng
	switch r.IntN(5) {
	case 0:
		x := w.routers[r.IntN(len(w.routers))]
		w.logf("crash      %s", x.name)
		for _, q := range w.requests {
			if q.at == x && !q.over() {
				q.orphan = true
			}
		}
		if err := w.bootRouter(x); err != nil {
			w.violate("boot of %s: %v", x.name, err)
		}
		return
	case 1, 2:
		d := w.decodes[r.IntN(len(w.decodes))]
		w.logf("crash      %s", d.name)
		d.m.Close()
		if r.IntN(3) == 0 { // comes back smaller or larger
			d.capacity = w.decodeCapacity()
		}
		if err := w.bootDecode(d); err != nil {
			w.violate("boot of %s: %v", d.name, err)
		}
		w.check(d.m.Announce())
		return
	}
	p := w.prefills[r.IntN(len(w.prefills))]
	w.logf("crash      %s", p.name)
	p.m.Close()
	p.other = r.IntN(6) == 0
	if err := w.bootPrefill(p); err != nil {
		w.violate("boot of %s: %v", p.name, err)
	}
	w.check(p.m.Announce())
}

// between is called inside a decode or prefill step: messages arrive while an
// engine computes.
func (w *world) between() {
	if !w.inStep {
		return
	}
	for range w.rng.IntN(3) {
		w.bus.land()
	}
	if w.chance(w.f.slow) { // the step takes long: deadlines pass, clients go away
		w.inStep = false // one thing inside another is enough
		w.tick(time.Duration(w.rng.IntN(4000)) * time.Millisecond)
		if len(w.requests) > 0 && w.rng.IntN(3) == 0 {
			if q := w.requests[w.rng.IntN(len(w.requests))]; !q.over() {
				w.logf("cancel     request %d, %s, in a step", q.n, q.g.State())
				q.g.Cancel()
			}
		}
		for range w.rng.IntN(12) {
			w.bus.land()
		}
		w.inStep = true
	}
}

// stray is a write that landed in a page which had been given back since the step
// began. Pages that the schedule itself let change places are no proof of anything.
func (w *world) stray(s model.Seq, block int) {
	if w.swaps == 0 {
		w.violate("a write of %s for attempt %d landed in block %d after its page was released", s.Source.Tenant, s.Source.Attempt, block)
	}
}

// quiet ends all faults and lets what is left come to rest.
func (w *world) quiet() {
	w.logf("quiet")
	w.f = faults{}
	for _, c := range w.bus.clients {
		c.cut = 0
	}
	for round := range 400 {
		for range 10_000 {
			w.step++
			moved := false
			for w.bus.land() {
				moved = true
			}
			for _, p := range w.prefills {
				for p.m.Busy() && p.m.Step() {
					moved = true
				}
				w.shipments = append(w.shipments[:0], p.m.Shipments()...)
				for _, s := range w.shipments {
					moved = s.Step() || moved
				}
			}
			for _, d := range w.decodes {
				for d.m.Busy() && d.m.Step() {
					moved = true
				}
			}
			if !moved && !w.pendingFlights() {
				break
			}
		}
		if w.ended() && w.atRest() {
			return
		}
		if round > 300 {
			break
		}
		w.tick(500 * time.Millisecond)
		for _, s := range w.bus.streams {
			w.bus.redeliver(s)
		}
	}
}

func (w *world) pendingFlights() bool { return len(w.bus.flights) > 0 }

// atRest says that no node holds anything.
func (w *world) atRest() bool {
	for _, d := range w.decodes {
		if !d.n.Idle() || d.m.Busy() {
			return false
		}
	}
	for _, p := range w.prefills {
		if !p.n.Idle() || p.m.Busy() {
			return false
		}
	}
	for _, r := range w.routers {
		if !r.m.Idle() {
			return false
		}
	}
	return true
}

// judge checks what must hold at the end.
func (w *world) judge() {
	v := &w.verdict
	v.Requests = len(w.requests)
	for _, q := range w.requests {
		if bad := w.wrongEnd(q); bad != "" {
			v.Unfinished++
			w.violate("request %d: %s", q.n, bad)
		}
		if q.g.Finish != "" {
			v.Answered++
		} else {
			v.Failed++
		}
	}
	for _, d := range w.decodes {
		w.judgePool(d.name, d.n.Stats(), d.m.Quarantined(), d.m.CheckIntegrity())
	}
	for _, p := range w.prefills {
		w.judgePool(p.name, p.n.Stats(), p.m.Quarantined(), p.m.CheckIntegrity())
	}
}

func (w *world) judgePool(name string, s kv.Stats, quarantined []string, err error) {
	if n := s.Pages - s.Free - s.CachedIdle - s.Quarantined; n != 0 {
		w.verdict.Leaked += n
		w.violate("%s: %d pages are not back: %+v", name, n, s)
	}
	for _, reason := range quarantined {
		if reason == "" || w.swaps == 0 {
			w.violate("%s: a page in quarantine without cause: %q", name, reason)
		}
	}
	if err != nil {
		w.violate("%s: %v", name, err)
	}
}

// wrongEnd says what is wrong with how a request ended, or "".
func (w *world) wrongEnd(q *request) string {
	g := q.g
	if q.orphan && g.Ends == 0 {
		return ""
	}
	if g.Ends != 1 || !g.Done() {
		return fmt.Sprintf("%d ends, state %s", g.Ends, g.State())
	}
	if len(g.Tokens) > len(q.answer) {
		return fmt.Sprintf("%d tokens, at most %d", len(g.Tokens), len(q.answer))
	}
	for i, t := range g.Tokens {
		if t.ID != q.answer[i] {
			return fmt.Sprintf("token %d is %d, right is %d", i, t.ID, q.answer[i])
		}
	}
	switch {
	case g.Finish == "" && g.Err == nil:
		return "ended without an answer and without an error"
	case g.Finish != "" && g.Err != nil:
		return "ended with an answer and with an error"
	case g.Finish != "" && len(g.Tokens) != len(q.answer):
		return fmt.Sprintf("finished %q after %d of %d tokens", g.Finish, len(g.Tokens), len(q.answer))
	case len(g.Tokens) > 0 && !g.Receipt:
		return "tokens without a receipt"
	}
	if tried := g.Attempts(); g.Receipt {
		if lie := w.liars[tried[len(tried)-1].PrefillEpoch]; lie != "" {
			return "an answer rests on a prefill node that " + lie
		}
	}
	return ""
}

// watch holds every reading of every engine against what its request says.
func (w *world) watch(s provenance.Sum) {
	w.verdict.Readings++
	src := s.Seq.Source
	q := w.find(src)
	if q == nil {
		w.verdict.Wrong++
		w.violate("a reading for a request that nobody sent")
		return
	}
	g := s.Seq.Pos + len(s.Seq.Tokens) - src.Prompt
	if src.Prompt == len(q.prompt) && g >= 0 && g <= len(q.answer) && w.oracle.Right(s, q.sum, q.answer[:g]) {
		return
	}
	w.verdict.Wrong++
	w.name(s, q)
}

func (w *world) find(s model.Source) *request {
	for _, q := range w.requests {
		if q.id == s.Request && q.tenant == s.Tenant && q.child == int(s.Child) {
			return q
		}
	}
	return nil
}

// name says what was read in place of the reader's own.
func (w *world) name(s provenance.Sum, q *request) {
	var known []provenance.Known
	for _, k := range w.requests {
		for _, a := range k.g.Attempts() {
			known = append(known, provenance.Known{
				Source: model.Source{Tenant: k.tenant, Request: k.id, Child: uint16(k.child), Attempt: uint16(a.Number), Prompt: len(k.prompt), Prefill: a.PrefillEpoch, Decode: a.DecodeEpoch},
				Tokens: slices.Concat(k.prompt, k.answer),
			})
		}
	}
	src := s.Seq.Source
	end := s.Seq.Pos + len(s.Seq.Tokens)
	tokens := slices.Concat(q.prompt, q.answer)
	found := w.oracle.Wrong(s, tokens[:min(end, len(tokens))], known)
	foreign := false
	for i, f := range found {
		if f.From.Source.Tenant != "" && (f.From.Source.Tenant != src.Tenant || f.From.Source.Request != src.Request || f.From.Source.Child != src.Child) {
			foreign = true
		}
		if i < 3 {
			from := "bytes of nobody known"
			switch {
			case f.Zero:
				from = "nothing: never written"
			case f.From.Source.Tenant != "":
				from = fmt.Sprintf("%s, request %s, attempt %d, position %d", f.From.Source.Tenant, transfer.ID(f.From.Source.Request).String()[:5], f.From.Source.Attempt, f.FromPos)
			}
			w.violate("request %d attempt %d of %s read at layer %d position %d: %s", q.n, src.Attempt, src.Tenant, f.Layer, f.Pos, from)
		}
	}
	if foreign {
		w.verdict.Foreign++
	}
	if len(found) == 0 {
		w.violate("request %d of %s read %d tokens of %d + %d", q.n, src.Tenant, end, src.Prompt, end-src.Prompt)
	}
}
