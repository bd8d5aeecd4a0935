package kerneltest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"bulkhead/kernels"
)

func testClaimPanics(f *fixture) {
	p := f.pool(attackLayout, 3)
	if p.Count() != 3 || p.Layout() != attackLayout {
		f.Errorf("pool of %d pages of %v, want 3 of %v", p.Count(), p.Layout(), attackLayout)
	}
	tag := kernels.Tag{Owner: 4, Generation: 9, Index: 2}
	p.Claim(1, tag)
	if got := p.Tag(1); got != tag {
		f.Errorf("tag is %v, want %v", got, tag)
	}
	f.panics("claimed twice", func() { p.Claim(1, kernels.Tag{Owner: 5}) })
	f.panics("claimed for nobody", func() { p.Claim(0, kernels.Tag{}) })
	f.panics("claimed beyond the pool", func() { p.Claim(3, tag) })
	if got := p.Tag(1); got != tag {
		f.Errorf("a refused claim changed the tag to %v", got)
	}
}

// testScrub: a used page is zero to the last byte, and says nothing.
func testScrub(f *fixture) {
	p := f.pool(attackLayout, 4)
	for i := range p.Count() {
		if !p.Zeroed(kernels.PageID(i)) {
			f.Errorf("new page %d is not zero", i)
		}
	}
	s := p.sequence(1, 2*blockTokens)
	for l := range attackLayout.Layers {
		p.run(attackHeads, l, part{s, 0, 2 * blockTokens})
	}
	page := s.table[0].Page
	if p.Zeroed(page) {
		f.Error("a written page counts as zero")
	}
	p.Scrub(page)
	if !p.Zeroed(page) || p.Tag(page) != (kernels.Tag{}) {
		f.Errorf("after scrub: zeroed %v, tag %v", p.Zeroed(page), p.Tag(page))
	}
	for l := range attackLayout.Layers {
		if n := p.Filled(page, l); n != 0 {
			f.Errorf("after scrub layer %d holds %d slots", l, n)
		}
	}
	if p.Zeroed(s.table[1].Page) || p.Tag(s.table[1].Page).Owner != 1 {
		f.Error("scrub touched another page")
	}
	// The last byte and the first, one at a time, by way of Import.
	size := attackLayout.PageBytes()
	for _, at := range []int{0, size - 1} {
		src := make([]byte, size)
		src[at] = 1
		s.claim(p, 0, page)
		if err := p.Import(s.table[0], 0, 0, attackLayout.Layers, blockTokens, src); err != nil {
			f.Fatal(err)
		}
		if p.Zeroed(page) {
			f.Errorf("byte %d does not count", at)
		}
		p.Scrub(page)
		if !p.Zeroed(page) {
			f.Errorf("byte %d was not zeroed", at)
		}
	}
}

// testWireOrder: the bytes are [layer][K, V][head][token][dim] f16, rounded to
// nearest even, and the same after appends of any size.
func testWireOrder(f *fixture) {
	for _, l := range []kernels.PageLayout{attackLayout, {Layers: 1, KVHeads: 3, HeadDim: 64}, {Layers: 2, KVHeads: 1, HeadDim: 10}} {
		p := f.pool(l, 2)
		s := p.sequence(3, 100)
		width := l.KVHeads * l.HeadDim
		for layer := range l.Layers {
			for pos := 0; pos < 100; pos += 11 {
				b := p.batch(l.KVHeads, layer, part{s, pos, min(11, 100-pos)})
				f.step(func(o kernels.Ops) { b.append(o, layer) })
			}
		}
		for block, tokens := range []int{blockTokens, 100 - blockTokens} {
			var want []byte
			for layer := range l.Layers {
				for kind := range 2 {
					rows := s.rows(kind, layer, block*blockTokens, tokens, width)
					for h := range l.KVHeads {
						for t := range tokens {
							for d := range l.HeadDim {
								want = binary.LittleEndian.AppendUint16(want, toHalf(float64(rows[t*width+h*l.HeadDim+d])))
							}
						}
					}
				}
			}
			got := make([]byte, len(want))
			if err := p.Export(got, s.table[block], block, 0, l.Layers, tokens); err != nil {
				f.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				f.Fatalf("%v block %d: exported bytes differ", l, block)
			}
		}
	}

	// Every half, and what lies between two of them, through an append.
	f.sub("rounding", func(f *fixture) {
		var x []float32
		for h := range 0x7c00 {
			v, next := fromHalf(uint16(h)), fromHalf(uint16(h+1))
			if h+1 == 0x7c00 {
				next = 65536
			}
			x = append(x, float32(v), float32((v+next)/2), -float32(v+(next-v)*.4999), float32(v+(next-v)*.5001))
		}
		x = append(x, 1e-30, -1e-45, 65519, 65520, 1e30)
		const dim = 256
		for len(x)%dim != 0 {
			x = append(x, 0)
		}
		n := len(x) / dim
		l := kernels.PageLayout{Layers: 1, KVHeads: 1, HeadDim: dim}
		p := f.pool(l, (n+blockTokens-1)/blockTokens)
		s := p.sequence(1, n)
		b := p.batch(1, 0, part{s, 0, n})
		rows := append(make([]float32, dim), x...)
		f.store(b.k, rows)
		f.store(b.v, rows)
		f.step(func(o kernels.Ops) { b.append(o, 0) })
		for block, e := range s.table {
			tokens := min(blockTokens, n-block*blockTokens)
			got := make([]byte, tokens*l.TokenLayerBytes())
			if err := p.Export(got, e, block, 0, 1, tokens); err != nil {
				f.Fatal(err)
			}
			for i := range tokens * dim {
				v := x[block*blockTokens*dim+i]
				want := toHalf(float64(v))
				k, w := binary.LittleEndian.Uint16(got[2*i:]), binary.LittleEndian.Uint16(got[2*(tokens*dim+i):])
				if k != want || w != want {
					f.Fatalf("%v became %04x in K and %04x in V, want %04x", v, k, w, want)
				}
			}
		}
	})
}

// testWireRoundTrip: a block that travelled gives attention the same bits,
// whatever layer ranges it travelled in.
func testWireRoundTrip(f *fixture) {
	const n = 100
	p := f.pool(attackLayout, 12)
	s := p.sequence(1, n)
	here := make([][]float32, attackLayout.Layers)
	for l := range here {
		b := p.run(attackHeads, l, part{s, 0, n})
		width := b.dst.Cols()
		here[l] = b.out(0)[(n-1)*width:]
	}
	for _, cut := range [][]int{{0, 3}, {0, 1, 3}, {0, 1, 2, 3}} {
		f.sub(fmt.Sprint(cut), func(f *fixture) {
			p := &pool{Pages: p.Pages, f: f, next: p.next}
			far := p.sequence(8, n)
			for block, e := range s.table {
				tokens := min(blockTokens, n-block*blockTokens)
				for i := 1; i < len(cut); i++ {
					wire := make([]byte, (cut[i]-cut[i-1])*tokens*attackLayout.TokenLayerBytes())
					if err := p.Export(wire, e, block, cut[i-1], cut[i], tokens); err != nil {
						f.Fatal(err)
					}
					if err := p.Import(far.table[block], block, cut[i-1], cut[i], tokens, wire); err != nil {
						f.Fatal(err)
					}
				}
			}
			for l := range here {
				b := p.batch(attackHeads, l, part{&sequence{owner: s.owner, table: far.table}, n - 1, 1})
				f.step(func(o kernels.Ops) { b.attend(o, l) })
				f.equal(fmt.Sprintf("layer %d", l), b.out(0), here[l])
			}
			for _, e := range far.table {
				p.Scrub(e.Page)
			}
		})
	}
}

// testWireRefuses: what Export and Import must not do, as errors.
func testWireRefuses(f *fixture) {
	p, s := f.attackPool(100)
	l := attackLayout
	bytesFor := func(layers, tokens int) []byte { return make([]byte, layers*tokens*l.TokenLayerBytes()) }
	own, other := s[0].table, s[1].table
	foreign := kernels.Entry{Page: other[0].Page, Owner: own[0].Owner, Generation: own[0].Generation}
	stale := own[0]
	stale.Generation++
	beyond, below := own[0], own[0]
	beyond.Page, below.Page = kernels.PageID(p.Count()), -1
	fresh := p.sequence(9, 64).table[0]
	free := kernels.Entry{Page: p.next - 1, Owner: 1}

	for _, c := range []struct {
		name            string
		e               kernels.Entry
		index           int
		lo, hi, tokens  int
		extra           int   // bytes too many
		export, import_ error // nil: any error
	}{
		{"foreign", foreign, 0, 0, 3, 64, 0, kernels.ErrForeignPage, kernels.ErrForeignPage},
		{"stale", stale, 0, 0, 3, 64, 0, kernels.ErrStalePage, kernels.ErrStalePage},
		{"freed", free, 0, 0, 3, 64, 0, kernels.ErrStalePage, kernels.ErrStalePage},
		{"other index", own[0], 1, 0, 3, 64, 0, kernels.ErrForeignPage, kernels.ErrForeignPage},
		{"negative index", own[0], -1, 0, 3, 64, 0, nil, nil},
		{"beyond the pool", beyond, 0, 0, 3, 64, 0, kernels.ErrPageRange, kernels.ErrPageRange},
		{"below the pool", below, 0, 0, 3, 64, 0, kernels.ErrPageRange, kernels.ErrPageRange},
		{"more than is filled", own[1], 1, 0, 3, 37, 0, kernels.ErrUnwrittenPage, kernels.ErrAppendGap},
		{"nothing filled", fresh, 0, 0, 3, 1, 0, kernels.ErrUnwrittenPage, errNone},
		{"filled already", own[0], 0, 2, 3, 64, 0, errNone, kernels.ErrAppendGap},
		{"layers beyond", own[0], 0, 0, 4, 1, 0, nil, nil},
		{"layers backwards", own[0], 0, 2, 1, 1, 0, nil, nil},
		{"no layers", own[0], 0, 1, 1, 1, 0, nil, nil},
		{"negative layer", own[0], 0, -1, 1, 1, 0, nil, nil},
		{"no tokens", own[0], 0, 0, 1, 0, 0, nil, nil},
		{"negative tokens", own[0], 0, 0, 1, -5, 0, nil, nil},
		{"tokens beyond", own[0], 0, 0, 1, 65, 0, nil, nil},
		{"a byte too many", own[0], 0, 0, 1, 1, 1, nil, nil},
		{"a byte too few", own[0], 0, 0, 1, 1, -1, nil, nil},
	} {
		n := max(0, (c.hi-c.lo)*c.tokens*l.TokenLayerBytes()+c.extra)
		check := func(op string, err, want error) {
			f.Helper()
			switch {
			case want == errNone && err != nil:
				f.Errorf("%s: %s: %v", c.name, op, err)
			case want == errNone:
			case err == nil:
				f.Errorf("%s: %s: no error", c.name, op)
			case want != nil && !errors.Is(err, want):
				f.Errorf("%s: %s: %v, want %v", c.name, op, err, want)
			}
		}
		before := p.filled(0)
		dst := make([]byte, n)
		err := p.Export(dst, c.e, c.index, c.lo, c.hi, c.tokens)
		check("export", err, c.export)
		if err != nil && !bytes.Equal(dst, make([]byte, n)) {
			f.Errorf("%s: a refused export wrote bytes", c.name)
		}
		src := bytes.Repeat([]byte{0x33}, n)
		err = p.Import(c.e, c.index, c.lo, c.hi, c.tokens, src)
		check("import", err, c.import_)
		if err != nil && fmt.Sprint(p.filled(0)) != fmt.Sprint(before) {
			f.Errorf("%s: a refused import filled slots", c.name)
		}
	}
	if !p.Zeroed(p.next - 1) {
		f.Error("a refused import wrote to a free page")
	}
	got := make([]byte, 64*3*l.TokenLayerBytes())
	if err := p.Export(got, other[0], 0, 0, 3, 64); err != nil || bytes.Contains(got, bytes.Repeat([]byte{0x33}, 8)) {
		f.Errorf("a refused import reached another's page (%v)", err)
	}
	// A layer range of which one layer is filled: nothing is written.
	half := p.sequence(11, 64)
	b := p.batch(attackHeads, 1, part{half, 0, 10})
	f.step(func(o kernels.Ops) { b.append(o, 1) })
	if err := p.Import(half.table[0], 0, 0, 3, 10, bytesFor(3, 10)); !errors.Is(err, kernels.ErrAppendGap) || p.Filled(half.table[0].Page, 0) != 0 {
		f.Errorf("import over a filled layer: %v", err)
	}
}

// errNone is "must succeed" in a table.
var errNone = errors.New("no error")

// testLateCheck: while a page goes from user to user, a stale table is checked
// again and again. Each check must refuse it, and none may be a data race.
func testLateCheck(f *fixture) {
	p, s := f.attackPool(attackPos + 1)
	b := p.batch(attackHeads, 0, part{s[1], attackPos, 1})
	page, generation := s[1].table[0].Page, s[1].table[0].Generation
	p.Scrub(page)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 500 {
			p.Claim(page, kernels.Tag{Owner: kernels.Owner(100 + i), Generation: generation + 1 + uint32(i)})
			p.Scrub(page)
		}
	})
	for range 200 {
		err := f.b.Step(func(o kernels.Ops) error { b.attend(o, 0); return nil })
		if !faultIs(err, kernels.ErrStalePage) && !faultIs(err, kernels.ErrForeignPage) {
			f.Errorf("step returned %v, want a refusal", err)
			break
		}
	}
	wg.Wait()
}
