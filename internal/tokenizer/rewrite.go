package tokenizer

import (
	"fmt"
	"slices"
	"strings"
)

// The template library has no limits of its own: a macro that calls itself ends the
// process by stack overflow, and doubling a string forty times takes all memory. Both
// are a line of Jinja. So a template is rewritten before the library sees it:
//
//   - Text becomes {{ out_("text") }}: whitespace control has then been done here, as
//     Jinja2 does it (the library strips text beyond a neighbouring tag).
//   - {{ x }} becomes {{ out_(x) }}, which counts what is written and prints as Python does.
//   - Every loop turn and macro call begins with {{ step_() }}, which counts.
//   - Every value that gets a name (set, macro parameter) is measured by {{ size_(x) }}.
//   - Filters and methods whose result can be far larger than their input, or differ from
//     Python's, are replaced by those of builtin.go.
//
// What no chat template needs is refused: recursion through macros, call blocks, filters
// outside the list, methods that change a list or dict (Hugging Face's sandbox refuses
// those too), namespaces as values (they alone could form a cycle), multiplication (it
// repeats strings) and names ending in "_", which belong to this file.

// Names of the functions that the rewritten program calls.
const (
	fnOut  = "out_"
	fnStep = "step_"
	fnSize = "size_"
)

const (
	maxNesting = 32 // brackets in one tag, or blocks
	maxJoins   = 64 // ~ and + in one tag: bounds what one expression can build
)

// plainFilters are the library's filters that are right and cannot grow their input.
var plainFilters = []string{
	"abs", "count", "d", "default", "dictsort", "float", "int", "items", "length", "map",
	"max", "min", "reject", "rejectattr", "reverse", "safe", "select", "selectattr",
}

// ownFilters are those of builtin.go, and ownMethods the string methods done by them:
// x.strip(y) becomes x|strip_(y), which the library binds equally tightly.
var (
	ownFilters = map[string]string{
		"trim": "strip_", "tojson": "tojson_", "join": "join_", "replace": "replace_", "string": "string_",
		"upper": "upper_", "lower": "lower_", "capitalize": "capitalize_", "title": "titlefilter_",
		"list": "list_", "first": "first_", "last": "last_",
	}
	ownMethods = map[string]string{
		"strip": "strip_", "lstrip": "lstrip_", "rstrip": "rstrip_", "replace": "replace_",
		"startswith": "startswith_", "endswith": "endswith_", "split": "split_",
		"upper": "upper_", "lower": "lower_", "capitalize": "capitalize_", "title": "title_",
	}
	refusedMethods = []string{
		"append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update",
		"format", "join", "find", "count", // the library's differ, or see through no shadows
	}
)

// rewrite returns the program for the library and the template's string literals.
func rewrite(source string) (program string, literals []string, err error) {
	segments, err := scanTemplate(source)
	if err != nil {
		return "", nil, err
	}
	w := &rewriter{calls: map[string][]string{}, namespaces: map[string]bool{}}
	tags := make([][]token, len(segments))
	for i, s := range segments {
		if s.kind == segText {
			continue
		}
		if tags[i], err = tagTokens(s.body); err != nil {
			return "", nil, err
		}
		if err = w.declare(s.kind, tags[i]); err != nil {
			return "", nil, err
		}
	}
	for i, s := range segments {
		switch s.kind {
		case segText:
			w.out.WriteString("{{ " + fnOut + "(" + quote(s.body) + ") }}")
		case segOutput:
			err = w.output(tags[i])
		case segStatement:
			err = w.statement(tags[i])
		}
		if err != nil {
			return "", nil, err
		}
	}
	if name := cycle(w.calls); name != "" {
		return "", nil, fmt.Errorf("macro %s calls itself", clip(name))
	}
	return w.out.String(), w.literals, nil
}

type rewriter struct {
	out        strings.Builder
	literals   []string
	blocks     []string            // open blocks, innermost last
	macro      []string            // names of open macros
	calls      map[string][]string // macro -> macros it calls
	namespaces map[string]bool
	setBlock   []string // targets of open {% set x %} blocks
}

// declare notes macros and namespaces, which may be used above their definition.
func (w *rewriter) declare(kind segmentKind, t []token) error {
	if kind != segStatement || len(t) < 2 {
		return nil
	}
	switch t[0].val {
	case "macro":
		if t[1].kind != tokName {
			return fmt.Errorf("macro without a name")
		}
		if _, ok := w.calls[t[1].val]; !ok {
			w.calls[t[1].val] = nil
		}
	case "set":
		if len(t) > 4 && t[1].kind == tokName && t[2].val == "=" && t[3] == (token{tokName, "namespace"}) {
			w.namespaces[t[1].val] = true
		}
	}
	return nil
}

func (w *rewriter) output(t []token) error {
	if len(t) == 0 {
		return fmt.Errorf("empty tag")
	}
	e, err := w.expr(t)
	if err != nil {
		return err
	}
	w.out.WriteString("{{ " + fnOut + "(" + e + ") }}")
	return nil
}

func (w *rewriter) statement(t []token) error {
	if len(t) == 0 || t[0].kind != tokName {
		return fmt.Errorf("empty or nameless statement")
	}
	keyword, rest := t[0].val, t[1:]
	tail := "" // what goes behind the tag
	body := ""
	var err error
	switch keyword {
	case "if", "for", "macro", "generation":
		w.blocks = append(w.blocks, keyword)
		if len(w.blocks) > maxNesting {
			return fmt.Errorf("more than %d nested blocks", maxNesting)
		}
	}
	switch keyword {
	case "if", "elif":
		body, err = w.expr(rest)
	case "for":
		tail = "{{ " + fnStep + "() }}"
		body, err = w.expr(rest)
		if slices.Contains(rest, token{tokName, "recursive"}) {
			err = fmt.Errorf("recursive loop")
		}
	case "set":
		body, tail, err = w.set(rest)
	case "macro":
		body, tail, err = w.macroHead(rest)
	case "else", "break", "continue", "generation":
		if len(rest) > 0 {
			err = fmt.Errorf("%s with an argument", keyword)
		}
	case "endif", "endfor", "endmacro", "endset", "endgeneration":
		tail, err = w.end(keyword)
	default:
		err = fmt.Errorf("statement %q", clip(keyword))
	}
	if err != nil {
		return err
	}
	w.out.WriteString("{% " + keyword + " " + body + " %}" + tail)
	return nil
}

func (w *rewriter) end(keyword string) (tail string, err error) {
	n := len(w.blocks)
	if n == 0 || "end"+w.blocks[n-1] != keyword {
		return "", fmt.Errorf("%s without its beginning", keyword)
	}
	w.blocks = w.blocks[:n-1]
	switch keyword {
	case "endmacro":
		w.macro = w.macro[:len(w.macro)-1]
	case "endset":
		last := len(w.setBlock) - 1
		tail = "{{ " + fnSize + "(" + w.setBlock[last] + ") }}"
		w.setBlock = w.setBlock[:last]
	}
	return tail, nil
}

// set is "x = expr", "ns.x = expr" or "x" (a block).
func (w *rewriter) set(t []token) (body, tail string, err error) {
	target := ""
	switch {
	case len(t) == 1 && t[0].kind == tokName:
		target = t[0].val
		if err := w.bindable(target); err != nil {
			return "", "", err
		}
		w.blocks = append(w.blocks, "set")
		w.setBlock = append(w.setBlock, target)
		return target, "", nil
	case len(t) > 2 && t[0].kind == tokName && t[1].val == "=":
		target, t = t[0].val, t[2:]
		if t[0] == (token{tokName, "namespace"}) {
			if len(t) < 2 || t[1].val != "(" {
				return "", "", fmt.Errorf("namespace as a value")
			}
			args, err := w.expr(t[1:])
			return target + " = namespace" + args, "", err
		}
		if err := w.bindable(target); err != nil {
			return "", "", err
		}
	case len(t) > 4 && t[0].kind == tokName && t[1].val == "." && t[2].kind == tokName && t[3].val == "=":
		if !w.namespaces[t[0].val] {
			return "", "", fmt.Errorf("assignment to an attribute of what is no namespace")
		}
		target, t = t[0].val+"."+t[2].val, t[4:]
	default:
		return "", "", fmt.Errorf("set of several names")
	}
	e, err := w.expr(t)
	return target + " = " + e, "{{ " + fnSize + "(" + target + ") }}", err
}

// bindable refuses names that mean something to this file, or to the template elsewhere.
func (w *rewriter) bindable(name string) error {
	_, isMacro := w.calls[name]
	if isMacro || w.namespaces[name] || strings.HasSuffix(name, "_") || name == "namespace" || name == "caller" {
		return fmt.Errorf("name %q set to a value", clip(name))
	}
	return nil
}

// macroHead is "name(a, b=default)".
func (w *rewriter) macroHead(t []token) (body, tail string, err error) {
	if len(t) < 3 || t[1].val != "(" || t[len(t)-1].val != ")" {
		return "", "", fmt.Errorf("macro without parameters")
	}
	name, params := t[0].val, t[2:len(t)-1]
	w.macro = append(w.macro, name)
	tail = "{{ " + fnStep + "() }}"
	for i, p := range params {
		// The library cuts at every comma: a default is one token.
		switch {
		case p.kind == tokPunct && p.val != "," && p.val != "=":
			return "", "", fmt.Errorf("default of a macro parameter that is no plain value")
		case p.kind == tokString && strings.Contains(p.val, ","):
			return "", "", fmt.Errorf("default of a macro parameter with a comma")
		case p.kind == tokName && (i == 0 || params[i-1].val == ","):
			if err := w.bindable(p.val); err != nil {
				return "", "", err
			}
			tail += "{{ " + fnSize + "(" + p.val + ") }}"
		}
	}
	e, err := w.expr(params)
	return name + "(" + e + ")", tail, err
}

// expr checks the tokens of an expression and writes them for the library.
func (w *rewriter) expr(t []token) (string, error) {
	var out strings.Builder
	depth, joins := 0, 0
	for i, k := range t {
		next := ""
		if i+1 < len(t) && t[i+1].kind == tokPunct {
			next = t[i+1].val
		}
		prev := ""
		if i > 0 && t[i-1].kind == tokPunct {
			prev = t[i-1].val
		}
		val := k.val
		switch k.kind {
		case tokString:
			w.literals = append(w.literals, val)
			val = quote(val)
		case tokPunct:
			switch val {
			case "(", "[", "{":
				depth++
			case ")", "]", "}":
				depth--
			case "~", "+":
				joins++
			case "*", "**":
				return "", fmt.Errorf("multiplication")
			}
			if depth > maxNesting {
				return "", fmt.Errorf("more than %d nested brackets", maxNesting)
			}
			if joins > maxJoins {
				return "", fmt.Errorf("more than %d joins in one tag", maxJoins)
			}
		case tokName:
			var err error
			if val, err = w.name(val, prev, next); err != nil {
				return "", err
			}
			if prev == "|" && val == "map" && !(i+3 < len(t) && t[i+2].val == "attribute" && t[i+3].val == "=") {
				return "", fmt.Errorf("filter map without attribute") // the library ignores it
			}
			if prev == "." && strings.HasSuffix(val, "_") { // a method that became a filter
				s := strings.TrimSuffix(out.String(), ".")
				out.Reset()
				out.WriteString(s + "|")
			}
		}
		if prev != "." && val != "." && i > 0 {
			out.WriteByte(' ')
		}
		out.WriteString(val)
	}
	if depth != 0 {
		return "", fmt.Errorf("unbalanced brackets")
	}
	return out.String(), nil
}

// name checks one name by what stands around it and returns what it becomes.
func (w *rewriter) name(name, prev, next string) (string, error) {
	if strings.HasSuffix(name, "_") || name == "caller" || name == "namespace" {
		return "", fmt.Errorf("name %q", clip(name))
	}
	switch prev {
	case ".":
		if slices.Contains(refusedMethods, name) {
			return "", fmt.Errorf("method %q", name)
		}
		if own, ok := ownMethods[name]; ok && next == "(" {
			return own, nil
		}
		return name, nil
	case "|":
		if own, ok := ownFilters[name]; ok {
			return own, nil
		}
		if !slices.Contains(plainFilters, name) {
			return "", fmt.Errorf("filter %q", clip(name))
		}
		return name, nil
	}
	if w.namespaces[name] && next != "." {
		return "", fmt.Errorf("namespace %q as a value", clip(name))
	}
	if _, ok := w.calls[name]; ok {
		if next != "(" {
			return "", fmt.Errorf("macro %q as a value", clip(name))
		}
		for _, outer := range w.macro {
			w.calls[outer] = append(w.calls[outer], name)
		}
	}
	return name, nil
}

// cycle returns a macro that can reach itself, or "".
func cycle(calls map[string][]string) string {
	const (
		open = 1
		done = 2
	)
	state := map[string]int{}
	var visit func(string) bool
	visit = func(name string) bool {
		switch state[name] {
		case open:
			return true
		case done:
			return false
		}
		state[name] = open
		for _, to := range calls[name] {
			if visit(to) {
				return true
			}
		}
		state[name] = done
		return false
	}
	for name := range calls {
		if visit(name) {
			return name
		}
	}
	return ""
}

// quote writes a string literal that the library reads back unchanged.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}
