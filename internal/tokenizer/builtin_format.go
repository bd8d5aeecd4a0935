package tokenizer

// How values print: Python's repr, and JSON as Hugging Face writes it.

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"

	"github.com/ardanlabs/jinja"
)

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
