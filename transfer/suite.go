package transfer

import (
	"crypto/ed25519"
	"fmt"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/internal/mutant"
	"bulkhead/internal/tenant"
	"bulkhead/transfer/seal"
)

// Suite is the public-key cryptography of a Peer: who signed, who granted, and
// for whom something is sealed. Everything else (what is signed, which keys seal
// frames and output, what is compared) is not in it. There is one for the
// product, over identity, tenant and seal; the simulator has another, because
// these few operations cost it more than all the rest together.
type Suite interface {
	// JWT names this node to those who verify what it signs; Sign signs a
	// statement. See identity.Node.
	JWT() (string, error)
	Sign(kind, dest string, body []byte) []byte
	// Verify returns the node that a JWT belongs to; VerifySig its signature of
	// a statement. See identity.Authority and identity.Peer.
	Verify(jwt string, now time.Time) (identity.Peer, error)
	VerifySig(from identity.Peer, kind, dest string, body, sig []byte) error
	// VerifyToken verifies a tenant token that must be of this router. See
	// tenant.Verify.
	VerifyToken(token string, router identity.Peer, now time.Time) (tenant.Claims, error)
	// SealTo seals to a boot key. See seal.SealTo.
	SealTo(pub []byte, info string, aad, plaintext []byte) ([]byte, error)
	// NewSender makes the keys of an attempt. See seal.NewSender.
	NewSender(pub []byte, tokenHash Hash) (*seal.Sender, []byte, error)
}

// BootKey is the private half of the key that a node announces. A *seal.Key is one.
type BootKey interface {
	Public() []byte
	OpenFrom(info string, aad, sealed []byte) ([]byte, error)
	NewReceiver(enc []byte, tokenHash [32]byte) (*seal.Receiver, error)
}

var _ BootKey = (*seal.Key)(nil)

// nodeSuite is the product's.
type nodeSuite struct {
	*identity.Node
	authority *identity.Authority
}

// Sign signs a statement; the bench build without isolation signs and verifies nothing.
func (s nodeSuite) Sign(kind, dest string, body []byte) []byte {
	if mutant.Bare {
		return make([]byte, ed25519.SignatureSize)
	}
	return s.Node.Sign(kind, dest, body)
}

func (s nodeSuite) Verify(jwt string, now time.Time) (identity.Peer, error) {
	return s.authority.Verify(jwt, now)
}

func (s nodeSuite) VerifySig(from identity.Peer, kind, dest string, body, sig []byte) error {
	if mutant.Bare {
		return nil
	}
	return from.VerifySig(kind, dest, body, sig)
}

func (s nodeSuite) VerifyToken(token string, router identity.Peer, now time.Time) (tenant.Claims, error) {
	keyOf := func(name string) (ed25519.PublicKey, error) {
		if name != router.Name && !mutant.Off(mutant.TokenRouter) {
			return nil, fmt.Errorf("token of router %q in a job of %q", name, router.Name)
		}
		return router.Public, nil
	}
	return tenant.Verify(token, keyOf, s.authority.ClusterID(), now)
}

func (nodeSuite) SealTo(pub []byte, info string, aad, plaintext []byte) ([]byte, error) {
	return seal.SealTo(pub, info, aad, plaintext)
}

func (nodeSuite) NewSender(pub []byte, tokenHash Hash) (*seal.Sender, []byte, error) {
	return seal.NewSender(pub, tokenHash)
}
