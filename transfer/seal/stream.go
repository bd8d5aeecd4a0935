package seal

import (
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"
	"sync"

	"bulkhead/internal/mutant"
	"bulkhead/internal/tenant"
)

// MaxOutput is the most plaintext in one output message.
const MaxOutput = 512 << 10

// Stream seals or opens the output of one attempt from one role to its router.
// Both ends make it from the job's reply key. A node makes one Stream per
// attempt, and refuses to take the same job twice, so no nonce is used twice.
// It is safe for concurrent use.
type Stream struct {
	once   sync.Once
	aead   cipher.AEAD   // made at its first use: of two roles one often says nothing
	secret tenant.Secret // until then
	aad    []byte        // token hash, role; the sequence number is appended

	mu   sync.Mutex
	next uint64 // lowest sequence number not yet sealed
}

// NewStream returns the stream of role from ("prefill" or "decode") under the
// attempt's reply key: AES-256-GCM with the key HKDF-SHA256(key, salt = token
// hash, info = "bulkhead output/1|" + role).
func NewStream(key [32]byte, from string, tokenHash [32]byte) *Stream {
	return &Stream{secret: tenant.Secret(key), aad: append(append(make([]byte, 0, len(tokenHash)+len(from)), tokenHash[:]...), from...)}
}

// cipher makes the key at its first use.
func (s *Stream) cipher() cipher.AEAD {
	s.once.Do(func() {
		if mutant.Bare {
			s.aead = plainAEAD{}
			return
		}
		salt, info := s.aad[:sha256.Size], "bulkhead output/1|"+string(s.aad[sha256.Size:])
		if mutant.Off(mutant.OutputKey) {
			salt, info = nil, ""
		}
		k, err := hkdf.Key(sha256.New, s.secret[:], salt, info, 32)
		if err != nil {
			panic("seal: internal error: hkdf: " + err.Error()) // only for lengths
		}
		defer clear(k)
		if s.aead, err = gcm(k); err != nil {
			panic("seal: internal error: aes: " + err.Error()) // only for lengths
		}
		clear(s.secret[:])
	})
	return s.aead
}

// Format keeps keys out of every verb of fmt.
func (s *Stream) Format(f fmt.State, _ rune) { fmt.Fprint(f, "seal.Stream"+tenant.Redacted) }

// LogValue does the same for slog.
func (s *Stream) LogValue() slog.Value { return slog.StringValue(tenant.Redacted) }

// Seal encrypts message seq. Numbers only go up: one that is not above all
// before it returns ErrReuse.
func (s *Stream) Seal(seq uint64, plaintext []byte) ([]byte, error) {
	if len(plaintext) > MaxOutput {
		return nil, fmt.Errorf("%w: output of %d bytes, at most %d", ErrLimit, len(plaintext), MaxOutput)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if seq < s.next || seq == 1<<64-1 {
		return nil, fmt.Errorf("%w: output %d, next is %d", ErrReuse, seq, s.next)
	}
	s.next = seq + 1
	return s.cipher().Seal(nil, nonce(seq), plaintext, s.bind(seq)), nil
}

// Open decrypts message seq, or returns ErrOpen. It accepts any order: whether
// seq is the one expected is the caller's to say.
func (s *Stream) Open(seq uint64, sealed []byte) ([]byte, error) {
	if len(sealed) < TagSize || len(sealed) > MaxOutput+TagSize {
		return nil, ErrOpen
	}
	out, err := s.cipher().Open(nil, nonce(seq), sealed, s.bind(seq))
	if err != nil {
		return nil, ErrOpen
	}
	return out, nil
}

// bind returns the associated data: token hash, role, sequence number.
func (s *Stream) bind(seq uint64) []byte {
	if mutant.Bare || mutant.Off(mutant.OutputBinding) {
		return nil
	}
	return binary.BigEndian.AppendUint64(append([]byte(nil), s.aad...), seq)
}
