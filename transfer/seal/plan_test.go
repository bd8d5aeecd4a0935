package seal

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/tenant"
)

// TestPlan spells out the cut of two real models.
func TestPlan(t *testing.T) {
	for _, tt := range []struct {
		name            string
		prompt, layers  int
		tokenLayerBytes int
		blocks, frames  int
		frame           int
		want            FrameSpec
	}{
		// SmolLM2-135M: 30 layers, 3 KV heads of 64. A block has 1,440 KiB.
		{"smollm2 first", 130, 30, 768, 3, 7, 0, FrameSpec{0, 0, 64, 0, 10, 491520}},
		{"smollm2 second", 130, 30, 768, 3, 7, 1, FrameSpec{0, 0, 64, 10, 20, 491520}},
		{"smollm2 last, 2 tokens", 130, 30, 768, 3, 7, 6, FrameSpec{2, 128, 130, 0, 30, 46080}},
		{"smollm2 one token", 1, 30, 768, 1, 1, 0, FrameSpec{0, 0, 1, 0, 30, 23040}},
		// Llama-3.1-8B: 32 layers, 8 KV heads of 128. A block has 8 MiB.
		{"llama last", 8192, 32, 4096, 128, 2048, 2047, FrameSpec{127, 8128, 8192, 30, 32, 524288}},
		// Layers that do not divide: 5 of 128 KiB are cut 3 + 2.
		{"uneven, larger first", 64, 5, 2048, 1, 2, 0, FrameSpec{0, 0, 64, 0, 3, 393216}},
		{"uneven, rest", 64, 5, 2048, 1, 2, 1, FrameSpec{0, 0, 64, 3, 5, 262144}},
		// One layer may be over the target, never over the most.
		{"wide layers", 64, 4, MaxTokenLayerBytes, 1, 4, 3, FrameSpec{0, 0, 64, 3, 4, MaxPayload}},
	} {
		p, err := NewPlan(tt.prompt, tt.layers, tt.tokenLayerBytes)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if p.Blocks() != tt.blocks || p.Frames() != tt.frames {
			t.Errorf("%s: %d blocks, %d frames, want %d, %d", tt.name, p.Blocks(), p.Frames(), tt.blocks, tt.frames)
		}
		if got := p.Frame(tt.frame); got != tt.want {
			t.Errorf("%s: frame %d is %+v, want %+v", tt.name, tt.frame, got, tt.want)
		}
	}
	for _, bad := range [][3]int{{0, 1, 1}, {-1, 1, 1}, {MaxTokens + 1, 1, 1}, {1, 0, 1}, {1, MaxLayers + 1, 1}, {1, 1, 0}, {1, 1, MaxTokenLayerBytes + 1},
		{MaxTokens, MaxLayers, MaxTokenLayerBytes}} {
		if _, err := NewPlan(bad[0], bad[1], bad[2]); !errors.Is(err, ErrPlan) {
			t.Errorf("NewPlan%v: %v, want ErrPlan", bad, err)
		}
	}
}

// TestPlanCovers draws shapes at random: the frames cover every token of every
// layer exactly once in order, within the promised sizes, and each frame's
// header is valid and passes Check, while any other frame's does not.
func TestPlanCovers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, err := NewPlan(
			rapid.IntRange(1, 700).Draw(t, "prompt"),
			rapid.IntRange(1, 130).Draw(t, "layers"),
			rapid.IntRange(1, MaxTokenLayerBytes).Draw(t, "bytes"))
		if err != nil {
			t.Fatal(err)
		}
		i, total := 0, int64(0)
		for block := range p.Blocks() {
			lo, hi := p.BlockFrames(block)
			if lo != i {
				t.Fatalf("block %d starts at frame %d, want %d", block, lo, i)
			}
			layer := 0
			for ; i < hi; i++ {
				f := p.Frame(i)
				tokens := f.TokenEnd - f.TokenStart
				full := tokens * p.Layers * p.TokenLayerBytes
				switch {
				case f.Block != block || f.TokenStart != block*tenant.BlockTokens || f.TokenEnd != min(p.PromptLen, (block+1)*tenant.BlockTokens):
					t.Fatalf("frame %d: %+v", i, f)
				case f.LayerStart != layer || f.LayerEnd <= layer:
					t.Fatalf("frame %d: %+v, want layer %d", i, f, layer)
				case f.Bytes != tokens*(f.LayerEnd-f.LayerStart)*p.TokenLayerBytes:
					t.Fatalf("frame %d: %+v", i, f)
				case f.Bytes > MaxPayload:
					t.Fatalf("frame %d has %d bytes", i, f.Bytes)
				case f.Bytes < 64<<10 && f.Bytes != full:
					t.Fatalf("frame %d has %d bytes and is not a whole block", i, f.Bytes)
				}
				layer = f.LayerEnd
				total += int64(f.Bytes)
			}
			if layer != p.Layers {
				t.Fatalf("block %d ends at layer %d", block, layer)
			}
		}
		if i != p.Frames() || total != p.Bytes() {
			t.Fatalf("%d frames of %d, %d bytes of %d", i, p.Frames(), total, p.Bytes())
		}

		a := rapid.IntRange(0, p.Frames()-1).Draw(t, "a")
		b := rapid.IntRange(0, p.Frames()-1).Draw(t, "b")
		h := sample()
		p.Fill(&h, a)
		if _, err := h.Append(nil); err != nil {
			t.Fatal(err)
		}
		if err := p.Check(h); err != nil {
			t.Fatal(err)
		}
		if a != b {
			h.Seq = uint32(b)
			if err := p.Check(h); !errors.Is(err, ErrPlan) {
				t.Fatalf("frame %d passes as %d: %v", a, b, err)
			}
		}
	})
}

// TestPlanCheck changes each planned number of a frame.
func TestPlanCheck(t *testing.T) {
	p, err := NewPlan(200, 30, 768)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(h *Header){
		"sequence":    func(h *Header) { h.Seq++ },
		"over":        func(h *Header) { h.Seq = uint32(p.Frames()) },
		"block":       func(h *Header) { h.Block++ },
		"blocks":      func(h *Header) { h.Blocks++ },
		"token start": func(h *Header) { h.TokenStart++ },
		"token end":   func(h *Header) { h.TokenEnd-- },
		"layer start": func(h *Header) { h.LayerStart++ },
		"layer end":   func(h *Header) { h.LayerEnd++ },
		"length":      func(h *Header) { h.PayloadLen-- },
	} {
		h := sample()
		p.Fill(&h, 1)
		if err := p.Check(h); err != nil {
			t.Fatal(err)
		}
		change(&h)
		if err := p.Check(h); !errors.Is(err, ErrPlan) {
			t.Errorf("%s changed: %v, want ErrPlan", name, err)
		}
	}
}
