package transfer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"

	"bulkhead/internal/negative"
	"bulkhead/internal/sample"
)

// tester drives one codec without its type.
type tester struct {
	name   string
	sample any
	encode func() ([]byte, error)
	decode func([]byte) (any, error)
	again  func(any) ([]byte, error)
}

func testerOf[T any](c codec[T], v T) tester {
	return tester{
		name: c.name, sample: v,
		encode: func() ([]byte, error) { return c.encode(&v) },
		decode: func(b []byte) (any, error) { return c.decode(b) },
		again:  func(v any) ([]byte, error) { x := v.(T); return c.encode(&x) },
	}
}

// testers has one full message of every type.
func testers() []tester {
	at := time.Date(2026, 11, 30, 12, 0, 0, 123456789, time.UTC)
	h := Hash{1, 2, 3, 31: 0xff}
	return []tester{
		testerOf(envelopes, envelope{Kind: kindJob, From: "jwt", Body: []byte{1, 2}, Sig: make([]byte, 64)}),
		testerOf(announces, Announce{
			Node: "d0", Role: RoleDecode, Epoch: math.MaxUint64, HPKE: bytes.Repeat([]byte{7}, 1216), Model: h, Layout: h, Metadata: h, ModelName: "Smol ü",
			Capacity: 1 << 20, Window: 4096, Vocab: 49152, KVURL: "nats://127.0.0.1:4222", Ready: true, Draining: true,
			FreeTokens: 1, Running: 2, Waiting: 3, Expires: at, Version: "v1",
		}),
		testerOf(jobs, Job{
			Token: "v4.public.x", Salt: h, Prompt: []int32{0, 1, 127, 128, 255, 256, 65535, 65536, math.MaxInt32, -1, math.MinInt32},
			Params: sample.Params{
				MaxNew: 100, MinTokens: 2, Temperature: 0.7, TopP: 0.9, TopK: 40, MinP: 0.05, Seed: math.MaxUint64, Child: 3,
				FrequencyPenalty: -2, PresencePenalty: 2, RepetitionPenalty: 1.1,
				LogitBias: []sample.Bias{{ID: 1, Bias: -100}, {ID: 2, Bias: 0.5}}, EOG: []int32{2, 0}, IgnoreEOS: true, Logprobs: true, TopLogprobs: 20,
			},
			Reply: "out.r0.x.y", ReplyKey: h, Deadline: at,
		}),
		testerOf(accepts, Accept{TokenHash: h, Pages: 77}),
		testerOf(rejects, Reject{TokenHash: h, Reason: ReasonNoPages, Limit: math.MaxInt64, Value: math.MinInt64, Detail: "words"}),
		testerOf(opens, Open{Token: "tok", Prefill: "p0", PrefillEpoch: 9, Enc: []byte("enc"), Frames: 4, Layout: h}),
		testerOf(outputs, Output{TokenHash: h, From: RoleDecode, Seq: 1 << 40, Payload: []byte("sealed")}),
		testerOf(bodies, OutputBody{Receipt: &SignedReceipt{Statement: []byte("signed"), Cached: 64}}),
		testerOf(bodies, OutputBody{Tokens: []sample.Token{{ID: 5, Logprob: -0.5, Top: []sample.TopToken{{ID: 6, Logprob: float32(math.Inf(-1))}}}, {ID: 2, EOG: true}}}),
		testerOf(bodies, OutputBody{Finish: &Finish{Reason: "stop", Generated: 3, Prompt: 9}}),
		testerOf(bodies, OutputBody{Fail: &Reject{TokenHash: h, Reason: ReasonIntegrity}}),
		testerOf(cancels, Cancel{TokenHash: h, Reason: ReasonCancelled}),
		testerOf(credits, Credit{TokenHash: h, Limit: 1 << 33, MAC: make([]byte, 32)}),
		testerOf(pings, ping{Nonce: [16]byte{1}}),
		testerOf(pongs, Pong{Epoch: 3, Attempts: 4}),
		testerOf(firsts, sample.Token{ID: 5, Logprob: -1, Top: []sample.TopToken{{ID: 6, Logprob: -2}}, EOG: true}),
	}
}

// What is sent is what arrives.
func TestCodecRoundTrip(t *testing.T) {
	for _, m := range testers() {
		b, err := m.encode()
		if err != nil {
			t.Fatalf("%s: %v", m.name, err)
		}
		got, err := m.decode(b)
		if err != nil {
			t.Fatalf("%s: %v", m.name, err)
		}
		if d := cmp.Diff(m.sample, got); d != "" {
			t.Errorf("%s: %s", m.name, d)
		}
	}
}

// A message cut anywhere, or with anything after it, is refused.
func TestCodecLength(t *testing.T) {
	for _, m := range testers() {
		b, _ := m.encode()
		for i := range len(b) {
			if _, err := m.decode(b[:i]); !errors.Is(err, ErrMessage) {
				t.Errorf("%s cut to %d of %d bytes: %v", m.name, i, len(b), err)
			}
		}
		if _, err := m.decode(append(bytes.Clone(b), 0xc0)); !errors.Is(err, ErrMessage) {
			t.Errorf("%s with a byte after its end: %v", m.name, err)
		}
	}
}

// Members: one unknown, one twice, one missing are refused, at any depth.
func TestCodecMembers(t *testing.T) {
	good := map[string]any{"epoch": uint64(1), "attempts": 2}
	try := func(what string, b []byte, ok bool) {
		t.Helper()
		_, err := pongs.decode(b)
		if ok != (err == nil) || err != nil && !errors.Is(err, ErrMessage) {
			t.Errorf("%s: %v", what, err)
		}
	}
	marshal := func(v any) []byte {
		b, err := msgpack.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	try("good", marshal(good), true)
	try("missing", marshal(map[string]any{"epoch": 1}), false)
	try("unknown in addition", marshal(map[string]any{"epoch": 1, "attempts": 2, "x": 3}), false)
	try("unknown instead", marshal(map[string]any{"epoch": 1, "x": 3}), false)
	try("other case", marshal(map[string]any{"epoch": 1, "Attempts": 3}), false)
	try("not a map", marshal([]any{1, 2}), false)
	try("nil", []byte{0xc0}, false)
	twice := []byte{0x82}
	for range 2 {
		twice = append(append(twice, marshal("epoch")...), 1)
	}
	try("twice", twice, false)
	try("key is a number", []byte{0x82, 1, 1, 2, 2}, false)

	// One level down, in the job's parameters.
	full, err := jobs.encode(&Job{Token: "t", Reply: "r", Deadline: time.Unix(1, 0)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jobs.decode(full); err != nil {
		t.Fatal(err)
	}
	for _, pair := range [][2]string{{"TopK", "Topk"}, {"TopK", "MinP"}} {
		bad := bytes.Replace(full, append([]byte{0xa4}, pair[0]...), append([]byte{0xa4}, pair[1]...), 1)
		if bytes.Equal(bad, full) {
			t.Fatal("nothing replaced")
		}
		if _, err := jobs.decode(bad); !errors.Is(err, ErrMessage) {
			t.Errorf("params with %s for %s: %v", pair[1], pair[0], err)
		}
	}
}

// Values out of range of their Go type, or of another type, are refused.
func TestCodecTypes(t *testing.T) {
	pong := func(epoch, attempts []byte) []byte {
		b := []byte{0x82, 0xa5}
		b = append(append(b, "epoch"...), epoch...)
		b = append(b, 0xa8)
		return append(append(b, "attempts"...), attempts...)
	}
	one := []byte{1}
	for _, c := range []struct {
		what            string
		epoch, attempts []byte
		ok              bool
	}{
		{"small", one, one, true},
		{"wide", []byte{0xcf, 0, 0, 0, 0, 0, 0, 0, 1}, []byte{0xd3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, true},
		{"negative unsigned", []byte{0xff}, one, false},
		{"negative unsigned, wide", []byte{0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0}, one, false},
		{"over int64", one, []byte{0xcf, 0x80, 0, 0, 0, 0, 0, 0, 0}, false},
		{"float", []byte{0xcb, 0, 0, 0, 0, 0, 0, 0, 0}, one, false},
		{"nil", []byte{0xc0}, one, false},
		{"boolean", []byte{0xc3}, one, false},
		{"string", []byte{0xa1, 'x'}, one, false},
		{"reserved byte", []byte{0xc1}, one, false},
	} {
		if _, err := pongs.decode(pong(c.epoch, c.attempts)); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	for _, n := range []int{15, 16, 17} {
		b, err := msgpack.Marshal(map[string][]byte{"nonce": make([]byte, n)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pings.decode(b); (err == nil) != (n == 16) || err != nil && !strings.Contains(err.Error(), "want 16") {
			t.Errorf("nonce of %d bytes: %v", n, err)
		}
	}
	// int32 in the prompt, exact length of a digest, UTF-8, nanoseconds.
	full, _ := jobs.encode(&Job{Token: "tok\x01", Prompt: []int32{math.MaxInt32}, Reply: "r", Deadline: time.Unix(1, 999)})
	for _, c := range []struct {
		what     string
		old, new []byte
	}{
		{"prompt over int32", []byte{0xce, 0x7f, 0xff, 0xff, 0xff}, []byte{0xce, 0x80, 0, 0, 0}},
		{"digest of 31 bytes", []byte{0xc4, 32}, []byte{0xc4, 31}},
		{"not UTF-8", []byte("tok\x01"), []byte("tok\xff")},
		{"float64", []byte{0xca, 0, 0, 0, 0}, []byte{0xcb, 0, 0, 0, 0}},
		{"a second of nanoseconds", []byte{0xd7, 0xff, 0, 0, 0x0f, 0x9c}, []byte{0xd7, 0xff, 0xff, 0xff, 0xff, 0xff}},
	} {
		bad := bytes.Replace(full, c.old, c.new, 1)
		if bytes.Equal(bad, full) {
			t.Fatalf("%s: nothing replaced in %x", c.what, full)
		}
		if _, err := jobs.decode(bad); !errors.Is(err, ErrMessage) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// Every limit of the table: at it a message passes, one over it does not, neither way.
func TestCodecLimits(t *testing.T) {
	tokens := func(n, top int) []sample.Token {
		ts := make([]sample.Token, n)
		ts[0].Top = make([]sample.TopToken, top)
		return ts
	}
	long := func(n int) string { return strings.Repeat("x", n) }
	for path, set := range map[string]func(n int) tester{
		"announce.hpke": func(n int) tester {
			return testerOf(announces, Announce{Node: "n", Role: RoleDecode, HPKE: make([]byte, n), Expires: time.Unix(1, 0)})
		},
		"announce.model_name": func(n int) tester {
			return testerOf(announces, Announce{Node: "n", Role: RoleDecode, ModelName: long(n), Expires: time.Unix(1, 0)})
		},
		"announce.kv_url": func(n int) tester {
			return testerOf(announces, Announce{Node: "n", Role: RoleDecode, KVURL: kvScheme + long(n-len(kvScheme)-len(":65535")) + ":65535", Expires: time.Unix(1, 0)})
		},
		"announce.version": func(n int) tester {
			return testerOf(announces, Announce{Node: "n", Role: RoleDecode, Version: long(n), Expires: time.Unix(1, 0)})
		},
		"announce.node": func(n int) tester {
			return testerOf(announces, Announce{Node: long(n), Role: RoleDecode, Expires: time.Unix(1, 0)})
		},
		"envelope.kind": func(n int) tester { return testerOf(envelopes, envelope{Kind: kind(long(n))}) },
		"envelope.from": func(n int) tester { return testerOf(envelopes, envelope{From: long(n)}) },
		"envelope.body": func(n int) tester { return testerOf(envelopes, envelope{Body: make([]byte, n)}) },
		"envelope.sig":  func(n int) tester { return testerOf(envelopes, envelope{Sig: make([]byte, n)}) },
		"job.token":     func(n int) tester { return testerOf(jobs, Job{Token: long(n), Deadline: time.Unix(1, 0)}) },
		"job.prompt":    func(n int) tester { return testerOf(jobs, Job{Prompt: make([]int32, n), Deadline: time.Unix(1, 0)}) },
		"job.reply":     func(n int) tester { return testerOf(jobs, Job{Reply: long(n), Deadline: time.Unix(1, 0)}) },
		"job.params.LogitBias": func(n int) tester {
			return testerOf(jobs, Job{Params: sample.Params{LogitBias: make([]sample.Bias, n)}, Deadline: time.Unix(1, 0)})
		},
		"job.params.EOG": func(n int) tester {
			return testerOf(jobs, Job{Params: sample.Params{EOG: make([]int32, n)}, Deadline: time.Unix(1, 0)})
		},
		"reject.detail":  func(n int) tester { return testerOf(rejects, Reject{Reason: ReasonBusy, Detail: long(n)}) },
		"open.token":     func(n int) tester { return testerOf(opens, Open{Token: long(n)}) },
		"open.prefill":   func(n int) tester { return testerOf(opens, Open{Prefill: long(n)}) },
		"open.enc":       func(n int) tester { return testerOf(opens, Open{Enc: make([]byte, n)}) },
		"output.payload": func(n int) tester { return testerOf(outputs, Output{From: RoleDecode, Payload: make([]byte, n)}) },
		"body.receipt.statement": func(n int) tester {
			return testerOf(bodies, OutputBody{Receipt: &SignedReceipt{Statement: make([]byte, n)}})
		},
		"body.tokens":     func(n int) tester { return testerOf(bodies, OutputBody{Tokens: tokens(n, 0)}) },
		"body.tokens.Top": func(n int) tester { return testerOf(bodies, OutputBody{Tokens: tokens(1, n)}) },
		"body.fail.detail": func(n int) tester {
			return testerOf(bodies, OutputBody{Fail: &Reject{Reason: ReasonBusy, Detail: long(n)}})
		},
		"first.Top":  func(n int) tester { return testerOf(firsts, sample.Token{Top: make([]sample.TopToken, n)}) },
		"credit.mac": func(n int) tester { return testerOf(credits, Credit{MAC: make([]byte, n)}) },
	} {
		at, over := set(limits[path]), set(limits[path]+1)
		if b, err := at.encode(); err != nil {
			t.Errorf("%s at its limit: %v", path, err)
		} else if _, err := at.decode(b); err != nil {
			t.Errorf("%s at its limit: %v", path, err)
		}
		if _, err := over.encode(); !errors.Is(err, ErrMessage) {
			t.Errorf("%s over its limit was encoded: %v", path, err)
		}
		var raw bytes.Buffer
		e := msgpack.NewEncoder(&raw)
		e.UseCompactInts(true)
		if err := e.Encode(over.sample); err != nil {
			t.Fatal(err)
		}
		if _, err := over.decode(raw.Bytes()); !errors.Is(err, ErrMessage) {
			t.Errorf("%s over its limit was decoded: %v", path, err)
		}
	}
	if _, err := jobs.decode(make([]byte, jobs.max+1)); !errors.Is(err, ErrMessage) || !strings.Contains(err.Error(), "limit") {
		t.Errorf("a message over its size: %v", err)
	}
}

// Values that types and sizes do not rule out.
func TestCodecValues(t *testing.T) {
	soon := time.Unix(1, 0)
	for what, m := range map[string]tester{
		"role":                       testerOf(announces, Announce{Node: "n", Role: "admin", Expires: soon}),
		"name":                       testerOf(announces, Announce{Node: "n.x", Role: RoleDecode, Expires: soon}),
		"negative capacity":          testerOf(announces, Announce{Node: "n", Role: RoleDecode, Capacity: -1, Window: -2, Expires: soon}),
		"negative free tokens":       testerOf(announces, Announce{Node: "n", Role: RoleDecode, FreeTokens: -1, Expires: soon}),
		"window over capacity":       testerOf(announces, Announce{Node: "n", Role: RolePrefill, Capacity: 681280, Window: 1048576, Expires: soon}),
		"reason":                     testerOf(rejects, Reject{Reason: "because"}),
		"no reason":                  testerOf(cancels, Cancel{}),
		"output of a router":         testerOf(outputs, Output{From: RoleRouter}),
		"empty body":                 testerOf(bodies, OutputBody{}),
		"empty tokens":               testerOf(bodies, OutputBody{Tokens: []sample.Token{}}),
		"a token that is no number":  testerOf(bodies, OutputBody{Tokens: []sample.Token{{Logprob: float32(math.NaN())}}}),
		"a token of infinite chance": testerOf(bodies, OutputBody{Tokens: []sample.Token{{Logprob: float32(math.Inf(1))}}}),
		"a choice that is no number": testerOf(bodies, OutputBody{Tokens: []sample.Token{{Top: []sample.TopToken{{Logprob: float32(math.NaN())}}}}}),
		"a first that is no number":  testerOf(firsts, sample.Token{Logprob: float32(math.NaN())}),
		"two members":                testerOf(bodies, OutputBody{Tokens: make([]sample.Token, 1), Finish: &Finish{Reason: "stop"}}),
		"finish reason":              testerOf(bodies, OutputBody{Finish: &Finish{Reason: "error"}}),
		"negative usage":             testerOf(bodies, OutputBody{Finish: &Finish{Reason: "stop", Prompt: -1}}),
		"failure without a reason":   testerOf(bodies, OutputBody{Fail: &Reject{}}),
		"negative cached in receipt": testerOf(bodies, OutputBody{Receipt: &SignedReceipt{Cached: -1}}),
	} {
		if _, err := m.encode(); !errors.Is(err, ErrMessage) {
			t.Errorf("%s was encoded: %v", what, err)
		}
		var raw bytes.Buffer
		e := msgpack.NewEncoder(&raw)
		e.UseCompactInts(true)
		if err := e.Encode(m.sample); err != nil {
			t.Fatal(err)
		}
		if _, err := m.decode(raw.Bytes()); !errors.Is(err, ErrMessage) {
			t.Errorf("%s was decoded: %v", what, err)
		}
	}
}

// Lengths that promise gigabytes cost nothing.
func TestCodecHostileLengths(t *testing.T) {
	for _, m := range testers() {
		b, _ := m.encode()
		for i := range b {
			for _, code := range []byte{0xc6, 0xdb, 0xdd, 0xdf} { // bin32, str32, array32, map32
				bad := append(bytes.Clone(b[:i]), code, 0xff, 0xff, 0xff, 0xff)
				bad = append(bad, b[i:]...)
				var before, after runtime.MemStats
				if i%16 == 0 {
					runtime.ReadMemStats(&before)
				}
				if _, err := m.decode(bad); err == nil && !bytes.Equal(bad, b) {
					// It may be read where the bytes are inside a byte string of
					// which the length still fits; it never does here, as it grew by 5.
					t.Errorf("%s with code %#x at %d was read", m.name, code, i)
				}
				if i%16 == 0 {
					runtime.ReadMemStats(&after)
					if grew := after.TotalAlloc - before.TotalAlloc; grew > 1<<20 {
						t.Errorf("%s with code %#x at %d allocated %d bytes", m.name, code, i, grew)
					}
				}
			}
		}
	}
}

// Every message type of this package that travels is among the testers, and
// every limit is used by one of them.
func TestCodecTableIsWhole(t *testing.T) {
	used := map[string]bool{}
	var visit func(s *schema)
	visit = func(s *schema) {
		switch s.shape {
		case text, blob, list:
			used[s.path] = true
		}
		if s.elem != nil {
			visit(s.elem)
		}
		for _, f := range s.fields {
			visit(f.schema)
		}
	}
	for _, s := range []*schema{envelopes.schema, announces.schema, jobs.schema, accepts.schema, rejects.schema, opens.schema, outputs.schema, bodies.schema, cancels.schema, credits.schema, pings.schema, pongs.schema, firsts.schema} {
		visit(s)
	}
	for path := range limits {
		if !used[path] {
			t.Errorf("limit of %s is used by nothing", path)
		}
	}
	for _, bad := range []any{struct{ X any }{}, struct{ X map[string]int }{}, struct{ X []byte }{}, struct{ x int }{}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%T was given a schema", bad)
				}
			}()
			compile(reflect.TypeOf(bad), "bad", nil)
		}()
	}
}

// FuzzDecode: whatever the bytes, decoding errs or gives a value whose
// encoding is read as the same value.
func FuzzDecode(f *testing.F) {
	all := testers()
	for i, m := range all {
		b, err := m.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), b)
	}
	f.Add(uint8(0), binary.BigEndian.AppendUint32([]byte{0xdf}, 1<<31))
	negative.Seeds(f, "testdata/negative", func(what string, data []byte) {
		for i, m := range all {
			if what == m.name {
				f.Add(uint8(i), data)
			}
		}
	})
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		m := all[int(which)%len(all)]
		v, err := m.decode(b)
		if err != nil {
			if !errors.Is(err, ErrMessage) {
				t.Fatalf("%s: untyped error %v", m.name, err)
			}
			return
		}
		b2, err := m.again(v)
		if err != nil {
			t.Fatalf("%s: decoded, cannot be encoded: %v", m.name, err)
		}
		v2, err := m.decode(b2)
		if err != nil {
			t.Fatalf("%s: %v", m.name, err)
		}
		b3, err := m.again(v2)
		if err != nil || !bytes.Equal(b2, b3) {
			t.Fatalf("%s: %x then %x, %v", m.name, b2, b3, err)
		}
	})
}

// The wire is msgpack as others write and read it. Method: what the codecs write is
// byte for byte what the library writes, and what they read of it is what it reads.
func TestCodecIsMsgpack(t *testing.T) {
	for _, m := range append(testers(),
		testerOf(pongs, Pong{Epoch: 31, Attempts: -32}), testerOf(pongs, Pong{Epoch: 1 << 7, Attempts: -33}),
		testerOf(pongs, Pong{Epoch: 1 << 8, Attempts: -129}), testerOf(pongs, Pong{Epoch: 1 << 16, Attempts: math.MinInt16 - 1}),
		testerOf(pongs, Pong{Epoch: 1 << 32, Attempts: math.MinInt32 - 1}), testerOf(pongs, Pong{Epoch: 1<<8 - 1, Attempts: math.MaxInt16}),
		testerOf(envelopes, envelope{From: strings.Repeat("x", 31), Body: make([]byte, 255)}),
		testerOf(envelopes, envelope{From: strings.Repeat("x", 32), Body: make([]byte, 256)}),
		testerOf(envelopes, envelope{From: strings.Repeat("x", 256), Body: make([]byte, 1<<16)}),
		testerOf(jobs, Job{Prompt: make([]int32, 15), Deadline: time.Unix(0, 0)}), testerOf(jobs, Job{Prompt: make([]int32, 16), Deadline: time.Unix(1<<32-1, 0)}),
		testerOf(jobs, Job{Prompt: make([]int32, 1<<16), Deadline: time.Unix(1<<32, 0)}), testerOf(jobs, Job{Prompt: []int32{}, Deadline: time.Unix(1<<34-1, 999999999)}),
	) {
		mine, err := m.encode()
		if err != nil {
			t.Fatalf("%s: %v", m.name, err)
		}
		var theirs bytes.Buffer
		e := msgpack.NewEncoder(&theirs)
		e.UseCompactInts(true)
		if err := e.Encode(m.sample); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(mine, theirs.Bytes()) {
			t.Errorf("%s: %x, the library writes %x", m.name, mine, theirs.Bytes())
		}
		got, err := m.decode(mine)
		if err != nil {
			t.Fatalf("%s: %v", m.name, err)
		}
		want := reflect.New(reflect.TypeOf(m.sample))
		if err := msgpack.Unmarshal(mine, want.Interface()); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want.Elem().Interface(), got); d != "" {
			t.Errorf("%s: %s", m.name, d)
		}
	}
}
