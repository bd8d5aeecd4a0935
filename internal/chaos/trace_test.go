//go:build chaos

package chaos_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"bulkhead/internal/model"
	"bulkhead/internal/provenance"
	"bulkhead/internal/tenant"
	"bulkhead/transfer"
)

// logged is what a role's log says that a trace needs.
type logged struct {
	Msg     string `json:"msg"`
	Node    string `json:"node"`
	Epoch   string `json:"epoch"`
	ID      string `json:"request_id"`
	Prefill string `json:"prefill"`
	Decode  string `json:"decode"`
	Attempt uint16 `json:"attempt"`
}

// whose names what was read instead, as far as it can be found: it tries every request that
// is known, in every boot of its nodes. Caller holds mu.
func (l *load) whose(id string, who int, q *question, text string) string {
	reg, err := tenant.Load(filepath.Join(l.p.dir, "tenants.json"))
	if err != nil {
		return err.Error()
	}
	boots, requests := map[string][]uint64{}, map[string]logged{}
	for _, p := range l.p.procs {
		raw, err := os.ReadFile(p.log)
		if err != nil {
			return err.Error()
		}
		for line := range strings.Lines(string(raw)) {
			var e logged
			if json.Unmarshal([]byte(line), &e) != nil {
				continue
			}
			if epoch, err := strconv.ParseUint(e.Epoch, 16, 64); err == nil && e.Msg == "started" {
				boots[e.Node] = append(boots[e.Node], epoch)
			}
			if e.Msg == "request" {
				requests[e.ID] = e
			}
		}
	}
	sources := func(id string, a asked) (all []provenance.Known) {
		r, ok := requests[id]
		raw, err := transfer.ParseID(id)
		t, found := reg.Lookup(l.p.tenants[a.tenant])
		if !ok || err != nil || !found {
			return nil
		}
		for attempt := uint16(1); attempt <= r.Attempt; attempt++ {
			for _, pe := range boots[r.Prefill] {
				for _, de := range boots[r.Decode] {
					all = append(all, provenance.Known{Tokens: a.q.prompt, Source: model.Source{
						Tenant: t.ID, Request: raw, Attempt: attempt, Prompt: len(a.q.prompt), Prefill: pe, Decode: de,
					}})
				}
			}
		}
		return all
	}
	var others []provenance.Known
	for other, a := range l.known {
		if other != id {
			others = append(others, sources(other, a)...)
		}
	}
	var answer []int32
	for len(text) >= 4 {
		var d int32
		if _, err := fmt.Sscanf(text, "[p%1x]", &d); err != nil {
			break
		}
		answer, text = append(answer, provenance.FirstDigit+d), text[4:]
	}
	j, err := newJudge(window)
	if err != nil {
		return err.Error()
	}
	for _, reader := range sources(id, asked{q, who}) {
		if f, ok := j.oracle.Trace(reader, len(q.prompt), answer, others); ok {
			if f.Zero {
				return fmt.Sprintf("position %d was read unwritten", f.Pos)
			}
			return fmt.Sprintf("position %d was read from request %s of tenant %s, position %d", f.Pos, transfer.ID(f.From.Source.Request), f.From.Source.Tenant, f.FromPos)
		}
	}
	return fmt.Sprintf("whose pages were read is not found among %d known sequences", len(others))
}
