package kv_test

import (
	"bytes"
	"errors"
	"testing"

	"bulkhead/internal/kv"
	"bulkhead/kernels"
	"bulkhead/kernels/cpu"
)

// The books over the CPU backend's real pages: what the fake of the other tests
// promises is what the real ones do. Two tenants take turns in the same pages;
// each finds them zero, reads only its own bytes, and is refused afterwards.
func TestPoolOverRealPages(t *testing.T) {
	b, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	const layers, tokens = 2, 130 // three pages, the last with 2 tokens
	layout := kernels.PageLayout{Layers: layers, KVHeads: 2, HeadDim: 32}
	pages, err := b.NewPages(layout, 3)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := pages.(interface{ Mangle(kernels.PageID) }); ok != kv.Invariants {
		t.Fatalf("invariants %v, pages that can be mangled %v", kv.Invariants, ok)
	}
	pool, err := kv.NewPool(pages, tokens)
	if err != nil {
		t.Fatal(err)
	}
	var old *kv.Table
	for round := range byte(6) {
		x, err := pool.Reserve(kv.Lease{Tenant: string("ab"[round%2]), Request: [16]byte{round}}, tokens)
		if err != nil {
			t.Fatal(err)
		}
		w, err := x.BeginWrite()
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range x.Entries() {
			if !pages.Zeroed(e.Page) {
				t.Fatalf("round %d: page %d was not zero", round, e.Page)
			}
			n := min(64, tokens-64*i)
			src := bytes.Repeat([]byte{round + 1}, layers*n*layout.TokenLayerBytes())
			if err := pages.Import(e, i, 0, layers, n, src); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(src))
			if err := pages.Export(got, e, i, 0, layers, n); err != nil || !bytes.Equal(got, src) {
				t.Fatalf("round %d: block %d reads other bytes than were written: %v", round, i, err)
			}
			if old != nil {
				if err := pages.Export(got, old.Entries()[i], i, 0, layers, n); !errors.Is(err, kernels.ErrForeignPage) {
					t.Fatalf("round %d: the table of the round before reads block %d: %v", round, i, err)
				}
			}
		}
		w.Done()
		if err := x.MarkReady(tokens - 1); !errors.Is(err, kv.ErrIncomplete) {
			t.Fatalf("ready with a token that the books do not know: %v", err)
		}
		if err := x.MarkReady(tokens); err != nil {
			t.Fatal(err)
		}
		x.Release()
		for i, e := range x.Entries() {
			if !pages.Zeroed(e.Page) {
				t.Fatalf("round %d: page %d is free and not zero", round, e.Page)
			}
			n := min(64, tokens-64*i)
			if err := pages.Export(make([]byte, layers*n*layout.TokenLayerBytes()), e, i, 0, layers, n); !errors.Is(err, kernels.ErrStalePage) {
				t.Fatalf("round %d: a released table reads block %d: %v", round, i, err)
			}
		}
		if err := pool.CheckIntegrity(); err != nil {
			t.Fatal(err)
		}
		old = x
	}
}
