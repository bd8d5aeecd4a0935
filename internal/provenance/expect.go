package provenance

import (
	"bulkhead/internal/model"
	"bulkhead/kernels"
)

// Oracle computes right answers. It belongs to one goroutine.
type Oracle struct {
	fingerprint [32]byte
	layers      int
	share       bool
	content     *prf
}

// NewOracle makes the oracle of an engine.
func (e *Engine) NewOracle() *Oracle {
	return &Oracle{fingerprint: e.facts.Fingerprint, layers: e.cfg.Layers, share: e.cfg.Share, content: content(e.facts.Fingerprint)}
}

// sum is the weighted sum of what tokens at [pos, pos+len) should contribute.
func (o *Oracle) sum(pos int, tokens []int32) (out u128) {
	for l := range o.layers {
		for i, t := range tokens {
			out = out.add(o.content.at(l, pos+i, t).times(weight(l, pos+i)))
		}
	}
	return out
}

// PromptSum is the right sum over a prompt.
func (o *Oracle) PromptSum(prompt []int32) Value { return o.sum(0, prompt) }

// Right reports whether a sum is that of a sequence whose prompt has the sum
// want and whose generated tokens, those that were read, are gen.
func (o *Oracle) Right(s Sum, want Value, gen []int32) bool {
	return s.Prompt == want && s.Gen == o.sum(s.Seq.Source.Prompt, gen)
}

// Expected returns the first n tokens of the answer to a prompt, or all of it
// where it is shorter: the model and the prompt alone decide it.
func (o *Oracle) Expected(prompt []int32, n int) []int32 {
	return o.Answer(o.sum(0, prompt), len(prompt), n)
}

// Answer is Expected for a prompt whose sum and length are known.
func (o *Oracle) Answer(prompt Value, promptLen, n int) (out []int32) {
	var gen u128
	for g := range n {
		if g == Digits {
			return append(out, EOG)
		}
		t := next(prompt, gen, g)
		out = append(out, t)
		gen = gen.add(o.sum(promptLen+g, []int32{t}))
	}
	return out
}

// Value is a number mod 2^128.
type Value = u128

// Known is one sequence whose entries may have been read where they should not.
type Known struct {
	Source model.Source
	Tokens []int32 // prompt and generated
}

// Finding says what stood where a sequence's own entry should have been.
type Finding struct {
	Layer, Pos int   // where it was read
	Zero       bool  // nothing had been written
	From       Known // or: whose it was; no tenant: nobody's that is known
	FromPos    int
}

// Wrong compares every entry of a sequence with the right one and names what
// else is there, out of what is known. It is the oracle of a test: it reads the
// pages themselves.
func (o *Oracle) Wrong(s Sum, tokens []int32, known []Known) (out []Finding) {
	p := s.Pages.(*pages)
	own := newPads(o.fingerprint, s.Seq.Source, o.share)
	var index map[place]spot
	for l := range o.layers {
		for pos, t := range tokens {
			id := s.Seq.Table[pos/kernels.BlockTokens].Page
			slot := pos % kernels.BlockTokens
			got := u128{p.half(id, l, 0)[slot], p.half(id, l, 1)[slot]}
			if got == o.content.at(l, pos, t).add(own.at(l, pos)) {
				continue
			}
			f := Finding{Layer: l, Pos: pos, Zero: got == u128{}}
			if !f.Zero {
				if index == nil {
					index = o.index(known)
				}
				if w, ok := index[place{l, got}]; ok {
					f.From, f.FromPos = known[w.known], w.pos
				}
			}
			out = append(out, f)
		}
	}
	return out
}

type place struct {
	layer int
	value u128
}

type spot struct{ known, pos int }

// index maps every entry of the known sequences to its place.
func (o *Oracle) index(known []Known) map[place]spot {
	index := map[place]spot{}
	for i, k := range known {
		pads := newPads(o.fingerprint, k.Source, o.share)
		for l := range o.layers {
			for pos, t := range k.Tokens {
				index[place{l, o.content.at(l, pos, t).add(pads.at(l, pos))}] = spot{i, pos}
			}
		}
	}
	return index
}

// Trace names, from an answer of at least Digits tokens alone, the one block of
// a prompt in whose place another was read. It tries every block of the reader
// against zeros and every block of the known sequences. ok is false if the answer
// is right, too short, or more than one block was wrong.
func (o *Oracle) Trace(reader Known, promptLen int, answer []int32, known []Known) (f Finding, ok bool) {
	if len(answer) < Digits {
		return f, false
	}
	prompt := reader.Tokens[:promptLen]
	var read, gen u128
	for g, t := range answer[:Digits] {
		d := int(t-FirstDigit) ^ gen.digit(g)
		if d < 0 || d > 15 {
			return f, false
		}
		read = u128{read.hi<<4 | read.lo>>60, read.lo<<4 | uint64(d)}
		gen = gen.add(o.sum(promptLen+g, answer[g:g+1]))
	}
	diff := read.sub(o.sum(0, prompt))
	if diff == (u128{}) {
		return f, false
	}
	own := newPads(o.fingerprint, reader.Source, o.share)
	for b := 0; b*kernels.BlockTokens < promptLen; b++ {
		lo, hi := b*kernels.BlockTokens, min((b+1)*kernels.BlockTokens, promptLen)
		right := u128{}
		for l := range o.layers {
			for pos := lo; pos < hi; pos++ {
				right = right.add(o.content.at(l, pos, prompt[pos]).add(own.at(l, pos)).times(weight(l, pos)))
			}
		}
		if diff == (u128{}).sub(right) {
			return Finding{Pos: lo, Zero: true}, true
		}
		for i, k := range known {
			theirs := newPads(o.fingerprint, k.Source, o.share)
			for from := 0; from+hi-lo <= len(k.Tokens); from += kernels.BlockTokens {
				sum := u128{}
				for l := range o.layers {
					for j := range hi - lo {
						sum = sum.add(o.content.at(l, from+j, k.Tokens[from+j]).add(theirs.at(l, from+j)).times(weight(l, lo+j)))
					}
				}
				if diff == sum.sub(right) {
					return Finding{Pos: lo, From: known[i], FromPos: from}, true
				}
			}
		}
	}
	return f, false
}

// Left is what one sequence wrote at positions [From, To) of a block table.
type Left struct {
	Known
	From, To int
}

// Misread is the answer of a sequence that finds other sequences' entries in its
// pages: at each position the last of left that wrote there, zeros where none
// did. Its first token came with its prompt from prefill and is given; the n - 1
// that follow are those of a decode node that checks nothing. If an answer is this one, the
// pages held this: by chance it is so with probability 16^-(n-1).
func (o *Oracle) Misread(reader model.Source, first int32, left []Left, n int) []int32 {
	last := make([]int32, reader.Prompt) // index into left, plus 1
	for i, w := range left {
		for pos := w.From; pos < min(w.To, reader.Prompt); pos++ {
			last[pos] = int32(i + 1)
		}
	}
	own := newPads(o.fingerprint, reader, o.share)
	theirs := make([]pads, len(left))
	for i, w := range left {
		theirs[i] = newPads(o.fingerprint, w.Source, o.share)
	}
	var read u128
	for l := range o.layers {
		for pos, i := range last {
			var entry u128
			if i > 0 {
				entry = o.content.at(l, pos, left[i-1].Tokens[pos]).add(theirs[i-1].at(l, pos))
			}
			read = read.add(entry.sub(own.at(l, pos)).times(weight(l, pos)))
		}
	}
	out := []int32{first}
	var gen u128
	for g := 1; g < n; g++ {
		gen = gen.add(o.sum(reader.Prompt+g-1, out[g-1:]))
		if g == Digits {
			return append(out, EOG)
		}
		out = append(out, next(read, gen, g))
	}
	return out
}
