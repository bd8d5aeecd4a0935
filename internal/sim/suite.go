package sim

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/internal/tenant"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// errStandIn is every failure of a stand-in.
var errStandIn = errors.New("sim: signature or seal does not hold")

// authority is the stand-in for a cluster's account: who is who. One secret stands
// behind all keys; nobody in the simulator computes with it but these files.
type authority struct {
	secret [32]byte
	nodes  map[string]identity.Peer // by JWT
	random func([]byte)
}

// suite is the stand-in for a node's public-key operations.
type suite struct {
	a      *authority
	jwt    string
	public [32]byte
}

var _ transfer.Suite = (*suite)(nil)

// enrol makes a node's identity of one boot.
func (a *authority) enrol(role transfer.Role, name string) *suite {
	s := &suite{a: a}
	a.random(s.public[:])
	s.jwt = string(role) + "." + name + "." + hex.EncodeToString(s.public[:8])
	a.nodes[s.jwt] = identity.Peer{Name: name, Role: identity.Role(role), Public: s.public[:], Expires: time.Unix(1<<40, 0)}
	return s
}

// mac is the one keyed function of all stand-ins.
func (a *authority) mac(parts ...[]byte) [32]byte {
	h := sha256.New()
	h.Write(a.secret[:])
	var n [4]byte
	for _, p := range parts {
		n[0], n[1], n[2], n[3] = byte(len(p)>>24), byte(len(p)>>16), byte(len(p)>>8), byte(len(p))
		h.Write(n[:])
		h.Write(p)
	}
	return [32]byte(h.Sum(nil))
}

func (s *suite) JWT() (string, error) { return s.jwt, nil }

func (s *suite) Sign(kind, dest string, body []byte) []byte {
	m := s.a.mac(s.public[:], []byte(kind), []byte(dest), body)
	return m[:]
}

func (s *suite) Verify(jwt string, _ time.Time) (identity.Peer, error) {
	p, ok := s.a.nodes[jwt]
	if !ok {
		return identity.Peer{}, errStandIn
	}
	return p, nil
}

func (s *suite) VerifySig(from identity.Peer, kind, dest string, body, sig []byte) error {
	if m := s.a.mac(from.Public, []byte(kind), []byte(dest), body); string(sig) != string(m[:]) {
		return errStandIn
	}
	return nil
}

// signToken is tenant.Sign's stand-in.
func (s *suite) signToken(c tenant.Claims) (string, error) {
	return tenant.SignWith(c, func(body []byte) []byte {
		m := s.a.mac(s.public[:], []byte("token"), []byte(c.Router), body)
		return append(m[:], m[:]...) // as long as an Ed25519 signature
	})
}

func (s *suite) VerifyToken(token string, router identity.Peer, now time.Time) (tenant.Claims, error) {
	return tenant.VerifyWith(token, now, func(name string, body, sig []byte) error {
		m := s.a.mac(router.Public, []byte("token"), []byte(name), body)
		if name != router.Name || string(sig) != string(m[:])+string(m[:]) {
			return tenant.ErrSignature
		}
		return nil
	})
}

// box is AES-256-GCM under a key that only the holder of pub can know.
func (a *authority) box(pub, enc []byte, info string) cipher.AEAD {
	key := a.mac(pub, enc, []byte(info))
	b, err := aes.NewCipher(key[:])
	if err != nil {
		panic("sim: internal error: " + err.Error()) // only for lengths
	}
	g, err := cipher.NewGCM(b)
	if err != nil {
		panic("sim: internal error: " + err.Error())
	}
	return g
}

const encSize = 32

func (s *suite) SealTo(pub []byte, info string, aad, plaintext []byte) ([]byte, error) {
	out := make([]byte, encSize, encSize+len(plaintext)+16)
	s.a.random(out)
	return s.a.box(pub, out, info).Seal(out, make([]byte, 12), plaintext, aad), nil
}

func (s *suite) NewSender(pub []byte, tokenHash transfer.Hash) (*seal.Sender, []byte, error) {
	enc := make([]byte, encSize)
	s.a.random(enc)
	x, err := seal.SenderOf(secret(s.a.mac(pub, enc, tokenHash[:])), tokenHash)
	return x, enc, err
}

// secret is what the two ends of an attempt share.
type secret [32]byte

func (x secret) Export(context string, n int) ([]byte, error) {
	h := sha256.Sum256(append(x[:], context...))
	return h[:n], nil
}

// bootKey is the stand-in for a seal.Key.
type bootKey struct {
	a   *authority
	pub [32]byte
}

var _ transfer.BootKey = (*bootKey)(nil)

func (a *authority) newKey() *bootKey {
	k := &bootKey{a: a}
	a.random(k.pub[:])
	return k
}

func (k *bootKey) Public() []byte { return k.pub[:] }

func (k *bootKey) OpenFrom(info string, aad, sealed []byte) ([]byte, error) {
	if len(sealed) < encSize {
		return nil, seal.ErrOpen
	}
	out, err := k.a.box(k.pub[:], sealed[:encSize], info).Open(nil, make([]byte, 12), sealed[encSize:], aad)
	if err != nil {
		return nil, seal.ErrOpen
	}
	return out, nil
}

func (k *bootKey) NewReceiver(enc []byte, tokenHash [32]byte) (*seal.Receiver, error) {
	if len(enc) != encSize {
		return nil, seal.ErrOpen
	}
	return seal.ReceiverOf(secret(k.a.mac(k.pub[:], enc, tokenHash[:])), tokenHash)
}

// class is what a message is, by its subject: the first word.
func class(subject string) string {
	c, _, _ := strings.Cut(subject, ".")
	return c
}
