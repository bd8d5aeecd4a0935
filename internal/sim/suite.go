package sim

import (
	"encoding/binary"
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
	bytes  *arena
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
	var room [64]byte
	b := append(append(append(append(room[:0], role...), '.'), name...), '.')
	s.jwt = string(hex.AppendEncode(b, s.public[:8]))
	a.nodes[s.jwt] = identity.Peer{Name: name, Role: identity.Role(role), Public: s.public[:], Expires: time.Unix(1<<40, 0)}
	return s
}

// digest begins a value that only who knows the secret could make.
func (a *authority) digest() digest {
	return digest{binary.LittleEndian.Uint64(a.secret[:]), binary.LittleEndian.Uint64(a.secret[8:])}
}

// signature is that of one node over a statement.
func (a *authority) signature(public []byte, kind, dest string, body []byte) [32]byte {
	d := a.digest()
	d.bytes(public)
	d.text(kind)
	d.text(dest)
	d.bytes(body)
	return d.sum()
}

// shared is what only the holder of pub, and who made enc for it, can know.
func (a *authority) shared(pub, enc []byte, use string, binding []byte) [32]byte {
	d := a.digest()
	d.bytes(pub)
	d.bytes(enc)
	d.text(use)
	d.bytes(binding)
	return d.sum()
}

func (s *suite) JWT() (string, error) { return s.jwt, nil }

func (s *suite) Sign(kind, dest string, body []byte) []byte {
	m := s.a.signature(s.public[:], kind, dest, body)
	return s.a.bytes.clone(m[:])
}

func (s *suite) Verify(jwt string, _ time.Time) (identity.Peer, error) {
	p, ok := s.a.nodes[jwt]
	if !ok {
		return identity.Peer{}, errStandIn
	}
	return p, nil
}

func (s *suite) VerifySig(from identity.Peer, kind, dest string, body, sig []byte) error {
	if m := s.a.signature(from.Public, kind, dest, body); string(sig) != string(m[:]) {
		return errStandIn
	}
	return nil
}

// signToken is tenant.Sign's stand-in.
func (s *suite) signToken(c tenant.Claims) (string, error) {
	return tenant.SignWith(c, func(body []byte) []byte {
		m := s.a.signature(s.public[:], "token", c.Router, body)
		return append(m[:], m[:]...) // as long as an Ed25519 signature
	})
}

func (s *suite) VerifyToken(token string, router identity.Peer, now time.Time) (tenant.Claims, error) {
	return tenant.VerifyWith(token, now, func(name string, body, sig []byte) error {
		m := s.a.signature(router.Public, "token", name, body)
		if name != router.Name || len(sig) != 64 || string(sig[:32]) != string(m[:]) || string(sig[32:]) != string(m[:]) {
			return tenant.ErrSignature
		}
		return nil
	})
}

const (
	encSize = 32
	tagSize = 16
)

// tag is the last part of a sealed box: over everything that it is bound to.
func tag(key [32]byte, aad, sealed []byte) [tagSize]byte {
	d := digest{binary.LittleEndian.Uint64(key[16:]), binary.LittleEndian.Uint64(key[24:])}
	d.bytes(aad)
	d.bytes(sealed)
	sum := d.sum()
	return [tagSize]byte(sum[:])
}

func (s *suite) SealTo(pub []byte, info string, aad, plaintext []byte) ([]byte, error) {
	out := s.a.bytes.make(encSize+len(plaintext), encSize+len(plaintext)+tagSize)
	s.a.random(out[:encSize])
	key := s.a.shared(pub, out[:encSize], info, nil)
	crypt(key, out[encSize:], plaintext)
	t := tag(key, aad, out[encSize:])
	return append(out, t[:]...), nil
}

func (s *suite) NewSender(pub []byte, tokenHash transfer.Hash) (*seal.Sender, []byte, error) {
	enc := make([]byte, encSize)
	s.a.random(enc)
	x, err := seal.SenderOf(secret(s.a.shared(pub, enc, "attempt", tokenHash[:])), tokenHash)
	return x, enc, err
}

// secret is what the two ends of an attempt share.
type secret [32]byte

func (x secret) Export(context string, n int) ([]byte, error) {
	d := digest{binary.LittleEndian.Uint64(x[:]), binary.LittleEndian.Uint64(x[8:])}
	d.text(context)
	h := d.sum()
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
	if len(sealed) < encSize+tagSize {
		return nil, seal.ErrOpen
	}
	key := k.a.shared(k.pub[:], sealed[:encSize], info, nil)
	body, end := sealed[encSize:len(sealed)-tagSize], sealed[len(sealed)-tagSize:]
	if t := tag(key, aad, body); string(t[:]) != string(end) {
		return nil, seal.ErrOpen
	}
	out := k.a.bytes.make(len(body), len(body))
	crypt(key, out, body)
	return out, nil
}

func (k *bootKey) NewReceiver(enc []byte, tokenHash [32]byte) (*seal.Receiver, error) {
	if len(enc) != encSize {
		return nil, seal.ErrOpen
	}
	return seal.ReceiverOf(secret(k.a.shared(k.pub[:], enc, "attempt", tokenHash[:])), tokenHash)
}

// class is what a message is, by its subject: the first word.
func class(subject string) string {
	c, _, _ := strings.Cut(subject, ".")
	return c
}
