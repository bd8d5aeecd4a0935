package tenant

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/negative"
)

// negativeClasses are the errors that a token or a tenants file may end in. The
// order is from outside to inside: an error has the first class that it matches.
var negativeClasses = []struct {
	name string
	err  error
}{
	{"file", ErrFile},
	{"token size", ErrTokenSize}, {"token format", ErrTokenFormat}, {"router", ErrRouter}, {"signature", ErrSignature},
	{"claims json", ErrClaimsJSON}, {"claim unknown", ErrClaimUnknown}, {"claim duplicate", ErrClaimDuplicate}, {"claim missing", ErrClaimMissing},
	{"claim type", ErrClaimType}, {"claim size", ErrClaimSize}, {"claim value", ErrClaimValue},
	{"expired", ErrExpired}, {"not before", ErrNotBefore}, {"issued", ErrIssued}, {"lifetime", ErrLifetime},
	{"audience", ErrAudience}, {"epoch", ErrEpoch}, {"model", ErrModel}, {"prompt length", ErrPromptLen}, {"prompt digest", ErrPromptDigest},
	{"max new", ErrMaxNew}, {"reply", ErrReply},
}

// TestNegativeVectors: tokens and tenants files that must be refused, each for
// its own reason. The token's key is the tests' own, so that vectors may be signed.
func TestNegativeVectors(t *testing.T) {
	good, err := Sign(sample(), routerKey, cluster)
	if err != nil {
		t.Fatal(err)
	}
	verify := func(b []byte) (Claims, error) { return Verify(string(b), keyOf, cluster, now) }
	expect := func(role, node string) Expect {
		c := sample()
		return Expect{Role: role, Node: node, Epoch: c.DecodeEpoch, Model: c.Model, PromptLen: c.PromptLen, PromptDigest: c.PromptDigest, MaxNew: c.MaxNew, ReplyBinding: c.ReplyBinding}
	}
	s := negative.Set{
		Dir: "testdata/negative",
		Decoders: map[string]negative.Decoder{
			"token": {Honest: []byte(good), Decode: func(b []byte) error { _, err := verify(b); return err }},
			// The grant is a good token, seen by both of its nodes.
			"grant": {Honest: []byte(good), Decode: func(b []byte) error {
				c, err := verify(b)
				if err != nil {
					return fmt.Errorf("a vector of a grant must be a good token: %v", err)
				}
				return errors.Join(c.Check(expect("prefill", "p0")), c.Check(expect("decode", "d0")))
			}},
			"tenants": {Honest: []byte(goodFile), Decode: func(b []byte) error { _, err := Parse(b); return err }},
		},
		Classify: func(err error) string {
			for _, c := range negativeClasses {
				if errors.Is(err, c.err) {
					return c.name
				}
			}
			return ""
		},
	}
	for _, c := range negativeClasses {
		s.Classes = append(s.Classes, c.name)
	}
	add := func(what, name, expect, says string, data []byte) {
		s.Made = append(s.Made, negative.Vector{
			Name: what + "-" + strings.ToLower(strings.NewReplacer(" ", "-", ",", "").Replace(name)), What: what, Expect: expect, Says: says, Comment: name, Data: data,
		})
	}
	token := func(name, expect, token string) { add("token", name, expect, "", []byte(token)) }
	outerTokens(good, token)
	members, order := sampleMembers(t)
	claims := func(name, expect, body string) { token(name, expect, signJSON(t, body, "r0")) }
	jsonTokens(object(members, order), claims)
	for _, m := range claimNames() {
		memberTokens(m, members, order, claims)
	}
	valueTokens(members, order, claims)

	grant := func(name, expect string, f func(*Claims)) {
		c := sample()
		f(&c)
		tok, err := Sign(c, routerKey, cluster)
		if err != nil {
			t.Fatal(err)
		}
		add("grant", name, expect, "", []byte(tok))
	}
	grant("to another prefill node", "audience", func(c *Claims) { c.Prefill = "p1" })
	grant("to another decode node", "audience", func(c *Claims) { c.Decode = "d1" })
	grant("with the nodes swapped", "audience", func(c *Claims) { c.Prefill, c.Decode = c.Decode, c.Prefill })
	grant("to the boot before", "epoch", func(c *Claims) { c.DecodeEpoch-- })
	grant("to no boot", "epoch", func(c *Claims) { c.DecodeEpoch = 0 })
	grant("of another model", "model", func(c *Claims) { c.Model[31]++ })
	grant("of a prompt one token longer", "prompt length", func(c *Claims) { c.PromptLen++ })
	grant("of a one token placeholder", "prompt length", func(c *Claims) { c.PromptLen, c.Blocks = 1, 1 })
	grant("of another prompt", "prompt digest", func(c *Claims) { c.PromptDigest[0]++ })
	grant("of more new tokens", "max new", func(c *Claims) { c.MaxNew++ })
	grant("of fewer new tokens", "max new", func(c *Claims) { c.MaxNew-- })
	grant("of another reply", "reply", func(c *Claims) { c.ReplyBinding[5]++ })

	for _, f := range badFiles() {
		add("tenants", f.name, "file", f.says, []byte(f.body))
	}
	negative.Run(t, s, 150)
}

// claimNames are the names of all claims, in order.
func claimNames() []string {
	var names []string
	for _, m := range members {
		names = append(names, m.name)
	}
	slices.Sort(names)
	return names
}

// outerTokens are wrong before a claim is read.
func outerTokens(good string, add func(name, expect, token string)) {
	rest := strings.TrimPrefix(good, tokenPrefix)
	payload, footer, _ := strings.Cut(rest, ".")
	add("empty", "token format", "")
	add("of another version", "token format", "v3.public."+rest)
	add("of another purpose", "token format", "v4.local."+rest)
	add("prefix in capitals", "token format", "V4.PUBLIC."+rest)
	add("prefix alone", "token format", tokenPrefix)
	add("without footer", "token format", tokenPrefix+payload)
	add("with an empty footer", "token format", tokenPrefix+payload+".")
	add("with a third part", "token format", good+"."+footer)
	add("with a space before", "token format", " "+good)
	add("with a line break after", "token format", good+"\n")
	add("with a line break inside", "token format", tokenPrefix+payload[:10]+"\r\n"+payload[10:]+"."+footer)
	add("padded", "token format", tokenPrefix+payload+"=."+footer)
	add("in standard base64", "token format", tokenPrefix+"+/"+payload[2:]+"."+footer)
	add("with spare bits set", "token format", tokenPrefix+payload+".cjB")
	add("shorter than a signature", "token format", tokenPrefix+b64.EncodeToString(make([]byte, signatureSize))+"."+footer)
	add("footer outside the grammar of names", "token format", tokenPrefix+payload+"."+b64.EncodeToString([]byte("r.0")))
	add("footer over the length of names", "token format", tokenPrefix+payload+"."+b64.EncodeToString([]byte(strings.Repeat("r", MaxNodeName+1))))
	add("a JWT", "token format", "eyJhbGciOiJub25lIn0.eyJ0ZW4iOiJ0LTEifQ.")
	add("over its size", "token size", tokenPrefix+strings.Repeat("A", MaxToken))
	add("of a router nobody knows", "router", tokenPrefix+payload+"."+b64.EncodeToString([]byte("r1")))

	raw, _ := b64.DecodeString(payload)
	flip := func(i int) string {
		b := slices.Clone(raw)
		b[i] ^= 1
		return tokenPrefix + b64.EncodeToString(b) + "." + footer
	}
	add("first byte flipped", "signature", flip(0))
	add("last claim byte flipped", "signature", flip(len(raw)-signatureSize-1))
	add("first byte of the signature flipped", "signature", flip(len(raw)-signatureSize))
	add("last byte of the signature flipped", "signature", flip(len(raw)-1))
	add("signature of zeros", "signature", tokenPrefix+b64.EncodeToString(append(slices.Clone(raw[:len(raw)-signatureSize]), make([]byte, signatureSize)...))+"."+footer)
	other, _ := Sign(sample(), routerKey, "other/ACCOUNT")
	add("for another cluster", "signature", other)
	foreign, _ := Sign(sample(), ed25519.NewKeyFromSeed(make([]byte, 32)), cluster)
	add("by another key", "signature", foreign)
}

// jsonTokens are signed, and are no flat object of claims. Where the PASETO
// library cannot read the JSON itself, it says no more than of a bad signature.
func jsonTokens(good string, add func(name, expect, body string)) {
	add("json null", "claims json", "null")
	add("json array", "signature", "["+good+"]")
	add("json string", "signature", `"{}"`)
	add("json cut", "signature", good[:len(good)-1])
	add("json twice", "signature", good+good)
	add("json with data after it", "signature", good+"x")
	add("json with a trailing comma", "signature", good[:len(good)-1]+",}")
	add("json without an object", "signature", " ")
	add("no claims", "claim missing", "{}")
	add("one claim too many", "claim unknown", good[:len(good)-1]+`,"adm":true}`)
	add("claim in capitals", "claim unknown", strings.Replace(good, `"ten"`, `"TEN"`, 1))
	add("claim of no name", "claim unknown", `{"":1,`+good[1:])
	add("claim doubled by an escape", "claim duplicate", good[:len(good)-1]+`,"t\u0065n":"t-2"}`)
}

// memberTokens leave out, double and mistype one claim.
func memberTokens(m string, members map[string]string, order []string, add func(name, expect, body string)) {
	with := func(v string) string {
		c := maps.Clone(members)
		c[m] = v
		return object(c, order)
	}
	without := slices.DeleteFunc(slices.Clone(order), func(o string) bool { return o == m })
	add(m+" missing", "claim missing", object(members, without))
	add(m+" twice", "claim duplicate", object(members, append(slices.Clone(order), m)))
	add(m+" null", "claim type", with("null"))
	if strings.HasPrefix(members[m], `"`) {
		add(m+" a number", "claim type", with("1"))
		add(m+" too long", "claim size", with(`"`+strings.Repeat("a", 80)+`"`))
		add(m+" empty", "claim value", with(`""`))
		return
	}
	add(m+" a string", "claim type", with(`"1"`))
	add(m+" a fraction", "claim type", with("1.0"))
	add(m+" negative", "claim value", with("-1"))
	add(m+" over 64 bits", "claim value", with("18446744073709551616"))
}

// valueTokens are of the right form, with values out of bounds.
func valueTokens(members map[string]string, order []string, add func(name, expect, body string)) {
	with := func(pairs ...string) string {
		c := maps.Clone(members)
		for i := 0; i < len(pairs); i += 2 {
			c[pairs[i]] = pairs[i+1]
		}
		return object(c, order)
	}
	at := func(d time.Duration) string { return now.Add(d).Format(`"2006-01-02T15:04:05Z"`) }
	add("version 2", "claim value", with("v", "2"))
	add("version 0", "claim value", with("v", "0"))
	add("attempt 0", "claim value", with("att", "0"))
	add("attempt over 16 bits", "claim value", with("att", "65536"))
	add("prompt of no tokens", "claim value", with("len", "0", "blk", "0"))
	add("prompt over the bound", "claim value", with("len", fmt.Sprint(MaxTokens+1)))
	add("blocks one short", "claim value", with("blk", "2"))
	add("blocks one over", "claim value", with("blk", "4"))
	add("block of another size", "claim value", with("btk", "32"))
	add("no new tokens", "claim value", with("max", "0"))
	add("request in capitals", "claim value", with("rid", `"`+strings.Repeat("AB", 16)+`"`))
	add("request one digit short", "claim value", with("rid", `"`+strings.Repeat("a", 31)+`"`))
	add("epoch with a sign", "claim value", with("dep", `"+edcba9876543210"`))
	add("prefill outside the grammar", "claim value", with("pre", `"p.0"`))
	add("decode a wildcard", "claim value", with("dec", `"*"`))
	add("tenant with a line break", "claim value", with("ten", `"a\nb"`))
	add("time with an offset", "claim size", with("iat", `"2026-11-30T12:00:00+00:00"`))
	add("time without seconds", "claim value", with("iat", `"2026-11-30T12:00Z"`))
	add("time that is no date", "claim value", with("iat", `"2026-02-30T12:00:00Z"`))
	add("not before issued", "claim value", with("nbf", at(-time.Second)))
	add("ends before it begins", "claim value", with("exp", at(-time.Second)))
	add("ends as it begins", "claim value", with("exp", at(0)))
	add("lives too long", "lifetime", with("exp", at(MaxLifetime+time.Second)))
	add("expired", "expired", with("iat", at(-time.Minute), "nbf", at(-time.Minute), "exp", at(-MaxSkew)))
	add("issued in the future", "issued", with("iat", at(MaxSkew+time.Second), "nbf", at(MaxSkew+time.Second), "exp", at(time.Minute)))
	add("not valid yet", "not before", with("nbf", at(MaxSkew+time.Second)))
}

var (
	goodEntry = `{"name":"acme","id":"t-1","keys":["` + strings.Repeat("ab", 32) + `"],"scope":"` + strings.Repeat("cd", 32) + `","limits":{"max_concurrent":1}}`
	goodFile  = `{"tenants":[` + goodEntry + `]}`
)

type badFile struct{ name, says, body string }

// badFiles are tenants files.
func badFiles() []badFile {
	entry := func(old, new string) string { return strings.Replace(goodFile, old, new, 1) }
	key, scope := strings.Repeat("ab", 32), strings.Repeat("cd", 32)
	keys, _ := json.Marshal(slices.Repeat([]string{key}, MaxKeysPerTenant+1))
	return []badFile{
		{"empty", "at byte 0", ""},
		{"cut", "not JSON", goodFile[:len(goodFile)-2]},
		{"no object", "", "[]"},
		{"null tenants in text", "", `{"tenants":"x"}`},
		{"data after the value", "data after", goodFile + "{}"},
		{"unknown member", "unknown member", entry(`"name"`, `"admin":true,"name"`)},
		{"member in capitals", "unknown member", entry(`"name"`, `"NAME"`)},
		{"member twice", "twice", entry(`"name":"acme"`, `"name":"acme","name":"beta"`)},
		{"member twice by an escape", "twice", entry(`"name":"acme"`, `"name":"acme","n\u0061me":"beta"`)},
		{"limit twice", "twice", entry(`"max_concurrent":1`, `"max_concurrent":1,"max_concurrent":2`)},
		{"member of another place", "", entry(`"limits":{"max_concurrent":1}`, `"limits":{"scope":"x"}`)},
		{"nested too deep", "too deep", entry(`"limits":{"max_concurrent":1}`, `"limits":{"max_concurrent":[1]}`)},
		{"tenant twice", "entry 1", `{"tenants":[` + goodEntry + `,` + goodEntry + `]}`},
		{"key of two tenants", "entry 1", `{"tenants":[` + goodEntry + `,` + strings.NewReplacer("acme", "beta", "t-1", "t-2").Replace(goodEntry) + `]}`},
		{"no keys", "keys: 1 to", entry(`"`+key+`"`, ``)},
		{"too many keys", "keys: 1 to", entry(`["`+key+`"]`, string(keys))},
		{"key one digit short", "keys[0]", entry(key, key[1:])},
		{"key no hex", "keys[0]", entry(key, strings.Repeat("xy", 32))},
		{"key in the clear", "keys[0]", entry(key, "sk-0123456789")},
		{"no scope", "scope", entry(scope, "")},
		{"scope of zeros", "scope", entry(scope, strings.Repeat("00", 32))},
		{"scope one digit long", "scope", entry(scope, scope+"a")},
		{"no name", "entry 0", entry(`"acme"`, `""`)},
		{"name a number", "", entry(`"acme"`, `7`)},
		{"no id", "entry 0", entry(`"t-1"`, `""`)},
		{"id outside the grammar", "entry 0", entry(`"t-1"`, `"a b"`)},
		{"id too long", "entry 0", entry(`"t-1"`, `"`+strings.Repeat("i", MaxTenantID+1)+`"`)},
		{"negative limit", "entry 0", entry(`"max_concurrent":1`, `"max_concurrent":-1`)},
		{"limit a fraction", "", entry(`"max_concurrent":1`, `"max_concurrent":1.5`)},
		{"limit over 64 bits", "", entry(`"max_concurrent":1`, `"max_concurrent":18446744073709551616`)},
		{"binary", "not JSON", "\x00\x01"},
	}
}
