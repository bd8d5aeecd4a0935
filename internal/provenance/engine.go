package provenance

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"fmt"

	"bulkhead/internal/model"
	"bulkhead/internal/mutant"
	"bulkhead/kernels"
)

// MaxWindow is the longest window that an engine can have: that of the token.
const MaxWindow = 1 << 24

// DefaultWindow is the window of the system in which the leak of 2026 was.
const DefaultWindow = 1 << 20

// Config makes an Engine.
type Config struct {
	Window int // tokens; 0: DefaultWindow
	Layers int // 0: 2
	// Share: prompts' entries are bound to the tenant only, so that the prefix
	// cache may share them. Without it nothing is ever shared.
	Share bool
	// Salt makes another model: another fingerprint, other numbers.
	Salt uint64

	// Between, if set, is called in every step before its pages are checked for
	// writing, again before the entries are written, and again before any is read. What
	// was checked then lands whatever the pages have become meanwhile, as with a device's copy
	// engine, which knows no tags. Stray is told of a write that landed in a page which was no
	// longer the writer's, Watch of each sum. All are for the simulator.
	Between func()
	Stray   func(s model.Seq, block int)
	Watch   func(Sum)

	// Reuse: see Recycle. Such an engine belongs to one goroutine.
	Reuse bool
}

// Sum is what one reading of a sequence gave.
type Sum struct {
	Seq    model.Seq
	Pages  kernels.Pages
	Prompt u128 // over the prompt
	Gen    u128 // over what was generated
}

// Engine is a model.Engine. Unless it has Config.Reuse it is immutable and safe for concurrent use.
type Engine struct {
	cfg     Config
	facts   model.Facts
	content cipher.Block // of every runner's content
	reuse   reuse
}

var _ model.Engine = (*Engine)(nil)

// New makes an engine. The error names a window or layer count out of bounds.
func New(cfg Config) (*Engine, error) {
	if cfg.Window == 0 {
		cfg.Window = DefaultWindow
	}
	if cfg.Layers == 0 {
		cfg.Layers = 2
	}
	if cfg.Window < 1 || cfg.Window > MaxWindow {
		return nil, fmt.Errorf("provenance: window of %d tokens, want 1 to %d", cfg.Window, MaxWindow)
	}
	if cfg.Layers < 1 || cfg.Layers > 64 {
		return nil, fmt.Errorf("provenance: %d layers, want 1 to 64", cfg.Layers)
	}
	layout := kernels.PageLayout{Layers: cfg.Layers, KVHeads: 1, HeadDim: 4} // an entry: 8 bytes of K, 8 of V
	facts := model.Facts{
		Name: "provenance (a test engine, no language model)", Arch: "provenance",
		Fingerprint: sha256.Sum256(fmt.Appendf(nil, "bulkhead provenance/1: layers=%d share=%t salt=%d window=%d", cfg.Layers, cfg.Share, cfg.Salt, cfg.Window)),
		Metadata:    metadataDigest(),
		Layout:      layout, Vocab: Vocab, Window: cfg.Window, Private: !cfg.Share,
	}
	return &Engine{cfg: cfg, facts: facts, content: content(facts.Fingerprint).block}, nil
}

// Facts implements model.Engine.
func (e *Engine) Facts() model.Facts { return e.facts }

// NewPages implements model.Engine.
func (e *Engine) NewPages(count int) (kernels.Pages, error) {
	if e.cfg.Reuse {
		return e.reuse.newPages(e.facts.Layout, count)
	}
	return newPages(e.facts.Layout, count)
}

// NewRunner implements model.Engine.
func (e *Engine) NewRunner(maxRows, maxSeqs int) (model.Runner, error) {
	if maxRows < 1 || maxSeqs < 1 {
		return nil, fmt.Errorf("%w: runner of %d rows, %d sequences", model.ErrStepSize, maxRows, maxSeqs)
	}
	if e.cfg.Reuse {
		return e.reuse.newRunner(e, maxRows, maxSeqs), nil
	}
	return e.runner(maxRows, maxSeqs), nil
}

func (e *Engine) runner(maxRows, maxSeqs int) *runner {
	return &runner{e: e, maxRows: maxRows, maxSeqs: maxSeqs, content: &prf{block: e.content}}
}

// Close implements model.Engine.
func (e *Engine) Close() error { return nil }

// runner belongs to one goroutine.
type runner struct {
	e                *Engine
	maxRows, maxSeqs int
	content          *prf
	outs             []model.Out
	logits           [][]float32 // one per sequence, reused
	pads             []u128      // of padBlocks blocks of what is being read
	scratch          []byte      // of pads.run, as long as pads
	keys             [4]keyed    // of the sequences that came last
	nextKey          int
}

// keyed is what a source's pads are computed with.
type keyed struct {
	source model.Source
	pads   pads
}

// padsOf is newPads, for sequences that come step after step.
func (r *runner) padsOf(s model.Source) pads {
	for i := range r.keys {
		if k := &r.keys[i]; k.pads.head != nil && k.source == s {
			return k.pads
		}
	}
	k := &r.keys[r.nextKey%len(r.keys)]
	r.nextKey++
	*k = keyed{s, newPads(r.e.facts.Fingerprint, s, r.e.cfg.Share)}
	return k.pads
}

// padBlocks is how many blocks' pads are computed at a time.
const padBlocks = 8

func (r *runner) Close() {}

// Forward implements model.Runner.
func (r *runner) Forward(kp kernels.Pages, seqs []model.Seq) ([]model.Out, error) {
	p, ok := kp.(*pages)
	if !ok || p.layout != r.e.facts.Layout {
		return nil, fmt.Errorf("%w: pages of another engine", model.ErrLayout)
	}
	rows := 0
	for _, s := range seqs {
		rows += len(s.Tokens)
	}
	if rows > r.maxRows || len(seqs) > r.maxSeqs {
		return nil, fmt.Errorf("%w: %d rows, %d sequences; at most %d and %d", model.ErrStepSize, rows, len(seqs), r.maxRows, r.maxSeqs)
	}
	r.outs = append(r.outs[:0], make([]model.Out, len(seqs))...)
	if r.e.cfg.Between != nil {
		r.e.cfg.Between()
	}
	for i := range seqs {
		if r.outs[i].Err = r.fits(&seqs[i]); r.outs[i].Err == nil {
			r.outs[i].Err = r.mayAppend(p, i, &seqs[i])
		}
	}
	if r.e.cfg.Between != nil {
		r.e.cfg.Between()
	}
	for i := range seqs {
		if r.outs[i].Err == nil {
			r.append(p, &seqs[i])
		}
	}
	if r.e.cfg.Between != nil {
		r.e.cfg.Between()
	}
	for i := range seqs {
		if r.outs[i].Err == nil {
			r.outs[i].Logits, r.outs[i].Err = r.attend(p, i, &seqs[i])
		}
	}
	return r.outs, nil
}

// fits refuses a sequence that cannot take part, as a real engine does.
func (r *runner) fits(s *model.Seq) error {
	end := s.Pos + len(s.Tokens)
	switch {
	case len(s.Tokens) == 0:
		return model.ErrNoTokens
	case s.Pos < 0 || end > r.e.facts.Window:
		return fmt.Errorf("%w: positions [%d, %d) of %d", model.ErrWindow, s.Pos, end, r.e.facts.Window)
	case len(s.Table)*kernels.BlockTokens < end:
		return fmt.Errorf("%w: %d pages for %d tokens", model.ErrTable, len(s.Table), end)
	}
	for _, t := range s.Tokens {
		if t < 0 || int(t) >= Vocab {
			return fmt.Errorf("%w: %d", model.ErrTokenID, t)
		}
	}
	return nil
}

// mayAppend checks the pages that a sequence's new tokens go to.
func (r *runner) mayAppend(p *pages, span int, s *model.Seq) error {
	end := s.Pos + len(s.Tokens)
	for layer := range p.layout.Layers {
		for at := s.Pos; at < end; {
			block, slot := at/kernels.BlockTokens, at%kernels.BlockTokens
			e := s.Table[block]
			err := p.check(e, block)
			if err == nil && p.Filled(e.Page, layer) != slot && !mutant.Off(mutant.PageFilled) && !mutant.Off(mutant.AppendGap) {
				err = kernels.ErrAppendGap
			}
			if err != nil {
				return kernels.Fault{Span: span, Layer: layer, Block: block, Page: e.Page, Err: err}
			}
			at += min(kernels.BlockTokens-slot, end-at)
		}
	}
	return nil
}

// append writes the entries of a sequence's new tokens, whoever has the pages now.
func (r *runner) append(p *pages, s *model.Seq) {
	pads := r.padsOf(s.Source)
	end := s.Pos + len(s.Tokens)
	for at := s.Pos; at < end; {
		block, slot := at/kernels.BlockTokens, at%kernels.BlockTokens
		id := s.Table[block].Page
		n := min(kernels.BlockTokens-slot, end-at)
		if r.e.cfg.Stray != nil && kernels.CheckEntry(s.Table[block], block, p.Tag(id)) != nil {
			r.e.cfg.Stray(*s, block)
		}
		st := p.at(id)
		st.used.Store(true)
		for layer := range p.layout.Layers {
			k, v := p.half(id, layer, 0), p.half(id, layer, 1)
			for i := range n {
				x := r.content.at(layer, at+i, s.Tokens[at+i-s.Pos]).add(pads.at(layer, at+i))
				k[slot+i], v[slot+i] = x.hi, x.lo
			}
			st.filled[layer].Store(int32(slot + n))
		}
		at += n
	}
}

// attend checks every block that the sequence's rows read, and adds up what it
// read where logits are wanted.
func (r *runner) attend(p *pages, span int, s *model.Seq) ([]float32, error) {
	end := s.Pos + len(s.Tokens)
	for layer := range p.layout.Layers {
		for block := 0; block*kernels.BlockTokens < end; block++ {
			e := s.Table[block]
			err := p.check(e, block)
			if err == nil && p.Filled(e.Page, layer) < min(kernels.BlockTokens, end-block*kernels.BlockTokens) && !mutant.Off(mutant.PageFilled) && !mutant.Off(mutant.ReadFilled) {
				err = kernels.ErrUnwrittenPage
			}
			if err != nil {
				return nil, kernels.Fault{Span: span, Layer: layer, Block: block, Page: e.Page, Err: err}
			}
		}
	}
	if !s.Logits {
		return nil, nil
	}
	pads := r.padsOf(s.Source)
	if n := min(end, padBlocks*kernels.BlockTokens); n > len(r.pads) {
		r.pads, r.scratch = make([]u128, n), make([]byte, n*aes.BlockSize)
	}
	sum := Sum{Seq: *s, Pages: p}
	for layer := range p.layout.Layers {
		for block := 0; block*kernels.BlockTokens < end; block++ {
			id := s.Table[block].Page
			k, v := p.half(id, layer, 0), p.half(id, layer, 1)
			if block%padBlocks == 0 {
				at := block * kernels.BlockTokens
				pads.run(r.pads[:min(len(r.pads), end-at)], layer, at, r.scratch)
			}
			own := r.pads[block%padBlocks*kernels.BlockTokens:]
			for slot := range min(kernels.BlockTokens, end-block*kernels.BlockTokens) {
				pos := block*kernels.BlockTokens + slot
				x := u128{k[slot], v[slot]}.sub(own[slot]).times(weight(layer, pos))
				if pos < s.Source.Prompt {
					sum.Prompt = sum.Prompt.add(x)
				} else {
					sum.Gen = sum.Gen.add(x)
				}
			}
		}
	}
	if r.e.cfg.Watch != nil {
		r.e.cfg.Watch(sum)
	}
	for len(r.logits) <= span {
		r.logits = append(r.logits, make([]float32, Vocab))
	}
	out := r.logits[span]
	for i := range out {
		out[i] = unlikely
	}
	g := end - s.Source.Prompt // tokens generated so far
	out[next(sum.Prompt, sum.Gen, g)] = 1
	if g >= Digits {
		out[EOG] = -unlikely
	}
	return out, nil
}

// unlikely is the logit of all other tokens: finite, as a model's are, and so
// low that no temperature makes them come.
const unlikely = -1e5

// next is the token that follows g generated ones.
func next(prompt, gen u128, g int) int32 {
	return FirstDigit + int32(prompt.digit(g%Digits)^gen.digit(g%Digits))
}
