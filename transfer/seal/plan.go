package seal

import (
	"fmt"

	"bulkhead/internal/tenant"
)

// frameTarget is the payload that frames aim for. Fewer, larger messages cost
// the bus less per byte; above it latency and the 1 MiB default limit bite.
const frameTarget = 512 << 10

// MaxTokenLayerBytes bounds K and V of one token in one layer, so that even a
// frame of one layer fits MaxPayload.
const MaxTokenLayerBytes = MaxPayload / tenant.BlockTokens

// Plan is how the KV of an attempt is cut into frames. It is a pure function of
// its three numbers, so both sides compute it and neither is told.
//
// A block of b bytes becomes ceil(b / 512 KiB) frames, but never more than there
// are layers; its layers are spread over them as evenly as whole layers allow,
// larger ones first. The last block is cut by its own, smaller size. Frames are
// numbered block by block, then by layer.
type Plan struct {
	PromptLen       int // tokens
	Layers          int
	TokenLayerBytes int // K and V of one token in one layer
}

// FrameSpec is one frame of a plan. Ranges are half open.
type FrameSpec struct {
	Block                int
	TokenStart, TokenEnd int
	LayerStart, LayerEnd int
	Bytes                int // of payload
}

// NewPlan returns the plan, or ErrPlan naming the number that is out of bounds.
func NewPlan(promptLen, layers, tokenLayerBytes int) (Plan, error) {
	for _, n := range []struct {
		name       string
		value, max int
	}{
		{"prompt length", promptLen, MaxTokens},
		{"layers", layers, MaxLayers},
		{"bytes per token and layer", tokenLayerBytes, MaxTokenLayerBytes},
	} {
		if n.value < 1 || n.value > n.max {
			return Plan{}, fmt.Errorf("%w: %s is %d, must be 1 to %d", ErrPlan, n.name, n.value, n.max)
		}
	}
	p := Plan{PromptLen: promptLen, Layers: layers, TokenLayerBytes: tokenLayerBytes}
	if n := p.Frames(); n > MaxFrames {
		return Plan{}, fmt.Errorf("%w: %d frames, at most %d", ErrPlan, n, MaxFrames)
	}
	return p, nil
}

// Blocks returns the count of blocks.
func (p Plan) Blocks() int { return tenant.Blocks(p.PromptLen) }

// Frames returns the count of frames.
func (p Plan) Frames() int {
	last := p.Blocks() - 1
	return last*p.framesOf(tenant.BlockTokens) + p.framesOf(p.PromptLen-last*tenant.BlockTokens)
}

// Bytes returns the payload bytes of all frames.
func (p Plan) Bytes() int64 {
	return int64(p.PromptLen) * int64(p.Layers) * int64(p.TokenLayerBytes)
}

// BlockFrames returns the numbers [lo, hi) of the frames of one block.
func (p Plan) BlockFrames(block int) (lo, hi int) {
	full := p.framesOf(tenant.BlockTokens)
	lo = block * full
	return lo, lo + p.framesOf(p.tokensOf(block))
}

// Frame returns frame i, which must be in [0, Frames()).
func (p Plan) Frame(i int) FrameSpec {
	if i < 0 || i >= p.Frames() {
		panic(fmt.Sprintf("seal: internal error: frame %d of %d", i, p.Frames()))
	}
	full := p.framesOf(tenant.BlockTokens)
	block := min(i/full, p.Blocks()-1)
	tokens := p.tokensOf(block)
	n := p.framesOf(tokens)
	lo, hi := spread(p.Layers, n, i-block*full)
	return FrameSpec{
		Block:      block,
		TokenStart: block * tenant.BlockTokens,
		TokenEnd:   block*tenant.BlockTokens + tokens,
		LayerStart: lo,
		LayerEnd:   hi,
		Bytes:      tokens * (hi - lo) * p.TokenLayerBytes,
	}
}

// Check returns an error matching ErrPlan unless h's block count, ranges and
// length are exactly those of the frame whose number it bears.
func (p Plan) Check(h Header) error {
	if int64(h.Seq) >= int64(p.Frames()) {
		return fmt.Errorf("%w: frame %d of %d", ErrPlan, h.Seq, p.Frames())
	}
	if int(h.Blocks) != p.Blocks() {
		return fmt.Errorf("%w: %d blocks, expected %d", ErrPlan, h.Blocks, p.Blocks())
	}
	got := FrameSpec{
		Block:      int(h.Block),
		TokenStart: int(h.TokenStart), TokenEnd: int(h.TokenEnd),
		LayerStart: int(h.LayerStart), LayerEnd: int(h.LayerEnd),
		Bytes: int(h.PayloadLen),
	}
	if want := p.Frame(int(h.Seq)); got != want {
		return fmt.Errorf("%w: frame %d is %+v, expected %+v", ErrPlan, h.Seq, got, want)
	}
	return nil
}

// Fill writes the numbers of frame i into h.
func (p Plan) Fill(h *Header, i int) {
	f := p.Frame(i)
	h.Seq, h.DType = uint32(i), F16
	h.Block, h.Blocks = uint32(f.Block), uint32(p.Blocks())
	h.TokenStart, h.TokenEnd = uint32(f.TokenStart), uint32(f.TokenEnd)
	h.LayerStart, h.LayerEnd = uint16(f.LayerStart), uint16(f.LayerEnd)
	h.PayloadLen = uint32(f.Bytes)
}

func (p Plan) tokensOf(block int) int {
	return min(tenant.BlockTokens, p.PromptLen-block*tenant.BlockTokens)
}

func (p Plan) framesOf(tokens int) int {
	bytes := tokens * p.Layers * p.TokenLayerBytes
	return min(p.Layers, (bytes+frameTarget-1)/frameTarget)
}

// spread cuts layers into n ranges that differ by one at most, larger first,
// and returns the i-th.
func spread(layers, n, i int) (lo, hi int) {
	size, extra := layers/n, layers%n
	lo = i*size + min(i, extra)
	hi = lo + size
	if i < extra {
		hi++
	}
	return lo, hi
}
