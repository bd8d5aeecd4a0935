package tokenizer

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
)

// run is one rendering: what it may still write and do, and the functions it calls.
type run struct {
	t        *Template
	shadows  *shadows // of the messages; nil if they are in none
	limit    int      // bytes of one value
	left     int      // bytes still to be written
	steps    int      // loop turns and macro calls still to be made
	deadline time.Time
}

const maxDepth = 64 // of lists in lists: bounds recursion over a value

type args = []jinja.Value
type kwargs = map[string]jinja.Value

// globals are the functions of the rewritten program, and those that Hugging Face gives
// to templates where the library's own have no bound.
func (r *run) globals() map[string]jinja.Value {
	g := map[string]jinja.Value{}
	for name, fn := range map[string]func(args, kwargs) (jinja.Value, error){
		fnOut: r.out, fnStep: r.step, fnSize: r.size,
		"strip_":      r.strip(strings.TrimFunc),
		"lstrip_":     r.strip(strings.TrimLeftFunc),
		"rstrip_":     r.strip(strings.TrimRightFunc),
		"startswith_": r.affix(strings.HasPrefix),
		"endswith_":   r.affix(strings.HasSuffix),
		"upper_":      r.changeCase(strings.ToUpper), "lower_": r.changeCase(strings.ToLower),
		"capitalize_": r.changeCase(capitalize), "title_": r.changeCase(pyTitle), "titlefilter_": r.changeCase(jinjaTitle),
		"split_": r.splitOn,
		"list_":  r.list, "first_": r.end(func(n int) int { return 0 }), "last_": r.end(func(n int) int { return n - 1 }),
		"replace_": r.replace, "join_": r.join, "tojson_": r.tojson, "string_": r.toString,
		"range": r.rangeOf, "raise_exception": r.raise, "strftime_now": r.strftimeNow,
	} {
		g[name] = jinja.NewCallable(name, fn)
	}
	return g
}

func (r *run) step(args, kwargs) (jinja.Value, error) {
	if r.steps--; r.steps < 0 || time.Now().After(r.deadline) {
		return jinja.Undefined(), ErrRenderLimit
	}
	return jinja.NewString(""), nil
}

func (r *run) size(a args, _ kwargs) (jinja.Value, error) {
	return jinja.NewString(""), r.measure(a)
}

// measure refuses values larger or deeper than allowed, however much of them is shared.
func (r *run) measure(values []jinja.Value) error {
	left := r.limit
	for _, v := range values {
		if !measure(v, &left, maxDepth) {
			return ErrRenderLimit
		}
	}
	return nil
}

func measure(v jinja.Value, left *int, depth int) bool {
	if *left -= 8; *left < 0 || depth == 0 {
		return false
	}
	switch {
	case v.IsString():
		*left -= len(v.AsString())
	case v.IsList():
		for _, item := range v.AsList().Items {
			if !measure(item, left, depth-1) {
				return false
			}
		}
	case v.IsDict():
		d := v.AsDict()
		for _, k := range d.Keys {
			if *left -= len(k); !measure(d.Data[k], left, depth-1) {
				return false
			}
		}
	}
	return *left >= 0
}

func (r *run) out(a args, _ kwargs) (jinja.Value, error) {
	s, err := r.text(arg(a, 0))
	if err != nil {
		return jinja.Undefined(), err
	}
	if r.left -= len(s); r.left < 0 {
		return jinja.Undefined(), ErrRenderLimit
	}
	return jinja.NewString(s), nil
}

// text is Python's str(): what {{ v }} prints.
func (r *run) text(v jinja.Value) (string, error) {
	if v.IsString() {
		return v.AsString(), nil
	}
	if err := r.measure([]jinja.Value{v}); err != nil {
		return "", err
	}
	if v.IsUndefined() {
		return "", nil
	}
	var b strings.Builder
	repr(&b, v)
	return b.String(), nil
}

// repr is Python's repr() for the types that occur.
func repr(b *strings.Builder, v jinja.Value) {
	switch {
	case v.IsFloat():
		b.WriteString(pyFloat(v.AsFloat()))
	case v.IsString():
		b.WriteString(pyQuote(v.AsString()))
	case v.IsList():
		b.WriteByte('[')
		for i, item := range v.AsList().Items {
			if i > 0 {
				b.WriteString(", ")
			}
			repr(b, item)
		}
		b.WriteByte(']')
	case v.IsDict():
		b.WriteByte('{')
		d := v.AsDict()
		for i, k := range d.Keys {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(pyQuote(k))
			b.WriteString(": ")
			repr(b, d.Data[k])
		}
		b.WriteByte('}')
	default: // None, True, 12
		b.WriteString(v.String())
	}
}

func pyFloat(f float64) string {
	if f == math.Trunc(f) && math.Abs(f) < 1e16 {
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	return strconv.FormatFloat(f, 'g', -1, 64)
}

func pyQuote(s string) string {
	q := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		q = '"'
	}
	var b strings.Builder
	b.WriteByte(q)
	for _, c := range s {
		switch {
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\t':
			b.WriteString(`\t`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\\' || c == rune(q):
			b.WriteByte('\\')
			b.WriteRune(c)
		case c < 0x20 || c == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, c)
		case !unicode.IsPrint(c) && c <= 0xff:
			fmt.Fprintf(&b, `\x%02x`, c)
		case !unicode.IsPrint(c) && !shadowRune(c) && c <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, c)
		case !unicode.IsPrint(c) && !shadowRune(c):
			fmt.Fprintf(&b, `\U%08x`, c)
		default:
			b.WriteRune(c)
		}
	}
	b.WriteByte(q)
	return b.String()
}

func arg(a args, i int) jinja.Value {
	if i < len(a) {
		return a[i]
	}
	return jinja.Undefined()
}

func (r *run) texts(a args, n int) (out []string, err error) {
	for i := range n {
		s, err := r.text(arg(a, i))
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

func (r *run) toString(a args, _ kwargs) (jinja.Value, error) {
	s, err := r.text(arg(a, 0))
	return jinja.NewString(s), err
}

// items are what Python iterates over.
func (r *run) items(v jinja.Value) (out []jinja.Value, err error) {
	switch {
	case v.IsList():
		return v.AsList().Items, nil
	case v.IsDict():
		for _, k := range v.AsDict().Keys {
			out = append(out, jinja.NewString(k))
		}
	case v.IsString():
		for _, c := range v.AsString() {
			out = append(out, jinja.NewString(string(c)))
		}
	case v.IsUndefined():
	default:
		return nil, &RenderError{}
	}
	return out, nil
}

func (r *run) list(a args, _ kwargs) (jinja.Value, error) {
	items, err := r.items(arg(a, 0))
	return jinja.NewList(items), err
}

// end is the filter first or last; at picks from n items.
func (r *run) end(at func(n int) int) func(args, kwargs) (jinja.Value, error) {
	return func(a args, _ kwargs) (jinja.Value, error) {
		items, err := r.items(arg(a, 0))
		if err != nil || len(items) == 0 {
			return jinja.Undefined(), err
		}
		return items[at(len(items))], nil
	}
}

// strip is str.strip, lstrip or rstrip: of Python's white space, or of the characters given.
func (r *run) strip(trim func(string, func(rune) bool) string) func(args, kwargs) (jinja.Value, error) {
	return func(a args, _ kwargs) (jinja.Value, error) {
		s, err := r.texts(a, 2)
		if err != nil {
			return jinja.Undefined(), err
		}
		cut := pySpace
		if len(a) > 1 && !a[1].IsNone() {
			set, _ := r.shadows.plain(s[1])
			cut = func(c rune) bool { return strings.ContainsRune(set, r.shadows.rune(c)) }
		}
		return jinja.NewString(trim(s[0], cut)), nil
	}
}

// affix is str.startswith or endswith, with one string or several.
func (r *run) affix(has func(string, string) bool) func(args, kwargs) (jinja.Value, error) {
	return func(a args, _ kwargs) (jinja.Value, error) {
		if len(a) != 2 || !a[0].IsString() {
			return jinja.Undefined(), &RenderError{}
		}
		options := []jinja.Value{a[1]}
		if a[1].IsList() {
			options = a[1].AsList().Items
		}
		s, _ := r.shadows.plain(a[0].AsString())
		for _, o := range options {
			if !o.IsString() {
				return jinja.Undefined(), &RenderError{}
			}
			if part, _ := r.shadows.plain(o.AsString()); has(s, part) {
				return jinja.NewBool(true), nil
			}
		}
		return jinja.NewBool(false), nil
	}
}

// pieces cuts s at each of the first n occurrences of sep (n < 0: all). sep is not empty.
func (r *run) pieces(s, sep string, n int) (out []string) {
	plain, at := r.shadows.plain(s)
	sep, _ = r.shadows.plain(sep)
	from, to := 0, 0 // in s, in plain
	for ; n != 0; n-- {
		k := strings.Index(plain[to:], sep)
		if k < 0 {
			break
		}
		out = append(out, s[from:at(to+k)])
		to += k + len(sep)
		from = at(to)
	}
	return append(out, s[from:])
}

// splitOn is str.split(sep, maxsplit).
func (r *run) splitOn(a args, _ kwargs) (jinja.Value, error) {
	s, err := r.texts(a, 2)
	if err != nil {
		return jinja.Undefined(), err
	}
	var parts []string
	switch {
	case len(a) < 2:
		parts = strings.FieldsFunc(s[0], pySpace)
	case s[1] == "":
		return jinja.Undefined(), &RenderError{}
	default:
		n := -1
		if c := arg(a, 2); c.IsInt() && c.AsInt() >= 0 {
			n = int(c.AsInt())
		}
		parts = r.pieces(s[0], s[1], n)
	}
	items := make([]jinja.Value, len(parts))
	for i, p := range parts {
		items[i] = jinja.NewString(p)
	}
	return jinja.NewList(items), nil
}

// replace is str.replace(old, new, count).
func (r *run) replace(a args, _ kwargs) (jinja.Value, error) {
	s, err := r.texts(a, 3)
	if err != nil {
		return jinja.Undefined(), err
	}
	n := -1
	if c := arg(a, 3); c.IsInt() && c.AsInt() >= 0 {
		n = int(c.AsInt())
	}
	if s[1] == "" { // Python puts new between all characters; no template does
		return jinja.Undefined(), &RenderError{}
	}
	parts := r.pieces(s[0], s[1], n)
	if (len(parts)-1)*len(s[2]) > r.limit-len(s[0]) {
		return jinja.Undefined(), ErrRenderLimit
	}
	return jinja.NewString(strings.Join(parts, s[2])), nil
}

// changeCase wraps upper and the like. They must see through shadows: else the second
// rendering of a chat would differ from the first wherever a template changes case.
func (r *run) changeCase(change func(string) string) func(args, kwargs) (jinja.Value, error) {
	return func(a args, _ kwargs) (jinja.Value, error) {
		s, err := r.text(arg(a, 0))
		if err != nil {
			return jinja.Undefined(), err
		}
		return jinja.NewString(r.shadows.changeCase(s, change)), nil
	}
}

// capitalize is str.capitalize.
func capitalize(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return strings.ToUpper(s[:n]) + strings.ToLower(s[n:])
}

// pyTitle is str.title: a letter is lower case behind a letter, else upper case.
func pyTitle(s string) string {
	inWord := false
	return strings.Map(func(r rune) rune {
		defer func() { inWord = unicode.IsLetter(r) }()
		if inWord {
			return unicode.ToLower(r)
		}
		return unicode.ToTitle(r)
	}, s)
}

// jinjaTitle is Jinja's filter of that name: words begin behind white space and -({[<.
func jinjaTitle(s string) string {
	inWord := false
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("-({[<", r) || pySpace(r) {
			inWord = false
			return r
		}
		if inWord {
			return unicode.ToLower(r)
		}
		inWord = true
		return unicode.ToUpper(r)
	}, s)
}

func (r *run) join(a args, kw kwargs) (jinja.Value, error) {
	if !arg(a, 0).IsList() {
		return jinja.Undefined(), &RenderError{}
	}
	sep := ""
	var err error
	if v := arg(a, 1); !v.IsUndefined() {
		if sep, err = r.text(v); err != nil {
			return jinja.Undefined(), err
		}
	} else if v, ok := kw["d"]; ok {
		if sep, err = r.text(v); err != nil {
			return jinja.Undefined(), err
		}
	}
	var b strings.Builder
	for i, item := range a[0].AsList().Items {
		if at, ok := kw["attribute"]; ok && item.IsDict() && at.IsString() {
			item, _ = item.AsDict().Get(at.AsString())
		}
		s, err := r.text(item)
		if err != nil {
			return jinja.Undefined(), err
		}
		if i > 0 {
			b.WriteString(sep)
		}
		b.WriteString(s)
		if b.Len() > r.limit {
			return jinja.Undefined(), ErrRenderLimit
		}
	}
	return jinja.NewString(b.String()), nil
}

func (r *run) rangeOf(a args, _ kwargs) (jinja.Value, error) {
	n := []int64{0, 0, 1}
	for i, v := range a {
		if !v.IsInt() || i > 2 {
			return jinja.Undefined(), &RenderError{}
		}
		n[i] = v.AsInt()
	}
	if len(a) == 1 {
		n[0], n[1] = 0, n[0]
	}
	var items []jinja.Value
	for i := n[0]; n[2] > 0 && i < n[1] || n[2] < 0 && i > n[1]; i += n[2] {
		if len(items)*8 > r.limit {
			return jinja.Undefined(), ErrRenderLimit
		}
		items = append(items, jinja.NewInt(i))
	}
	return jinja.NewList(items), nil
}

// raise ends the rendering with the template author's sentence, if that is one: a text
// put together from messages could hold a piece of the prompt.
func (r *run) raise(a args, _ kwargs) (jinja.Value, error) {
	e := &RenderError{}
	if v := arg(a, 0); v.IsString() {
		for _, l := range r.t.literals {
			if l == v.AsString() {
				e.Reason = l
			}
		}
	}
	return jinja.Undefined(), e
}

// tojson is Hugging Face's: json.dumps(x, ensure_ascii=False, indent, separators).
func (r *run) tojson(a args, kw kwargs) (jinja.Value, error) {
	v := arg(a, 0)
	if err := r.measure([]jinja.Value{v}); err != nil {
		return jinja.Undefined(), err
	}
	j := jsonWriter{item: ", ", key: ": ", indent: -1}
	if n, ok := kw["indent"]; ok && n.IsInt() {
		if n.AsInt() < 0 || n.AsInt() > 16 {
			return jinja.Undefined(), ErrRenderLimit
		}
		j.indent, j.item = int(n.AsInt()), ","
	}
	if s, ok := kw["separators"]; ok && s.IsList() && s.AsList().Len() == 2 && s.AsList().Get(0).IsString() && s.AsList().Get(1).IsString() {
		j.item, j.key = s.AsList().Get(0).AsString(), s.AsList().Get(1).AsString()
		if len(j.item)+len(j.key) > 16 {
			return jinja.Undefined(), ErrRenderLimit
		}
	}
	j.write(v, 1)
	return jinja.NewString(j.b.String()), nil
}

type jsonWriter struct {
	b         strings.Builder
	item, key string
	indent    int // spaces for each level, -1 for one line
}

func (j *jsonWriter) line(level int) {
	if j.indent >= 0 {
		j.b.WriteByte('\n')
		j.b.WriteString(strings.Repeat(" ", j.indent*level))
	}
}

func (j *jsonWriter) write(v jinja.Value, level int) {
	switch {
	case v.IsString():
		j.str(v.AsString())
	case v.IsBool():
		j.b.WriteString(strconv.FormatBool(v.AsBool()))
	case v.IsInt():
		j.b.WriteString(strconv.FormatInt(v.AsInt(), 10))
	case v.IsFloat():
		j.b.WriteString(pyFloat(v.AsFloat()))
	case v.IsList():
		items := v.AsList().Items
		if len(items) == 0 {
			j.b.WriteString("[]")
			return
		}
		j.b.WriteByte('[')
		for i, item := range items {
			if i > 0 {
				j.b.WriteString(j.item)
			}
			j.line(level)
			j.write(item, level+1)
		}
		j.line(level - 1)
		j.b.WriteByte(']')
	case v.IsDict():
		d := v.AsDict()
		if d.Len() == 0 {
			j.b.WriteString("{}")
			return
		}
		j.b.WriteByte('{')
		for i, k := range d.Keys {
			if i > 0 {
				j.b.WriteString(j.item)
			}
			j.line(level)
			j.str(k)
			j.b.WriteString(j.key)
			j.write(d.Data[k], level+1)
		}
		j.line(level - 1)
		j.b.WriteByte('}')
	default:
		j.b.WriteString("null")
	}
}

// str escapes as json.dumps does: quotes, backslash and controls only.
func (j *jsonWriter) str(s string) {
	j.b.WriteByte('"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			j.b.WriteByte('\\')
			j.b.WriteRune(c)
		case c < 0x20:
			quoted, _ := json.Marshal(string(c)) // \n, \u0001 ... as Python
			j.b.Write(quoted[1 : len(quoted)-1])
		default:
			j.b.WriteRune(c)
		}
	}
	j.b.WriteByte('"')
}
