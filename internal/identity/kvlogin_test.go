package identity

import (
	"encoding/base64"
	"errors"
	"testing"
)

// goal: a login at one KV server is one at no other server, in no other boot, at no broker, and for no other
// challenge or node; and the reverse. method: one good answer, then each of its parts changed.
func TestKVLogin(t *testing.T) {
	k := memory(t)
	a, p, other := authority(t, k), node(t, k, Prefill, "p0"), node(t, k, Prefill, "p0")
	const epoch = 7
	nonce := []byte("abcdefghijklmnopqrstuv")
	peer, err := a.Verify(p.KVLogin("d0", epoch).Token(), p.now())
	if err != nil {
		t.Fatal(err)
	}
	answer := func(sign func([]byte) ([]byte, error)) string {
		t.Helper()
		raw, err := sign(nonce)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	good := answer(p.KVLogin("d0", epoch).NATSSign)
	if err := peer.VerifyKVLogin("d0", epoch, nonce, good); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		decode string
		epoch  uint64
		nonce  []byte
		sig    string
	}{
		"another decode node":  {"d1", epoch, nonce, good},
		"another boot":         {"d0", epoch + 1, nonce, good},
		"another challenge":    {"d0", epoch, []byte("abcdefghijklmnopqrstuw"), good},
		"no challenge":         {"d0", epoch, nil, good},
		"challenge too long":   {"d0", epoch, make([]byte, kvNonceMax+1), good},
		"a broker's login":     {"d0", epoch, nonce, answer(p.NATSSign)},
		"another node's key":   {"d0", epoch, nonce, answer(other.KVLogin("d0", epoch).NATSSign)},
		"nothing":              {"d0", epoch, nonce, ""},
		"no base64":            {"d0", epoch, nonce, "!" + good[1:]},
		"another kind":         {"d0", epoch, nonce, base64.RawURLEncoding.EncodeToString(p.Sign("announce", kvLoginDest("d0", epoch), nonce))},
		"name and boot joined": {"d", epoch, nonce, good},
	} {
		if err := peer.VerifyKVLogin(c.decode, c.epoch, c.nonce, c.sig); !errors.Is(err, ErrKVLogin) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, n := range []int{0, kvNonceMax + 1} {
		if _, err := p.KVLogin("d0", epoch).NATSSign(make([]byte, n)); !errors.Is(err, ErrNonce) {
			t.Errorf("a challenge of %d bytes: %v", n, err)
		}
	}
	// A broker takes the bare signature of its challenge: see scopes. This is none.
	raw, err := p.KVLogin("d0", epoch).NATSSign(nonce)
	if err != nil {
		t.Fatal(err)
	}
	bare, err := p.NATSSign(nonce)
	if err != nil || string(bare) == string(raw) {
		t.Errorf("a broker would take it: %v", err)
	}
}
