package attack

import (
	"errors"
	"sync"

	"bulkhead/internal/model"
	"bulkhead/internal/mutant"
	"bulkhead/kernels"
	"bulkhead/kernels/cpu"
)

var cpuBackend = sync.OnceValue(func() kernels.Backend {
	b, err := cpu.New(cpu.Config{Threads: 1})
	must(err)
	return b
})

// tag is what the pages of these rows bear.
var tag = kernels.Tag{Owner: 5, Generation: 3, Index: 1}

// onPages is a row on the pages of every backend: page 0 is free, page 1 bears tag
// and holds 64 tokens of layer 0. It goes through if it does so on one of them.
func onPages(name, want string, w []mutant.Check, move func(p kernels.Pages, n int) error) row {
	return row{name, "memory", want, w, func(x *rig) error {
		provenance, err := x.private.NewPages(3)
		must(err)
		cpu, err := cpuBackend().NewPages(kernels.PageLayout{Layers: 2, KVHeads: 1, HeadDim: 4}, 3)
		must(err)
		for _, p := range []kernels.Pages{provenance, cpu} {
			n := p.Layout().TokenLayerBytes() * kernels.BlockTokens
			p.Claim(1, tag)
			must(p.Import(entry(), 1, 0, 1, kernels.BlockTokens, plain(1, n)))
			if err = move(p, n); err == nil {
				return nil
			}
		}
		return err
	}}
}

// entry is the block table's entry for page 1.
func entry() kernels.Entry {
	return kernels.Entry{Page: 1, Owner: tag.Owner, Generation: tag.Generation}
}

// read is an export: the same check as attention's.
func read(e kernels.Entry, index int) func(p kernels.Pages, n int) error {
	return func(p kernels.Pages, n int) error {
		return p.Export(make([]byte, n), e, index, 0, 1, kernels.BlockTokens)
	}
}

// forward is a row on the engine: a step of a sequence whose two pages hold nothing.
func forward(name, want string, w []mutant.Check, pos int) row {
	return row{name, "memory", want, w, func(x *rig) error {
		p, err := x.private.NewPages(2)
		must(err)
		var table []kernels.Entry
		for i := range 2 {
			p.Claim(kernels.PageID(i), kernels.Tag{Owner: 5, Generation: 1, Index: uint32(i)})
			table = append(table, kernels.Entry{Page: kernels.PageID(i), Owner: 5, Generation: 1})
		}
		r, err := x.private.NewRunner(8, 1)
		must(err)
		defer r.Close()
		out, err := r.Forward(p, []model.Seq{{Tokens: []int32{1}, Pos: pos, Table: table, Logits: true, Source: model.Source{Tenant: "tenant-a", Prompt: pos + 1}}})
		must(err)
		return out[0].Err
	}}
}

func pageRows() []row {
	foreign, stale := entry(), entry()
	foreign.Owner++
	stale.Generation--
	return []row{
		onPages("a page of another owner is read", "foreign page", walls(mutant.EntryOwner), read(foreign, 1)),
		onPages("a page of an earlier generation is read", "stale page", walls(mutant.EntryGeneration), read(stale, 1)),
		onPages("a page is read in another place", "foreign page", walls(mutant.EntryIndex), read(entry(), 0)),
		onPages("a page is read without any look at its tag", "foreign page", walls(mutant.PageOwner), read(foreign, 7)),
		onPages("a late write lands in a free page", "stale page", walls(mutant.EntryFreed, mutant.EntryOwner), func(p kernels.Pages, n int) error {
			return p.Import(kernels.Entry{Page: 0, Owner: 5}, 0, 0, 1, kernels.BlockTokens, plain(1, n))
		}),
		onPages("a frame is written over another", "append does not follow", walls(mutant.ImportEmpty), func(p kernels.Pages, n int) error {
			return p.Import(entry(), 1, 0, 1, kernels.BlockTokens, plain(2, n))
		}),
		onPages("a frame with more bytes than its range", "out of range", walls(mutant.ImportBytes), func(p kernels.Pages, n int) error {
			return p.Import(entry(), 1, 1, 2, kernels.BlockTokens, plain(2, n+8))
		}),
		onPages("slots are exported that nobody filled", "unwritten page", walls(mutant.ExportFilled), func(p kernels.Pages, n int) error {
			return p.Export(make([]byte, n), entry(), 1, 1, 2, kernels.BlockTokens)
		}),
		onPages("a free page keeps what it held", "zero", walls(mutant.PageZero), func(p kernels.Pages, n int) error {
			p.Scrub(1)
			if p.Zeroed(1) {
				return errors.New("the page is zero")
			}
			return nil
		}),
		forward("attention reads slots that nobody filled", "unwritten page", walls(mutant.ReadFilled), kernels.BlockTokens),
		forward("an append behind a gap", "append does not follow", walls(mutant.AppendGap), 10),
		forward("an append behind a gap, and a reading over it", "append does not follow", walls(mutant.PageFilled), kernels.BlockTokens+6),
	}
}
