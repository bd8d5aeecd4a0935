package model

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"testing"

	"bulkhead/internal/gguf"
	"bulkhead/kernels"
	"bulkhead/kernels/cpu"
)

// The encoding is a format that nodes of different builds must share: pinned,
// and each input changes it.
func TestFingerprint(t *testing.T) {
	file := sha256.Sum256([]byte("file"))
	layout := kernels.PageLayout{Layers: 2, KVHeads: 3, HeadDim: 4}
	info := kernels.Info{Name: "cpu", Tier: "generic", Version: 1, Threads: 8}
	base := fingerprint(file, layout, info)
	const want = "8836e6046417d370f25ac471f539755e32a239de12ef50a2292c8f23bed6ecab" // of forwardVersion 3
	if got := hex.EncodeToString(base[:]); got != want {
		t.Errorf("fingerprint %s, want %s", got, want)
	}
	seen := map[[32]byte]string{base: "base"}
	differ := func(what string, f [32]byte) {
		if other, ok := seen[f]; ok {
			t.Errorf("%s gives the fingerprint of %s", what, other)
		}
		seen[f] = what
	}
	other := file
	other[31] ^= 1
	differ("another file", fingerprint(other, layout, info))
	differ("more layers", fingerprint(file, kernels.PageLayout{Layers: 3, KVHeads: 3, HeadDim: 4}, info))
	differ("more heads", fingerprint(file, kernels.PageLayout{Layers: 2, KVHeads: 4, HeadDim: 4}, info))
	differ("wider heads", fingerprint(file, kernels.PageLayout{Layers: 2, KVHeads: 3, HeadDim: 8}, info))
	differ("another backend", fingerprint(file, layout, kernels.Info{Name: "cuda", Tier: "generic", Version: 1}))
	differ("another tier", fingerprint(file, layout, kernels.Info{Name: "cpu", Tier: "avx2", Version: 1}))
	differ("another version", fingerprint(file, layout, kernels.Info{Name: "cpu", Tier: "generic", Version: 2}))
	differ("a shifted border", fingerprint(file, layout, kernels.Info{Name: "cpug", Tier: "eneric", Version: 1}))
	info.Threads = 1
	if fingerprint(file, layout, info) != base {
		t.Error("threads change the fingerprint")
	}
}

// Any byte of the file counts, also one that the engine does not read: the
// chat template is part of what a node promises.
func TestFingerprintCoversFile(t *testing.T) {
	data, err := os.ReadFile("testdata/tiny-chat.gguf")
	if err != nil {
		t.Fatal(err)
	}
	load := func() [32]byte {
		f, err := gguf.Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		b, err := cpu.New(cpu.Config{Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		m, err := Load(f, b)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		return m.Facts().Fingerprint
	}
	before := load()
	if load() != before {
		t.Fatal("one file, two fingerprints")
	}
	data[len(data)-1] ^= 1
	if load() == before {
		t.Error("a changed byte did not show")
	}
}
