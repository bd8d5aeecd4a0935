package seal

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"crypto/sha256"
)

// testdata/vectors.json lets any implementation of the format check itself. All
// byte strings are hex. -rewrite makes the file anew; a change of it is a change
// of the protocol and needs a new version.
var rewrite = flag.Bool("rewrite", false, "write testdata/vectors.json")

const vectorFile = "testdata/vectors.json"

type vectors struct {
	Comment string `json:"comment"`
	// Fixed: keys given, so that every byte follows.
	Fixed struct {
		TokenHash string   `json:"token_hash"`
		FrameKey  string   `json:"frame_key"`
		FirstKey  string   `json:"first_token_key"`
		CreditKey string   `json:"credit_key"`
		Plan      [3]int   `json:"plan"` // prompt length, layers, bytes per token and layer
		Plain     string   `json:"payload_rule"`
		Headers   []string `json:"headers"`
		FrameSHA  []string `json:"frames_sha256"`
		Frame     string   `json:"last_frame"` // whole
		Chain     string   `json:"chain"`
		First     string   `json:"first_token"`
		FirstSeal string   `json:"first_token_sealed"`
		Credit    int64    `json:"credit_limit"`
		CreditMAC string   `json:"credit_mac"`
		Manifest  string   `json:"manifest"`
		Receipt   string   `json:"receipt"`
		Hash      string   `json:"receipt_hash"`
	} `json:"fixed"`
	Stream struct {
		ReplyKey  string `json:"reply_key"`
		Role      string `json:"role"`
		TokenHash string `json:"token_hash"`
		Seq       uint64 `json:"seq"`
		Plaintext string `json:"plaintext"`
		Sealed    string `json:"sealed"`
	} `json:"stream"`
	// HPKE: encapsulation is random, so these were sealed once and must open.
	HPKE struct {
		PrivateKey string `json:"private_key"` // X-Wing seed
		PublicSHA  string `json:"public_key_sha256"`
		TokenHash  string `json:"token_hash"`
		Enc        string `json:"enc"`
		Frame      string `json:"frame"`
		Payload    string `json:"payload"`
		First      string `json:"first_token_sealed"`
		FirstPlain string `json:"first_token"`
		Credit     int64  `json:"credit_limit"`
		CreditMAC  string `json:"credit_mac"`
		BoxInfo    string `json:"box_info"`
		BoxAAD     string `json:"box_aad"`
		Box        string `json:"box"`
		BoxPlain   string `json:"box_plaintext"`
	} `json:"hpke"`
	// Refused: frames under the fixed keys, each with the kind of its refusal.
	Refused []refusal `json:"refused"`
}

type refusal struct {
	What   string `json:"what"`
	Expect string `json:"expect"` // "format", "token" or "open"
	Frame  string `json:"frame"`
}

// fixedExports stands in for an HPKE context whose exports are known.
type fixedExports map[string][]byte

func (f fixedExports) Export(context string, n int) ([]byte, error) {
	return bytes.Clone(f[context][:n]), nil
}

func fixedAttempt(t *testing.T) (*Sender, *Receiver, fixedExports, [32]byte) {
	t.Helper()
	x := fixedExports{}
	for i, c := range []string{exportFrames, exportFirst, exportCredit} {
		h := hash32(byte(0x40 * (i + 1)))
		x[c] = h[:]
	}
	token := sha256.Sum256([]byte("vector token"))
	a, err := newAttempt(x, token)
	if err != nil {
		t.Fatal(err)
	}
	return &Sender{attempt: a}, &Receiver{a}, x, token
}

// payloadOf is the payload_rule of the vectors: byte j of frame i is 7i + j.
func payloadOf(i, n int) []byte {
	b := make([]byte, n)
	for j := range b {
		b[j] = byte(7*i + j)
	}
	return b
}

func vectorHeader(p Plan, i int, token [32]byte) Header {
	h := sample()
	h.TokenHash = token
	p.Fill(&h, i)
	return h
}

// fixed computes the deterministic part, and with it the refused frames.
func fixed(t *testing.T) (v vectors) {
	t.Helper()
	s, r, x, token := fixedAttempt(t)
	f := &v.Fixed
	f.TokenHash = hex.EncodeToString(token[:])
	f.FrameKey, f.FirstKey, f.CreditKey = hex.EncodeToString(x[exportFrames]), hex.EncodeToString(x[exportFirst]), hex.EncodeToString(x[exportCredit])
	f.Plan = [3]int{66, 5, 2048}
	f.Plain = "byte j of the payload of frame i is (7i + j) mod 256"
	p, err := NewPlan(f.Plan[0], f.Plan[1], f.Plan[2])
	if err != nil {
		t.Fatal(err)
	}
	c := NewChain()
	var frame []byte
	for i := range p.Frames() {
		h := vectorHeader(p, i, token)
		frame, err = s.SealFrame(nil, h, payloadOf(i, int(h.PayloadLen)))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Add(frame); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(frame)
		f.Headers = append(f.Headers, hex.EncodeToString(frame[:HeaderSize]))
		f.FrameSHA = append(f.FrameSHA, hex.EncodeToString(sum[:]))
	}
	chain := c.Sum()
	f.Chain = hex.EncodeToString(chain[:])

	// One frame short enough to be printed whole: a plan of its own.
	small, err := NewPlan(1, 2, 24)
	if err != nil {
		t.Fatal(err)
	}
	h := vectorHeader(small, 0, token)
	h.Seq = 9
	frame, err = s.SealFrame(nil, h, payloadOf(9, 48))
	if err != nil {
		t.Fatal(err)
	}
	f.Frame = hex.EncodeToString(frame)

	first := []byte("first token")
	sealed, err := s.SealFirst(first)
	if err != nil {
		t.Fatal(err)
	}
	f.First, f.FirstSeal = hex.EncodeToString(first), hex.EncodeToString(sealed)
	f.Credit = 1 << 24
	f.CreditMAC = hex.EncodeToString(r.CreditMAC(f.Credit))
	m, err := Manifest{TokenHash: token, Blocks: p.Blocks(), Tokens: p.PromptLen, Frames: p.Frames(), Cached: 64, Chain: chain, First: sealed}.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	receipt := Receipt{TokenHash: token, ManifestHash: ManifestHash(m), Pages: p.Blocks(), Decode: "d-0", Epoch: 42}
	rb, err := receipt.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	hash := receipt.Hash()
	f.Manifest, f.Receipt, f.Hash = hex.EncodeToString(m), hex.EncodeToString(rb), hex.EncodeToString(hash[:])

	reply := hash32(0x99)
	out, err := NewStream(reply, "decode", token).Seal(3, []byte("output"))
	if err != nil {
		t.Fatal(err)
	}
	v.Stream.ReplyKey, v.Stream.Role, v.Stream.TokenHash = hex.EncodeToString(reply[:]), "decode", f.TokenHash
	v.Stream.Seq, v.Stream.Plaintext, v.Stream.Sealed = 3, hex.EncodeToString([]byte("output")), hex.EncodeToString(out)

	refuse := func(what, expect string, b []byte) {
		v.Refused = append(v.Refused, refusal{what, expect, hex.EncodeToString(b)})
	}
	refuse("cut by one byte", "format", frame[:len(frame)-1])
	refuse("one byte more", "format", append(bytes.Clone(frame), 0))
	refuse("header alone", "format", frame[:HeaderSize])
	refuse("cut header", "format", frame[:HeaderSize-1])
	refuse("magic of a manifest", "format", patch(frame, 3, 1, 'M'))
	refuse("version 2", "format", patch(frame, 4, 1, 2))
	refuse("dtype 2", "format", patch(frame, 5, 1, 2))
	refuse("reserved byte set", "format", patch(frame, 7, 1, 1))
	refuse("another token", "token", patch(frame, 8, 1, 0))
	refuse("another request", "open", patch(frame, 40, 1, 0))
	refuse("another child", "open", patch(frame, 56, 2, 9))
	refuse("attempt 0", "format", patch(frame, 58, 2, 0))
	refuse("another attempt", "open", patch(frame, 58, 2, 4))
	refuse("another sequence number", "open", patch(frame, 60, 4, 8))
	refuse("sequence number too large", "format", patch(frame, 60, 4, MaxFrames))
	refuse("another prefill epoch", "open", patch(frame, 71, 1, 0))
	refuse("another decode epoch", "open", patch(frame, 79, 1, 0))
	refuse("another prefill", "open", patch(frame, 80, 1, 'q'))
	refuse("prefill with a dot", "format", patch(frame, 81, 1, '.'))
	refuse("another decode", "open", patch(frame, 112, 1, 'x'))
	refuse("decode with a zero inside", "format", patch(frame, 113, 1, 0))
	refuse("another model", "open", patch(frame, 144, 1, 0))
	refuse("block beyond the count", "format", patch(frame, 176, 4, 1))
	refuse("another count of blocks", "format", patch(frame, 180, 4, 2))
	refuse("token start inside a block", "format", patch(frame, 184, 4, 1))
	refuse("another token end", "open", patch(frame, 188, 4, 2))
	refuse("token end beyond the block", "format", patch(frame, 188, 4, 65))
	refuse("no layers", "format", patch(frame, 192, 2, 2))
	refuse("another layer start", "open", patch(frame, 192, 2, 1))
	refuse("another layer end", "open", patch(frame, 194, 2, 3))
	refuse("too many layers", "format", patch(frame, 194, 2, MaxLayers+1))
	refuse("another length", "format", patch(frame, 196, 4, 47))
	refuse("another prompt digest", "open", patch(frame, 200, 1, 0))
	refuse("another prefix digest", "open", patch(frame, 263, 1, 0))
	refuse("ciphertext changed", "open", patch(frame, HeaderSize, 2, 0))
	refuse("tag changed", "open", patch(frame, len(frame)-2, 2, 0))
	return v
}

func TestVectors(t *testing.T) {
	want := fixed(t)
	if *rewrite {
		writeVectors(t, want)
	}
	data, err := os.ReadFile(vectorFile)
	if err != nil {
		t.Fatal(err)
	}
	var got vectors
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if a, b := fmt.Sprintf("%+v", got.Fixed), fmt.Sprintf("%+v", want.Fixed); a != b {
		t.Errorf("fixed vectors differ:\nfile %s\ncode %s", a, b)
	}
	if got.Stream != want.Stream {
		t.Errorf("stream vector differs:\nfile %+v\ncode %+v", got.Stream, want.Stream)
	}

	_, r, _, _ := fixedAttempt(t)
	if h, plain, err := r.OpenFrame(nil, unhex(t, got.Fixed.Frame)); err != nil || h.Seq != 9 || !bytes.Equal(plain, payloadOf(9, 48)) {
		t.Errorf("the whole frame does not open: %v", err)
	}
	kinds := map[string]error{"format": ErrFormat, "token": ErrToken, "open": ErrOpen}
	if len(got.Refused) != len(want.Refused) {
		t.Errorf("%d refused frames, want %d", len(got.Refused), len(want.Refused))
	}
	for _, v := range got.Refused {
		if _, _, err := r.OpenFrame(nil, unhex(t, v.Frame)); kinds[v.Expect] == nil || !errors.Is(err, kinds[v.Expect]) {
			t.Errorf("%s: %v, want %s", v.What, err, v.Expect)
		}
	}
	checkHPKE(t, got)
}

func checkHPKE(t *testing.T, v vectors) {
	t.Helper()
	p, err := kem().NewPrivateKey(unhex(t, v.HPKE.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	k := &Key{private: &p, public: p.PublicKey().Bytes()}
	if sum := sha256.Sum256(k.Public()); hex.EncodeToString(sum[:]) != v.HPKE.PublicSHA {
		t.Error("public key differs")
	}
	r, err := k.NewReceiver(unhex(t, v.HPKE.Enc), [32]byte(unhex(t, v.HPKE.TokenHash)))
	if err != nil {
		t.Fatal(err)
	}
	if _, plain, err := r.OpenFrame(nil, unhex(t, v.HPKE.Frame)); err != nil || hex.EncodeToString(plain) != v.HPKE.Payload {
		t.Errorf("frame: %v", err)
	}
	if plain, err := r.OpenFirst(unhex(t, v.HPKE.First)); err != nil || hex.EncodeToString(plain) != v.HPKE.FirstPlain {
		t.Errorf("first token: %v", err)
	}
	if err := r.CheckCredit(v.HPKE.Credit, unhex(t, v.HPKE.CreditMAC)); err != nil {
		t.Errorf("credit: %v", err)
	}
	if plain, err := k.OpenFrom(v.HPKE.BoxInfo, unhex(t, v.HPKE.BoxAAD), unhex(t, v.HPKE.Box)); err != nil || hex.EncodeToString(plain) != v.HPKE.BoxPlain {
		t.Errorf("box: %v", err)
	}
}

func writeVectors(t *testing.T, v vectors) {
	t.Helper()
	v.Comment = "Vectors of package seal, version 1; the format is the package comment. All byte strings are hex. The keys are for tests only."
	k := mustKey(t)
	private, err := (*k.private).Bytes()
	if err != nil {
		t.Fatal(err)
	}
	public := sha256.Sum256(k.Public())
	token := sha256.Sum256([]byte("vector token"))
	s, enc, err := NewSender(k.Public(), token)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPlan(1, 2, 24)
	if err != nil {
		t.Fatal(err)
	}
	frame, err := s.SealFrame(nil, vectorHeader(p, 0, token), payloadOf(0, 48))
	if err != nil {
		t.Fatal(err)
	}
	first, err := s.SealFirst([]byte("first token"))
	if err != nil {
		t.Fatal(err)
	}
	box, err := SealTo(k.Public(), "job", []byte("aad"), []byte("a job"))
	if err != nil {
		t.Fatal(err)
	}
	h := &v.HPKE
	h.PrivateKey, h.PublicSHA, h.TokenHash = hex.EncodeToString(private), hex.EncodeToString(public[:]), hex.EncodeToString(token[:])
	h.Enc, h.Frame, h.Payload = hex.EncodeToString(enc), hex.EncodeToString(frame), hex.EncodeToString(payloadOf(0, 48))
	h.First, h.FirstPlain = hex.EncodeToString(first), hex.EncodeToString([]byte("first token"))
	h.Credit, h.CreditMAC = 12345678, hex.EncodeToString(s.CreditMAC(12345678))
	h.BoxInfo, h.BoxAAD = "job", hex.EncodeToString([]byte("aad"))
	h.Box, h.BoxPlain = hex.EncodeToString(box), hex.EncodeToString([]byte("a job"))
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(vectorFile, append(data, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
