package cluster_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// tamper is one thing that a prefill node, or whoever can publish in its name,
// does wrong.
type tamper struct {
	name string
	recipe
	wire func(a *arena, x *try, m []message) []message // after sealing and signing
	by   func(a *arena) *node                          // who publishes; nil: p1
	soon bool                                          // the attempt can only end by its deadline: a short one
	want []transfer.Reason
}

var (
	protocol  = []transfer.Reason{transfer.ReasonProtocol}
	integrity = []transfer.Reason{transfer.ReasonIntegrity}
	timeout   = []transfer.Reason{transfer.ReasonTimeout}
)

// headerChanges are made by the sender itself, before it seals: the frame's own
// tag is good, and only decode's own expectation can tell.
var headerChanges = map[string]func(i int, h *seal.Header, plain *[]byte){
	"request":       func(_ int, h *seal.Header, _ *[]byte) { h.Request[3] ^= 1 },
	"child":         func(_ int, h *seal.Header, _ *[]byte) { h.Child++ },
	"attempt":       func(_ int, h *seal.Header, _ *[]byte) { h.Attempt++ },
	"number":        func(i int, h *seal.Header, _ *[]byte) { h.Seq += 3 },
	"prefill":       func(_ int, h *seal.Header, _ *[]byte) { h.Prefill = "p2" },
	"prefill epoch": func(_ int, h *seal.Header, _ *[]byte) { h.PrefillEpoch++ },
	"decode":        func(_ int, h *seal.Header, _ *[]byte) { h.Decode = "d2" },
	"decode epoch":  func(_ int, h *seal.Header, _ *[]byte) { h.DecodeEpoch++ },
	"model":         func(_ int, h *seal.Header, _ *[]byte) { h.Model[0] ^= 1 },
	"block": func(i int, h *seal.Header, _ *[]byte) { // blocks 0 and 1 change places
		if i < 2 {
			h.Block ^= 1
			h.TokenStart, h.TokenEnd = h.Block*64, h.Block*64+64
		}
	},
	"blocks, more": func(_ int, h *seal.Header, plain *[]byte) { h.Blocks++; fullBlock(h, plain) },
	"blocks, less": func(i int, h *seal.Header, _ *[]byte) {
		if i < 2 {
			h.Blocks--
		}
	},
	"token range": func(i int, h *seal.Header, plain *[]byte) {
		if i == 2 { // one token less than granted
			bytes := len(*plain) / int(h.TokenEnd-h.TokenStart)
			h.TokenEnd--
			*plain = (*plain)[:len(*plain)-bytes]
			h.PayloadLen = uint32(len(*plain))
		}
	},
	"token range, more": func(i int, h *seal.Header, plain *[]byte) {
		if i == 2 { // one token more than granted
			bytes := len(*plain) / int(h.TokenEnd-h.TokenStart)
			h.TokenEnd++
			*plain = append(*plain, make([]byte, bytes)...)
			h.PayloadLen = uint32(len(*plain))
		}
	},
	"layers":        func(_ int, h *seal.Header, _ *[]byte) { h.LayerEnd-- },
	"layers moved":  func(_ int, h *seal.Header, _ *[]byte) { h.LayerStart++; h.LayerEnd++ },
	"length":        func(_ int, h *seal.Header, plain *[]byte) { *plain = (*plain)[2:]; h.PayloadLen -= 2 },
	"prompt digest": func(_ int, h *seal.Header, _ *[]byte) { h.PromptDigest[31] ^= 0x80 },
	"prefix digest": func(_ int, h *seal.Header, _ *[]byte) { h.PrefixDigest[0] ^= 1 },
}

// fullBlock makes a frame of the last, partial block one that a longer prompt would have.
func fullBlock(h *seal.Header, plain *[]byte) {
	per := len(*plain) / int(h.TokenEnd-h.TokenStart)
	h.TokenEnd = h.TokenStart + tenant.BlockTokens
	*plain = append(*plain, make([]byte, per*tenant.BlockTokens-len(*plain))...)
	h.PayloadLen = uint32(len(*plain))
}

// openChanges are signed by the granted node.
var openChanges = map[string]struct {
	change func(*transfer.Open)
	want   []transfer.Reason
}{
	"one frame less":      {func(o *transfer.Open) { o.Frames-- }, protocol},
	"one frame more":      {func(o *transfer.Open) { o.Frames++ }, protocol},
	"a placeholder's one": {func(o *transfer.Open) { o.Frames = 1 }, protocol},
	"layout":              {func(o *transfer.Open) { o.Layout[5] ^= 4 }, protocol},
	"prefill name":        {func(o *transfer.Open) { o.Prefill = "p2" }, protocol},
	"prefill epoch":       {func(o *transfer.Open) { o.PrefillEpoch++ }, protocol}, // the frames bear the true one
	"key share":           {func(o *transfer.Open) { o.Enc[7] ^= 1 }, integrity},
	"key share of zeros":  {func(o *transfer.Open) { clear(o.Enc) }, integrity},
	"token":               {func(o *transfer.Open) { o.Token = o.Token[:len(o.Token)-1] + "A" }, protocol},
}

// manifestChanges are signed by the granted node, too.
var manifestChanges = map[string]func(*seal.Manifest){
	"token hash": func(m *seal.Manifest) { m.TokenHash[9] ^= 1 },
	"blocks":     func(m *seal.Manifest) { m.Blocks-- },
	"tokens":     func(m *seal.Manifest) { m.Tokens-- },
	"frames":     func(m *seal.Manifest) { m.Frames++ },
	"chain":      func(m *seal.Manifest) { m.Chain[0] ^= 1 },
	"first":      func(m *seal.Manifest) { m.First[0] ^= 1 },
	"first tag":  func(m *seal.Manifest) { m.First[len(m.First)-1] ^= 1 },
}

// statementChanges break the manifest's own form.
var statementChanges = map[string]func([]byte) []byte{
	"magic":          func(b []byte) []byte { b[0] ^= 1; return b },
	"version":        func(b []byte) []byte { b[4]++; return b },
	"status 0":       func(b []byte) []byte { b[5] = 0; return b },
	"status 2":       func(b []byte) []byte { b[5] = 2; return b },
	"reserved":       func(b []byte) []byte { b[6] = 1; return b },
	"a byte more":    func(b []byte) []byte { return append(b, 0) },
	"a byte less":    func(b []byte) []byte { return b[:len(b)-1] },
	"nothing":        func([]byte) []byte { return nil },
	"a frame's head": func(b []byte) []byte { copy(b, "BKHF"); return b },
}

// firstChanges are sealed well.
var firstChanges = map[string]func([]byte) []byte{
	"outside the vocabulary": func([]byte) []byte { return encodeFirst(sample.Token{ID: 1 << 20}) },
	"negative":               func([]byte) []byte { return encodeFirst(sample.Token{ID: -1}) },
	"not a token":            func([]byte) []byte { return []byte("hello") },
	"two tokens":             func(b []byte) []byte { return append(b, b...) },
	"nothing":                func([]byte) []byte { return nil },
}

func encodeFirst(t sample.Token) []byte {
	b, err := transfer.EncodeFirst(t)
	if err != nil {
		return []byte{0xc1}
	}
	return b
}

// flip changes one bit of one message.
func flip(m []message, which, at int) []message {
	if at < 0 {
		at += len(m[which].data)
	}
	m[which].data[at] ^= 1 << (at % 8)
	return m
}

// wireChanges are those of a bus, or of a node that publishes in the sender's place.
func wireChanges() []tamper {
	return []tamper{
		{name: "a frame is dropped", want: integrity, wire: func(_ *arena, _ *try, m []message) []message { return slices.Delete(m, 2, 3) }},
		{name: "a frame and the manifest are dropped", soon: true, want: timeout, wire: func(_ *arena, _ *try, m []message) []message { return slices.Delete(m, 2, 3)[:3] }},
		{name: "the manifest is dropped", soon: true, want: timeout, wire: func(_ *arena, _ *try, m []message) []message { return m[:len(m)-1] }},
		{name: "everything is dropped", soon: true, want: timeout, wire: func(_ *arena, _ *try, m []message) []message { return nil }},
		{name: "the opening is dropped", want: protocol, wire: func(_ *arena, _ *try, m []message) []message { return m[1:] }},
		{name: "the manifest comes alone", want: integrity, wire: func(_ *arena, _ *try, m []message) []message { return m[len(m)-1:] }},
		{name: "the manifest comes early", want: integrity, wire: func(_ *arena, _ *try, m []message) []message {
			return []message{m[0], m[1], m[4], m[2], m[3]}
		}},
		{name: "a frame is cut short", want: protocol, wire: func(_ *arena, _ *try, m []message) []message {
			m[1].data = m[1].data[:len(m[1].data)-1]
			return m
		}},
		{name: "a frame is longer", want: protocol, wire: func(_ *arena, _ *try, m []message) []message {
			m[1].data = append(m[1].data, 0)
			return m
		}},
		{name: "a frame is its header only", want: protocol, wire: func(_ *arena, _ *try, m []message) []message {
			m[1].data = m[1].data[:seal.HeaderSize]
			return m
		}},
		{name: "two frames change their ciphertext", want: integrity, wire: func(_ *arena, _ *try, m []message) []message {
			x, y := m[1].data[seal.HeaderSize:], m[2].data[seal.HeaderSize:]
			for i := range x {
				x[i], y[i] = y[i], x[i]
			}
			return m
		}},
		{name: "a frame comes as another's subject request", want: protocol, wire: func(_ *arena, x *try, m []message) []message {
			s, _ := transfer.ParseKV(m[1].subject)
			s.Request[0] ^= 1
			m[1].subject = s.String()
			return m
		}},
		{name: "a frame comes as another attempt's subject", want: protocol, wire: func(_ *arena, x *try, m []message) []message {
			s, _ := transfer.ParseKV(m[1].subject)
			s.Attempt++
			m[1].subject = s.String()
			return m
		}},
		{name: "a frame comes under an unknown token", want: integrity, wire: func(_ *arena, x *try, m []message) []message {
			s, _ := transfer.ParseKV(m[1].subject)
			s.Token[0] ^= 1
			m[1].subject = s.String() // nobody's: dropped, and the manifest finds it missing
			return m
		}},
		{name: "a second, different frame for the same place", want: protocol, wire: func(a *arena, x *try, m []message) []message {
			other := a.craft(x, recipe{}) // the same attempt under other keys
			return slices.Insert(m, 2, other[1])
		}},
		{name: "a second, different opening", want: protocol, wire: func(a *arena, x *try, m []message) []message {
			return slices.Insert(m, 1, a.craft(x, recipe{})[0])
		}},
		{name: "frames sealed under another opening's keys", want: integrity, wire: func(a *arena, x *try, m []message) []message {
			return append(a.craft(x, recipe{})[:1], m[1:]...)
		}},
		{name: "the manifest of other keys", want: integrity, wire: func(a *arena, x *try, m []message) []message {
			return append(m[:4:4], a.craft(x, recipe{})[4])
		}},
		{name: "all of it from a node that was not granted", want: protocol,
			recipe: recipe{}, by: func(a *arena) *node { return a.p2 },
			wire: func(a *arena, x *try, m []message) []message { return a.craft(x, recipe{by: a.p2}) }},
		{name: "opening by the granted, manifest by another", want: protocol, wire: func(a *arena, x *try, m []message) []message {
			return append(m[:4:4], a.craft(x, recipe{by: a.p2})[4])
		}},
		{name: "a manifest signed for another subject", want: protocol, wire: func(a *arena, x *try, m []message) []message {
			y := a.try(arenaPrompt)
			n := a.craft(y, recipe{})
			a.send(a.p1, n) // y ends well, so that its pages are free again
			if err := a.right(y); err != nil {
				a.t.Error(err)
			}
			n[4].subject = m[4].subject
			return append(m[:4:4], n[4])
		}},
		{name: "a refusal by a node that was not granted", want: protocol, by: func(a *arena) *node { return a.p2 },
			wire: func(a *arena, x *try, m []message) []message {
				n := a.craft(x, recipe{by: a.p2, reject: &transfer.Reject{Reason: transfer.ReasonBusy}})
				return n[len(n)-1:]
			}},
		{name: "a refusal signed for another attempt", want: protocol,
			wire: func(a *arena, x *try, m []message) []message {
				y := a.try(arenaPrompt)
				n := a.craft(y, recipe{reject: &transfer.Reject{Reason: transfer.ReasonBusy}})
				a.send(a.p1, n)
				if err := a.refused(y, transfer.ReasonBusy); err != nil {
					a.t.Error(err)
				}
				n[4].subject = m[4].subject
				return n[4:]
			}},
		{name: "a refusal by the granted node itself", want: []transfer.Reason{transfer.ReasonLogits},
			recipe: recipe{reject: &transfer.Reject{Reason: transfer.ReasonLogits}}},
	}
}

// goal: nothing that reaches decode but the granted node's own blocks, all of
// them, in their places, can become a page that is read. method: a real decode
// node; the test is router and prefill, right in everything but one thing. Each
// case: a typed refusal that the router hears, of exactly this reason, no receipt, no token, every
// page free again, and an honest attempt right afterwards.
func TestTamper(t *testing.T) {
	a := newArena(t)
	must(t, a.honest())
	must(t, a.baseline())
	var cases []tamper
	for name, f := range headerChanges {
		cases = append(cases, tamper{name: "header sealed with another " + name, recipe: recipe{header: f}, want: protocol})
	}
	other := transfer.Hash{1}
	cases = append(cases,
		tamper{name: "header sealed with another token hash", recipe: recipe{sealedFor: other, header: func(_ int, h *seal.Header, _ *[]byte) { h.TokenHash = other }}, want: protocol},
		tamper{name: "keys bound to another token", recipe: recipe{sealedFor: other, header: func(_ int, h *seal.Header, _ *[]byte) { h.TokenHash = other }}, want: integrity,
			wire: func(_ *arena, x *try, m []message) []message { // the header put right, the keys not
				for i := 1; i < 4; i++ {
					copy(m[i].data[8:], x.hash[:])
				}
				return m
			}})
	for name, c := range openChanges {
		cases = append(cases, tamper{name: "opening with another " + name, recipe: recipe{open: c.change}, want: c.want})
	}
	for name, f := range manifestChanges {
		cases = append(cases, tamper{name: "manifest with another " + name, recipe: recipe{manifest: f}, want: integrity})
	}
	for name, f := range statementChanges {
		cases = append(cases, tamper{name: "manifest form: " + name, recipe: recipe{statement: f}, want: protocol})
	}
	for name, f := range firstChanges {
		cases = append(cases, tamper{name: "first token: " + name, recipe: recipe{first: f}, want: protocol})
	}
	cases = append(cases, wireChanges()...)
	slices.SortFunc(cases, func(x, y tamper) int { return bytes.Compare([]byte(x.name), []byte(y.name)) })
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			x := a.try(arenaPrompt, func(_ *tenant.Claims, j *transfer.Job) {
				if c.soon {
					j.Deadline = time.Now().Add(300 * time.Millisecond)
				}
			})
			m := a.craft(x, c.recipe)
			if c.wire != nil {
				m = c.wire(a, x, m)
			}
			by := a.p1
			if c.by != nil {
				by = c.by(a)
			}
			a.send(by, m)
			if err := a.refused(x, c.want...); err != nil {
				t.Error(err)
			}
			if err := a.baseline(); err != nil {
				t.Error(err)
			}
			if err := a.honest(); err != nil {
				t.Errorf("an honest attempt afterwards: %v", err)
			}
		})
	}
	must(t, a.baseline())
}

// goal: no byte of what travels can be changed. method: one bit of one byte of
// one message, after sealing and signing: both ends of every field of a frame's header, edges
// and a random sample of the rest, seed printed. Many attempts at a time.
func TestFlips(t *testing.T) {
	a := newArena(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	prompt := tokens(70) // two frames
	type one struct {
		message, at int
		want        []transfer.Reason
	}
	var flips []one
	for _, at := range []int{4, 5, 6, 7, 8, 39, 40, 55, 56, 57, 58, 59, 60, 63, 64, 71, 72, 79, 80, 111, 112, 143, 144, 175, 176, 179, 180, 183, 184, 187, 188, 191, 192, 193, 194, 195, 196, 199, 200, 231, 232, 263} {
		flips = append(flips, one{message: 1, at: at, want: protocol})
	}
	for range 24 {
		flips = append(flips, one{message: 1 + rng.IntN(2), at: 4 + rng.IntN(seal.HeaderSize-4), want: protocol})
	}
	for at := range 4 { // no frame any more, nor any other message
		flips = append(flips, one{message: 1, at: at, want: protocol})
	}
	size := len(kvOf(t, prompt, arenaParams).frames[0])
	for _, at := range []int{seal.HeaderSize, seal.HeaderSize + 1, -1, -seal.TagSize, -seal.TagSize - 1} {
		flips = append(flips, one{message: 1, at: at, want: integrity})
	}
	for range 24 {
		flips = append(flips, one{message: 1, at: seal.HeaderSize + rng.IntN(size+seal.TagSize), want: integrity})
	}
	// Signed messages: some no longer parse, the rest have a bad signature.
	for range 24 {
		flips = append(flips,
			one{message: 0, at: rng.IntN(600), want: protocol},
			one{message: 3, at: rng.IntN(600), want: protocol})
	}
	tries := make([]*try, len(flips))
	for from := 0; from < len(flips); from += 16 {
		batch := flips[from:min(from+16, len(flips))]
		for i, f := range batch {
			x := a.try(prompt)
			tries[from+i] = x
			a.send(a.p1, flip(a.craft(x, recipe{}), f.message, f.at))
		}
		for i, f := range batch {
			if err := a.refused(tries[from+i], f.want...); err != nil {
				t.Errorf("message %d byte %d: %v", f.message, f.at, err)
			}
		}
	}
	must(t, a.baseline())
	must(t, a.honest())
}

// goal: harmless faults stay harmless. method: messages repeated, and frames in
// another order, which a bus may do, give the right answer.
func TestRepeatsAreHarmless(t *testing.T) {
	a := newArena(t)
	for name, change := range map[string]func([]message) []message{
		"frames twice":     func(m []message) []message { return slices.Concat(m[:4], m[1:4], m[4:]) },
		"opening twice":    func(m []message) []message { return slices.Concat(m[:2], m[:1], m[2:]) },
		"everything twice": func(m []message) []message { return slices.Concat(m, m) },
		"frames backwards": func(m []message) []message { return []message{m[0], m[3], m[2], m[1], m[4]} },
	} {
		t.Run(name, func(t *testing.T) {
			x := a.try(arenaPrompt)
			a.send(a.p1, change(a.craft(x, recipe{})))
			must(t, a.right(x))
			must(t, a.baseline())
		})
	}
}
