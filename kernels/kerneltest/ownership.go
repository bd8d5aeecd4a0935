package kerneltest

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"bulkhead/kernels"
)

// The ownership attacks. Three sequences share a step, and the middle one's
// table or pages are wrong in one way. The step must name it, with the kind of
// fault; its rows must be NaN; and the other two must have the bits of a step
// in which nothing was wrong.

const (
	attackHeads = 2
	attackLayer = 1
	attackPos   = 150 // the victim's third block is part filled
)

var attackLayout = kernels.PageLayout{Layers: 3, KVHeads: 2, HeadDim: 16}

type attack struct {
	name string
	// spoil breaks the victim s (owner 2); other is owner 3, with pages of its own.
	spoil func(p *pool, s, other *sequence)
	kind  error
	block int
}

// readAttacks are wrong for a reader of positions [0, 150].
var readAttacks = []attack{
	{"freed page", func(p *pool, s, _ *sequence) { p.Scrub(s.table[1].Page) }, kernels.ErrStalePage, 1},
	{"freed and claimed again by the same owner", func(p *pool, s, _ *sequence) {
		e := s.table[1]
		p.Scrub(e.Page)
		p.Claim(e.Page, kernels.Tag{Owner: e.Owner, Generation: e.Generation + 1, Index: 1})
	}, kernels.ErrStalePage, 1},
	{"freed and claimed by another", func(p *pool, s, other *sequence) {
		e := s.table[0]
		p.Scrub(e.Page)
		p.Claim(e.Page, kernels.Tag{Owner: other.owner, Generation: e.Generation, Index: 0})
	}, kernels.ErrForeignPage, 0},
	{"older generation expected", func(_ *pool, s, _ *sequence) { s.table[2].Generation-- }, kernels.ErrStalePage, 2},
	{"page of a neighbour", func(_ *pool, s, other *sequence) { s.table[1].Page = other.table[1].Page }, kernels.ErrForeignPage, 1},
	{"page of a neighbour with its generation", func(_ *pool, s, other *sequence) {
		s.table[1].Page, s.table[1].Generation = other.table[1].Page, other.table[1].Generation
	}, kernels.ErrForeignPage, 1},
	{"own pages swapped", func(_ *pool, s, _ *sequence) { s.table[0], s.table[1] = s.table[1], s.table[0] }, kernels.ErrForeignPage, 0},
	{"one own page twice", func(_ *pool, s, _ *sequence) { s.table[1] = s.table[0] }, kernels.ErrForeignPage, 1},
	{"entry without owner", func(_ *pool, s, _ *sequence) { s.table[1].Owner = 0 }, kernels.ErrForeignPage, 1},
	{"free page for nobody", func(p *pool, s, _ *sequence) { s.table[1] = kernels.Entry{Page: p.next - 1} }, kernels.ErrForeignPage, 1},
	{"page number negative", func(_ *pool, s, _ *sequence) { s.table[1].Page = -1 }, kernels.ErrPageRange, 1},
	{"page number beyond the pool", func(p *pool, s, _ *sequence) { s.table[1].Page = kernels.PageID(p.Count()) }, kernels.ErrPageRange, 1},
	{"page number huge", func(_ *pool, s, _ *sequence) { s.table[1].Page = math.MaxInt32 }, kernels.ErrPageRange, 1},
	{"first block never written", func(p *pool, s, _ *sequence) { s.replace(p, 0, 0) }, kernels.ErrUnwrittenPage, 0},
	{"middle block one slot short", func(p *pool, s, _ *sequence) { s.replace(p, 1, blockTokens-1) }, kernels.ErrUnwrittenPage, 1},
	{"last block one slot short", func(p *pool, s, _ *sequence) { s.replace(p, 2, attackPos-2*blockTokens) }, kernels.ErrUnwrittenPage, 2},
}

// replace gives the sequence a fresh page as block i, of which n slots are
// filled, at all layers.
func (s *sequence) replace(p *pool, i, n int) {
	p.next--
	s.claim(p, i, p.next)
	if n > 0 {
		src := make([]byte, n*p.Layout().Layers*p.Layout().TokenLayerBytes())
		if err := p.Import(s.table[i], i, 0, p.Layout().Layers, n, src); err != nil {
			p.f.Fatal(err)
		}
	}
}

// attackPool gives three sequences that are filled to tokens at all layers.
func (f *fixture) attackPool(tokens int) (*pool, [3]*sequence) {
	f.Helper()
	p := f.pool(attackLayout, 16)
	var s [3]*sequence
	for i := range s {
		s[i] = p.sequence(kernels.Owner(i+1), attackPos+1)
		for l := range attackLayout.Layers {
			p.run(attackHeads, l, part{s[i], 0, tokens})
		}
	}
	return p, s
}

// refuse runs fn as a step that must name span 1 with the attack's fault.
func (f *fixture) refuse(a attack, p *pool, table []kernels.Entry, fn func(kernels.Ops)) {
	f.Helper()
	err := f.b.Step(func(o kernels.Ops) error { fn(o); return nil })
	var fe *kernels.FaultError
	if !errors.As(err, &fe) {
		f.Fatalf("step returned %v, want a FaultError", err)
	}
	if len(fe.Faults) != 1 {
		f.Fatalf("%d faults, want 1: %v", len(fe.Faults), fe.Faults)
	}
	want := kernels.Fault{Span: 1, Layer: attackLayer, Block: a.block, Page: table[a.block].Page, Err: a.kind}
	got := fe.Faults[0]
	if !errors.Is(got, a.kind) {
		f.Fatalf("fault is %v, want %v", got, a.kind)
	}
	got.Err = a.kind
	if got != want {
		f.Fatalf("fault is %v, want %v", got, want)
	}
}

func (f *fixture) allNaN(what string, v []float32) {
	f.Helper()
	for i, x := range v {
		if x == x {
			f.Fatalf("%s: value %d is %v, want NaN", what, i, x)
		}
	}
}

func testRefusedReads(f *fixture) {
	p, s := f.attackPool(attackPos + 1)
	parts := func(s [3]*sequence) []part {
		return []part{{s[0], attackPos, 1}, {s[1], attackPos - 2, 3}, {s[2], attackPos - 1, 2}}
	}
	clean := p.batch(attackHeads, attackLayer, parts(s)...)
	f.step(func(o kernels.Ops) { clean.attend(o, attackLayer) })
	for _, a := range readAttacks {
		f.sub(a.name, func(f *fixture) {
			p, s := f.attackPool(attackPos + 1)
			a.spoil(p, s[1], s[2])
			b := p.batch(attackHeads, attackLayer, parts(s)...).fill()
			f.refuse(a, p, s[1].table, func(o kernels.Ops) { b.attend(o, attackLayer) })
			f.allNaN("the refused span", b.out(1))
			f.equal("the span before", b.out(0), clean.out(0))
			f.equal("the span after", b.out(2), clean.out(2))
			// Only the layer that was read counts: a fault is seen at each.
			for l := range attackLayout.Layers {
				if err := f.b.Step(func(o kernels.Ops) error { b.attend(o, l); return nil }); err == nil {
					f.Errorf("layer %d was read without a fault", l)
				}
			}
		})
	}
	f.sub("one layer not written", func(f *fixture) {
		p := f.pool(attackLayout, 3)
		s := p.sequence(2, 70)
		p.run(attackHeads, 0, part{s, 0, 70})
		p.run(attackHeads, 2, part{s, 0, 70})
		b := p.batch(attackHeads, 1, part{s, 69, 1}).fill()
		err := f.b.Step(func(o kernels.Ops) error { b.attend(o, 1); return nil })
		if !errors.Is(err, kernels.ErrUnwrittenPage) && !faultIs(err, kernels.ErrUnwrittenPage) {
			f.Fatalf("step returned %v, want an unwritten page", err)
		}
		f.allNaN("the refused span", b.out(0))
		f.step(func(o kernels.Ops) { b.attend(o, 0); b.attend(o, 2) })
	})
}

func faultIs(err, kind error) bool {
	var fe *kernels.FaultError
	return errors.As(err, &fe) && slices.ContainsFunc(fe.Faults, func(f kernels.Fault) bool { return errors.Is(f, kind) })
}

// appendAttacks are wrong for a writer of positions [100, 151) where positions
// [0, 100) are written: blocks 1 and 2 are touched.
var appendAttacks = []attack{
	{"freed page", func(p *pool, s, _ *sequence) { p.Scrub(s.table[1].Page) }, kernels.ErrStalePage, 1},
	{"second page freed", func(p *pool, s, _ *sequence) { p.Scrub(s.table[2].Page) }, kernels.ErrStalePage, 2},
	{"page of a neighbour", func(_ *pool, s, other *sequence) { s.table[1].Page = other.table[1].Page }, kernels.ErrForeignPage, 1},
	{"second page of a neighbour", func(_ *pool, s, other *sequence) { s.table[2].Page = other.table[2].Page }, kernels.ErrForeignPage, 2},
	{"own pages swapped", func(_ *pool, s, _ *sequence) { s.table[2], s.table[0] = s.table[0], s.table[2] }, kernels.ErrForeignPage, 2},
	{"older generation expected", func(_ *pool, s, _ *sequence) { s.table[1].Generation-- }, kernels.ErrStalePage, 1},
	{"entry without owner", func(_ *pool, s, _ *sequence) { s.table[2].Owner = 0 }, kernels.ErrForeignPage, 2},
	{"page number negative", func(_ *pool, s, _ *sequence) { s.table[1].Page = -1 }, kernels.ErrPageRange, 1},
	{"page number beyond the pool", func(p *pool, s, _ *sequence) { s.table[2].Page = kernels.PageID(p.Count()) }, kernels.ErrPageRange, 2},
	{"gap before the span", func(p *pool, s, _ *sequence) { s.replace(p, 1, 100-blockTokens-1) }, kernels.ErrAppendGap, 1},
	{"slot already written", func(p *pool, s, _ *sequence) { s.replace(p, 1, 100-blockTokens+1) }, kernels.ErrAppendGap, 1},
	{"second page already written", func(p *pool, s, _ *sequence) { s.replace(p, 2, 1) }, kernels.ErrAppendGap, 2},
}

func testRefusedAppends(f *fixture) {
	const written = 100
	parts := func(s [3]*sequence) []part {
		return []part{{s[0], written, 20}, {s[1], written, 51}, {s[2], written, 51}}
	}
	p, s := f.attackPool(written)
	clean := p.run(attackHeads, attackLayer, parts(s)...)
	for _, a := range appendAttacks {
		f.sub(a.name, func(f *fixture) {
			p, s := f.attackPool(written)
			a.spoil(p, s[1], s[2])
			// What every page holds before, but for those the others append to.
			before := p.filled(attackLayer)
			b := p.batch(attackHeads, attackLayer, parts(s)...).fill()
			f.refuse(a, p, s[1].table, func(o kernels.Ops) {
				b.append(o, attackLayer)
				b.attend(o, attackLayer)
			})
			f.allNaN("the refused span", b.out(1))
			f.equal("the span before", b.out(0), clean.out(0))
			f.equal("the span after", b.out(2), clean.out(2))
			after := p.filled(attackLayer)
			for _, q := range []int{0, 2} {
				end := written + parts(s)[q].n
				for i, e := range s[q].table {
					before[e.Page] = max(0, min(blockTokens, end-i*blockTokens))
				}
			}
			if !slices.Equal(after, before) {
				f.Errorf("slots filled are %v, want %v", after, before)
			}
		})
	}
}

// filled gives how many slots each page holds at a layer.
func (p *pool) filled(layer int) []int {
	n := make([]int, p.Count())
	for i := range n {
		n[i] = p.Filled(kernels.PageID(i), layer)
	}
	return n
}

// testRefusedOnce: the first fault of a span counts, and the rest of the step
// passes it by: later layers write nothing for it and their rows are NaN, even
// where its pages would be in order.
func testRefusedOnce(f *fixture) {
	p, s := f.attackPool(100)
	good := slices.Clone(s[1].table)
	s[1].table[1].Generation++
	b := p.batch(attackHeads, 0, part{s[0], 100, 4}, part{s[1], 100, 4}, part{s[2], 100, 4}).fill()
	err := f.b.Step(func(o kernels.Ops) error {
		b.append(o, 0)
		copy(s[1].table, good)
		for l := 1; l < 3; l++ {
			b.append(o, l)
			b.attend(o, l)
		}
		return nil
	})
	var fe *kernels.FaultError
	if !errors.As(err, &fe) || len(fe.Faults) != 1 || fe.Faults[0].Layer != 0 || fe.Faults[0].Span != 1 {
		f.Fatalf("step returned %v, want one fault of span 1 at layer 0", err)
	}
	f.allNaN("the refused span", b.out(1))
	for l := range 3 {
		if n := p.Filled(good[1].Page, l); n != 100-blockTokens {
			f.Errorf("layer %d of the refused span holds %d slots, want %d", l, n, 100-blockTokens)
		}
	}
	for _, i := range []int{0, 2} {
		for _, x := range b.out(i) {
			if x != x {
				f.Fatalf("span %d came to harm", i)
			}
		}
	}

	f.sub("two spans claim the same slots", func(f *fixture) {
		p, s := f.attackPool(100)
		b := p.batch(attackHeads, 0, part{s[1], 100, 4}, part{s[1], 100, 4}).fill()
		err := f.b.Step(func(o kernels.Ops) error { b.append(o, 0); return nil })
		if !errors.As(err, &fe) || len(fe.Faults) != 1 || fe.Faults[0].Span != 1 || !errors.Is(fe.Faults[0], kernels.ErrAppendGap) {
			f.Fatalf("step returned %v, want an append gap of span 1", err)
		}
	})
	f.sub("two spans refused", func(f *fixture) {
		p, s := f.attackPool(attackPos + 1)
		s[0].table[0].Page = -1
		p.Scrub(s[2].table[2].Page)
		b := p.batch(attackHeads, 0, part{s[0], attackPos, 1}, part{s[1], attackPos, 1}, part{s[2], attackPos, 1}).fill()
		err := f.b.Step(func(o kernels.Ops) error { b.attend(o, 0); return nil })
		if !errors.As(err, &fe) || len(fe.Faults) != 2 || !errors.Is(fe.Faults[0], kernels.ErrPageRange) || fe.Faults[0].Span != 0 ||
			!errors.Is(fe.Faults[1], kernels.ErrStalePage) || fe.Faults[1].Span != 2 {
			f.Fatalf("step returned %v, want faults of spans 0 and 2", err)
		}
		f.allNaN("span 0", b.out(0))
		f.allNaN("span 2", b.out(2))
		if v := b.out(1); v[0] != v[0] {
			f.Error("span 1 came to harm")
		}
	})
}

// testRefusedStepError: neither of two errors of a step hides the other.
func testRefusedStepError(f *fixture) {
	own := errors.New("own error")
	if err := f.b.Step(func(kernels.Ops) error { return own }); !errors.Is(err, own) {
		f.Errorf("step returned %v, want its own error", err)
	}
	p, s := f.attackPool(10)
	s[0].table[0].Owner = 9
	b := p.batch(attackHeads, 0, part{s[0], 9, 1}).fill()
	err := f.b.Step(func(o kernels.Ops) error { b.attend(o, 0); return fmt.Errorf("wrapped: %w", own) })
	if !errors.Is(err, own) || !faultIs(err, kernels.ErrForeignPage) {
		f.Errorf("step returned %v, want both errors", err)
	}
}
