package seal

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// hash32 returns 32 bytes that differ by b.
func hash32(b byte) (h [32]byte) {
	for i := range h {
		h[i] = b + byte(i)
	}
	return h
}

func mustKey(t testing.TB) *Key {
	t.Helper()
	k, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// pair returns the two ends of an attempt.
func pair(t testing.TB, k *Key, tokenHash [32]byte) (*Sender, *Receiver, []byte) {
	t.Helper()
	s, enc, err := NewSender(k.Public(), tokenHash)
	if err != nil {
		t.Fatal(err)
	}
	r, err := k.NewReceiver(enc, tokenHash)
	if err != nil {
		t.Fatal(err)
	}
	return s, r, enc
}

// sample returns a header that is valid: the second frame of the first block.
func sample() Header {
	return Header{
		TokenHash: hash32(1), Request: [16]byte(bytes.Repeat([]byte{7}, 16)), Child: 2, Attempt: 3, Seq: 1,
		Prefill: "p-0", PrefillEpoch: 0x1122334455667788, Decode: "decode_number-32-characters_long", DecodeEpoch: 42,
		Model: hash32(2), Block: 0, Blocks: 2, TokenStart: 0, TokenEnd: 64, LayerStart: 10, LayerEnd: 20,
		DType: F16, PayloadLen: 100, PromptDigest: hash32(3), PrefixDigest: hash32(4),
	}
}

func TestFrameRoundTrip(t *testing.T) {
	h := sample()
	s, r, enc := pair(t, mustKey(t), h.TokenHash)
	if len(enc) != EncapsulatedSize {
		t.Errorf("encapsulated key has %d bytes, documented %d", len(enc), EncapsulatedSize)
	}
	plain := bytes.Repeat([]byte("k"), 100)
	frame, err := s.SealFrame([]byte("before"), h, plain)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(frame, []byte("before")) {
		t.Fatal("SealFrame does not append")
	}
	frame = frame[len("before"):]
	if len(frame) != HeaderSize+100+TagSize || bytes.Contains(frame, plain[:16]) {
		t.Fatalf("frame has %d bytes, or holds plaintext", len(frame))
	}
	got, opened, err := r.OpenFrame([]byte("before"), frame)
	if err != nil || got != h || string(opened) != "before"+string(plain) {
		t.Fatalf("OpenFrame: %v, header equal %v", err, got == h)
	}
}

// TestEveryBitOfAFrame flips each bit of a frame in turn. No flip may open, and
// each must fail as what it is: a bad form, another token, or a failed
// decryption.
func TestEveryBitOfAFrame(t *testing.T) {
	h := sample()
	s, r, _ := pair(t, mustKey(t), h.TokenHash)
	frame, err := s.SealFrame(nil, h, make([]byte, 100))
	if err != nil {
		t.Fatal(err)
	}
	counts := map[error]int{}
	for i := range len(frame) * 8 {
		bad := bytes.Clone(frame)
		bad[i/8] ^= 1 << (i % 8)
		_, out, err := r.OpenFrame(nil, bad)
		if err == nil || len(out) != 0 {
			t.Fatalf("bit %d of byte %d flipped, and the frame opens", i%8, i/8)
		}
		for _, kind := range []error{ErrFormat, ErrToken, ErrOpen} {
			if errors.Is(err, kind) {
				counts[kind]++
			}
		}
	}
	// 32 bytes of token hash, and the rest of the header and all of the
	// ciphertext are either refused by form or by the tag.
	if counts[ErrToken] != 256 || counts[ErrFormat]+counts[ErrToken]+counts[ErrOpen] != len(frame)*8 || counts[ErrOpen] < 8*(116+16+32+64) {
		t.Errorf("kinds of refusal: %v", counts)
	}
}

// TestEveryFieldIsBound changes each field of the header to another valid
// value: the form is then right, and only the encryption can tell.
func TestEveryFieldIsBound(t *testing.T) {
	base := sample()
	k := mustKey(t)
	s, r, enc := pair(t, k, base.TokenHash)
	frame, err := s.SealFrame(nil, base, make([]byte, 100))
	if err != nil {
		t.Fatal(err)
	}
	changes := map[string]func(h *Header){
		"request":       func(h *Header) { h.Request[0]++ },
		"child":         func(h *Header) { h.Child++ },
		"attempt":       func(h *Header) { h.Attempt++ },
		"sequence":      func(h *Header) { h.Seq++ },
		"prefill":       func(h *Header) { h.Prefill = "p-1" },
		"prefill epoch": func(h *Header) { h.PrefillEpoch++ },
		"decode":        func(h *Header) { h.Decode = "d" },
		"decode epoch":  func(h *Header) { h.DecodeEpoch++ },
		"model":         func(h *Header) { h.Model[31]++ },
		"block":         func(h *Header) { h.Block, h.TokenStart, h.TokenEnd = 1, 64, 128 },
		"blocks":        func(h *Header) { h.Blocks++ },
		"token end":     func(h *Header) { h.Blocks, h.TokenEnd = 1, 63 },
		"layer start":   func(h *Header) { h.LayerStart++ },
		"layer end":     func(h *Header) { h.LayerEnd++ },
		"prompt digest": func(h *Header) { h.PromptDigest[0]++ },
		"prefix digest": func(h *Header) { h.PrefixDigest[0]++ },
	}
	for name, change := range changes {
		h := base
		change(&h)
		bad, err := h.Append(nil)
		if err != nil {
			t.Fatalf("%s: not a valid change: %v", name, err)
		}
		bad = append(bad, frame[HeaderSize:]...)
		if _, out, err := r.OpenFrame(nil, bad); err != ErrOpen || len(out) != 0 {
			t.Errorf("%s changed: %v, want ErrOpen", name, err)
		}
	}
	// The token hash: with the other token's receiver, the header agrees and
	// the keys do not.
	h := base
	h.TokenHash[0]++
	other, err := k.NewReceiver(enc, h.TokenHash)
	if err != nil {
		t.Fatal(err)
	}
	bad, err := h.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := other.OpenFrame(nil, append(bad, frame[HeaderSize:]...)); err != ErrOpen {
		t.Errorf("token hash changed on both: %v, want ErrOpen", err)
	}
	if _, _, err := other.OpenFrame(nil, frame); err != ErrToken {
		t.Errorf("frame of another token: %v, want ErrToken", err)
	}
	// Length: a shorter frame that says so.
	h = base
	h.PayloadLen = 99
	bad, _ = h.Append(nil)
	if _, _, err := r.OpenFrame(nil, append(bad, frame[HeaderSize+1:]...)); err != ErrOpen {
		t.Errorf("payload length changed: %v, want ErrOpen", err)
	}
}

// TestKeysAreApart: two attempts with the same header and the same plaintext,
// to the same node, are closed to each other, and their ciphertexts differ.
func TestKeysAreApart(t *testing.T) {
	h := sample()
	k := mustKey(t)
	s1, r1, enc1 := pair(t, k, h.TokenHash)
	s2, r2, enc2 := pair(t, k, h.TokenHash)
	f1, err1 := s1.SealFrame(nil, h, make([]byte, 100))
	f2, err2 := s2.SealFrame(nil, h, make([]byte, 100))
	if err1 != nil || err2 != nil || bytes.Equal(enc1, enc2) || bytes.Equal(f1, f2) {
		t.Fatal("two incarnations share a key")
	}
	if _, _, err := r1.OpenFrame(nil, f2); err != ErrOpen {
		t.Errorf("frame of incarnation 2 in 1: %v", err)
	}
	if _, _, err := r2.OpenFrame(nil, f1); err != ErrOpen {
		t.Errorf("frame of incarnation 1 in 2: %v", err)
	}
	// Another node's key opens nothing. X-Wing rejects implicitly, so the
	// fault shows at the first frame.
	stranger, err := mustKey(t).NewReceiver(enc1, h.TokenHash)
	if err == nil {
		_, _, err = stranger.OpenFrame(nil, f1)
	}
	if err != ErrOpen {
		t.Errorf("frame opened with another node's key: %v", err)
	}
	// Each exported key has its own use.
	first, err := s1.SealFirst([]byte("t"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r2.OpenFirst(first); err != ErrOpen {
		t.Errorf("first token of incarnation 1 in 2: %v", err)
	}
	if bytes.Equal(s1.CreditMAC(5), s2.CreditMAC(5)) {
		t.Error("two incarnations share a credit key")
	}
}

// TestNoNonceTwice: a sequence number is sealed once, in any order, and a
// refusal happens before anything is encrypted.
func TestNoNonceTwice(t *testing.T) {
	h := sample()
	s, _, _ := pair(t, mustKey(t), h.TokenHash)
	for _, seq := range []uint32{5, 0, 64, 63, MaxFrames - 1} {
		h.Seq = seq
		if _, err := s.SealFrame(nil, h, make([]byte, 100)); err != nil {
			t.Errorf("frame %d: %v", seq, err)
		}
	}
	for _, seq := range []uint32{0, 5, 63, 64, MaxFrames - 1} {
		h.Seq = seq
		if out, err := s.SealFrame(nil, h, make([]byte, 100)); !errors.Is(err, ErrReuse) || out != nil {
			t.Errorf("frame %d again: %v, want ErrReuse", seq, err)
		}
	}
	h.Seq = 1
	h.TokenHash[0]++
	if _, err := s.SealFrame(nil, h, make([]byte, 100)); err != ErrToken {
		t.Errorf("header of another token: %v", err)
	}
	h.TokenHash[0]--
	if _, err := s.SealFrame(nil, h, make([]byte, 99)); !errors.Is(err, ErrFormat) {
		t.Errorf("payload shorter than its header says: %v", err)
	}
	if _, err := s.SealFirst(nil); err != nil {
		t.Error(err)
	}
	if _, err := s.SealFirst(nil); !errors.Is(err, ErrReuse) {
		t.Errorf("first token again: %v", err)
	}

	out := NewStream(hash32(1), "decode", hash32(2))
	for _, seq := range []uint64{0, 1, 7} {
		if _, err := out.Seal(seq, nil); err != nil {
			t.Errorf("output %d: %v", seq, err)
		}
	}
	for _, seq := range []uint64{0, 1, 6, 7, 1<<64 - 1} {
		if _, err := out.Seal(seq, nil); !errors.Is(err, ErrReuse) {
			t.Errorf("output %d after 7: %v, want ErrReuse", seq, err)
		}
	}
}

func TestFirstAndCredit(t *testing.T) {
	token := hash32(9)
	s, r, _ := pair(t, mustKey(t), token)
	sealed, err := s.SealFirst([]byte("first token"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := r.OpenFirst(sealed); err != nil || string(got) != "first token" {
		t.Errorf("OpenFirst: %q, %v", got, err)
	}
	for i := range len(sealed) * 8 {
		bad := bytes.Clone(sealed)
		bad[i/8] ^= 1 << (i % 8)
		if _, err := r.OpenFirst(bad); err != ErrOpen {
			t.Fatalf("bit %d flipped: %v", i, err)
		}
	}
	for _, bad := range [][]byte{nil, sealed[:15], sealed[:len(sealed)-1], append(bytes.Clone(sealed), 0), make([]byte, MaxFirst+TagSize+1)} {
		if _, err := r.OpenFirst(bad); err != ErrOpen {
			t.Errorf("%d bytes: %v", len(bad), err)
		}
	}
	// A prefill of another make could seal a longer one; it is not opened.
	long := s.first.Seal(nil, nonce(0), make([]byte, MaxFirst+1), firstAAD(token))
	if _, err := r.OpenFirst(long); err != ErrOpen {
		t.Errorf("a first token that is too long: %v", err)
	}
	s2, _, _ := pair(t, mustKey(t), token)
	if _, err := s2.SealFirst(make([]byte, MaxFirst+1)); !errors.Is(err, ErrLimit) {
		t.Errorf("too long a first token: %v", err)
	}

	mac := r.CreditMAC(1 << 20)
	if err := s.CheckCredit(1<<20, mac); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"another limit":   s.CheckCredit(1<<20+1, mac),
		"negative limit":  s.CheckCredit(-1, r.CreditMAC(-1)),
		"short MAC":       s.CheckCredit(1<<20, mac[:31]),
		"no MAC":          s.CheckCredit(1<<20, nil),
		"another attempt": s2.CheckCredit(1<<20, mac),
	} {
		if err != ErrMAC {
			t.Errorf("%s: %v, want ErrMAC", name, err)
		}
	}
}

func TestBox(t *testing.T) {
	k := mustKey(t)
	if len(k.Public()) != PublicKeySize {
		t.Errorf("public key has %d bytes, documented %d", len(k.Public()), PublicKeySize)
	}
	sealed, err := SealTo(k.Public(), "job", []byte("aad"), []byte("prompt"))
	if err != nil {
		t.Fatal(err)
	}
	if len(sealed) != EncapsulatedSize+6+TagSize {
		t.Errorf("box has %d bytes", len(sealed))
	}
	if got, err := k.OpenFrom("job", []byte("aad"), sealed); err != nil || string(got) != "prompt" {
		t.Errorf("OpenFrom: %q, %v", got, err)
	}
	for name, open := range map[string]func() ([]byte, error){
		"another use": func() ([]byte, error) { return k.OpenFrom("cancel", []byte("aad"), sealed) },
		"another aad": func() ([]byte, error) { return k.OpenFrom("job", []byte("aae"), sealed) },
		"another key": func() ([]byte, error) { return mustKey(t).OpenFrom("job", []byte("aad"), sealed) },
		"nothing":     func() ([]byte, error) { return k.OpenFrom("job", []byte("aad"), nil) },
		"cut":         func() ([]byte, error) { return k.OpenFrom("job", []byte("aad"), sealed[:len(sealed)-1]) },
		"too long":    func() ([]byte, error) { return k.OpenFrom("job", nil, make([]byte, EncapsulatedSize+MaxBox+TagSize+1)) },
	} {
		if got, err := open(); err != ErrOpen || got != nil {
			t.Errorf("%s: %v, want ErrOpen", name, err)
		}
	}
	for i := range sealed { // every byte, encapsulation included
		bad := bytes.Clone(sealed)
		bad[i] ^= 0x10
		if _, err := k.OpenFrom("job", []byte("aad"), bad); err != ErrOpen {
			t.Fatalf("byte %d changed: %v", i, err)
		}
	}
	if _, err := SealTo(k.Public(), "job", nil, make([]byte, MaxBox+1)); !errors.Is(err, ErrLimit) {
		t.Errorf("too large: %v", err)
	}
	for _, pub := range [][]byte{nil, k.Public()[1:], bytes.Repeat([]byte{0xff}, PublicKeySize)} {
		if _, err := SealTo(pub, "job", nil, nil); !errors.Is(err, ErrKey) {
			t.Errorf("SealTo a bad key: %v", err)
		}
		if _, _, err := NewSender(pub, hash32(0)); !errors.Is(err, ErrKey) {
			t.Errorf("NewSender to a bad key: %v", err)
		}
	}
	if _, err := k.NewReceiver(sealed, hash32(0)); err != ErrOpen {
		t.Errorf("NewReceiver with an encapsulation of the wrong size: %v", err)
	}
}

func TestStream(t *testing.T) {
	key, token := hash32(1), hash32(2)
	s := NewStream(key, "decode", token)
	r := NewStream(key, "decode", token)
	m0, err0 := s.Seal(0, []byte("tokens"))
	m1, err1 := s.Seal(1, []byte("tokens"))
	if err0 != nil || err1 != nil {
		t.Fatal(err0, err1)
	}
	if bytes.Equal(m0, m1) {
		t.Error("the same ciphertext twice")
	}
	for seq, m := range [][]byte{m0, m1} {
		if got, err := r.Open(uint64(seq), m); err != nil || string(got) != "tokens" {
			t.Errorf("Open %d: %q, %v", seq, got, err)
		}
	}
	for name, open := range map[string]func() ([]byte, error){
		"another number": func() ([]byte, error) { return r.Open(1, m0) },
		"another role":   func() ([]byte, error) { return NewStream(key, "prefill", token).Open(0, m0) },
		"another token":  func() ([]byte, error) { return NewStream(key, "decode", hash32(3)).Open(0, m0) },
		"another key":    func() ([]byte, error) { return NewStream(hash32(3), "decode", token).Open(0, m0) },
		"changed":        func() ([]byte, error) { return r.Open(0, append([]byte{m0[0] ^ 1}, m0[1:]...)) },
		"nothing":        func() ([]byte, error) { return r.Open(0, nil) },
		"too long":       func() ([]byte, error) { return r.Open(0, make([]byte, MaxOutput+TagSize+1)) },
	} {
		if got, err := open(); err != ErrOpen || got != nil {
			t.Errorf("%s: %v, want ErrOpen", name, err)
		}
	}
	if _, err := s.Seal(2, make([]byte, MaxOutput+1)); !errors.Is(err, ErrLimit) {
		t.Errorf("too large: %v", err)
	}
}

// TestNothingPrintsKeys formats every type that holds keys, bare and inside
// other values, and looks for the bytes.
func TestNothingPrintsKeys(t *testing.T) {
	token := hash32(1)
	k := mustKey(t)
	s, r, _ := pair(t, k, token)
	var secret [32]byte
	rand.Read(secret[:])
	st := NewStream(secret, "decode", token)
	private, err := (*k.private).Bytes()
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	l := slog.New(slog.NewJSONHandler(&log, nil))
	l.Info("x", "key", k, "sender", s, "receiver", r, "stream", st)
	for _, v := range []any{k, s, r, st, []any{k, s, r, st}, struct {
		K *Key
		S *Sender
		R *Receiver
		T *Stream
	}{k, s, r, st}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q"} {
			fmt.Fprintf(&log, verb, v)
		}
	}
	for name, b := range map[string][]byte{"private": private, "credit": s.credit[:], "reply": secret[:]} {
		for _, form := range []string{"%s", "%x", "%X", "%v", "%d", "%q"} {
			if text := strings.Trim(fmt.Sprintf(form, b[:8]), `[]"`); strings.Contains(log.String(), text) {
				t.Errorf("the %s key is in the output as %s", name, form)
			}
		}
	}
	if !strings.Contains(log.String(), "[secret]") {
		t.Error("nothing was printed at all")
	}
}
