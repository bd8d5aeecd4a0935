package router

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Limits of a request body, all checked while it is read and before anything is
// built from it.
const (
	jsonDepthMax   = 32    // nested arrays and objects
	jsonMembersMax = 512   // members of one object
	jsonSkipMax    = 10000 // values inside fields that nobody reads
	jsonKeyMax     = 256   // bytes of a member's name
)

// cursor reads one JSON text (RFC 8259) strictly and in one pass. It exists
// because encoding/json takes the last of two duplicate members, takes "MODEL"
// for "model", replaces broken UTF-8 in silence, and builds maps of what it does
// not know: each a way for two readers of one request to disagree.
//
// A cursor allocates only the strings asked of it. The first error stays.
type cursor struct {
	b     []byte
	pos   int
	depth int
	skips int
}

// newCursor returns a cursor over b, which must not change while it is in use.
func newCursor(b []byte) (*cursor, error) {
	if !utf8.Valid(b) {
		return nil, fail(kindMalformed, "", "the request body is not valid UTF-8")
	}
	return &cursor{b: b}, nil
}

// malformed is a syntax error at the cursor. It shows the offset and never the body.
func (c *cursor) malformed(what string) error {
	return fail(kindMalformed, "", "could not parse the JSON request body: %s at byte %d", what, c.pos)
}

// wrongType is a well-formed value of another type than the field's.
func wrongType(param, want string) error {
	return fail(kindMalformed, param, "invalid type for '%s': expected %s", param, want)
}

func (c *cursor) space() {
	for c.pos < len(c.b) {
		switch c.b[c.pos] {
		case ' ', '\t', '\n', '\r':
			c.pos++
		default:
			return
		}
	}
}

// peek returns the first byte of the next value, 0 at the end.
func (c *cursor) peek() byte {
	c.space()
	if c.pos == len(c.b) {
		return 0
	}
	return c.b[c.pos]
}

// end returns an error unless only space is left.
func (c *cursor) end() error {
	if c.peek() != 0 || c.pos != len(c.b) {
		return c.malformed("data after the top-level value")
	}
	return nil
}

func (c *cursor) literal(s string) bool {
	c.space()
	if !strings.HasPrefix(string(c.b[c.pos:min(len(c.b), c.pos+len(s))]), s) {
		return false
	}
	c.pos += len(s)
	return true
}

// null reads a null if one is next.
func (c *cursor) null() bool { return c.peek() == 'n' && c.literal("null") }

// fields says how an object is read: by exact name. Names that differ from a
// known one only in case are refused, unknown ones go to other.
type fields struct {
	known map[string]func(c *cursor, param string) error
	other func(c *cursor, name, param string) error // nil: refuse
}

// object reads an object. prefix is put before the members' names in errors.
func (c *cursor) object(prefix string, f fields) error {
	seen := make(map[string]struct{}, 8)
	return c.members(prefix, func(name string) error {
		if _, dup := seen[name]; dup {
			return fail(kindMalformed, prefix+name, "duplicate member '%s'", prefix+name)
		}
		seen[name] = struct{}{}
		if read, ok := f.known[name]; ok {
			return read(c, prefix+name)
		}
		for known := range f.known {
			if strings.EqualFold(known, name) {
				return fail(kindMalformed, prefix+known, "unknown member '%s': names are case-sensitive, use '%s'", prefix+name, prefix+known)
			}
		}
		if f.other == nil {
			return fail(kindMalformed, prefix+name, "unknown member '%s'", prefix+name)
		}
		return f.other(c, name, prefix+name)
	})
}

// members reads an object and calls member with each name; member must read the value.
func (c *cursor) members(param string, member func(name string) error) error {
	if c.peek() != '{' {
		return wrongType(orBody(param), "an object")
	}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if c.peek() == '}' {
		c.pos++
		return nil
	}
	for n := 1; ; n++ {
		if n > jsonMembersMax {
			return fail(kindMalformed, orBody(param), "an object has more than %d members", jsonMembersMax)
		}
		if c.peek() != '"' {
			return c.malformed("expected a member name")
		}
		name, err := c.text()
		if err != nil {
			return err
		}
		if len(name) > jsonKeyMax {
			return fail(kindMalformed, orBody(param), "a member's name is longer than %d bytes", jsonKeyMax)
		}
		if c.peek() != ':' {
			return c.malformed("expected ':'")
		}
		c.pos++
		if err := member(name); err != nil {
			return err
		}
		switch c.peek() {
		case ',':
			c.pos++
		case '}':
			c.pos++
			return nil
		default:
			return c.malformed("expected ',' or '}'")
		}
	}
}

// array reads an array of at most most elements and calls element with each index.
func (c *cursor) array(param string, most int, element func(i int) error) error {
	if c.peek() != '[' {
		return wrongType(param, "an array")
	}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if c.peek() == ']' {
		c.pos++
		return nil
	}
	for i := 0; ; i++ {
		if i >= most {
			return fail(kindMalformed, param, "'%s' has more than %d elements", param, most)
		}
		if err := element(i); err != nil {
			return err
		}
		switch c.peek() {
		case ',':
			c.pos++
		case ']':
			c.pos++
			return nil
		default:
			return c.malformed("expected ',' or ']'")
		}
	}
}

// enter steps over an opening bracket, leave comes back out.
func (c *cursor) enter() error {
	if c.depth++; c.depth > jsonDepthMax {
		return c.malformed("more than " + strconv.Itoa(jsonDepthMax) + " nested values")
	}
	c.pos++
	return nil
}

func (c *cursor) leave() { c.depth-- }

// str reads a string.
func (c *cursor) str(param string) (string, error) {
	if c.peek() != '"' {
		return "", wrongType(param, "a string")
	}
	return c.text()
}

// text reads the string that starts at the cursor.
func (c *cursor) text() (string, error) {
	c.pos++ // the quote
	start := c.pos
	for c.pos < len(c.b) { // most strings need no unescaping
		switch b := c.b[c.pos]; {
		case b == '"':
			s := string(c.b[start:c.pos])
			c.pos++
			return s, nil
		case b == '\\':
			return c.escaped(start)
		case b < 0x20:
			return "", c.malformed("a control character in a string")
		default:
			c.pos++
		}
	}
	return "", c.malformed("unexpected end of a string")
}

// escaped reads the rest of a string that has an escape.
func (c *cursor) escaped(start int) (string, error) {
	out := append(make([]byte, 0, 2*(c.pos-start)+16), c.b[start:c.pos]...)
	for c.pos < len(c.b) {
		b := c.b[c.pos]
		switch {
		case b == '"':
			c.pos++
			return string(out), nil
		case b < 0x20:
			return "", c.malformed("a control character in a string")
		case b != '\\':
			out = append(out, b)
			c.pos++
		default:
			r, err := c.escape()
			if err != nil {
				return "", err
			}
			out = utf8.AppendRune(out, r)
		}
	}
	return "", c.malformed("unexpected end of a string")
}

// simpleEscapes are the escapes of one letter.
var simpleEscapes = map[byte]rune{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape reads one escape, or the two of a surrogate pair. Half a pair is no
// character and is refused, as broken UTF-8 is.
func (c *cursor) escape() (rune, error) {
	if c.pos+1 >= len(c.b) {
		return 0, c.malformed("unexpected end of a string")
	}
	b := c.b[c.pos+1]
	if r, ok := simpleEscapes[b]; ok {
		c.pos += 2
		return r, nil
	}
	if b != 'u' {
		return 0, c.malformed("an unknown escape")
	}
	r, ok := c.hex4(c.pos + 2)
	if !ok {
		return 0, c.malformed("a bad \\u escape")
	}
	if !utf16.IsSurrogate(r) {
		c.pos += 6
		return r, nil
	}
	low, ok := c.hex4(c.pos + 8)
	if ok && c.b[c.pos+6] == '\\' && c.b[c.pos+7] == 'u' {
		if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
			c.pos += 12
			return r, nil
		}
	}
	return 0, c.malformed("half a surrogate pair")
}

func (c *cursor) hex4(at int) (rune, bool) {
	if at+4 > len(c.b) {
		return 0, false
	}
	var r rune
	for _, b := range c.b[at : at+4] {
		switch {
		case b >= '0' && b <= '9':
			b -= '0'
		case b >= 'a' && b <= 'f':
			b -= 'a' - 10
		case b >= 'A' && b <= 'F':
			b -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(b)
	}
	return r, true
}

// number reads the text of a number.
func (c *cursor) number() (string, error) {
	c.space()
	start := c.pos
	digits := func() bool {
		from := c.pos
		for c.pos < len(c.b) && c.b[c.pos] >= '0' && c.b[c.pos] <= '9' {
			c.pos++
		}
		return c.pos > from
	}
	next := func(set string) bool {
		if c.pos < len(c.b) && strings.IndexByte(set, c.b[c.pos]) >= 0 {
			c.pos++
			return true
		}
		return false
	}
	next("-")
	if !next("0") && !digits() {
		return "", c.malformed("expected a value")
	}
	if next(".") && !digits() {
		return "", c.malformed("a number without digits after its point")
	}
	if next("eE") {
		next("+-")
		if !digits() {
			return "", c.malformed("a number without digits in its exponent")
		}
	}
	if c.pos-start > 64 {
		return "", c.malformed("a number of more than 64 characters")
	}
	return string(c.b[start:c.pos]), nil
}

func (c *cursor) isNumber() bool { b := c.peek(); return b == '-' || b >= '0' && b <= '9' }

// integer reads a whole number within [low, high].
func (c *cursor) integer(param string, low, high int64) (int64, error) {
	if !c.isNumber() {
		return 0, wrongType(param, "an integer")
	}
	s, err := c.number()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, wrongType(param, "an integer")
	}
	if err != nil || n < low || n > high {
		return 0, fail(kindMalformed, param, "'%s' must be between %d and %d, got %s", param, low, high, s)
	}
	return n, nil
}

// float reads a number within [low, high].
func (c *cursor) float(param string, low, high float64) (float32, error) {
	if !c.isNumber() {
		return 0, wrongType(param, "a number")
	}
	s, err := c.number()
	if err != nil {
		return 0, err
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(f) || f < low || f > high {
		return 0, fail(kindMalformed, param, "'%s' must be between %g and %g, got %s", param, low, high, s)
	}
	return float32(f), nil
}

// boolean reads true or false.
func (c *cursor) boolean(param string) (bool, error) {
	switch {
	case c.peek() == 't' && c.literal("true"):
		return true, nil
	case c.peek() == 'f' && c.literal("false"):
		return false, nil
	}
	return false, wrongType(param, "a boolean")
}

// skip reads any one value and keeps nothing of it. Its members are held to
// the same rules as everybody's.
func (c *cursor) skip(param string) error {
	if c.skips++; c.skips > jsonSkipMax {
		return fail(kindMalformed, param, "more than %d values in members that are not read", jsonSkipMax)
	}
	var err error
	switch b := c.peek(); {
	case b == '{':
		return c.object(param+".", fields{other: func(c *cursor, _, _ string) error { return c.skip(param) }})
	case b == '[':
		return c.array(param, jsonSkipMax, func(int) error { return c.skip(param) })
	case b == '"':
		_, err = c.text()
	case b == 't' || b == 'f':
		if _, err = c.boolean(param); err != nil {
			err = c.malformed("expected a value")
		}
	case b == 'n':
		if !c.null() {
			err = c.malformed("expected a value")
		}
	default:
		_, err = c.number()
	}
	return err
}

// orBody names the top level where a parameter has no name.
func orBody(param string) string {
	if param = strings.TrimSuffix(param, "."); param == "" {
		return "body"
	}
	return param
}
