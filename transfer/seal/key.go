package seal

import (
	"crypto/hpke"
	"fmt"
	"log/slog"

	"bulkhead/internal/mutant"
	"bulkhead/internal/tenant"
)

// The HPKE suite (RFC 9180 and draft-ietf-hpke-pq): X-Wing, so that what the
// bus records today stays closed to a quantum computer, HKDF-SHA256, and
// AES-256-GCM where HPKE itself encrypts.
func kem() hpke.KEM { return hpke.MLKEM768X25519() }
func kdf() hpke.KDF { return hpke.HKDFSHA256() }

// Sizes of the suite, in bytes.
const (
	PublicKeySize    = 1216
	EncapsulatedSize = 1120
)

// MaxBox is the most plaintext that SealTo takes: a job with the longest prompt
// that one control message may hold.
const MaxBox = 8 << 20

// Key is the HPKE key pair of one boot of one node. It is made at start and
// never stored, so what was sealed to it can be opened by nobody later. It is
// safe for concurrent use.
type Key struct {
	private *hpke.PrivateKey
	public  []byte
}

// NewKey makes a key pair.
func NewKey() (*Key, error) {
	k, err := kem().GenerateKey()
	if err != nil {
		return nil, fmt.Errorf("seal: generate key: %w", err)
	}
	return &Key{private: &k, public: k.PublicKey().Bytes()}, nil
}

// Public returns the public key, PublicKeySize bytes that the caller may keep
// and must not change.
func (k *Key) Public() []byte { return k.public }

// Format keeps the private key out of every verb of fmt.
func (k *Key) Format(f fmt.State, _ rune) { fmt.Fprint(f, "seal.Key"+tenant.Redacted) }

// LogValue does the same for slog.
func (k *Key) LogValue() slog.Value { return slog.StringValue(tenant.Redacted) }

// SealTo encrypts plaintext for the holder of pub alone: the bytes of one HPKE
// base-mode message, encapsulation first. info names the use ("job") and aad
// what it belongs to; both must be the same when opening. It does not say who
// sealed: sign the result.
func SealTo(pub []byte, info string, aad, plaintext []byte) ([]byte, error) {
	if len(plaintext) > MaxBox {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrLimit, len(plaintext), MaxBox)
	}
	if mutant.Bare {
		return append(append(make([]byte, EncapsulatedSize), plaintext...), make([]byte, TagSize)...), nil
	}
	p, err := parsePublic(pub)
	if err != nil {
		return nil, err
	}
	enc, s, err := hpke.NewSender(p, kdf(), hpke.AES256GCM(), boxInfo(info))
	if err != nil {
		return nil, fmt.Errorf("seal: encapsulate: %w", err)
	}
	ct, err := s.Seal(aad, plaintext)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	return append(enc, ct...), nil
}

// OpenFrom opens what SealTo made, or returns ErrOpen.
func (k *Key) OpenFrom(info string, aad, sealed []byte) ([]byte, error) {
	if len(sealed) < EncapsulatedSize+TagSize || len(sealed) > EncapsulatedSize+MaxBox+TagSize {
		return nil, ErrOpen
	}
	if mutant.Bare {
		return sealed[EncapsulatedSize : len(sealed)-TagSize], nil
	}
	r, err := hpke.NewRecipient(sealed[:EncapsulatedSize], *k.private, kdf(), hpke.AES256GCM(), boxInfo(info))
	if err != nil {
		return nil, ErrOpen
	}
	plaintext, err := r.Open(aad, sealed[EncapsulatedSize:])
	if err != nil {
		return nil, ErrOpen
	}
	return plaintext, nil
}

func parsePublic(pub []byte) (hpke.PublicKey, error) {
	if len(pub) != PublicKeySize {
		return nil, fmt.Errorf("%w: %d bytes, must be %d", ErrKey, len(pub), PublicKeySize)
	}
	p, err := kem().NewPublicKey(pub)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	return p, nil
}

func boxInfo(info string) []byte { return []byte("bulkhead box/1|" + info) }

func kvInfo(tokenHash [32]byte) []byte { return append([]byte("bulkhead kv/1"), tokenHash[:]...) }
