package transfer

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"bulkhead/internal/identity"
)

// newTestPeer makes a peer without a bus.
func newTestPeer(t testing.TB, keys *identity.Keys, role identity.Role, name string) *Peer {
	t.Helper()
	m, err := keys.Minter(role)
	if err != nil {
		t.Fatal(err)
	}
	n, err := m.NewNode(name)
	if err != nil {
		t.Fatal(err)
	}
	return NewPeer(Options{Node: n, Authority: n.Authority(), Cluster: "test", Counters: new(Counters)})
}

func newTestKeys(t testing.TB) *identity.Keys {
	t.Helper()
	keys, err := identity.NewMemory("test")
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// Goal: only the roles in the table may send a kind. Method: every role signs
// every kind, correctly in all else.
func TestEnvelopeRoles(t *testing.T) {
	keys := newTestKeys(t)
	may := map[kind]string{
		kindAnnounce: "router prefill decode", kindJob: "router", kindCancel: "router", kindPing: "router",
		kindAccept: "prefill decode", kindReject: "prefill decode", kindCancelled: "prefill decode", kindPong: "prefill decode",
		kindCredit: "decode", kindOpen: "prefill", kindManifest: "prefill", kindRefusal: "prefill",
		kindReceipt: "decode",
	}
	if len(may) != len(senders) {
		t.Errorf("%d kinds in the test, %d in the table", len(may), len(senders))
	}
	receiver := newTestPeer(t, keys, identity.Decode, "d9")
	for _, role := range identity.Roles() {
		p := newTestPeer(t, keys, role, "n0")
		for k, roles := range may {
			data, err := p.sign(k, "dest", []byte("body"))
			if err != nil {
				t.Fatal(err)
			}
			allowed := bytes.Contains([]byte(roles), []byte(role))
			e, from, err := receiver.verify(data, "dest", k)
			switch {
			case allowed && (err != nil || from.Name != "n0" || from.Role != role || string(e.Body) != "body"):
				t.Errorf("%s of a %s: %v", k, role, err)
			case !allowed && !errors.Is(err, ErrEnvelope):
				t.Errorf("%s of a %s was taken: %v", k, role, err)
			}
		}
	}
	if receiver.counters.Get(CountBadEnvelope) == 0 {
		t.Error("refused envelopes are not counted")
	}
}

// Goal: an envelope holds for one kind, one destination, one body, one sender.
// Method: change one thing at a time.
func TestEnvelopeTampered(t *testing.T) {
	keys := newTestKeys(t)
	a, b := newTestPeer(t, keys, identity.Router, "r0"), newTestPeer(t, keys, identity.Router, "r1")
	p := newTestPeer(t, keys, identity.Prefill, "p0")
	stranger := newTestPeer(t, newTestKeys(t), identity.Router, "r0")
	data, err := a.sign(kindJob, "job.decode.d0#1", []byte("body"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.verify(data, "job.decode.d0#1", kindJob); err != nil {
		t.Fatal(err)
	}
	good, _ := envelopes.decode(data)
	jwtOf := func(p *Peer) string { s, _ := p.node.JWT(); return s }
	refused := func(what string, e envelope, dest string, kinds ...kind) {
		t.Helper()
		data, err := envelopes.encode(&e)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := p.verify(data, dest, kinds...); !errors.Is(err, ErrEnvelope) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("other destination", good, "job.decode.d1#1", kindJob)
	refused("other boot", good, "job.decode.d0#2", kindJob)
	refused("where another kind belongs", good, "job.decode.d0#1", kindCancel, kindPing)
	e := good
	e.Kind = kindCancel
	refused("relabelled", e, "job.decode.d0#1", kindCancel)
	e = good
	e.Body = []byte("bodz")
	refused("other body", e, "job.decode.d0#1", kindJob)
	e = good
	e.From = jwtOf(b)
	refused("another router's JWT", e, "job.decode.d0#1", kindJob)
	e = good
	e.From = jwtOf(stranger)
	refused("a JWT of another cluster", e, "job.decode.d0#1", kindJob)
	e = good
	e.From = e.From[:len(e.From)-4] + "AAAA"
	refused("a forged JWT", e, "job.decode.d0#1", kindJob)
	e = good
	e.Sig = nil
	refused("no signature", e, "job.decode.d0#1", kindJob)
	for i := range good.Sig {
		e = good
		e.Sig = bytes.Clone(good.Sig)
		e.Sig[i] ^= 1
		refused("signature flipped", e, "job.decode.d0#1", kindJob)
	}
	// A node of another cluster with the same name, everything else right.
	data, _ = stranger.sign(kindJob, "job.decode.d0#1", []byte("body"))
	if _, _, err := p.verify(data, "job.decode.d0#1", kindJob); !errors.Is(err, ErrEnvelope) {
		t.Errorf("a foreign router's job: %v", err)
	}
	// The receiver's clock is past the JWT's life.
	late := *p
	late.clock = func() time.Time { return time.Now().Add(identity.MaxUserLifetime + time.Hour) }
	data, _ = a.sign(kindJob, "d", nil)
	if _, _, err := late.verify(data, "d", kindJob); !errors.Is(err, ErrEnvelope) {
		t.Errorf("an expired JWT: %v", err)
	}
}

// KV messages: what is a frame, what an envelope, what neither; and an opening
// must be its subject's.
func TestKVMessage(t *testing.T) {
	keys := newTestKeys(t)
	p, d := newTestPeer(t, keys, identity.Prefill, "p0"), newTestPeer(t, keys, identity.Decode, "d0")
	hash := TokenHash("token")
	sub := KVSubject{Decode: "d0", Request: ID{1}, Attempt: 1, Token: Fingerprint(hash)}
	parse := func(subject string, data []byte) (KVMessage, error) {
		return d.ParseKVMessage(KVMsg{Subject: subject, Data: data})
	}
	if m, err := parse(sub.String(), []byte("BKHFxyz")); err != nil || m.Kind != KVFrame || m.Subject != sub {
		t.Errorf("frame: %+v, %v", m, err)
	}
	if _, err := parse(sub.String(), append([]byte("BKHF"), make([]byte, FrameMax)...)); !errors.Is(err, ErrMessage) {
		t.Errorf("frame too long: %v", err)
	}
	if _, err := parse("kv.d0.x.1.y", []byte("BKHFxyz")); !errors.Is(err, ErrSubject) {
		t.Errorf("bad subject: %v", err)
	}
	for what, data := range map[string][]byte{"empty": nil, "other magic": []byte("BKHXxyz"), "half a magic": []byte("BKH"), "envelope too long": append([]byte{0x84}, make([]byte, controlMax)...)} {
		if m, err := parse(sub.String(), data); !errors.Is(err, ErrMessage) {
			t.Errorf("%s: %+v, %v", what, m, err)
		}
	}
	long, err := p.sign(kindManifest, sub.String(), make([]byte, controlMax))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parse(sub.String(), long); !errors.Is(err, ErrMessage) {
		t.Errorf("a manifest of %d bytes: %v", len(long), err)
	}
	signed := func(by *Peer, k kind, on KVSubject, body []byte) KVMessage {
		t.Helper()
		data, err := by.sign(k, on.String(), body)
		if err != nil {
			t.Fatal(err)
		}
		m, err := parse(sub.String(), data)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	other := sub
	other.Attempt = 2
	o := Open{Token: "token", Prefill: "p0"}
	encode := func(o Open) []byte { b, _ := opens.encode(&o); return b }
	if _, from, err := d.VerifyOpen(signed(p, kindOpen, sub, encode(o))); err != nil || from.Name != "p0" {
		t.Errorf("good opening: %v", err)
	}
	for what, m := range map[string]KVMessage{
		"opening of another attempt's subject": signed(p, kindOpen, other, encode(o)),
		"opening signed by a decode node":      signed(d, kindOpen, sub, encode(o)),
		"manifest taken for an opening":        signed(p, kindManifest, sub, encode(o)),
		"opening of another token":             signed(p, kindOpen, sub, encode(Open{Token: "other", Prefill: "p0"})),
		"opening in another's name":            signed(p, kindOpen, sub, encode(Open{Token: "token", Prefill: "p1"})),
		"opening that is none":                 signed(p, kindOpen, sub, []byte{1}),
	} {
		if _, _, err := d.VerifyOpen(m); err == nil {
			t.Error(what, "was taken")
		}
	}
	if st, _, err := d.VerifyManifest(signed(p, kindManifest, sub, []byte("st"))); err != nil || string(st) != "st" {
		t.Errorf("good manifest: %v", err)
	}
	if _, _, err := d.VerifyManifest(signed(p, kindManifest, other, []byte("st"))); !errors.Is(err, ErrEnvelope) {
		t.Errorf("manifest of another attempt: %v", err)
	}
	if _, _, err := d.VerifyManifest(signed(p, kindRefusal, sub, []byte("st"))); !errors.Is(err, ErrEnvelope) {
		t.Errorf("reject taken for a manifest: %v", err)
	}
	body, _ := rejects.encode(&Reject{TokenHash: hash, Reason: ReasonBusy})
	if r, _, err := d.VerifyReject(signed(p, kindRefusal, sub, body)); err != nil || r.Reason != ReasonBusy {
		t.Errorf("good reject: %v", err)
	}
	body, _ = rejects.encode(&Reject{TokenHash: Hash{1}, Reason: ReasonBusy})
	if _, _, err := d.VerifyReject(signed(p, kindRefusal, sub, body)); !errors.Is(err, ErrMessage) {
		t.Errorf("reject of another token: %v", err)
	}
	data, _ := p.sign(kindCredit, sub.String(), nil)
	if _, err := parse(sub.String(), data); !errors.Is(err, ErrMessage) {
		t.Errorf("a control message on a KV stream: %v", err)
	}
}
