package transfer

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"bulkhead/internal/negative"
)

var _ = flag.Bool("rewrite", false, "write testdata/negative anew")

// TestNegativeVectors: no message but the right one is read. Method: one honest
// message of each type; each of its members, at any depth, is left out, doubled,
// given another type and put over its limit; then what the form cannot rule
// out, and subjects.
func TestNegativeVectors(t *testing.T) {
	s := negative.Set{
		Dir: "testdata/negative", Decoders: map[string]negative.Decoder{}, Classes: []string{"message", "subject"},
		Classify: func(err error) string {
			switch { // a message with a bad name in it is a bad message
			case errors.Is(err, ErrMessage):
				return "message"
			case errors.Is(err, ErrSubject):
				return "subject"
			}
			return ""
		},
	}
	g := &generator{t: t, set: &s}
	schemas := map[string]*schema{
		"envelope": envelopes.schema, "announce": announces.schema, "job": jobs.schema, "accept": accepts.schema, "reject": rejects.schema, "open": opens.schema,
		"output": outputs.schema, "body": bodies.schema, "cancel": cancels.schema, "credit": credits.schema, "ping": pings.schema, "pong": pongs.schema, "first": firsts.schema,
	}
	seen := map[string]int{}
	for _, m := range testers() {
		what := m.name
		if seen[m.name]++; seen[m.name] > 1 { // a body has four shapes
			what += fmt.Sprint(seen[m.name])
		}
		honest, err := m.encode()
		if err != nil {
			t.Fatal(err)
		}
		honest = g.slim(honest)
		s.Decoders[what] = negative.Decoder{Honest: honest, Decode: func(b []byte) error { _, err := m.decode(b); return err }}
		g.form(what, m.name, honest)
		if m.name == "body" {
			continue // its members are those of types that have vectors of their own
		}
		g.members(what, honest, schemas[m.name], nil)
		delete(schemas, m.name)
	}
	delete(schemas, "body")
	if len(schemas) != 0 {
		t.Errorf("no vectors of %v", slices.Collect(maps.Keys(schemas)))
	}
	g.values()
	g.kvMessages()
	g.subjects()
	negative.Run(t, s, 250)
}

type generator struct {
	t   *testing.T
	set *negative.Set
}

func (g *generator) add(what, name, says string, data []byte) {
	class := "message"
	if strings.HasSuffix(what, " subject") || what == "name" || what == "id" {
		class = "subject"
	}
	file := strings.ToLower(strings.NewReplacer(" ", "-", ",", "", ".", "-").Replace(what + "-" + name))
	g.set.Made = append(g.set.Made, negative.Vector{Name: file, What: what, Expect: class, Says: says, Comment: name, Data: data})
}

// tree is a message as maps and lists; raw makes its bytes, in order of the keys.
type tree = map[string]any

func (g *generator) tree(b []byte) tree {
	var m tree
	if err := msgpack.Unmarshal(b, &m); err != nil {
		g.t.Fatal(err)
	}
	return m
}

func (g *generator) raw(v any) []byte {
	var b bytes.Buffer
	e := msgpack.NewEncoder(&b)
	e.SetSortMapKeys(true)
	e.UseCompactInts(true)
	if err := e.Encode(v); err != nil {
		g.t.Fatal(err)
	}
	return b.Bytes()
}

// slim writes a message anew: in order of its keys, and without long keys of
// other packages that would only fill the files.
func (g *generator) slim(b []byte) []byte {
	m := g.tree(b)
	if _, ok := m["hpke"]; ok {
		m["hpke"] = []byte{1, 2, 3, 4}
	}
	return g.raw(m)
}

// form: what is wrong with a message as a whole.
func (g *generator) form(what, path string, b []byte) {
	g.add(what, "empty", path+" is not a map", nil)
	g.add(what, "nil", path+" is not a map", []byte{0xc0})
	g.add(what, "a list", path+" is not a map", append([]byte{0x91}, b...))
	g.add(what, "cut in half", "", b[:len(b)/2])
	g.add(what, "cut by a byte", "", b[:len(b)-1])
	g.add(what, "a byte after its end", "1 bytes after its end", append(bytes.Clone(b), 0xc0))
	g.add(what, "a map of 4 billion members", "has 4294967295 members", []byte{0xdf, 0xff, 0xff, 0xff, 0xff})
	m := g.tree(b)
	m["admin"] = true
	g.add(what, "a member too many", fmt.Sprintf("has %d members, want %d", len(m), len(m)-1), g.raw(m))
}

// members: what is wrong with one member.
func (g *generator) members(what string, honest []byte, s *schema, path []string) {
	for _, f := range s.fields {
		name := strings.Join(append(slices.Clone(path), f.key), " ")
		edit := func(how string, says string, change func(tree)) {
			root := g.tree(honest)
			change(g.at(root, path))
			g.add(what, name+" "+how, says, g.raw(root))
		}
		fewer := fmt.Sprintf("%s has %d members, want %d", s.path, len(s.fields)-1, len(s.fields))
		edit("missing", fewer, func(m tree) { delete(m, f.key) })
		if len(s.fields) > 1 {
			edit("under another name", s.path+" has an unknown member", func(m tree) { m["other"] = m[f.key]; delete(m, f.key) })
			root := g.tree(honest)
			g.add(what, name+" twice", s.path+" has member "+f.key+" twice", g.raw(g.doubled(root, path, f.key)))
		}
		edit("of another type", f.path+" is not", func(m tree) { m[f.key] = wrong(f.schema) })
		if v, says := over(f.schema); v != nil {
			edit("over its limit", f.path+" "+says, func(m tree) { m[f.key] = v })
		}
		if f.shape == record {
			g.members(what, honest, f.schema, append(slices.Clone(path), f.key))
		}
	}
}

// at is the record at a path.
func (g *generator) at(m tree, path []string) tree {
	for _, key := range path {
		m = m[key].(tree)
	}
	return m
}

// doubled gives the record at path a member twice, in the place of another one,
// so that the count is right.
func (g *generator) doubled(root tree, path []string, key string) any {
	if len(path) > 0 {
		root[path[0]] = g.doubled(root[path[0]].(tree), path[1:], key)
		return root
	}
	var b bytes.Buffer
	e := msgpack.NewEncoder(&b)
	if err := e.EncodeMapLen(len(root)); err != nil {
		g.t.Fatal(err)
	}
	dropped := false
	for _, k := range slices.Sorted(maps.Keys(root)) {
		name := k
		if k != key && !dropped {
			dropped, name = true, key
			b.Write(g.raw(name))
			b.Write(g.raw(root[key]))
			continue
		}
		b.Write(g.raw(name))
		b.Write(g.raw(root[k]))
	}
	return msgpack.RawMessage(b.Bytes())
}

// wrong is a value of another type than the schema's.
func wrong(s *schema) any {
	switch s.shape {
	case text, integer:
		return true
	case float32bits:
		return float64(0.5)
	}
	return "x"
}

// over is a value one over the schema's limit.
func over(s *schema) (v any, says string) {
	switch s.shape {
	case text:
		return strings.Repeat("a", s.max+1), fmt.Sprintf("has %d bytes, limit %d", s.max+1, s.max)
	case blob:
		return make([]byte, s.max+1), fmt.Sprintf("has %d bytes, limit %d", s.max+1, s.max)
	case array:
		return make([]byte, s.max+1), fmt.Sprintf("has %d bytes, want %d", s.max+1, s.max)
	case list:
		return make([]int8, s.max+1), fmt.Sprintf("has %d elements, limit %d", s.max+1, s.max)
	case integer:
		switch {
		case s.hi == math.MaxUint64:
			return -1, "is out of range"
		default:
			return s.hi + 1, "is out of range"
		}
	}
	return nil, ""
}

// values: what the form allows and the meaning does not.
func (g *generator) values() {
	change := func(what, name, says string, f func(tree)) {
		m := g.tree(g.set.Decoders[what].Honest)
		f(m)
		g.add(what, name, says, g.raw(m))
	}
	set := func(key string, v any) func(tree) { return func(m tree) { m[key] = v } }
	change("announce", "window over capacity", "window of 1048577 tokens over a capacity of 1048576", set("window", 1<<20+1))
	change("announce", "negative window", "window is -1", set("window", -1))
	change("announce", "negative capacity", "capacity is -1", set("capacity", -1))
	change("announce", "negative free tokens", "free_tokens is -5", set("free_tokens", -5))
	change("announce", "negative waiting", "waiting is -1", set("waiting", -1))
	change("announce", "role of nobody", "is no role", set("role", "admin"))
	change("announce", "role in capitals", "is no role", set("role", "Decode"))
	change("announce", "name with a dot", "node name", set("node", "a.b"))
	change("announce", "name a wildcard", "node name", set("node", ">"))
	change("announce", "no name", "node name", set("node", ""))
	change("announce", "name no utf-8", "announce.node is not UTF-8", set("node", "\xff"))
	change("announce", "expires as seconds", "announce.expires is not a time", set("expires", 1764504000))
	change("announce", "expires beyond 2514", "announce.expires is not a time", set("expires", msgpack.RawMessage(append([]byte{0xc7, 12, 0xff}, make([]byte, 12)...))))
	change("announce", "more than a second of nanoseconds", "nanoseconds", set("expires", msgpack.RawMessage{0xd7, 0xff, 0xff, 0xff, 0xff, 0xfc, 0, 0, 0, 0}))
	change("reject", "reason of nobody", "unknown reason", set("reason", "ok"))
	change("reject", "no reason", "unknown reason", set("reason", ""))
	change("cancel", "reason of nobody", "unknown reason", set("reason", "because"))
	change("output", "from a router", "output from", set("from", "router"))
	change("output", "from nobody", "output from", set("from", ""))
	change("output", "negative sequence", "output.seq is out of range", set("seq", -1))
	change("credit", "limit a float", "credit.limit is not an integer", set("limit", 1.5))
	change("job", "prompt with a string", "job.prompt is not an integer", set("prompt", []any{1, "x"}))
	change("job", "prompt with a token over 32 bits", "job.prompt is out of range", set("prompt", []int64{1 << 31}))
	change("job", "prompt of 4 billion tokens", "job.prompt has 4294967295 elements", set("prompt", msgpack.RawMessage{0xdd, 0xff, 0xff, 0xff, 0xff}))
	change("job", "prompt of a million tokens in no bytes", "job.prompt is cut off", set("prompt", msgpack.RawMessage{0xdd, 0, 0x10, 0, 0}))
	change("job", "token of 4 billion bytes", "job.token has 4294967295 bytes", set("token", msgpack.RawMessage{0xdb, 0xff, 0xff, 0xff, 0xff}))
	change("job", "bias with a member too many", "job.params.LogitBias has 3 members", func(m tree) {
		m["params"].(tree)["LogitBias"] = []tree{{"ID": 1, "Bias": float32(1), "x": 1}}
	})
	change("job", "key of 31 bytes", "job.reply_key has 31 bytes", set("reply_key", make([]byte, 31)))
	change("body", "with nothing", "0 members set", set("receipt", nil))
	change("body", "with two things", "2 members set", set("finish", tree{"reason": "stop", "generated": 1, "prompt": 1}))
	change("body", "receipt of negative cached", "negative", func(m tree) { m["receipt"].(tree)["cached"] = -1 })
	change("body", "receipt over its limit", "body.receipt.statement has 4097 bytes", func(m tree) { m["receipt"].(tree)["statement"] = make([]byte, 4097) })
	change("body2", "too many tokens", "body.tokens has 65 elements", set("tokens", make([]int8, 65)))
	change("body2", "token without a member", "body.tokens has 3 members", func(m tree) { delete(m["tokens"].([]any)[0].(tree), "EOG") })
	change("body2", "token id over 32 bits", "body.tokens.ID is out of range", func(m tree) { m["tokens"].([]any)[0].(tree)["ID"] = int64(1) << 31 })
	change("body2", "no tokens", "0 members set", set("tokens", []int8{}))
	change("body3", "finish for another reason", "finish reason", func(m tree) { m["finish"].(tree)["reason"] = "abort" })
	change("body3", "finish of negative tokens", "negative", func(m tree) { m["finish"].(tree)["generated"] = -1 })
	change("body3", "finish of a negative prompt", "negative", func(m tree) { m["finish"].(tree)["prompt"] = -1 })
	change("body4", "fail for no reason", "unknown reason", func(m tree) { m["fail"].(tree)["reason"] = "none" })
}

// kvMessages: what may not lie on a KV stream.
func (g *generator) kvMessages() {
	const subject = "kv.d0.aaaaaaaaaaaaaaaaaaaaaaaaaa.1.aaaaaaaaaaaaaaaaaaaaaaaaaa"
	p := &Peer{counters: new(Counters)}
	envelope := func(kind string) []byte {
		return g.raw(tree{"kind": kind, "from": "jwt", "body": []byte{1}, "sig": make([]byte, 64)})
	}
	g.set.Decoders["kv message"] = negative.Decoder{Honest: envelope("kv.open"), Decode: func(b []byte) error {
		_, err := p.ParseKVMessage(KVMsg{Subject: subject, Data: b})
		return err
	}}
	for _, kind := range []string{"job", "announce", "accept", "reject", "cancel", "credit", "receipt", "kv.frame", "KV.OPEN", ""} {
		g.add("kv message", "envelope of kind "+kind+".", "on a KV stream", envelope(kind))
	}
	g.add("kv message", "empty", "envelope is not a map", nil)
	g.add("kv message", "frame over its limit", "frame of", append([]byte("BKHF"), make([]byte, FrameMax)...))
	g.add("kv message", "envelope over its limit", "signed KV message of", append([]byte{0x84}, make([]byte, controlMax)...))
	g.add("kv message", "manifest without an envelope", "envelope is not a map", []byte("BKHM\x01\x01\x00\x00"))
	g.add("kv message", "magic cut", "envelope is not a map", []byte("BKH"))
}

// subjects that are nearly right.
func (g *generator) subjects() {
	const id = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	decoder := func(what, honest string, parse func(string) error) {
		g.set.Decoders[what] = negative.Decoder{Honest: []byte(honest), Decode: func(b []byte) error { return parse(string(b)) }}
	}
	decoder("kv subject", "kv.d0."+id+".1."+id, func(s string) error { _, err := ParseKV(s); return err })
	decoder("out subject", "out.r0."+id+"."+id, func(s string) error { _, err := ParseOut(s); return err })
	decoder("announce subject", "announce.decode.d0", func(s string) error { _, _, err := ParseAnnounce(s); return err })
	decoder("credit subject", "credit.p0.d0", func(s string) error { _, _, err := ParseCredit(s); return err })
	decoder("name", "d0", CheckName)
	decoder("id", id, func(s string) error { _, err := ParseID(s); return err })
	for what, list := range map[string][][2]string{
		"kv subject": {
			{"empty", ""}, {"kind alone", "kv"}, {"wildcard node", "kv.*." + id + ".1." + id}, {"full wildcard", "kv.d0.>"}, {"no node", "kv.." + id + ".1." + id},
			{"space in the node", "kv.d 0." + id + ".1." + id}, {"token too many", "kv.d0." + id + ".1." + id + ".x"}, {"attempt 0", "kv.d0." + id + ".0." + id},
			{"leading zero", "kv.d0." + id + ".01." + id}, {"plus", "kv.d0." + id + ".+1." + id}, {"attempt over 16 bits", "kv.d0." + id + ".65536." + id},
			{"negative attempt", "kv.d0." + id + ".-1." + id}, {"hex attempt", "kv.d0." + id + ".0x1." + id}, {"short request", "kv.d0." + id[1:] + ".1." + id},
			{"spare bits in the request", "kv.d0." + id[1:] + "b.1." + id}, {"spare bits in the token", "kv.d0." + id + ".1." + id[1:] + "b"},
			{"capitals", "kv.d0." + strings.ToUpper(id) + ".1." + id}, {"line break", "kv.d0." + id[1:] + "\n.1." + id}, {"kind in capitals", "KV.d0." + id + ".1." + id},
			{"node over its length", "kv." + strings.Repeat("d", 33) + "." + id + ".1." + id}, {"over its length", "kv.d0." + strings.Repeat("a", 200)}, {"an out subject", "out.r0." + id + "." + id},
		},
		"out subject": {
			{"without token", "out.r0." + id}, {"dot at the end", "out.r0." + id + "." + id + "."}, {"wildcard", "out.*." + id + "." + id}, {"of another kind", "kv.r0." + id + "." + id},
			{"capital", "out.r0." + id + ".A" + id[1:]}, {"not base32", "out.r0." + id[1:] + "1." + id}, {"router with a dot", "out.r.0." + id + "." + id}, {"inbox", "_INBOX.r0.x"},
		},
		"announce subject": {{"role of nobody", "announce.x.d0"}, {"no name", "announce.decode."}, {"wildcard", "announce.decode.*"}, {"token too many", "announce.decode.d0.d0"}, {"no role", "announce..d0"}, {"role in capitals", "announce.Decode.d0"}},
		"credit subject":   {{"without decode", "credit.p0"}, {"wildcard", "credit.p0.*"}, {"full wildcard", "credit.>.d0"}, {"token too many", "credit.p0.d0.x"}, {"no prefill", "credit..d0"}},
		"name":             {{"empty", ""}, {"dot", "a.b"}, {"space", "a b"}, {"wildcard", "*"}, {"full wildcard", ">"}, {"not ascii", "ä"}, {"zero", "a\x00"}, {"slash", "a/b"}, {"too long", strings.Repeat("a", 33)}},
		"id":               {{"empty", ""}, {"short", id[1:]}, {"long", id + "a"}, {"capital", "A" + id[1:]}, {"digit outside", "1" + id[1:]}, {"spare bits", id[1:] + "b"}, {"padding", id[1:] + "="}, {"line break", id[1:] + "\n"}},
	} {
		for _, s := range list {
			g.add(what, s[0], "", []byte(s[1]))
		}
	}
}
