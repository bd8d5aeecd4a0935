package tokenizer

// The string functions of a rewritten template, as Python has them.

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
)

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
