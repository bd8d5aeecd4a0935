package attack

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hpke"
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"bulkhead/internal/identity"
	"bulkhead/internal/mutant"
	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// scene is one attempt on its way from p1 to the honest d1, with everything that a
// prefill node has in its hands: also one that does not follow the protocol.
type scene struct {
	x       *rig
	job     transfer.Job
	claims  *draft
	hash    transfer.Hash
	subject transfer.KVSubject
	plan    seal.Plan
	ctx     *hpke.Sender // the attempt's HPKE context, for keys of one's own
	enc     []byte
	sender  *seal.Sender // the honest one
	prefix  [][32]byte
	epoch   uint64 // of the prefill node, as the frames say
	links   [][32]byte

	heard  []transfer.OutputBody // by the router
	broken error
}

// scene reserves an attempt at d1 for a prompt.
func (x *rig) scene(tokens int) *scene { return x.sceneOf(x.draft(tokens)) }

func (x *rig) sceneOf(d *draft) *scene {
	if x.d == nil {
		x.decode(window, window)
	}
	s := &scene{x: x, claims: d, epoch: x.p1.Epoch}
	var err error
	s.job, err = x.submit(transfer.RoleDecode, d)
	must(err)
	s.hash = tenant.HashToken(s.job.Token)
	s.subject = transfer.KVSubject{Decode: "d1", Request: transfer.ID(d.request), Attempt: uint16(d.claims["att"].(int)), Token: transfer.Fingerprint(s.hash)}
	l := x.engine.Facts().Layout
	s.plan, err = seal.NewPlan(len(s.job.Prompt), l.Layers, l.TokenLayerBytes())
	must(err)
	s.links = make([][32]byte, s.plan.Frames())
	s.prefix = tenant.PrefixDigests(s.job.Salt, s.job.Prompt)
	pub, err := hpke.MLKEM768X25519().NewPublicKey(x.decodeKey.Public())
	must(err)
	s.enc, s.ctx, err = hpke.NewSender(pub, hpke.HKDFSHA256(), hpke.ExportOnly(), append([]byte("bulkhead kv/1"), s.hash[:]...))
	must(err)
	s.sender, err = seal.SenderOf(s.ctx, s.hash)
	must(err)
	_, err = x.peer(x.r1).ReceiveOutput(s.job.Reply, s.job.ReplyKey, s.hash,
		func(_ transfer.Role, b transfer.OutputBody) { s.heard = append(s.heard, b) },
		func(err error) { s.broken = err })
	must(err)
	return s
}

// feed delivers one message of d1's stream: nil if it was acknowledged.
func (s *scene) feed(subject string, data []byte) error {
	acked := false
	before := len(s.x.log.said)
	s.x.net.streams["d1"](transfer.KVMsg{Subject: subject, Data: data, Ack: func() { acked = true }, Term: func() {}})
	switch {
	case acked:
		return nil
	case len(s.x.log.said) == before:
		return errors.New("dropped without a word")
	}
	return s.x.why()
}

// send is feed under the attempt's own subject.
func (s *scene) send(data []byte) error { return s.feed(s.subject.String(), data) }

// open is the opening message, signed by a node for a subject.
func (s *scene) open(by *identity.Node, subject string, change func(*transfer.Open)) []byte {
	o := transfer.Open{
		Token: s.job.Token, Prefill: "p1", PrefillEpoch: s.epoch, Enc: s.enc,
		Frames: s.plan.Frames(), Layout: s.x.engine.Facts().Layout.Fingerprint(),
	}
	if change != nil {
		change(&o)
	}
	return signed(by, "kv.open", subject, pack(members{
		"token", o.Token, "prefill", o.Prefill, "prefill_epoch", o.PrefillEpoch, "enc", o.Enc, "frames", o.Frames, "layout", o.Layout,
	}))
}

// begin sends the honest opening message.
func (s *scene) begin() { must(s.send(s.open(s.x.p1, s.subject.String(), nil))) }

// header is the right one of frame i.
func (s *scene) header(i int) seal.Header {
	h := seal.Header{
		TokenHash: s.hash, Request: s.claims.request, Attempt: s.subject.Attempt,
		Prefill: "p1", PrefillEpoch: s.epoch, Decode: "d1", DecodeEpoch: s.x.d1.Epoch,
		Model: s.x.engine.Facts().Fingerprint, PromptDigest: tenant.PromptDigest(s.job.Salt, s.job.Prompt),
	}
	s.plan.Fill(&h, i)
	h.PrefixDigest = s.prefix[h.Block]
	return h
}

// frame is frame i as the honest sender seals it.
func (s *scene) frame(i int) []byte {
	h := s.header(i)
	f, err := s.sender.SealFrame(nil, h, plain(i, int(h.PayloadLen)))
	must(err)
	return s.link(i, f)
}

// forge seals a frame under any header and with any payload, with the attempt's
// own key: what a prefill node can do.
func (s *scene) forge(i int, header, payload []byte) []byte {
	key, err := s.ctx.Export("frame key", 32)
	must(err)
	b, err := aes.NewCipher(key)
	must(err)
	g, err := cipher.NewGCM(b)
	must(err)
	// As the build under test binds a frame to its place: see seal.Sender.
	nonce, aad := make([]byte, 12), header
	if !mutant.Off(mutant.FrameNonce) {
		copy(nonce[8:], header[60:64])
	}
	if mutant.Off(mutant.FrameBinding) {
		aad = nil
	}
	return s.link(i, g.Seal(append([]byte(nil), header...), nonce, payload, aad))
}

// changed is frame i with another header.
func (s *scene) changed(i int, change func(*seal.Header)) []byte {
	h := s.header(i)
	payload := plain(i, int(h.PayloadLen))
	change(&h)
	b, err := h.Append(nil)
	must(err)
	return s.forge(i, b, payload)
}

// patched is frame i with bytes of its header changed that no honest program writes.
func (s *scene) patched(i, at int, bytes []byte) []byte {
	h := s.header(i)
	b, err := h.Append(nil)
	must(err)
	copy(b[at:], bytes)
	return s.forge(i, b, plain(i, int(h.PayloadLen)))
}

// link remembers what the chain will say of frame i.
func (s *scene) link(i int, frame []byte) []byte {
	if i < len(s.links) {
		h := sha256.New()
		h.Write(frame[:seal.HeaderSize])
		h.Write(frame[len(frame)-seal.TagSize:])
		h.Sum(s.links[i][:0])
	}
	return frame
}

func plain(i, n int) []byte {
	b := make([]byte, n)
	for j := range b {
		b[j] = byte(i + j)
	}
	return b
}

// rest sends the honest frames [from, to).
func (s *scene) rest(from, to int) error {
	for i := from; i < to; i++ {
		if err := s.send(s.frame(i)); err != nil {
			return err
		}
	}
	return nil
}

// finish sends the honest frames from one on and the manifest over all.
func (s *scene) finish(from int) error {
	if err := s.rest(from, s.plan.Frames()); err != nil {
		return err
	}
	return s.commit()
}

// statement is the manifest over the frames that were made.
func (s *scene) statement(change func(*seal.Manifest)) []byte {
	h := sha256.New()
	h.Write([]byte("bulkhead chain/1"))
	for _, l := range s.links {
		h.Write(l[:])
	}
	m := seal.Manifest{TokenHash: s.hash, Blocks: s.plan.Blocks(), Tokens: s.plan.PromptLen, Frames: s.plan.Frames(), First: s.first(260)}
	h.Sum(m.Chain[:0])
	if change != nil {
		change(&m)
	}
	b, err := m.Append(nil)
	must(err)
	return b
}

// first is a sealed first token.
func (s *scene) first(id int32) []byte {
	p, err := transfer.EncodeFirst(sample.Token{ID: id})
	must(err)
	key, err := s.ctx.Export("first token key", 32)
	must(err)
	b, err := aes.NewCipher(key)
	must(err)
	g, err := cipher.NewGCM(b)
	must(err)
	return g.Seal(nil, make([]byte, 12), p, append([]byte("bulkhead first/1"), s.hash[:]...))
}

func (s *scene) manifest(change func(*seal.Manifest)) []byte {
	return signed(s.x.p1, "kv.manifest", s.subject.String(), s.statement(change))
}

// commit sends the manifest and returns nil if the receipt was issued: from here
// on the client is answered from these pages.
func (s *scene) commit() error { return s.end(s.manifest(nil)) }

func (s *scene) end(manifest []byte) error {
	if err := s.send(manifest); err != nil {
		return err
	}
	for _, b := range s.heard {
		if b.Receipt != nil {
			return nil
		}
	}
	return errors.New("no receipt was issued")
}

// failed is the reason that the router heard, "" if none.
func (s *scene) failed() transfer.Reason {
	for _, b := range s.heard {
		if b.Fail != nil {
			return b.Fail.Reason
		}
	}
	return ""
}

func be32(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
