package tokenizer

import (
	"strings"

	"github.com/ardanlabs/jinja"
)

// run is one rendering: what it may still write and do, and the functions it calls.
type run struct {
	t       *Template
	shadows *shadows // of the messages; nil if they are in none
	limit   int      // bytes of one value
	left    int      // bytes still to be written
	steps   int      // loop turns and macro calls still to be made
	clock   stopwatch
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
	if r.steps--; r.steps < 0 || r.clock.expired() {
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
