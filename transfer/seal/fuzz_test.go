package seal

import (
	"bytes"
	"testing"

	"bulkhead/internal/negative"
)

// The parsers take bytes from the bus. For each: no input panics, and what is
// accepted is written back as the same bytes, so there is one encoding only.

// seeds adds the negative vectors of one structure.
func seeds(f *testing.F, structure string) {
	negative.Seeds(f, "testdata/negative", func(what string, data []byte) {
		if what == structure {
			f.Add(data)
		}
	})
}

func FuzzHeader(f *testing.F) {
	b, err := sample().Append(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(append(bytes.Clone(b), make([]byte, 100+TagSize)...))
	f.Add([]byte{})
	seeds(f, "header")
	seeds(f, "frame")
	k := mustKey(f)
	_, r, _ := pair(f, k, sample().TokenHash)
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, out, err := r.OpenFrame(nil, b); err == nil || out != nil {
			t.Fatal("a frame that nobody sealed opens")
		}
		if l, err := Link(b); err == nil && l == ([32]byte{}) {
			t.Fatal("empty link")
		}
		h, err := ParseHeader(b)
		if err != nil {
			return
		}
		if again, err := h.Append(nil); err != nil || !bytes.Equal(again, b[:HeaderSize]) {
			t.Fatalf("%+v is written differently: %v", h, err)
		}
	})
}

func FuzzManifest(f *testing.F) {
	b, err := Manifest{TokenHash: hash32(1), Blocks: 2, Tokens: 100, Frames: 6, Chain: hash32(2), First: make([]byte, 40)}.Append(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	seeds(f, "manifest")
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseManifest(b)
		if err != nil {
			return
		}
		if again, err := m.Append(nil); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%+v is written differently: %v", m, err)
		}
	})
}

func FuzzReceipt(f *testing.F) {
	b, err := Receipt{TokenHash: hash32(1), ManifestHash: hash32(2), Pages: 3, Decode: "d0", Epoch: 77}.Append(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	seeds(f, "receipt")
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseReceipt(b)
		if err != nil {
			return
		}
		if again, err := r.Append(nil); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%+v is written differently: %v", r, err)
		}
		r.Hash()
	})
}
