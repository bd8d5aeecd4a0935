package attack

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"bulkhead/decode"
	"bulkhead/internal/identity"
	"bulkhead/internal/metrics"
	"bulkhead/internal/model"
	"bulkhead/internal/mutant"
	"bulkhead/internal/provenance"
	"bulkhead/prefill"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// rigError is a fault of these tests, not of the product.
type rigError string

func must(err error) {
	if err != nil {
		panic(rigError(err.Error()))
	}
}

// site is what all rigs share, since nothing of it remembers anything: identities,
// the keys of one boot, engines.
type site struct {
	keys           *identity.Keys
	r1, r2         *identity.Node // routers
	p1, p2         *identity.Node // prefill nodes
	d1, d2         *identity.Node // decode nodes
	routerP1       *identity.Node // a router by the name of p1
	prefillD1      *identity.Node // a prefill node by the name of d1
	foreignP1      *identity.Node // a prefill node p1 of another cluster
	cluster        string
	decodeKey      *seal.Key
	prefillKey     *seal.Key
	private        *provenance.Engine
	shared         *provenance.Engine
	decodeMetrics  *decode.Metrics
	prefillMetrics *prefill.Metrics
}

// window is what the engines take at most, in tokens.
const window = 2048

var theSite = sync.OnceValue(func() *site {
	keys, err := identity.NewMemory("site")
	must(err)
	other, err := identity.NewMemory("other")
	must(err)
	node := func(k *identity.Keys, role identity.Role, name string) *identity.Node {
		m, err := k.Minter(role)
		must(err)
		n, err := m.NewNode(name)
		must(err)
		return n
	}
	s := &site{
		keys: keys,
		r1:   node(keys, identity.Router, "r1"), r2: node(keys, identity.Router, "r2"),
		p1: node(keys, identity.Prefill, "p1"), p2: node(keys, identity.Prefill, "p2"),
		d1: node(keys, identity.Decode, "d1"), d2: node(keys, identity.Decode, "d2"),
		routerP1: node(keys, identity.Router, "p1"), prefillD1: node(keys, identity.Prefill, "d1"),
		foreignP1: node(other, identity.Prefill, "p1"),
	}
	s.cluster = s.r1.Authority().ClusterID()
	s.decodeKey, err = seal.NewKey()
	must(err)
	s.prefillKey, err = seal.NewKey()
	must(err)
	s.private, err = provenance.New(provenance.Config{Window: window})
	must(err)
	s.shared, err = provenance.New(provenance.Config{Window: window, Share: true})
	must(err)
	reg := metrics.New()
	s.decodeMetrics, s.prefillMetrics = decode.NewMetrics(reg), prefill.NewMetrics(reg)
	return s
})

// rig is one attack's world.
type rig struct {
	*site
	net    *network
	now    time.Time
	engine model.Engine
	log    *words
	peers  map[*identity.Node]*transfer.Peer
	auth   *identity.Authority // of this rig: it remembers whom it believed
	d      *decode.Manual
	dn     *decode.Node
	p      *prefill.Manual
	pn     *prefill.Node
	serial byte
}

func newRig() *rig {
	x := &rig{site: theSite(), net: &network{streams: map[string]func(transfer.KVMsg){}}, now: time.Now(), log: &words{}, peers: map[*identity.Node]*transfer.Peer{}}
	x.engine = x.private
	var err error
	x.auth, err = x.keys.Authority()
	must(err)
	return x
}

// words keeps what the nodes log as the cause of a refusal: the only place where
// they say it in full.
type words struct{ said []string }

func (w *words) Enabled(context.Context, slog.Level) bool { return true }
func (w *words) WithAttrs([]slog.Attr) slog.Handler       { return w }
func (w *words) WithGroup(string) slog.Handler            { return w }
func (w *words) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "err" {
			w.said = append(w.said, a.Value.String())
		}
		return true
	})
	return nil
}

// why is the latest refusal, as an error.
func (x *rig) why() error {
	if len(x.log.said) == 0 {
		return errors.New("refused without a word")
	}
	return errors.New(x.log.said[len(x.log.said)-1])
}

// peer is a node of the site on this rig's bus.
func (x *rig) peer(n *identity.Node) *transfer.Peer {
	p := x.peers[n]
	if p == nil {
		p = transfer.NewPeer(transfer.Options{
			Bus: port{x.net}, Node: n, Authority: x.auth, Cluster: "site",
			Clock: func() time.Time { return x.now },
			After: func(time.Duration, func()) {},
			Log:   slog.New(x.log),
		})
		x.peers[n] = p
	}
	return p
}

// decode boots the honest decode node d1.
func (x *rig) decode(windowTokens, capacity int) {
	var err error
	x.dn, err = decode.New(decode.Config{
		Peer: x.peer(x.d1), Engine: x.engine, Key: x.decodeKey, Window: windowTokens, Capacity: capacity,
		Metrics: x.decodeMetrics, Log: slog.New(x.log),
	})
	must(err)
	x.d, err = x.dn.Manual()
	must(err)
}

// prefill boots the honest prefill node p1, which knows d1.
func (x *rig) prefill(windowTokens, capacity int) {
	var err error
	x.pn, err = prefill.New(prefill.Config{
		Peer: x.peer(x.p1), Engine: x.engine, Key: x.prefillKey, Window: windowTokens, Capacity: capacity,
		Metrics: x.prefillMetrics, Log: slog.New(x.log),
	})
	must(err)
	x.p, err = x.pn.Manual(prefill.Lies{})
	must(err)
}

func (x *rig) sayDecode(change func(*transfer.Announce)) {
	x.say(x.d1, x.decodeKey.Public(), change)
}

// say announces a node, truly but for the change.
func (x *rig) say(n *identity.Node, key []byte, change func(*transfer.Announce)) {
	f := x.engine.Facts()
	a := transfer.Announce{
		HPKE: key, Model: f.Fingerprint, Layout: f.Layout.Fingerprint(), Metadata: f.Metadata, File: f.File,
		Capacity: window, Window: window, Vocab: f.Vocab, Ready: true, FreeTokens: window,
	}
	if change != nil {
		change(&a)
	}
	must(x.peer(n).Announce(a))
}

// row is one hostile move.
type row struct {
	name  string
	who   string         // bus, router, prefill, decode, client, memory
	want  string         // words of the refusal
	walls []mutant.Check // all must be removed before it goes through
	move  func(x *rig) error
}

// try returns the words of the refusal, "" if the move went through.
func (r row) try() (refusal string) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case rigError:
			// What the move rests on does not work without these checks.
			refusal = fmt.Sprintf("cannot be tried: %s", string(p))
		default:
			refusal = "" // bytes from outside that end the process are no refusal
		}
	}()
	if err := r.move(newRig()); err != nil {
		return err.Error()
	}
	return ""
}

// rows are all attacks.
func rows() []row {
	return slices.Concat(jobRows(), envelopeRows(), frameRows(), manifestRows(), outputRows(), routerRows(), prefillRows(), pageRows(), poolRows())
}

func walls(c ...mutant.Check) []mutant.Check { return c }

func sign(n *identity.Node, b []byte) []byte { return ed25519.Sign(n.Private(), b) }

// destination is where a statement is for, as the build under test signs it.
func destination(s string) string {
	if mutant.Off(mutant.EnvelopeDest) {
		return ""
	}
	return s
}

// said returns nil if what was refused went through; else the words.
func (x *rig) said(through bool) error {
	if through {
		return nil
	}
	return x.why()
}

func contains(s, words string) bool {
	return strings.Contains(strings.ToLower(s), strings.ToLower(words))
}
