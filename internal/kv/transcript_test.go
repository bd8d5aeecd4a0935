package kv

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"bulkhead/internal/transcript"
	"bulkhead/kernels"
)

// The pool's behaviour as readable files in testdata. After each command comes
// what it gave, and one letter per page: . free, r reserved, f filling,
// R ready, C cached, d dirty, Q quarantined. The books are checked each time.
func TestTranscripts(t *testing.T) {
	transcript.RunDir(t, "testdata", func(t *testing.T) func(*transcript.Cmd) string {
		s := &script{t: t, tables: map[string]*Table{}, writers: map[string]*Writer{}}
		return s.run
	})
}

type script struct {
	t       *testing.T
	pool    *Pool
	fake    *fakePages
	tables  map[string]*Table
	writers map[string]*Writer
}

func (s *script) run(c *transcript.Cmd) string {
	out := s.command(c)
	check(s.t, s.pool, s.fake)
	var states strings.Builder
	for i := range s.pool.book {
		states.WriteByte(".rfRCdQ"[s.pool.book[i].state])
	}
	return strings.TrimPrefix(out+"\n"+states.String(), "\n")
}

func (s *script) command(c *transcript.Cmd) string {
	switch c.Name {
	case "pool": // pool pages=N capacity=TOKENS
		s.pool, s.fake = testPool(s.t, c.Int("pages", 4))
		return ""
	case "reserve": // reserve NAME tenant=T tokens=N req=N attempt=N prompt=SPEC root=N
		return s.reserve(c)
	case "purge": // purge root=N
		if root := c.Int("root", -1); root >= 0 {
			s.pool.Purge([32]byte{byte(root)})
		} else {
			s.pool.PurgeAll()
		}
		return ""
	case "stats":
		return fmt.Sprintf("%+v", s.pool.Stats())
	case "quarantined":
		var out []string
		for _, q := range s.pool.Quarantined() {
			out = append(out, fmt.Sprintf("page %d of lease %d: %s", q.Page, q.Owner, q.Reason))
		}
		return strings.Join(out, "\n")
	}

	name := c.Word(0)
	t := s.tables[name]
	if t == nil {
		c.Fatalf("no table %s", name)
	}
	switch c.Name {
	case "table": // table NAME: its entries
		return entries(t.Entries())
	case "begin": // begin NAME w=WRITER
		w, err := t.BeginWrite()
		if err != nil {
			return err.Error()
		}
		s.writers[c.Str("w", name)] = w
	case "compute": // compute NAME from=N to=N: checked per entry, as a step does
		return errText(s.fake.compute(t, c.Int("from", 0), c.Int("to", t.Tokens())))
	case "read": // read NAME tokens=N: what attention would read, tenants counted
		got, err := s.fake.read(t, c.Int("tokens", t.Tokens()))
		if err != nil {
			return err.Error()
		}
		count := map[string]int{}
		for _, m := range got {
			tenant, _, _ := unmark(m)
			count[tenant]++
		}
		var out []string
		for _, tenant := range slices.Sorted(maps.Keys(count)) {
			out = append(out, fmt.Sprintf("%d of %s", count[tenant], tenant))
		}
		return strings.Join(out, ", ")
	case "done": // done NAME w=WRITER
		s.writers[c.Str("w", name)].Done()
	case "abandon": // abandon NAME w=WRITER
		s.writers[c.Str("w", name)].Abandon("not fenced in time")
	case "ready": // ready NAME tokens=N
		return errText(t.MarkReady(c.Int("tokens", t.Tokens())))
	case "sound":
		return errText(t.Sound())
	case "publish":
		return errText(t.Publish())
	case "release":
		t.Release()
	case "quarantine":
		t.Quarantine("stale page")
	default:
		c.Fatalf("unknown command")
	}
	return ""
}

func (s *script) reserve(c *transcript.Cmd) string {
	name := c.Word(0)
	l := Lease{Tenant: c.Str("tenant", "a"), Request: [16]byte{byte(c.Int("req", len(s.tables)+1))}, Attempt: uint16(c.Int("attempt", 0))}
	prompt := tokens(c, c.Str("prompt", ""))
	n := c.Int("tokens", len(prompt))
	if len(prompt) == 0 {
		t, err := s.pool.Reserve(l, n)
		if err != nil {
			return err.Error()
		}
		s.tables[name] = t
		return entries(t.Entries())
	}
	root := c.Int("root", int(l.Tenant[0])) // one per tenant, as HMAC(tenant key, model) gives
	t, cached, err := s.pool.ReserveWithPrefix(l, [32]byte{byte(root)}, prompt, n)
	if err != nil {
		return err.Error()
	}
	s.tables[name] = t
	return fmt.Sprintf("%d cached tokens\n%s", cached, entries(t.Entries()))
}

// tokens reads a prompt such as "A64,B64,C2": 64 tokens A, 64 tokens B, 2 C.
func tokens(c *transcript.Cmd, spec string) (ids []int32) {
	for part := range strings.SplitSeq(spec, ",") {
		if part == "" {
			continue
		}
		n, err := strconv.Atoi(part[1:])
		if err != nil {
			c.Fatalf("prompt %q: %v", spec, err)
		}
		for range n {
			ids = append(ids, int32(part[0]))
		}
	}
	return ids
}

func entries(es []kernels.Entry) string {
	var out []string
	for _, e := range es {
		out = append(out, fmt.Sprintf("page %d lease %d gen %d", e.Page, e.Owner, e.Generation))
	}
	return strings.Join(out, "; ")
}

func errText(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}
