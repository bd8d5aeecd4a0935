package tenant

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// tokenVersion is the value of the member "v".
const tokenVersion = 1

// member is one claim's place in the JSON object: how to write it and how to
// read it back. Exactly one of num and str is set.
type member struct {
	name string
	num  func(c *Claims) (value int64, set func(int64)) // with its bound
	max  int64                                          // of num
	str  func(c *Claims) (value string, set func(string) error)
	size int // longest str, in bytes
}

// members lists every claim once. Encoder, decoder and the test that leaves
// out, doubles, oversizes and mistypes each of them read the same list.
var members = []member{
	{name: "v", num: func(*Claims) (int64, func(int64)) { return tokenVersion, func(int64) {} }, max: tokenVersion},
	strMember("ten", MaxTenantID, func(c *Claims) *string { return &c.Tenant }),
	hexMember("rid", func(c *Claims) []byte { return c.Request[:] }),
	{name: "chd", max: 1<<16 - 1, num: func(c *Claims) (int64, func(int64)) {
		return int64(c.Child), func(v int64) { c.Child = uint16(v) }
	}},
	{name: "att", max: 1<<16 - 1, num: func(c *Claims) (int64, func(int64)) {
		return int64(c.Attempt), func(v int64) { c.Attempt = uint16(v) }
	}},
	hexMember("mdl", func(c *Claims) []byte { return c.Model[:] }),
	intMember("len", MaxTokens, func(c *Claims) *int { return &c.PromptLen }),
	hexMember("dig", func(c *Claims) []byte { return c.PromptDigest[:] }),
	intMember("btk", MaxTokens, func(c *Claims) *int { return &c.BlockTokens }),
	intMember("blk", MaxTokens, func(c *Claims) *int { return &c.Blocks }),
	intMember("max", MaxTokens, func(c *Claims) *int { return &c.MaxNew }),
	strMember("pre", MaxNodeName, func(c *Claims) *string { return &c.Prefill }),
	strMember("dec", MaxNodeName, func(c *Claims) *string { return &c.Decode }),
	{name: "dep", size: 16, str: func(c *Claims) (string, func(string) error) {
		return fmt.Sprintf("%016x", c.DecodeEpoch), func(s string) error {
			v, err := strconv.ParseUint(s, 16, 64)
			if err != nil || len(s) != 16 || s != strings.ToLower(s) {
				return fmt.Errorf("%w: dep is not 16 lower-case hex digits", ErrClaimValue)
			}
			c.DecodeEpoch = v
			return nil
		}
	}},
	hexMember("rep", func(c *Claims) []byte { return c.ReplyBinding[:] }),
	hexMember("pfx", func(c *Claims) []byte { return c.PrefixScope[:] }),
	timeMember("iat", func(c *Claims) *time.Time { return &c.IssuedAt }),
	timeMember("nbf", func(c *Claims) *time.Time { return &c.NotBefore }),
	timeMember("exp", func(c *Claims) *time.Time { return &c.Expires }),
}

func intMember(name string, max int64, at func(*Claims) *int) member {
	return member{name: name, max: max, num: func(c *Claims) (int64, func(int64)) {
		p := at(c)
		return int64(*p), func(v int64) { *p = int(v) }
	}}
}

func strMember(name string, size int, at func(*Claims) *string) member {
	return member{name: name, size: size, str: func(c *Claims) (string, func(string) error) {
		p := at(c)
		return *p, func(s string) error { *p = s; return nil }
	}}
}

func hexMember(name string, at func(*Claims) []byte) member {
	var zero Claims
	n := len(at(&zero))
	return member{name: name, size: 2 * n, str: func(c *Claims) (string, func(string) error) {
		p := at(c)
		return hex.EncodeToString(p), func(s string) error {
			b, err := hex.DecodeString(s)
			if err != nil || len(b) != n || s != strings.ToLower(s) {
				return fmt.Errorf("%w: %s is not %d lower-case hex digits", ErrClaimValue, name, 2*n)
			}
			copy(p, b)
			return nil
		}
	}}
}

func timeMember(name string, at func(*Claims) *time.Time) member {
	const form = "2006-01-02T15:04:05Z"
	return member{name: name, size: len(form), str: func(c *Claims) (string, func(string) error) {
		p := at(c)
		return p.Format(form), func(s string) error {
			t, err := time.Parse(form, s)
			if err != nil || t.Format(form) != s {
				return fmt.Errorf("%w: %s is not a time like %s", ErrClaimValue, name, form)
			}
			*p = t
			return nil
		}
	}}
}

// encode returns the claims for the JSON encoder.
func (c Claims) encode() map[string]any {
	out := make(map[string]any, len(members))
	for _, m := range members {
		if m.num != nil {
			out[m.name], _ = m.num(&c)
		} else {
			out[m.name], _ = m.str(&c)
		}
	}
	return out
}

// decodeClaims reads the flat object in body, whose size the caller bounded.
// Each kind of fault has its own error.
func decodeClaims(body []byte) (Claims, error) {
	var c Claims
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return Claims{}, ErrClaimsJSON
	}
	var seen uint32 // bit i: members[i]
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return Claims{}, ErrClaimsJSON
		}
		i := memberIndex(name)
		if i < 0 {
			return Claims{}, fmt.Errorf("%w: its name has %d bytes", ErrClaimUnknown, len(name))
		}
		if seen&(1<<i) != 0 {
			return Claims{}, fmt.Errorf("%w: %s", ErrClaimDuplicate, name)
		}
		seen |= 1 << i
		if t, err = d.Token(); err != nil {
			return Claims{}, ErrClaimsJSON
		}
		if err := members[i].read(&c, t); err != nil {
			return Claims{}, err
		}
	}
	if _, err := d.Token(); err != nil { // the closing brace
		return Claims{}, ErrClaimsJSON
	}
	if _, err := d.Token(); err != io.EOF {
		return Claims{}, ErrClaimsJSON
	}
	for i, m := range members {
		if seen&(1<<i) == 0 {
			return Claims{}, fmt.Errorf("%w: %s", ErrClaimMissing, m.name)
		}
	}
	return c, nil
}

func memberIndex(name string) int {
	for i, m := range members {
		if m.name == name { // exact: encoding/json alone would ignore case
			return i
		}
	}
	return -1
}

// read sets m in c from one JSON token.
func (m member) read(c *Claims, t json.Token) error {
	if m.num != nil {
		n, ok := t.(json.Number)
		if !ok {
			return fmt.Errorf("%w: %s must be a number", ErrClaimType, m.name)
		}
		if strings.ContainsAny(n.String(), ".eE") {
			return fmt.Errorf("%w: %s must be a whole number in plain digits", ErrClaimType, m.name)
		}
		v, err := n.Int64()
		if err != nil || v < 0 || v > m.max || m.name == "v" && v != tokenVersion {
			return fmt.Errorf("%w: %s is at most %d", ErrClaimValue, m.name, m.max)
		}
		_, set := m.num(c)
		set(v)
		return nil
	}
	s, ok := t.(string)
	if !ok {
		return fmt.Errorf("%w: %s must be a string", ErrClaimType, m.name)
	}
	if len(s) > m.size {
		return fmt.Errorf("%w: %s has %d bytes, at most %d", ErrClaimSize, m.name, len(s), m.size)
	}
	_, set := m.str(c)
	return set(s)
}
