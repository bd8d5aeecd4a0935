package seal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// patch returns a copy of b with v written at off, big endian, in size bytes.
func patch(b []byte, off, size int, v uint64) []byte {
	out := bytes.Clone(b)
	var be [8]byte
	binary.BigEndian.PutUint64(be[:], v)
	copy(out[off:off+size], be[8-size:])
	return out
}

// wantField checks that err is a FormatError of that structure and field.
func wantField(t *testing.T, what, field string, err error) {
	t.Helper()
	var f *FormatError
	if !errors.As(err, &f) || !errors.Is(err, ErrFormat) {
		t.Errorf("%s: %s: got %v, want a FormatError", what, field, err)
		return
	}
	if f.What != what || f.Field != field {
		t.Errorf("%s: %s: got %q", what, field, err)
	}
}

func TestHeaderForm(t *testing.T) {
	h := sample()
	b, err := h.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) != HeaderSize {
		t.Fatalf("%d bytes", len(b))
	}
	if got, err := ParseHeader(append(b, "payload"...)); err != nil || got != h {
		t.Fatalf("ParseHeader: %+v, %v", got, err)
	}
	name := func(off int, s string) []byte {
		out := bytes.Clone(b)
		copy(out[off:off+32], make([]byte, 32))
		copy(out[off:], s)
		return out
	}
	for _, bad := range []struct {
		field string
		b     []byte
	}{
		{"size", b[:HeaderSize-1]},
		{"size", nil},
		{"magic", patch(b, 0, 4, 0x424b484d)}, // a manifest's
		{"version", patch(b, 4, 1, 0)},
		{"version", patch(b, 4, 1, 2)},
		{"dtype", patch(b, 5, 1, 0)},
		{"dtype", patch(b, 5, 1, 2)},
		{"reserved", patch(b, 6, 1, 1)},
		{"reserved", patch(b, 7, 1, 1)},
		{"attempt", patch(b, 58, 2, 0)},
		{"sequence", patch(b, 60, 4, MaxFrames)},
		{"prefill name length", name(80, "")},
		{"prefill name length", name(80, "a.b")},
		{"prefill name length", name(80, "a\x00b")},
		{"decode name length", name(112, "")},
		{"decode name length", name(112, "*")},
		{"decode name length", name(112, "a\x00\x01")},
		{"block index", patch(b, 176, 4, 2)},
		{"block count", patch(b, 180, 4, 0)},
		{"block count", patch(b, 180, 4, MaxBlocks+1)},
		{"token start", patch(b, 184, 4, 1)},
		{"token start", patch(b, 176, 4, 1)},
		{"token end", patch(b, 188, 4, 0)},
		{"token end", patch(b, 188, 4, 65)},
		{"token end of a full block", patch(b, 188, 4, 63)},
		{"layer start", patch(b, 192, 2, 20)},
		{"layer end", patch(b, 194, 2, MaxLayers+1)},
		{"payload length", patch(b, 196, 4, 0)},
		{"payload length", patch(b, 196, 4, MaxPayload+1)},
	} {
		_, err := ParseHeader(bad.b)
		wantField(t, "header", bad.field, err)
	}
	// What Append writes, ParseHeader would read: it refuses the rest.
	for _, change := range []func(h *Header){
		func(h *Header) { h.Prefill = "" },
		func(h *Header) { h.Decode = "decode_number-33-characters_long." },
		func(h *Header) { h.Attempt = 0 },
		func(h *Header) { h.PayloadLen = 0 },
	} {
		h := sample()
		change(&h)
		if out, err := h.Append([]byte{1}); !errors.Is(err, ErrFormat) || len(out) != 1 {
			t.Errorf("Append of %+v: %v", h, err)
		}
	}
	for _, n := range []int{HeaderSize, HeaderSize + 100 + TagSize - 1, HeaderSize + 100 + TagSize + 1} {
		_, err := ParseFrame(append(bytes.Clone(b), make([]byte, n-HeaderSize)...))
		wantField(t, "header", "frame size", err)
	}
}

func TestManifestForm(t *testing.T) {
	m := Manifest{TokenHash: hash32(1), Blocks: 2, Tokens: 100, Frames: 6, Cached: 64, Chain: hash32(2), First: bytes.Repeat([]byte{9}, 40)}
	b, err := m.Append([]byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	b = b[1:]
	got, err := ParseManifest(b)
	if err != nil || !bytes.Equal(got.First, m.First) {
		t.Fatalf("ParseManifest: %+v, %v", got, err)
	}
	if again, err := got.Append(nil); err != nil || !bytes.Equal(again, b) {
		t.Fatalf("not the same bytes again: %v", err)
	}
	for _, bad := range []struct {
		field string
		b     []byte
	}{
		{"size", nil},
		{"size", b[:manifestFixed-1]},
		{"size", append(bytes.Clone(b), make([]byte, MaxManifest)...)},
		{"magic", patch(b, 0, 4, 0x424b4846)},
		{"version", patch(b, 4, 1, 2)},
		{"status", patch(b, 5, 1, 0)},
		{"status", patch(b, 5, 1, 2)},
		{"reserved", patch(b, 6, 1, 1)},
		{"reserved", patch(b, 7, 1, 1)},
		{"blocks", patch(b, 40, 4, 0)},
		{"blocks", patch(b, 40, 4, MaxBlocks+1)},
		{"tokens", patch(b, 44, 4, 0)},
		{"tokens", patch(b, 44, 4, MaxTokens+1)},
		{"frames", patch(b, 48, 4, 0)},
		{"frames", patch(b, 48, 4, 1<<32-1)},
		{"cached tokens", patch(b, 52, 4, 101)},
		{"first token size", patch(b, 88, 4, 41)},
		{"first token size", b[:len(b)-1]},
		{"first token size", append(bytes.Clone(b), 0)},
		{"first token size", patch(b[:manifestFixed+15], 88, 4, 15)},
	} {
		_, err := ParseManifest(bad.b)
		wantField(t, "manifest", bad.field, err)
	}
	m.First = nil
	if _, err := m.Append(nil); !errors.Is(err, ErrFormat) {
		t.Errorf("Append without first token: %v", err)
	}
}

func TestReceiptForm(t *testing.T) {
	r := Receipt{TokenHash: hash32(1), ManifestHash: hash32(2), Pages: 3, Decode: "d0", Epoch: 77}
	b, err := r.Append(nil)
	if err != nil || len(b) != ReceiptSize {
		t.Fatal(len(b), err)
	}
	if got, err := ParseReceipt(b); err != nil || got != r {
		t.Fatalf("ParseReceipt: %+v, %v", got, err)
	}
	if r.Hash() != ReceiptHash(b) {
		t.Error("Hash is not that of the bytes")
	}
	for _, bad := range []struct {
		field string
		b     []byte
	}{
		{"size", b[:ReceiptSize-1]},
		{"size", append(bytes.Clone(b), 0)},
		{"magic", patch(b, 0, 4, 0x424b484d)},
		{"version", patch(b, 4, 1, 0)},
		{"reserved", patch(b, 5, 1, 1)},
		{"reserved", patch(b, 6, 1, 1)},
		{"reserved", patch(b, 7, 1, 1)},
		{"decode name length", patch(b, 72, 2, 0)},
		{"decode name length", patch(b, 80, 1, 'x')},
		{"pages", patch(b, 112, 4, 0)},
		{"pages", patch(b, 112, 4, MaxBlocks+1)},
	} {
		_, err := ParseReceipt(bad.b)
		wantField(t, "receipt", bad.field, err)
	}
	r.Pages = 0
	if _, err := r.Append(nil); !errors.Is(err, ErrFormat) {
		t.Errorf("Append of no pages: %v", err)
	}
}

// TestManifestCheck: each thing the receiver knows must agree.
func TestManifestCheck(t *testing.T) {
	p, err := NewPlan(100, 30, 768)
	if err != nil {
		t.Fatal(err)
	}
	token := hash32(1)
	full, short := NewChain(), NewChain()
	for i := range p.Frames() {
		if err := full.AddLink(uint32(i), hash32(byte(i))); err != nil {
			t.Fatal(err)
		}
		if i < p.Frames()-1 {
			short.AddLink(uint32(i), hash32(byte(i)))
		}
	}
	good := Manifest{TokenHash: token, Blocks: p.Blocks(), Tokens: 100, Frames: p.Frames(), Chain: full.Sum(), First: make([]byte, TagSize)}
	if err := good.Check(token, p, full); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]struct {
		change func(m *Manifest)
		chain  *Chain
		want   error
	}{
		"token":            {func(m *Manifest) { m.TokenHash[0]++ }, full, ErrToken},
		"tokens":           {func(m *Manifest) { m.Tokens-- }, full, ErrPlan},
		"blocks":           {func(m *Manifest) { m.Blocks-- }, full, ErrPlan},
		"frames":           {func(m *Manifest) { m.Frames-- }, full, ErrPlan},
		"chain":            {func(m *Manifest) { m.Chain[0]++ }, full, ErrChain},
		"a frame short":    {func(m *Manifest) { m.Chain = short.Sum() }, short, ErrPlan},
		"frames and chain": {func(m *Manifest) { m.Frames--; m.Chain = short.Sum() }, short, ErrPlan},
	} {
		m := good
		bad.change(&m)
		if err := m.Check(token, p, bad.chain); !errors.Is(err, bad.want) {
			t.Errorf("%s: %v, want %v", name, err, bad.want)
		}
	}
}

// TestChain: the chain knows its frames, their order and their count.
func TestChain(t *testing.T) {
	h := sample()
	s, _, _ := pair(t, mustKey(t), h.TokenHash)
	var frames [][]byte
	for i := range 3 {
		h.Seq = uint32(i)
		f, err := s.SealFrame(nil, h, make([]byte, 100))
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, f)
	}
	c := NewChain()
	seen := map[[32]byte]bool{c.Sum(): true}
	for i, f := range frames {
		if err := c.Add(f); err != nil {
			t.Fatal(err)
		}
		if seen[c.Sum()] || c.Frames() != i+1 {
			t.Error("chain did not move")
		}
		seen[c.Sum()] = true
	}
	if err := NewChain().Add(frames[1]); !errors.Is(err, ErrPlan) {
		t.Errorf("second frame first: %v", err)
	}
	if err := c.Add(frames[2]); !errors.Is(err, ErrPlan) {
		t.Errorf("last frame twice: %v", err)
	}
	if err := NewChain().Add(frames[0][:len(frames[0])-1]); !errors.Is(err, ErrFormat) {
		t.Errorf("cut frame: %v", err)
	}
	// Header and tag are each in the link.
	l0, _ := Link(frames[0])
	for _, i := range []int{40, HeaderSize - 1, len(frames[0]) - 1, len(frames[0]) - TagSize} {
		bad := bytes.Clone(frames[0])
		bad[i]++
		if l, err := Link(bad); err != nil || l == l0 {
			t.Errorf("byte %d is not in the link (%v)", i, err)
		}
	}
}
