package cluster_test

import (
	"crypto/ed25519"
	"fmt"
	"testing"

	"bulkhead/internal/tenant"
	"bulkhead/kernels"
	"bulkhead/kernels/cpu"
	"bulkhead/transfer/seal"
)

// The parts of what isolation costs, each alone and for a whole request of a model in the
// shape of SmolLM2-135M: `bulkhead bench isolation` measures their sum from outside, where
// it may be less than what two processes of one binary differ by. One thread; in a
// cluster, sealing and opening run beside each other and beside the next chunk's computation.
func BenchmarkIsolation(b *testing.B) {
	layout := kernels.PageLayout{Layers: 30, KVHeads: 3, HeadDim: 64}
	backend, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		b.Fatal(err)
	}
	defer backend.Close()
	for _, n := range []int{512, 1024, 2048, 4096} {
		ids := tokens(n)
		plan, err := seal.NewPlan(n, layout.Layers, layout.TokenLayerBytes())
		if err != nil {
			b.Fatal(err)
		}
		key, err := seal.NewKey()
		if err != nil {
			b.Fatal(err)
		}
		header := func(i int) seal.Header {
			h := seal.Header{TokenHash: [32]byte{1}, Request: [16]byte{1}, Attempt: 1, Prefill: "p1", PrefillEpoch: 1, Decode: "d1", DecodeEpoch: 1}
			plan.Fill(&h, i)
			return h
		}
		frames := make([][]byte, plan.Frames())
		plain := make([]byte, seal.MaxFrame)
		var enc []byte
		b.Run(fmt.Sprintf("prefill seals/%d", n), func(b *testing.B) {
			for b.Loop() {
				tenant.PrefixDigests([32]byte{1}, ids)
				s, e, err := seal.NewSender(key.Public(), [32]byte{1})
				if err != nil {
					b.Fatal(err)
				}
				enc = e
				chain := seal.NewChain()
				for i := range frames {
					h := header(i)
					if frames[i], err = s.SealFrame(frames[i][:0], h, plain[:h.PayloadLen]); err != nil {
						b.Fatal(err)
					}
					if err := chain.Add(frames[i]); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
		b.Run(fmt.Sprintf("decode opens/%d", n), func(b *testing.B) {
			for b.Loop() {
				tenant.PrefixDigests([32]byte{1}, ids)
				r, err := key.NewReceiver(enc, [32]byte{1})
				if err != nil {
					b.Fatal(err)
				}
				chain := seal.NewChain()
				for _, f := range frames {
					if err := chain.Add(f); err != nil {
						b.Fatal(err)
					}
					if _, _, err := r.OpenFrame(plain[:0], f); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
		// Router, prefill and decode: three digests of the prompt, the sealed job twice, and some
		// twenty signatures and as many verifications of job, accept, open, manifest and receipt.
		b.Run(fmt.Sprintf("grant/%d", n), func(b *testing.B) {
			public, private, err := ed25519.GenerateKey(nil)
			if err != nil {
				b.Fatal(err)
			}
			job := make([]byte, 3*n)
			for b.Loop() {
				for range 3 {
					tenant.PromptDigest([32]byte{1}, ids)
				}
				for range 2 {
					sealed, err := seal.SealTo(key.Public(), "job", nil, job)
					if err != nil {
						b.Fatal(err)
					}
					if _, err := key.OpenFrom("job", nil, sealed); err != nil {
						b.Fatal(err)
					}
				}
				for range 10 {
					if !ed25519.Verify(public, job[:64], ed25519.Sign(private, job[:64])) {
						b.Fatal("a signature does not verify")
					}
				}
			}
		})
		blocks := tenant.Blocks(n)
		pages, err := backend.NewPages(layout, blocks)
		if err != nil {
			b.Fatal(err)
		}
		entries := make([]kernels.Entry, blocks)
		claim := func() {
			for i := range entries {
				entries[i] = kernels.Entry{Page: kernels.PageID(i), Owner: 1, Generation: 1}
				pages.Claim(kernels.PageID(i), kernels.Tag{Owner: 1, Generation: 1, Index: uint32(i)})
			}
		}
		b.Run(fmt.Sprintf("pages zeroed/%d", n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				claim()
				for i, e := range entries {
					if err := pages.Import(e, i, 0, layout.Layers, kernels.BlockTokens, make([]byte, layout.PageBytes())); err != nil {
						b.Fatal(err)
					}
				}
				b.StartTimer()
				for i := range entries {
					pages.Scrub(kernels.PageID(i))
				}
			}
		})
		claim()
		reply := seal.NewStream([32]byte{1}, "decode", [32]byte{1})
		next := uint64(0)
		b.Run(fmt.Sprintf("one token/%d", n), func(b *testing.B) {
			for b.Loop() {
				for layer := range layout.Layers {
					for i, e := range entries {
						if kernels.CheckEntry(e, i, pages.Tag(e.Page)) != nil || pages.Filled(e.Page, layer) > kernels.BlockTokens {
							b.Fatal("a page is not its own")
						}
					}
				}
				sealed, err := reply.Seal(next, plain[:100])
				if err != nil {
					b.Fatal(err)
				}
				if _, err := reply.Open(next, sealed); err != nil {
					b.Fatal(err)
				}
				next++
			}
		})
	}
}
