package cpu

import (
	"fmt"

	"bulkhead/internal/mutant"
	"bulkhead/kernels"
)

// attention is one piece of work: some query rows of one span that share a KV
// head. Query i of the span's share is head i%group of the group, of token
// i/group.
type attention struct {
	p      *pages
	layer  int
	span   *kernels.Span
	head   int // KV head
	group  int // query heads per KV head
	q, dst *buffer
	scale  float32
	lo, hi int // queries [lo, hi)
}

// queryTile is the queries of one piece.
const queryTile = 16

func (s *step) PagedAttention(dst, q kernels.Buffer, pp kernels.Pages, layer int, spans []kernels.Span, heads int, scale float32) {
	p, qb, db := pp.(*pages), s.buffer(q), s.buffer(dst)
	if heads < 1 || heads%p.layout.KVHeads != 0 || qb.cols != heads*p.layout.HeadDim || db.cols != qb.cols {
		panic(fmt.Sprintf("cpu: PagedAttention: %d columns to %d, %d heads, %d KV heads of %d",
			qb.cols, db.cols, heads, p.layout.KVHeads, p.layout.HeadDim))
	}
	group := heads / p.layout.KVHeads
	var work []attention
	for i := range spans {
		sp := &spans[i]
		s.checkSpan("PagedAttention", p, layer, min(qb.rows, db.rows), sp)
		if !s.refused(i) {
			if block, err := p.readable(layer, sp); err != nil {
				s.faults = append(s.faults, kernels.Fault{Span: i, Layer: layer, Block: block, Page: sp.Table[block].Page, Err: err})
			}
		}
		if s.refused(i) {
			poison(db, sp)
			continue
		}
		for h := range p.layout.KVHeads {
			for lo := 0; lo < sp.Len*group; lo += queryTile {
				work = append(work, attention{
					p: p, layer: layer, span: sp, head: h, group: group, q: qb, dst: db, scale: scale,
					lo: lo, hi: min(lo+queryTile, sp.Len*group),
				})
			}
		}
	}
	if len(work) > 0 {
		s.b.pool.run(len(work), func(i int) { attendTiled(&work[i], s.b.tier.attention) })
	}
}

// readable checks every entry that the span's rows read, once per layer. On an
// error it says at which block.
func (p *pages) readable(layer int, sp *kernels.Span) (block int, err error) {
	if sp.Len == 0 || mutant.Bare {
		return 0, nil
	}
	end := sp.Pos + sp.Len
	for block := 0; block*kernels.BlockTokens < end; block++ {
		e := sp.Table[block]
		if err := p.check(e, block); err != nil {
			return block, err
		}
		if p.Filled(e.Page, layer) < min(kernels.BlockTokens, end-block*kernels.BlockTokens) && !mutant.Off(mutant.PageFilled) && !mutant.Off(mutant.ReadFilled) {
			return block, kernels.ErrUnwrittenPage
		}
	}
	return 0, nil
}

// poison makes a refused span's rows NaN, which no later operation can undo.
func poison(dst *buffer, sp *kernels.Span) {
	for r := sp.Row; r < sp.Row+sp.Len; r++ {
		row := dst.row(r)
		for i := range row {
			row[i] = nan32
		}
	}
}

// row gives the token of query i and where its head begins in a row.
func (a *attention) row(i int) (token, column int) {
	return i / a.group, (a.head*a.group + i%a.group) * a.p.layout.HeadDim
}
