package tenant

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"aidanwoods.dev/go-paseto"

	"bulkhead/internal/negative"
)

const cluster = "test/ACCOUNT"

var (
	routerKey = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32))
	now       = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
)

func keyOf(router string) (ed25519.PublicKey, error) {
	if router == "r0" {
		return routerKey.Public().(ed25519.PublicKey), nil
	}
	return nil, errors.New("never announced")
}

func h32(b byte) (h [32]byte) {
	for i := range h {
		h[i] = b + byte(i)
	}
	return h
}

func sample() Claims {
	return Claims{
		Tenant: "t-1", Request: [16]byte{1, 2, 3}, Child: 1, Attempt: 2,
		Model: h32(1), PromptLen: 130, PromptDigest: h32(2), BlockTokens: BlockTokens, Blocks: 3, MaxNew: 100,
		Prefill: "p0", Decode: "d0", DecodeEpoch: 0xfedcba9876543210,
		ReplyBinding: h32(3), PrefixScope: h32(4),
		IssuedAt: now, NotBefore: now, Expires: now.Add(60 * time.Second), Router: "r0",
	}
}

// signJSON signs any claims text as the router would, however wrong it is.
func signJSON(t testing.TB, body, router string) string {
	t.Helper()
	pae := pae([]byte("v4.public."), []byte(body), []byte(router), []byte(assertion+cluster))
	sig := ed25519.Sign(routerKey, pae)
	return tokenPrefix + b64.EncodeToString(append([]byte(body), sig...)) + "." + b64.EncodeToString([]byte(router))
}

// pae is PASETO's pre-authentication encoding, written again from its
// specification so that the tests can sign what the library would not.
func pae(parts ...[]byte) []byte {
	le := func(n int) []byte { return []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24), 0, 0, 0, 0} }
	out := le(len(parts))
	for _, p := range parts {
		out = append(append(out, le(len(p))...), p...)
	}
	return out
}

// object writes members in the order given.
func object(members map[string]string, order []string) string {
	var parts []string
	for _, name := range order {
		parts = append(parts, fmt.Sprintf("%q:%s", name, members[name]))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// sampleMembers returns the sample's claims as JSON texts, and their order.
func sampleMembers(t testing.TB) (map[string]string, []string) {
	t.Helper()
	c := sample()
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(appendClaims(nil, &c), &raw); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for name, v := range raw {
		out[name] = string(v)
	}
	return out, slices.Sorted(maps.Keys(out))
}

func TestTokenRoundTrip(t *testing.T) {
	c := sample()
	c.IssuedAt = c.IssuedAt.Add(300 * time.Millisecond) // is cut
	token, err := Sign(c, routerKey, cluster)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Verify(token, keyOf, cluster, now)
	if err != nil || got != sample() {
		t.Fatalf("Verify: %+v, %v", got, err)
	}
	// The test's own signer agrees with the library's.
	members, order := sampleMembers(t)
	if own := signJSON(t, object(members, order), "r0"); own != token {
		t.Errorf("signJSON makes another token:\n%s\n%s", own, token)
	}
	// The longest of everything fits.
	c.Tenant = strings.Repeat("t", MaxTenantID)
	c.Prefill, c.Decode, c.Router = strings.Repeat("p", 32), strings.Repeat("d", 32), strings.Repeat("r", 32)
	c.PromptLen, c.Blocks, c.MaxNew, c.Child, c.Attempt = MaxTokens, Blocks(MaxTokens), MaxTokens, 65535, 65535
	token, err = Sign(c, routerKey, cluster)
	if err != nil || len(token) > MaxToken/2 {
		t.Errorf("the longest token has %d bytes: %v", len(token), err)
	}
}

// TestTokenVector fixes the bytes of a token.
func TestTokenVector(t *testing.T) {
	token, err := Sign(sample(), routerKey, cluster)
	if err != nil {
		t.Fatal(err)
	}
	const want = "testdata/token.txt"
	golden(t, want, []byte(token+"\n"+hex.EncodeToString(hashOf(token))+"\n"+Fingerprint(HashToken(token))+"\n"))
}

func hashOf(token string) []byte { h := HashToken(token); return h[:] }

// TestEveryClaim leaves out, doubles, oversizes and mistypes each claim, adds
// unknown ones, and sets each out of its bounds. Every kind has its own error.
func TestEveryClaim(t *testing.T) {
	members, order := sampleMembers(t)
	expect := func(name, body string, want error) {
		t.Helper()
		_, err := Verify(signJSON(t, body, "r0"), keyOf, cluster, now)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
		for _, other := range []error{ErrClaimsJSON, ErrClaimUnknown, ErrClaimDuplicate, ErrClaimMissing, ErrClaimType, ErrClaimSize, ErrClaimValue, ErrSignature, ErrExpired, ErrNotBefore, ErrIssued, ErrLifetime} {
			if other != want && errors.Is(err, other) {
				t.Errorf("%s: %v is also %v", name, err, other)
			}
		}
	}
	with := func(name, value string) string {
		m := maps.Clone(members)
		m[name] = value
		return object(m, order)
	}
	if _, err := Verify(signJSON(t, object(members, order), "r0"), keyOf, cluster, now); err != nil {
		t.Fatal(err) // else the refusals below would show nothing
	}
	slices.Reverse(order) // the order does not matter
	if _, err := Verify(signJSON(t, object(members, order), "r0"), keyOf, cluster, now); err != nil {
		t.Fatal(err)
	}
	if len(members) != 19 {
		t.Errorf("%d members, the package comment lists 19", len(members))
	}

	for i, m := range order {
		expect("missing "+m, object(members, slices.Delete(slices.Clone(order), i, i+1)), ErrClaimMissing)
		expect("duplicate "+m, object(members, append(slices.Clone(order), m)), ErrClaimDuplicate)
		expect("upper case "+m, object(map[string]string{strings.ToUpper(m): "1"}, []string{strings.ToUpper(m)}), ErrClaimUnknown)
		for _, v := range []string{"null", "true", "[]", "{}", `["a"]`} {
			expect(v+" for "+m, with(m, v), ErrClaimType)
		}
		if members[m][0] == '"' {
			expect("number for "+m, with(m, "1"), ErrClaimType)
			expect("oversized "+m, with(m, `"`+strings.Repeat("a", 65)+`"`), ErrClaimSize)
			expect("empty "+m, with(m, `""`), ErrClaimValue)
			expect("one character over in "+m, with(m, `"`+strings.Repeat("a", sizeOf(m)+1)+`"`), ErrClaimSize)
		} else {
			expect("string for "+m, with(m, `"1"`), ErrClaimType)
			expect("fraction for "+m, with(m, "1.5"), ErrClaimType)
			expect("exponent for "+m, with(m, "1e2"), ErrClaimType)
			expect("negative "+m, with(m, "-1"), ErrClaimValue)
			expect("oversized "+m, with(m, "16777217"), ErrClaimValue)
			expect("huge "+m, with(m, strings.Repeat("9", 40)), ErrClaimValue)
		}
	}
	expect("unknown member", object(map[string]string{"x": "1"}, []string{"x"}), ErrClaimUnknown)
	expect("unknown member at the end", strings.TrimSuffix(object(members, order), "}")+`,"kv_transfer_params":1}`, ErrClaimUnknown)
	expect("data after", object(members, order)+" {}", ErrSignature) // the library's parser refuses it
	for name, v := range map[string][2]string{
		"version 0": {"v", "0"}, "version 2": {"v", "2"},
		"attempt 0": {"att", "0"}, "no prompt": {"len", "0"}, "no output": {"max", "0"},
		"block of 16": {"btk", "16"}, "a block less": {"blk", "2"}, "a block more": {"blk", "4"}, "length of 4 blocks": {"len", "193"},
		"tenant with a dot": {"ten", `"a.b"`}, "prefill wildcard": {"pre", `"*"`}, "decode subject": {"dec", `"a.>"`},
		"escaped NUL": {"dec", `"\u0000"`}, "bad UTF-8": {"dec", "\"\xff\""},
		"upper-case hex": {"mdl", `"` + strings.Repeat("AB", 32) + `"`}, "short hex": {"mdl", `"abcd"`}, "no hex": {"rid", `"` + strings.Repeat("zz", 16) + `"`},
		"epoch in capitals": {"dep", `"FEDCBA9876543210"`}, "short epoch": {"dep", `"1"`}, "epoch with a sign": {"dep", `"+edcba9876543210"`},
		"time with an offset": {"iat", `"2026-11-30T12:00+00"`}, "date alone": {"iat", `"2026-11-30"`}, "no such day": {"exp", `"2026-02-30T12:00:00Z"`},
		"nbf before iat": {"nbf", `"2026-11-30T11:59:59Z"`}, "nbf at exp": {"nbf", `"2026-11-30T12:01:00Z"`}, "exp before iat": {"exp", `"2026-11-30T11:59:00Z"`},
	} {
		expect(name, with(v[0], v[1]), ErrClaimValue)
	}
	expect("121 seconds", with("exp", `"2026-11-30T12:02:01Z"`), ErrLifetime)
	if _, err := Verify(signJSON(t, with("exp", `"2026-11-30T12:02:00Z"`), "r0"), keyOf, cluster, now); err != nil {
		t.Errorf("120 seconds: %v", err)
	}
}

func sizeOf(name string) int { return members[memberIndex(name)].size }

// TestClaimsJSON gives the decoder what PASETO's own parser would stop before.
func TestClaimsJSON(t *testing.T) {
	members, order := sampleMembers(t)
	good := object(members, order)
	if _, err := decodeClaims([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "null", "[]", `"x"`, "{", good[:len(good)-1], good + "x", good + good, `{"v"}`, `{"v":}`, `{v:1}`, `{"v":1,}`, strings.Repeat("[", 4000)} {
		if _, err := decodeClaims([]byte(bad)); !errors.Is(err, ErrClaimsJSON) {
			t.Errorf("%.30q: %v, want ErrClaimsJSON", bad, err)
		}
	}
}

func TestTokenTimes(t *testing.T) {
	c := sample()
	c.NotBefore = now.Add(30 * time.Second)
	token, err := Sign(c, routerKey, cluster)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		at   time.Duration // from iat
		want error
	}{
		{-time.Hour, ErrIssued},
		{-5*time.Second - 1, ErrIssued},
		{-5 * time.Second, ErrNotBefore},
		{25*time.Second - 1, ErrNotBefore},
		{25 * time.Second, nil},
		{60 * time.Second, nil},
		{65*time.Second - 1, nil},
		{65 * time.Second, ErrExpired},
		{time.Hour, ErrExpired},
	} {
		_, err := Verify(token, keyOf, cluster, now.Add(tt.at))
		if !errors.Is(err, tt.want) {
			t.Errorf("%s after iat: %v, want %v", tt.at, err, tt.want)
		}
		if err != nil && !strings.Contains(err.Error(), stamp(now.Add(tt.at))) {
			t.Errorf("%v does not name the node's time", err)
		}
	}
}

// TestTokenForm: no changed byte verifies, and neither does another router,
// cluster, key or footer.
func TestTokenForm(t *testing.T) {
	token, err := Sign(sample(), routerKey, cluster)
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(token) {
		for _, c := range []byte{token[i] ^ 1, token[i] ^ 0x20, '.', '\n', 0} {
			if c == token[i] {
				continue
			}
			bad := token[:i] + string(c) + token[i+1:]
			if _, err := Verify(bad, keyOf, cluster, now); err == nil {
				t.Fatalf("byte %d set to %q verifies", i, c)
			}
		}
		if _, err := Verify(token[:i], keyOf, cluster, now); err == nil {
			t.Fatalf("cut to %d bytes verifies", i)
		}
	}
	parts := strings.Split(token, ".")
	foot := func(s string) string { return b64.EncodeToString([]byte(s)) }
	join := func(p ...string) string { return strings.Join(p, ".") }
	for name, bad := range map[string]struct {
		token string
		want  error
	}{
		"nothing":             {"", ErrTokenFormat},
		"no footer":           {join(parts[0], parts[1], parts[2]), ErrTokenFormat},
		"a fifth part":        {token + ".AA", ErrTokenFormat},
		"v4.local":            {join("v4", "local", parts[2], parts[3]), ErrTokenFormat},
		"v3.public":           {join("v3", "public", parts[2], parts[3]), ErrTokenFormat},
		"signature alone":     {join("v4", "public", b64.EncodeToString(make([]byte, 64)), parts[3]), ErrTokenFormat},
		"bad router name":     {join("v4", "public", parts[2], foot("r.0")), ErrTokenFormat},
		"padding":             {token + "=", ErrTokenFormat},
		"line break":          {join("v4", "public", parts[2]+"\n", parts[3]), ErrTokenFormat},
		"too long":            {token + strings.Repeat("A", MaxToken), ErrTokenSize},
		"unknown router":      {join("v4", "public", parts[2], foot("r1")), ErrRouter},
		"not JSON":            {signJSON(t, "hello", "r0"), ErrSignature},
		"another router's":    {signJSON(t, "{}", "r9"), ErrRouter},
		"claims of no member": {signJSON(t, "{}", "r0"), ErrClaimMissing},
	} {
		if _, err := Verify(bad.token, keyOf, cluster, now); !errors.Is(err, bad.want) {
			t.Errorf("%s: %v, want %v", name, err, bad.want)
		}
	}
	if _, err := Verify(token, keyOf, cluster+"x", now); err != ErrSignature {
		t.Errorf("in another cluster: %v", err)
	}
	other := func(string) (ed25519.PublicKey, error) {
		return ed25519.NewKeyFromSeed(make([]byte, 32)).Public().(ed25519.PublicKey), nil
	}
	if _, err := Verify(token, other, cluster, now); err != ErrSignature {
		t.Errorf("under another key: %v", err)
	}
	short := func(string) (ed25519.PublicKey, error) { return make([]byte, 31), nil }
	if _, err := Verify(token, short, cluster, now); !errors.Is(err, ErrRouter) {
		t.Errorf("with a key of 31 bytes: %v", err)
	}
	// The name in the footer is signed too: under the same key, another name
	// does not pass.
	same := func(string) (ed25519.PublicKey, error) { return keyOf("r0") }
	if _, err := Verify(join("v4", "public", parts[2], foot("r1")), same, cluster, now); err != ErrSignature {
		t.Errorf("with another footer: %v", err)
	}
	// Without an implicit assertion it is no token of ours.
	k, err := paseto.NewV4AsymmetricSecretKeyFromEd25519(routerKey)
	if err != nil {
		t.Fatal(err)
	}
	members, order := sampleMembers(t)
	plain, err := paseto.NewTokenFromClaimsJSON([]byte(object(members, order)), []byte("r0"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(plain.V4Sign(k, nil), keyOf, cluster, now); err != ErrSignature {
		t.Errorf("without an assertion: %v", err)
	}
}

// TestSignRefuses: the router cannot sign what nodes would refuse.
func TestSignRefuses(t *testing.T) {
	for name, change := range map[string]func(c *Claims){
		"tenant": func(c *Claims) { c.Tenant = "" }, "attempt": func(c *Claims) { c.Attempt = 0 },
		"prompt": func(c *Claims) { c.PromptLen = MaxTokens + 1 }, "blocks": func(c *Claims) { c.Blocks++ },
		"block tokens": func(c *Claims) { c.BlockTokens = 16 }, "max": func(c *Claims) { c.MaxNew = -1 },
		"prefill": func(c *Claims) { c.Prefill = "a b" }, "decode": func(c *Claims) { c.Decode = strings.Repeat("d", 33) },
		"router": func(c *Claims) { c.Router = "" }, "no times": func(c *Claims) { c.Expires = time.Time{} },
	} {
		c := sample()
		change(&c)
		if token, err := Sign(c, routerKey, cluster); !errors.Is(err, ErrClaimValue) || token != "" {
			t.Errorf("%s: %v, want ErrClaimValue", name, err)
		}
	}
	c := sample()
	c.Expires = now.Add(MaxLifetime + time.Second)
	if _, err := Sign(c, routerKey, cluster); !errors.Is(err, ErrLifetime) {
		t.Errorf("lifetime: %v", err)
	}
	if _, err := Sign(sample(), routerKey[:63], cluster); err == nil {
		t.Error("signed with a short key")
	}
}

func TestCheck(t *testing.T) {
	c := sample()
	decode := Expect{Role: "decode", Node: "d0", Epoch: c.DecodeEpoch, Model: c.Model, PromptLen: c.PromptLen,
		PromptDigest: c.PromptDigest, MaxNew: c.MaxNew, ReplyBinding: c.ReplyBinding}
	prefill := decode
	prefill.Role, prefill.Node, prefill.Epoch = "prefill", "p0", 5 // its epoch is not in the token
	for _, e := range []Expect{decode, prefill} {
		if err := c.Check(e); err != nil {
			t.Errorf("%s: %v", e.Role, err)
		}
		for name, bad := range map[string]struct {
			change func(e *Expect)
			want   error
		}{
			"node":       {func(e *Expect) { e.Node = "x0" }, ErrAudience},
			"role":       {func(e *Expect) { e.Role = "router" }, ErrAudience},
			"other role": {func(e *Expect) { e.Role = map[string]string{"decode": "prefill", "prefill": "decode"}[e.Role] }, ErrAudience},
			"model":      {func(e *Expect) { e.Model[0]++ }, ErrModel},
			"length":     {func(e *Expect) { e.PromptLen++ }, ErrPromptLen},
			"digest":     {func(e *Expect) { e.PromptDigest[31]++ }, ErrPromptDigest},
			"max":        {func(e *Expect) { e.MaxNew++ }, ErrMaxNew},
			"reply":      {func(e *Expect) { e.ReplyBinding[0]++ }, ErrReply},
		} {
			e := e
			bad.change(&e)
			if err := c.Check(e); !errors.Is(err, bad.want) {
				t.Errorf("%s, %s: %v, want %v", e.Role, name, err, bad.want)
			}
		}
	}
	decode.Epoch++
	if err := c.Check(decode); !errors.Is(err, ErrEpoch) {
		t.Errorf("epoch: %v", err)
	}
}

func FuzzToken(f *testing.F) {
	token, err := Sign(sample(), routerKey, cluster)
	if err != nil {
		f.Fatal(err)
	}
	members, order := sampleMembers(f)
	f.Add(token, object(members, order))
	f.Add("v4.public.AAAA.cjA", `{"v":1,"v":1}`)
	f.Add("", "")
	negative.Seeds(f, "testdata/negative", func(what string, data []byte) {
		if what == "token" {
			body, _, _, _ := split(string(data)) // empty where there is none
			f.Add(string(data), string(body))
		}
	})
	f.Fuzz(func(t *testing.T, tok, body string) {
		// Nobody but the router makes a token.
		if c, err := Verify(tok, keyOf, cluster, now); err == nil && c != sample() {
			t.Fatal("a token that was not signed verifies")
		}
		// Whatever a router signs, what verifies can be signed again, and means
		// the same.
		if len(body) > 2000 {
			return
		}
		sameClaims(t, body)
		c, err := Verify(signJSON(t, body, "r0"), keyOf, cluster, now)
		if err != nil {
			return
		}
		again, err := Sign(c, routerKey, cluster)
		if err != nil {
			t.Fatal(err)
		}
		if c2, err := Verify(again, keyOf, cluster, now); err != nil || c2 != c {
			t.Fatalf("%+v, then %+v, %v", c, c2, err)
		}
	})
}

// sameClaims holds the reader of the one written form against the reader of all.
func sameClaims(t *testing.T, body string) {
	c, ok := decodeWritten([]byte(body))
	if !ok {
		return
	}
	if all, err := decodeObject([]byte(body)); err != nil || all != c {
		t.Fatalf("%q: %+v in its written form, else %+v, %v", body, c, all, err)
	}
	c.Router = "r0"
	if c.validate() == nil && string(appendClaims(nil, &c)) != body {
		t.Fatalf("%q is not the form that is written", body)
	}
}

// The written form is what is read without a JSON parser, and any one byte of it
// changed is read as the parser reads it, or not at all.
func TestClaimsWrittenForm(t *testing.T) {
	c := sample()
	body := appendClaims(nil, &c)
	if got, ok := decodeWritten(body); !ok {
		t.Fatalf("%s is not read", body)
	} else if got.Router = c.Router; got != c {
		t.Fatalf("%+v, want %+v", got, c)
	}
	for i := range body {
		for _, b := range []byte("0a9A\"\\ ,:{}\x00\xff-.e") {
			bad := bytes.Clone(body)
			bad[i] = b
			sameClaims(t, string(bad))
		}
		sameClaims(t, string(slices.Delete(bytes.Clone(body), i, i+1)))
		sameClaims(t, string(slices.Insert(bytes.Clone(body), i, body[i])))
	}
	for form, want := range map[string]bool{
		"2026-02-28T23:59:59Z": true, "2024-02-29T00:00:00Z": true, "0000-01-01T00:00:00Z": true, "9999-12-31T23:59:59Z": true,
		"2026-02-29T00:00:00Z": false, "2026-00-01T00:00:00Z": false, "2026-01-00T00:00:00Z": false, "2026-13-01T00:00:00Z": false,
		"2026-01-01T24:00:00Z": false, "2026-01-01T00:60:00Z": false, "2026-01-01T00:00:60Z": false, "2026-01-01 00:00:00Z": false,
		"2026-01-01T00:00:0Z": false, "+026-01-01T00:00:00Z": false, "2026-01-01T00:00:00z": false, "": false,
	} {
		got, ok := parseTime([]byte(form))
		theirs, err := time.Parse(timeForm, form)
		if ok != want || ok && !got.Equal(theirs) || ok != (err == nil && theirs.Format(timeForm) == form) {
			t.Errorf("%q: %s, %t; the library: %s, %v", form, got, ok, theirs, err)
		}
	}
}
