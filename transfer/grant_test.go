package transfer_test

import (
	"errors"
	"testing"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// grantWorld is a router with a job for p0 and d0, good in every point.
type grantWorld struct {
	r, other, p, d *node
	claims         tenant.Claims
	job            transfer.Job
	self           map[*node]transfer.Self
}

func newGrantWorld(t *testing.T) *grantWorld {
	t.Helper()
	w := newWorld(t)
	g := &grantWorld{r: w.node(identity.Router, "r0"), other: w.node(identity.Router, "r1"), p: w.node(identity.Prefill, "p0"), d: w.node(identity.Decode, "d0")}
	now := time.Now()
	g.job = transfer.Job{
		Salt: transfer.Hash{9}, Prompt: []int32{1, 2, 3}, Params: sample.Params{MaxNew: 5},
		ReplyKey: [32]byte{7}, Deadline: now.Add(time.Minute),
	}
	g.claims = tenant.Claims{
		Tenant: "acme", Request: [16]byte{1}, Attempt: 1, Model: transfer.Hash{4},
		PromptLen: 3, PromptDigest: tenant.PromptDigest(g.job.Salt, g.job.Prompt), BlockTokens: tenant.BlockTokens, Blocks: 1, MaxNew: 5,
		Prefill: "p0", Decode: "d0", DecodeEpoch: g.d.Epoch(),
		IssuedAt: now, NotBefore: now, Expires: now.Add(time.Minute), Router: "r0",
	}
	g.self = map[*node]transfer.Self{}
	for _, n := range []*node{g.p, g.d} {
		g.self[n] = transfer.Self{Role: n.Role(), Node: n.Name(), Epoch: n.Epoch(), Model: transfer.Hash{4}, Vocab: 100}
	}
	return g
}

// sign puts the token of the claims and all that depends on it into the job.
func (g *grantWorld) sign(t *testing.T, by *node) {
	t.Helper()
	scope := transfer.OutSubject{Router: by.Name(), Request: g.claims.Request}
	g.claims.ReplyBinding = tenant.ReplyBinding(scope.Scope(), g.job.ReplyKey)
	token, err := tenant.Sign(g.claims, by.id.Private(), by.id.Authority().ClusterID())
	must(t, err)
	g.job.Token = token
	scope.Token = transfer.Fingerprint(transfer.TokenHash(token))
	g.job.Reply = scope.String()
}

func (n *node) peer() identity.Peer {
	return identity.Peer{Name: n.Name(), Role: n.id.Role, Public: n.id.Public()}
}

// Goal: a job is granted only if its token is in order and says of this node,
// this prompt and this router what the node knows itself. Method: a good job, and one thing
// wrong at a time; the refusal names the reason.
func TestVerifyJob(t *testing.T) {
	for what, c := range map[string]struct {
		before func(g *grantWorld)               // the token is signed over it
		after  func(g *grantWorld)               // after signing
		self   func(s *transfer.Self)            // what the node is
		from   func(g *grantWorld) identity.Peer // who sent it
		now    time.Duration                     // the node's clock
		only   identity.Role                     // "" both roles refuse
		want   transfer.Reason                   // "" granted
	}{
		"good":                   {},
		"no token":               {after: func(g *grantWorld) { g.job.Token = "" }, want: transfer.ReasonToken},
		"token changed":          {after: func(g *grantWorld) { g.job.Token = g.job.Token[:20] + "A" + g.job.Token[21:] }, want: transfer.ReasonToken},
		"sent by prefill":        {from: func(g *grantWorld) identity.Peer { return g.p.peer() }, want: transfer.ReasonToken},
		"sent by another router": {from: func(g *grantWorld) identity.Peer { return g.other.peer() }, want: transfer.ReasonToken},
		"router's name, another key": {from: func(g *grantWorld) identity.Peer {
			p := g.other.peer()
			p.Name = "r0"
			return p
		}, want: transfer.ReasonToken},
		"not yet":             {now: -time.Minute, want: transfer.ReasonToken},
		"expired":             {now: 2 * time.Minute, want: transfer.ReasonToken},
		"for another prefill": {before: func(g *grantWorld) { g.claims.Prefill = "p1" }, only: identity.Prefill, want: transfer.ReasonToken},
		"for another decode":  {before: func(g *grantWorld) { g.claims.Decode = "d1" }, only: identity.Decode, want: transfer.ReasonToken},
		"for another boot":    {before: func(g *grantWorld) { g.claims.DecodeEpoch++ }, only: identity.Decode, want: transfer.ReasonToken},
		"for another model":   {self: func(s *transfer.Self) { s.Model[31]++ }, want: transfer.ReasonModel},
		"one token more":      {after: func(g *grantWorld) { g.job.Prompt = append(g.job.Prompt, 4) }, want: transfer.ReasonPrompt},
		"one token less":      {after: func(g *grantWorld) { g.job.Prompt = g.job.Prompt[:2] }, want: transfer.ReasonPrompt},
		"placeholder":         {after: func(g *grantWorld) { g.job.Prompt = []int32{0} }, want: transfer.ReasonPrompt},
		"no prompt":           {after: func(g *grantWorld) { g.job.Prompt = nil }, want: transfer.ReasonPrompt},
		"another token":       {after: func(g *grantWorld) { g.job.Prompt[1] = 7 }, want: transfer.ReasonPrompt},
		"another salt":        {after: func(g *grantWorld) { g.job.Salt[0]++ }, want: transfer.ReasonPrompt},
		"more to generate":    {after: func(g *grantWorld) { g.job.Params.MaxNew++ }, want: transfer.ReasonToken},
		"another reply key":   {after: func(g *grantWorld) { g.job.ReplyKey[0]++ }, want: transfer.ReasonToken},
		"reply of another request": {after: func(g *grantWorld) {
			o, _ := transfer.ParseOut(g.job.Reply)
			o.Request[0]++
			g.job.Reply = o.String()
		}, want: transfer.ReasonToken},
		"reply of another token": {after: func(g *grantWorld) {
			o, _ := transfer.ParseOut(g.job.Reply)
			o.Token[0]++
			g.job.Reply = o.String()
		}, want: transfer.ReasonToken},
		"reply to another router": {after: func(g *grantWorld) {
			o, _ := transfer.ParseOut(g.job.Reply)
			o.Router = "r1"
			g.job.Reply = o.String()
		}, want: transfer.ReasonToken},
		"reply elsewhere":    {after: func(g *grantWorld) { g.job.Reply = "kv.d0.x" }, want: transfer.ReasonToken},
		"bad parameters":     {after: func(g *grantWorld) { g.job.Params.TopP = 2 }, want: transfer.ReasonProtocol},
		"token id too large": {before: func(g *grantWorld) { g.prompt(1, 2, 100) }, want: transfer.ReasonPrompt},
		"token id negative":  {before: func(g *grantWorld) { g.prompt(1, -2, 3) }, want: transfer.ReasonPrompt},
		"deadline passed":    {after: func(g *grantWorld) { g.job.Deadline = time.Now().Add(-time.Second) }, want: transfer.ReasonTimeout},
	} {
		t.Run(what, func(t *testing.T) {
			g := newGrantWorld(t)
			if c.before != nil {
				c.before(g)
			}
			g.sign(t, g.r)
			if c.after != nil {
				c.after(g)
			}
			from := g.r.peer()
			if c.from != nil {
				from = c.from(g)
			}
			for _, n := range []*node{g.p, g.d} {
				self := g.self[n]
				if c.self != nil {
					c.self(&self)
				}
				want := c.want
				if c.only != "" && c.only != n.id.Role {
					want = ""
				}
				grant, no := n.VerifyJob(transfer.JobForRole(g.job, transfer.Role(n.id.Role)), from, self, time.Now().Add(c.now))
				switch {
				case want == "" && (no != nil || grant == nil || grant.Hash != transfer.TokenHash(g.job.Token) || grant.Claims.Tenant != "acme"):
					t.Errorf("%s: %+v", n.Name(), no)
				case want != "" && (grant != nil || no == nil || no.Reason != want):
					t.Errorf("%s: granted %t, %+v, want %s", n.Name(), grant != nil, no, want)
				}
			}
		})
	}
}

func (g *grantWorld) prompt(ids ...int32) {
	g.job.Prompt = ids
	g.claims.PromptDigest = tenant.PromptDigest(g.job.Salt, ids)
}

// A node's own limit, apart from all the router says.
func TestCheckLength(t *testing.T) {
	g := newGrantWorld(t)
	g.sign(t, g.r)
	grant, no := g.d.VerifyJob(transfer.JobForRole(g.job, transfer.RoleDecode), g.r.peer(), g.self[g.d], time.Now())
	if no != nil {
		t.Fatalf("%+v", no)
	}
	if no := grant.CheckLength(8); no != nil {
		t.Errorf("8 tokens of 8: %+v", no)
	}
	if no := grant.CheckLength(7); no == nil || no.Reason != transfer.ReasonContextLength || no.Limit != 7 || no.Value != 8 {
		t.Errorf("8 tokens of 7: %+v", no)
	}
}

// A receipt is believed from the attempt's decode node, in its boot, on the
// attempt's reply subject, of its token, with all its pages.
func TestReceipt(t *testing.T) {
	w := newWorld(t)
	r, d, d1, p := w.node(identity.Router, "r0"), w.node(identity.Decode, "d0"), w.node(identity.Decode, "d1"), w.node(identity.Prefill, "d0")
	token := transfer.TokenHash("tok")
	good := seal.Receipt{TokenHash: token, ManifestHash: transfer.Hash{1}, Pages: 3, Decode: "d0", Epoch: d.Epoch()}
	check := func(what string, by *node, change func(*seal.Receipt), reply string, ok bool, want error) {
		t.Helper()
		rec := good
		change(&rec)
		b, err := rec.Append(nil)
		must(t, err)
		s, err := by.SignReceipt(b, reply, 0)
		must(t, err)
		got, hash, err := r.VerifyReceipt(s, "out.r0.x", token, "d0", d.Epoch(), 3)
		if ok && (err != nil || got != rec || hash != rec.Hash()) || !ok && !errors.Is(err, want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	same := func(*seal.Receipt) {}
	check("good", d, same, "out.r0.x", true, nil)
	check("signed by another node", d1, same, "out.r0.x", false, transfer.ErrReceipt)
	check("signed by a prefill node", p, same, "out.r0.x", false, transfer.ErrEnvelope)
	check("for another reply subject", d, same, "out.r0.y", false, transfer.ErrEnvelope)
	check("naming another node", d, func(x *seal.Receipt) { x.Decode = "d1" }, "out.r0.x", false, transfer.ErrReceipt)
	check("of another boot", d, func(x *seal.Receipt) { x.Epoch++ }, "out.r0.x", false, transfer.ErrReceipt)
	check("of another token", d, func(x *seal.Receipt) { x.TokenHash[0]++ }, "out.r0.x", false, transfer.ErrReceipt)
	check("a page short", d, func(x *seal.Receipt) { x.Pages-- }, "out.r0.x", false, transfer.ErrReceipt)
	s := &transfer.SignedReceipt{Statement: transfer.SignForTest(d.Peer, "receipt", "out.r0.x", []byte("no receipt"))}
	if _, _, err := r.VerifyReceipt(s, "out.r0.x", token, "d0", d.Epoch(), 3); !errors.Is(err, seal.ErrFormat) {
		t.Errorf("a receipt that is none: %v", err)
	}
	if _, _, err := r.VerifyReceipt(&transfer.SignedReceipt{Statement: []byte("x")}, "out.r0.x", token, "d0", d.Epoch(), 3); !errors.Is(err, transfer.ErrMessage) {
		t.Errorf("a statement that is none: %v", err)
	}
}

// A token is used once while it lives; memory is bounded, and it forgets only what expired.
func TestOnce(t *testing.T) {
	var o transfer.Once
	now := time.Unix(1000, 0)
	hash := func(i int) transfer.Hash { return transfer.Hash{byte(i), byte(i >> 8), byte(i >> 16)} }
	must(t, o.Use(hash(0), now.Add(time.Minute), now))
	wantErr(t, o.Use(hash(0), now.Add(time.Minute), now), transfer.ErrSpent)
	must(t, o.Use(hash(1), now.Add(time.Hour), now))
	o.Prune(now.Add(time.Minute + tenant.MaxSkew)) // the clocks' skew is remembered too
	wantErr(t, o.Use(hash(0), now, now.Add(time.Minute)), transfer.ErrSpent)
	o.Prune(now.Add(2 * time.Minute))
	must(t, o.Use(hash(0), now.Add(time.Hour), now))
	for i := 2; i < 1<<16; i++ {
		must(t, o.Use(hash(i), now.Add(time.Minute), now))
	}
	wantErr(t, o.Use(hash(1<<16), now.Add(time.Minute), now), transfer.ErrSpentFull)
	wantErr(t, o.Use(hash(5), now.Add(time.Minute), now), transfer.ErrSpent)
	must(t, o.Use(hash(1<<16), now.Add(time.Hour), now.Add(2*time.Minute))) // those have expired
	wantErr(t, o.Use(hash(1), now, now.Add(2*time.Minute)), transfer.ErrSpent)
}
