//go:build mutants

package cluster_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/model"
	"bulkhead/internal/mutant"
	"bulkhead/internal/provenance"
	"bulkhead/transfer"
)

// leftovers is who wrote what into the decode node's pages, in order. Requests that come
// one after the other get the same pages in the same order, so a place in a table
// is a place in memory.
type leftovers struct {
	s    *trueScale
	left []provenance.Left
}

// source says for whom the nodes computed an answer: from what a client can
// see, and from the nodes' announcements.
func (l *leftovers) source(a *exchanged) model.Source {
	t := l.s.t
	t.Helper()
	id, err := transfer.ParseID(a.header.Get("x-request-id"))
	must(t, err)
	p, _, ok := l.s.dir.Get(transfer.RolePrefill, "p1")
	d, _, more := l.s.dir.Get(transfer.RoleDecode, "d1")
	if !ok || !more {
		t.Fatal("a node is gone")
	}
	return model.Source{Tenant: l.s.ids[a.key], Request: id, Attempt: 1, Prompt: len(a.prompt), Prefill: p.Epoch, Decode: d.Epoch}
}

// wrote notes what an answered request left behind: of its prompt the first
// tokens tokens, and what was generated, but for the last token.
func (l *leftovers) wrote(a *exchanged, tokens int) {
	k := provenance.Known{Source: l.source(a), Tokens: slices.Concat(a.prompt, a.answer)}
	l.left = append(l.left, provenance.Left{Known: k, From: 0, To: tokens}, provenance.Left{Known: k, From: len(a.prompt), To: len(k.Tokens) - 1})
}

// goal: the positive control of TestIncidentProcesses: without the walls the very same cluster leaks,
// as in 2026, and the leak names tenant A. method: a binary whose walls are taken out by its environment. For each answer to a
// request over the limit the test foretells, from who wrote where, what a decode node says that reads tenant A's pages in
// the place of B's: the answer is that, in all its digits, and it is not if A's entries are left out.
func TestWallsIncident(t *testing.T) {
	const maxNew = provenance.Digits // one digit from prefill, 31 of what decode read
	walls := []mutant.Check{mutant.AdmissionLength, mutant.PrefillCapacity, mutant.DecodeCapacity, mutant.DecodeCount, mutant.PageFilled, mutant.PageZero}
	var names []string
	for _, w := range walls {
		names = append(names, string(w))
	}
	s := newTrueScale(t, build(t, "-tags", "mutants"), "BULKHEAD_MUTANTS="+strings.Join(names, ","))
	l := &leftovers{s: s}
	leaks := 0
	for i := range 2 * len(round) {
		turn, step := i/len(round), i%len(round)
		length, stream := trueLengths[round[step]], turn%2 == 1
		name := fmt.Sprintf("request %d: length %d, stream %v", i, length, stream)
		if step == 0 {
			a, err := s.ask(acmeKey, fmt.Sprintf("CNRY-acme-%d ", turn), truePrefill, maxNew, stream)
			must(t, err)
			must(t, s.right(a, maxNew, stream))
			l.wrote(a, len(a.prompt))
		}
		b, err := s.ask(umbrellaKey, fmt.Sprintf("CNRY-umbrella-%d ", i), length, maxNew, stream)
		must(t, err)
		if length <= truePrefill { // there is nothing wrong with what can be served
			must(t, s.right(b, maxNew, stream))
			l.wrote(b, len(b.prompt))
			continue
		}
		if b.status != http.StatusOK || len(b.answer) != maxNew {
			t.Fatalf("%s: status %d, %+v, %d tokens; without the walls an answer was to come", name, b.status, b.err, len(b.answer))
		}
		// Prefill put one token where the whole prompt was to be: decode has that, and
		// what lay there before.
		reader := l.source(b)
		first := slices.Clone(l.left)
		l.wrote(b, 1)
		now := append(first, l.left[len(l.left)-2])
		if want := s.oracle.Misread(reader, b.answer[0], now, maxNew); !slices.Equal(b.answer, want) {
			t.Errorf("%s: the answer is %v, A's pages give %v", name, b.answer, want)
			continue
		}
		var victims []string
		spared := slices.DeleteFunc(now, func(w provenance.Left) bool {
			foreign := w.Source.Tenant != reader.Tenant
			if foreign {
				victims = append(victims, w.Source.Tenant)
			}
			return foreign
		})
		if slices.Equal(b.answer, s.oracle.Misread(reader, b.answer[0], spared, maxNew)) {
			t.Errorf("%s: the answer is the same without A's pages", name)
			continue
		}
		if victims = slices.Compact(victims); len(victims) != 1 || victims[0] != s.ids[acmeKey] {
			t.Errorf("%s: the leak names %v, want tenant A, %s", name, victims, s.ids[acmeKey])
		}
		leaks++
		t.Logf("LEAK %s: status %d, %d prompt tokens reported, answered from the pages of tenant %v", name, b.status, len(b.prompt), victims)
	}
	if leaks != 8 {
		t.Errorf("%d answers leaked, want all 8 over the limit", leaks)
	}
}
