package transfer

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/internal/negative"
	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
	"bulkhead/transfer/seal"
)

// The ways into a node, each with whatever bytes the bus may bring. What is not
// told apart here is told apart by the fuzz targets of the codec and of package seal.

// FuzzSigned: whatever lies on an announcement subject or in a KV stream, only
// what its sender signed is believed. Goal: no byte of it can be changed.
func FuzzSigned(f *testing.F) {
	keys := newTestKeys(f)
	prefill, receiver := newTestPeer(f, keys, identity.Prefill, "p0"), newTestPeer(f, keys, identity.Decode, "d0")
	const subject = "announce.prefill.p0"
	announced, err := announces.encode(&Announce{Node: "p0", Role: RolePrefill, Epoch: prefill.Epoch(), Capacity: 64, Window: 64, Expires: time.Now().Add(AnnounceTTL)})
	if err != nil {
		f.Fatal(err)
	}
	hash := TokenHash("token")
	kv := KVSubject{Decode: "d0", Attempt: 1, Token: Fingerprint(hash)}.String()
	opened, err := opens.encode(&Open{Token: "token", Prefill: "p0", Enc: []byte("enc"), Frames: 1})
	if err != nil {
		f.Fatal(err)
	}
	refused, err := rejects.encode(&Reject{TokenHash: hash, Reason: ReasonBusy})
	if err != nil {
		f.Fatal(err)
	}
	bodies := map[kind][]byte{kindAnnounce: announced, kindOpen: opened, kindRefusal: refused, kindManifest: []byte("statement")}
	dest := map[kind]string{kindAnnounce: subject, kindOpen: kv, kindRefusal: kv, kindManifest: kv}
	for k, body := range bodies {
		data, err := prefill.sign(k, dest[k], body)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		f.Add(data[:len(data)-1])
		for _, i := range []int{0, 10, len(data) / 2, len(data) - 1} {
			flipped := bytes.Clone(data)
			flipped[i] ^= 1
			f.Add(flipped)
		}
	}
	negative.Seeds(f, "testdata/negative", func(what string, data []byte) {
		if what == "envelope" || what == "kv message" {
			f.Add(data)
		}
	})
	f.Fuzz(func(t *testing.T, data []byte) {
		if a, from, err := receiver.verifyAnnounce(Msg{Subject: subject, Data: data}); err == nil {
			if b, err := announces.encode(&a); err != nil || !bytes.Equal(b, announced) || from.Name != "p0" {
				t.Fatalf("believed %+v from %s, who never said it", a, from.Name)
			}
		} else if !errors.Is(err, ErrMessage) && !errors.Is(err, ErrEnvelope) {
			t.Fatalf("untyped error %v", err)
		}
		m, err := receiver.ParseKVMessage(KVMsg{Subject: kv, Data: data})
		if err != nil {
			if !errors.Is(err, ErrMessage) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		if m.Kind == KVFrame {
			return // its seal is its signature
		}
		if o, _, err := receiver.VerifyOpen(m); err == nil && (o.Token != "token" || o.Frames != 1 || string(o.Enc) != "enc") {
			t.Fatalf("believed %+v", o)
		}
		if r, _, err := receiver.VerifyReject(m); err == nil && r.Reason != ReasonBusy {
			t.Fatalf("believed %+v", r)
		}
		if s, _, err := receiver.VerifyManifest(m); err == nil && string(s) != "statement" {
			t.Fatalf("believed %q", s)
		}
	})
}

// FuzzOutput: of an attempt's output stream only what its own nodes sealed is
// given out, in order.
func FuzzOutput(f *testing.F) {
	key, hash := [32]byte{1}, TokenHash("token")
	good := SealOutputForTest(key, RoleDecode, hash, OutputBody{Tokens: []sample.Token{{ID: 7}}})
	f.Add(good)
	f.Add(SealOutputForTest(key, RolePrefill, hash, OutputBody{Fail: &Reject{Reason: ReasonBusy}}))
	f.Add(SealOutputForTest([32]byte{2}, RoleDecode, hash, OutputBody{Tokens: []sample.Token{{ID: 7}}}))
	f.Add(SealOutputForTest(key, RoleDecode, TokenHash("other"), OutputBody{Tokens: []sample.Token{{ID: 7}}}))
	negative.Seeds(f, "testdata/negative", func(what string, data []byte) {
		if what == "output" {
			f.Add(data)
		}
	})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &outputReceiver{hash: hash, streams: map[Role]*outputStream{
			RolePrefill: {stream: seal.NewStream(tenant.ReplyKey(key, string(RolePrefill)), string(RolePrefill), hash)},
			RoleDecode:  {stream: seal.NewStream(tenant.ReplyKey(key, string(RoleDecode)), string(RoleDecode), hash)},
		}}
		from, b, err := r.open(data)
		switch {
		case err != nil && !errors.Is(err, ErrOutput):
			t.Fatalf("untyped error %v", err)
		case err != nil:
		case from == RolePrefill && b.Fail != nil && b.Fail.Reason == ReasonBusy:
		case from == RoleDecode && len(b.Tokens) == 1 && b.Tokens[0].ID == 7:
		default:
			t.Fatalf("%s gave %+v, which nobody sealed", from, b)
		}
		if _, _, again := r.open(data); err == nil && !errors.Is(again, ErrReplay) {
			t.Fatalf("the same message again: %v", again)
		}
	})
}
