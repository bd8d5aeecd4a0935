package seal

import "testing"

func BenchmarkSealFrame(b *testing.B) {
	s, _, _ := pair(b, mustKey(b), sample().TokenHash)
	h := sample()
	h.PayloadLen = frameTarget
	plain, dst := make([]byte, frameTarget), make([]byte, 0, MaxFrame)
	b.SetBytes(frameTarget)
	b.ReportAllocs()
	for i := range b.N {
		h.Seq = uint32(i % MaxFrames)
		s.sealed = nil // the benchmark may use a number twice; the data is zeros
		if _, err := s.SealFrame(dst, h, plain); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpenFrame(b *testing.B) {
	s, r, _ := pair(b, mustKey(b), sample().TokenHash)
	h := sample()
	h.PayloadLen = frameTarget
	frame, err := s.SealFrame(nil, h, make([]byte, frameTarget))
	if err != nil {
		b.Fatal(err)
	}
	dst := make([]byte, 0, frameTarget)
	b.SetBytes(frameTarget)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := r.OpenFrame(dst, frame); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAttempt is the fixed cost of one attempt: keys at both ends.
func BenchmarkAttempt(b *testing.B) {
	k := mustKey(b)
	for b.Loop() {
		pair(b, k, hash32(1))
	}
}
