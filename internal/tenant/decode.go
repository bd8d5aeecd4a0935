package tenant

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/mutant"
)

// tokenVersion is the value of the member "v".
const tokenVersion = 1

// member is one claim's place in the JSON object: how to write it and how to
// read it back. Either num and setNum are set or str and setStr.
type member struct {
	name   string
	num    func(c *Claims) int64
	setNum func(c *Claims, v int64)
	max    int64 // of num
	str    func(dst []byte, c *Claims) []byte
	setStr func(c *Claims, s []byte) error
	size   int // longest str, in bytes
}

// members lists every claim once. Encoder, decoder and the test that leaves
// out, doubles, oversizes and mistypes each of them read the same list.
var members = []member{
	{name: "v", max: tokenVersion, num: func(*Claims) int64 { return tokenVersion }, setNum: func(*Claims, int64) {}},
	strMember("ten", MaxTenantID, func(c *Claims) *string { return &c.Tenant }),
	hexMember("rid", func(c *Claims) []byte { return c.Request[:] }),
	{name: "chd", max: 1<<16 - 1, num: func(c *Claims) int64 { return int64(c.Child) }, setNum: func(c *Claims, v int64) { c.Child = uint16(v) }},
	{name: "att", max: 1<<16 - 1, num: func(c *Claims) int64 { return int64(c.Attempt) }, setNum: func(c *Claims, v int64) { c.Attempt = uint16(v) }},
	hexMember("mdl", func(c *Claims) []byte { return c.Model[:] }),
	intMember("len", MaxTokens, func(c *Claims) *int { return &c.PromptLen }),
	hexMember("dig", func(c *Claims) []byte { return c.PromptDigest[:] }),
	intMember("btk", MaxTokens, func(c *Claims) *int { return &c.BlockTokens }),
	intMember("blk", MaxTokens, func(c *Claims) *int { return &c.Blocks }),
	intMember("max", MaxTokens, func(c *Claims) *int { return &c.MaxNew }),
	strMember("pre", MaxNodeName, func(c *Claims) *string { return &c.Prefill }),
	strMember("dec", MaxNodeName, func(c *Claims) *string { return &c.Decode }),
	{name: "dep", size: 16, str: func(dst []byte, c *Claims) []byte {
		return hex.AppendEncode(dst, binary.BigEndian.AppendUint64(nil, c.DecodeEpoch))
	}, setStr: func(c *Claims, s []byte) error {
		var b [8]byte
		if !lowerHex(b[:], s) {
			return fmt.Errorf("%w: dep is not 16 lower-case hex digits", ErrClaimValue)
		}
		c.DecodeEpoch = binary.BigEndian.Uint64(b[:])
		return nil
	}},
	hexMember("rep", func(c *Claims) []byte { return c.ReplyBinding[:] }),
	hexMember("pfx", func(c *Claims) []byte { return c.PrefixScope[:] }),
	timeMember("iat", func(c *Claims) *time.Time { return &c.IssuedAt }),
	timeMember("nbf", func(c *Claims) *time.Time { return &c.NotBefore }),
	timeMember("exp", func(c *Claims) *time.Time { return &c.Expires }),
}

// written are the members in the order in which they are written: that of their
// names. Every head is what stands before the value.
var written = func() (out []struct {
	*member
	head string
}) {
	for i := range members {
		out = append(out, struct {
			*member
			head string
		}{&members[i], `"` + members[i].name + `":`})
	}
	slices.SortFunc(out, func(a, b struct {
		*member
		head string
	}) int {
		return cmp.Compare(a.name, b.name)
	})
	return out
}()

func intMember(name string, max int64, at func(*Claims) *int) member {
	return member{name: name, max: max,
		num:    func(c *Claims) int64 { return int64(*at(c)) },
		setNum: func(c *Claims, v int64) { *at(c) = int(v) },
	}
}

func strMember(name string, size int, at func(*Claims) *string) member {
	return member{name: name, size: size,
		str:    func(dst []byte, c *Claims) []byte { return append(dst, *at(c)...) },
		setStr: func(c *Claims, s []byte) error { *at(c) = string(s); return nil },
	}
}

func hexMember(name string, at func(*Claims) []byte) member {
	var zero Claims
	n := len(at(&zero))
	return member{name: name, size: 2 * n,
		str: func(dst []byte, c *Claims) []byte { return hex.AppendEncode(dst, at(c)) },
		setStr: func(c *Claims, s []byte) error {
			if !lowerHex(at(c), s) {
				return fmt.Errorf("%w: %s is not %d lower-case hex digits", ErrClaimValue, name, 2*n)
			}
			return nil
		},
	}
}

// lowerHex fills dst from exactly as many hex digits as it takes, lower case.
func lowerHex(dst, s []byte) bool {
	if len(s) != 2*len(dst) {
		return false
	}
	for _, c := range s {
		if c >= 'A' && c <= 'F' {
			return false
		}
	}
	_, err := hex.Decode(dst, s)
	return err == nil
}

func timeMember(name string, at func(*Claims) *time.Time) member {
	return member{name: name, size: len(timeForm),
		str: func(dst []byte, c *Claims) []byte { return appendTime(dst, *at(c)) },
		setStr: func(c *Claims, s []byte) error {
			t, ok := parseTime(s)
			if !ok {
				return fmt.Errorf("%w: %s is not a time like %s", ErrClaimValue, name, timeForm)
			}
			*at(c) = t
			return nil
		},
	}
}

// timeForm is how a time is written; only so.
const timeForm = "2006-01-02T15:04:05Z"

// appendTime writes a time of the years 0 to 9999, in UTC.
func appendTime(dst []byte, t time.Time) []byte {
	y, mo, d := t.Date()
	h, mi, s := t.Clock()
	if y < 0 || y > 9999 {
		return t.AppendFormat(dst, timeForm) // nobody will read it
	}
	n := len(dst)
	dst = append(dst, timeForm...)
	for _, f := range [...]struct{ at, value int }{{0, y / 100}, {2, y % 100}, {5, int(mo)}, {8, d}, {11, h}, {14, mi}, {17, s}} {
		dst[n+f.at], dst[n+f.at+1] = '0'+byte(f.value/10), '0'+byte(f.value%10)
	}
	return dst
}

// parseTime reads what appendTime writes.
func parseTime(b []byte) (time.Time, bool) {
	if len(b) != len(timeForm) {
		return time.Time{}, false
	}
	two := func(i int) int {
		if b[i] < '0' || b[i] > '9' || b[i+1] < '0' || b[i+1] > '9' {
			return 1000 // in no date, and so not what is written below
		}
		return 10*int(b[i]-'0') + int(b[i+1]-'0')
	}
	t := time.Date(100*two(0)+two(2), time.Month(two(5)), two(8), two(11), two(14), two(17), 0, time.UTC)
	if y := t.Year(); y < 0 || y > 9999 {
		return time.Time{}, false
	}
	var again [len(timeForm)]byte
	return t, string(appendTime(again[:0], t)) == string(b) // no 31st of February, no other separators
}

// appendClaims writes the claims, which are valid: no name has a character that
// JSON would escape.
func appendClaims(dst []byte, c *Claims) []byte {
	sep := byte('{')
	for i := range written {
		m := &written[i]
		dst = append(append(dst, sep), m.head...)
		if m.num != nil {
			dst = strconv.AppendInt(dst, m.num(c), 10)
		} else {
			dst = append(m.str(append(dst, '"'), c), '"')
		}
		sep = ','
	}
	return append(dst, '}')
}

// decodeWritten reads claims exactly as appendClaims writes them; anything else,
// right or wrong, is decodeObject's to judge.
func decodeWritten(b []byte) (c Claims, ok bool) {
	sep := byte('{')
	for i := range written {
		m := &written[i]
		if len(b) <= 1+len(m.head) || b[0] != sep || string(b[1:1+len(m.head)]) != m.head {
			return Claims{}, false
		}
		b = b[1+len(m.head):]
		sep = ','
		if m.num != nil {
			n, v := 0, int64(0)
			for ; n < len(b) && n < 9 && b[n] >= '0' && b[n] <= '9'; n++ { // no limit has more digits
				v = 10*v + int64(b[n]-'0')
			}
			if n == 0 || n > 1 && b[0] == '0' || v > m.max || m.name == "v" && v != tokenVersion {
				return Claims{}, false
			}
			m.setNum(&c, v)
			b = b[n:]
			continue
		}
		if b[0] != '"' {
			return Claims{}, false
		}
		n := bytes.IndexByte(b[1:], '"')
		if n < 0 || n > m.size {
			return Claims{}, false
		}
		s := b[1 : 1+n]
		for _, ch := range s {
			if ch < ' ' || ch == '\\' || ch >= 0x80 {
				return Claims{}, false
			}
		}
		if m.setStr(&c, s) != nil {
			return Claims{}, false
		}
		b = b[n+2:]
	}
	return c, string(b) == "}"
}

// decodeClaims reads the flat object in body, whose size the caller bounded.
// Each kind of fault has its own error.
func decodeClaims(body []byte) (Claims, error) {
	if c, ok := decodeWritten(body); ok {
		return c, nil
	}
	return decodeObject(body)
}

// decodeObject is decodeClaims for an object in any spelling and order.
func decodeObject(body []byte) (Claims, error) {
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
		if i < 0 && mutant.Off(mutant.ClaimUnknown) {
			_, _ = d.Token()
			continue
		}
		if i < 0 {
			return Claims{}, fmt.Errorf("%w: its name has %d bytes", ErrClaimUnknown, len(name))
		}
		if seen&(1<<i) != 0 && !mutant.Off(mutant.ClaimDuplicate) {
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
		if seen&(1<<i) == 0 && !mutant.Off(mutant.ClaimMissing) {
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
		m.setNum(c, v)
		return nil
	}
	s, ok := t.(string)
	if !ok {
		return fmt.Errorf("%w: %s must be a string", ErrClaimType, m.name)
	}
	if len(s) > m.size {
		return fmt.Errorf("%w: %s has %d bytes, at most %d", ErrClaimSize, m.name, len(s), m.size)
	}
	return m.setStr(c, []byte(s))
}
