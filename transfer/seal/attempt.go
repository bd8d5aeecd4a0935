package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/hpke"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"
	"sync"

	"bulkhead/internal/mutant"
	"bulkhead/internal/tenant"
)

// MaxFirst is the most plaintext of a sealed first token.
const MaxFirst = 4096

// attempt is what the two ends of one attempt share: three keys exported from
// one HPKE context, and the token that they are bound to.
type attempt struct {
	tokenHash [32]byte
	frames    cipher.AEAD
	first     cipher.AEAD
	credit    *tenant.Secret
}

// Exporter is the part of an HPKE context that both ends have: a secret that
// only they share, from which keys are derived.
type Exporter interface {
	Export(context string, length int) ([]byte, error)
}

// The exporter contexts.
const (
	exportFrames = "frame key"
	exportFirst  = "first token key"
	exportCredit = "credit key"
)

func newAttempt(x Exporter, tokenHash [32]byte) (*attempt, error) {
	a := &attempt{tokenHash: tokenHash, credit: new(tenant.Secret)}
	for _, k := range []struct {
		context string
		use     func(key []byte) (err error)
	}{
		{exportFrames, func(key []byte) (err error) { a.frames, err = gcm(key); return err }},
		{exportFirst, func(key []byte) (err error) { a.first, err = gcm(key); return err }},
		{exportCredit, func(key []byte) error { copy(a.credit[:], key); return nil }},
	} {
		key, err := x.Export(k.context, 32)
		if err != nil {
			return nil, fmt.Errorf("seal: export: %w", err)
		}
		err = k.use(key)
		clear(key)
		if err != nil {
			return nil, fmt.Errorf("seal: %w", err)
		}
	}
	return a, nil
}

func gcm(key []byte) (cipher.AEAD, error) {
	if mutant.Bare {
		return plainAEAD{}, nil
	}
	b, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(b)
}

// nonce is 4 zero bytes and the counter, big endian. Each key has one use, so
// the counter alone keeps nonces apart.
func nonce(counter uint64) []byte {
	n := make([]byte, 12)
	binary.BigEndian.PutUint64(n[4:], counter)
	return n
}

func firstAAD(tokenHash [32]byte) []byte {
	return append([]byte("bulkhead first/1"), tokenHash[:]...)
}

// CreditMAC returns the HMAC-SHA-256 that goes with a credit of limit bytes.
func (a *attempt) CreditMAC(limit int64) []byte {
	if mutant.Bare {
		return make([]byte, sha256.Size)
	}
	m := a.creditMAC(limit)
	return m[:]
}

func (a *attempt) creditMAC(limit int64) [sha256.Size]byte {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(limit))
	return tenant.MAC((*[32]byte)(a.credit), []byte("bulkhead credit/1"), a.tokenHash[:], n[:])
}

// CheckCredit returns ErrMAC unless mac is the CreditMAC of limit in this attempt.
func (a *attempt) CheckCredit(limit int64, mac []byte) error {
	if (limit < 0 || !hmac.Equal(mac, a.CreditMAC(limit))) && !mutant.Off(mutant.CreditMAC) {
		return ErrMAC
	}
	return nil
}

// TokenHash returns the hash of the token that the keys are bound to.
func (a *attempt) TokenHash() [32]byte { return a.tokenHash }

// Sender is the prefill end of one attempt. Its keys are fresh: a restarted or
// repeated attempt gets others, so no nonce is ever used twice. It is safe for
// concurrent use.
type Sender struct {
	*attempt

	mu     sync.Mutex
	sealed []uint64 // bitmap of sequence numbers used
	gone   bool     // the first token was sealed
}

// NewSender makes fresh keys that only the holder of decodePub can know, bound
// to the token. enc goes to the decode node in the opening message. The error
// matches ErrKey if decodePub does not parse.
func NewSender(decodePub []byte, tokenHash [32]byte) (s *Sender, enc []byte, err error) {
	if mutant.Bare {
		s, err = SenderOf(plainExporter{}, tokenHash)
		return s, make([]byte, EncapsulatedSize), err
	}
	p, err := parsePublic(decodePub)
	if err != nil {
		return nil, nil, err
	}
	enc, ctx, err := hpke.NewSender(p, kdf(), hpke.ExportOnly(), kvInfo(tokenHash))
	if err != nil {
		return nil, nil, fmt.Errorf("seal: encapsulate: %w", err)
	}
	a, err := newAttempt(ctx, tokenHash)
	if err != nil {
		return nil, nil, err
	}
	return &Sender{attempt: a}, enc, nil
}

// SenderOf is NewSender for a secret that was agreed on otherwise. The secret
// must be fresh for every attempt.
func SenderOf(x Exporter, tokenHash [32]byte) (*Sender, error) {
	a, err := newAttempt(x, tokenHash)
	if err != nil {
		return nil, err
	}
	return &Sender{attempt: a}, nil
}

// ReceiverOf is the other end of SenderOf.
func ReceiverOf(x Exporter, tokenHash [32]byte) (*Receiver, error) {
	a, err := newAttempt(x, tokenHash)
	if err != nil {
		return nil, err
	}
	return &Receiver{a}, nil
}

// Format keeps keys out of every verb of fmt.
func (s *Sender) Format(f fmt.State, _ rune) { fmt.Fprint(f, "seal.Sender"+tenant.Redacted) }

// LogValue does the same for slog.
func (s *Sender) LogValue() slog.Value { return slog.StringValue(tenant.Redacted) }

// SealFrame appends the frame (header, ciphertext, tag) to dst, which must not
// overlap plaintext. h.PayloadLen must be len(plaintext). It returns ErrToken
// for a header of another token, and ErrReuse if h.Seq was sealed before: to
// send a frame again, send the same bytes again.
func (s *Sender) SealFrame(dst []byte, h Header, plaintext []byte) ([]byte, error) {
	if h.TokenHash != s.tokenHash {
		return dst, ErrToken
	}
	if uint64(len(plaintext)) != uint64(h.PayloadLen) {
		return dst, formatErr("header", "payload length", uint64(h.PayloadLen), uint64(len(plaintext)))
	}
	start := len(dst)
	out, err := h.Append(dst)
	if err != nil {
		return dst, err
	}
	if err := s.claim(h.Seq); err != nil {
		return dst, err
	}
	number, aad := binding(h.Seq, out[start:start+HeaderSize])
	return s.frames.Seal(out, number, plaintext, aad), nil
}

// binding is what ties a frame's ciphertext to its place: its number as the nonce,
// and the exact bytes of its header.
func binding(seq uint32, header []byte) (number, aad []byte) {
	number, aad = nonce(uint64(seq)), header
	if mutant.Off(mutant.FrameNonce) {
		number = nonce(0)
	}
	if mutant.Off(mutant.FrameBinding) {
		aad = nil
	}
	return number, aad
}

// claim marks a sequence number as used, once and for all. seq < MaxFrames.
func (s *Sender) claim(seq uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	word, bit := int(seq/64), uint64(1)<<(seq%64)
	if word >= len(s.sealed) {
		s.sealed = append(s.sealed, make([]uint64, word+1-len(s.sealed))...)
	}
	if s.sealed[word]&bit != 0 && !mutant.Off(mutant.FrameOnce) {
		return fmt.Errorf("%w: frame %d", ErrReuse, seq)
	}
	s.sealed[word] |= bit
	return nil
}

// SealFirst seals the first token for the manifest, once: a second call
// returns ErrReuse.
func (s *Sender) SealFirst(plaintext []byte) ([]byte, error) {
	if len(plaintext) > MaxFirst {
		return nil, fmt.Errorf("%w: first token of %d bytes, at most %d", ErrLimit, len(plaintext), MaxFirst)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil, fmt.Errorf("%w: first token", ErrReuse)
	}
	s.gone = true
	return s.first.Seal(nil, nonce(0), plaintext, firstAAD(s.tokenHash)), nil
}

// Receiver is the decode end of one attempt. It keeps no state but the keys:
// whoever holds it decides whether a frame is wanted. It is safe for
// concurrent use.
type Receiver struct{ *attempt }

// NewReceiver recovers the keys of an attempt from its opening message. A
// wrong enc or token gives ErrOpen here or, indistinguishably, at the first frame.
func (k *Key) NewReceiver(enc []byte, tokenHash [32]byte) (*Receiver, error) {
	if len(enc) != EncapsulatedSize {
		return nil, ErrOpen
	}
	if mutant.Bare {
		return ReceiverOf(plainExporter{}, tokenHash)
	}
	ctx, err := hpke.NewRecipient(enc, *k.private, kdf(), hpke.ExportOnly(), kvInfo(tokenHash))
	if err != nil {
		return nil, ErrOpen
	}
	a, err := newAttempt(ctx, tokenHash)
	if err != nil {
		return nil, ErrOpen
	}
	return &Receiver{a}, nil
}

// Format keeps keys out of every verb of fmt.
func (r *Receiver) Format(f fmt.State, _ rune) { fmt.Fprint(f, "seal.Receiver"+tenant.Redacted) }

// LogValue does the same for slog.
func (r *Receiver) LogValue() slog.Value { return slog.StringValue(tenant.Redacted) }

// OpenFrame checks one whole frame and appends its plaintext to dst, which must
// not overlap frame: staging, never a page. Errors are a *FormatError, ErrToken
// or ErrOpen; then dst is returned as it was. The header is to be believed only
// after OpenFrame returned it; whether that frame is expected is Plan.Check's
// and the caller's to say.
func (r *Receiver) OpenFrame(dst, frame []byte) (Header, []byte, error) {
	h, err := ParseFrame(frame)
	if err != nil {
		return Header{}, dst, err
	}
	if h.TokenHash != r.tokenHash && !mutant.Off(mutant.AttemptBinding) && !mutant.Off(mutant.FrameToken) {
		return Header{}, dst, ErrToken
	}
	number, aad := binding(h.Seq, frame[:HeaderSize])
	out, err := r.frames.Open(dst, number, frame[HeaderSize:], aad)
	if err != nil && mutant.Off(mutant.FrameAEAD) {
		return h, append(dst, frame[HeaderSize:len(frame)-TagSize]...), nil // unopened bytes, believed
	}
	if err != nil {
		return Header{}, dst, ErrOpen
	}
	return h, out, nil
}

// ParseFrame is ParseHeader for a whole frame: the bytes after the header are
// exactly the payload that it announces, and the tag.
func ParseFrame(frame []byte) (Header, error) {
	h, err := ParseHeader(frame)
	if err != nil {
		return Header{}, err
	}
	if want := HeaderSize + int(h.PayloadLen) + TagSize; len(frame) != want && !mutant.Off(mutant.FrameSize) {
		return Header{}, formatErr("header", "frame size", uint64(len(frame)), uint64(want))
	}
	return h, nil
}

// OpenFirst opens the manifest's sealed first token, or returns ErrOpen.
func (r *Receiver) OpenFirst(sealed []byte) ([]byte, error) {
	if len(sealed) < TagSize || len(sealed) > MaxFirst+TagSize {
		return nil, ErrOpen
	}
	out, err := r.first.Open(nil, nonce(0), sealed, firstAAD(r.tokenHash))
	if err != nil && mutant.Off(mutant.FirstSeal) {
		return sealed[:len(sealed)-TagSize], nil // unopened bytes, believed
	}
	if err != nil {
		return nil, ErrOpen
	}
	return out, nil
}
