package tokenizer

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/negative"
)

// hostileTemplates are programs that a chat template has no need to be. Each must end in
// an error: the first group when the file is read, the second when it runs. Run by the
// template library alone, most of them end the process.
var hostileTemplates = []struct {
	name, source string
	runs         bool // compiles; the error comes when it runs
}{
	{"macro calls itself", "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", false},
	{"macros call each other", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", false},
	{"macro calls itself from a nested one", "{% macro a() %}{% macro b() %}{{ a() }}{% endmacro %}{{ b() }}{% endmacro %}{{ a() }}", false},
	{"macro as a value", "{% macro a(f) %}{{ f(f) }}{% endmacro %}{{ a(a) }}", false},
	{"macro under another name", "{% macro a() %}{{ b() }}{% endmacro %}{% set b = a %}{{ b() }}", false},
	{"macro as a filter", "{% macro a(x) %}{{ x | a }}{% endmacro %}{{ a(1) }}", false},
	{"parameter with a macro's name", "{% macro a(a) %}x{% endmacro %}", false},
	{"call block", "{% macro a() %}{{ caller() }}{% endmacro %}{% call a() %}x{% endcall %}", false},
	{"caller", "{% macro a() %}{{ caller() }}{% endmacro %}{{ a(caller=1) }}", false},
	{"recursive loop", "{% for x in messages recursive %}{{ loop(x) }}{% endfor %}", false},
	{"filter block", "{% filter upper %}x{% endfilter %}", false},
	{"unknown filter", "{{ 'x' | indent(1000000000) }}", false},
	{"batch", "{{ messages | batch(1000000000) }}", false},
	{"list.append", "{% set l = [] %}{{ l.append(l) }}{{ l }}", false},
	{"dict.update", "{{ messages[0].update(messages[0]) }}", false},
	{"format", "{{ '{0}{0}'.format('x') }}", false},
	{"namespace in itself", "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", false},
	{"namespace in a list", "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x }}", false},
	{"namespace in an argument", "{% set ns = namespace(x=namespace()) %}", false},
	{"namespace renamed", "{% set n = [namespace()] %}", false},
	{"attribute of no namespace", "{% set d = {} %}{% set d.x = d %}{{ d }}", false},
	{"multiplication", "{{ 'x' * 1000000000 }}", false},
	{"negative repeat", "{{ 'x' * -1 }}", false},
	{"power", "{{ 10 ** 1000000 }}", false},
	{"our names", "{{ out_('x') }}", false},
	{"our names set", "{% set step_ = 1 %}", false},
	{"our names as parameters", "{% macro m(size_) %}{% endmacro %}", false},
	{"brackets", "{{ " + strings.Repeat("(", 40) + "1" + strings.Repeat(")", 40) + " }}", false},
	{"brackets without end", "{{ " + strings.Repeat("[", 100000), false},
	{"blocks", strings.Repeat("{% if true %}", 40) + strings.Repeat("{% endif %}", 40), false},
	{"joins", "{{ 'x'" + strings.Repeat(" ~ 'x'", 70) + " }}", false},
	{"length", strings.Repeat("x", maxTemplateBytes+1), false},
	{"bracket mismatch", "{{ ) }}", false},
	{"no end", "{% for x in messages %}", false},
	{"end without beginning", "{% endfor %}", false},
	{"wrong end", "{% for x in messages %}{% endif %}", false},
	{"include", "{% include 'x' %}", false},
	{"import", "{% import 'x' as y %}", false},
	{"unfinished tag", "{{ 'x", false},
	{"unfinished comment", "{# x", false},
	{"unfinished raw", "{% raw %}x", false},
	{"byte in a tag", "{{ a\x00b }}", false},
	{"escape", `{{ '\xZZ' }}`, false},
	{"surrogate escape", `{{ '\ud800' }}`, false},
	{"empty output", "{{ }}", false},
	{"empty statement", "{% %}", false},
	{"two targets", "{% set a, b = 1, 2 %}", false},

	{"string doubled", "{% set ns = namespace(x='x') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", true},
	{"string doubled in line", "{% set x = 'xxxxxxxx' %}" + strings.Repeat("{% set x = x ~ x %}", 64), true},
	{"string doubled in a block", "{% set x = 'xxxxxxxx' %}" + strings.Repeat("{% set x %}{{ x }}{{ x }}{% endset %}", 64), true},
	{"list doubled", "{% set x = ['x'] %}" + strings.Repeat("{% set x = x + x %}", 64), true},
	{"list nested and doubled", "{% set x = ['x'] %}" + strings.Repeat("{% set x = [x, x] %}", 63) + "{{ x }}", true},
	{"list nested", "{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}", true},
	{"arguments doubled", "{% macro a(x) %}{{ x }}{% endmacro %}" + doublers() + "{{ m40(['x']) }}", true},
	{"output", "{% for i in range(1000) %}{% for j in range(1000) %}{{ 'xxxxxxxxxx' }}{% endfor %}{% endfor %}", true},
	{"text", "{% for i in range(1000) %}{% for j in range(1000) %}xxxxxxxxxx{% endfor %}{% endfor %}", true},
	{"loops", "{% for i in range(10000) %}{% for j in range(10000) %}{% set x = i %}{% endfor %}{% endfor %}", true},
	{"empty loops", "{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}", true},
	{"macro calls", "{% macro m0() %}{% endmacro %}" + callers() + "{{ m60() }}", true},
	{"range", "{{ range(1000000000000) }}", true},
	{"range down", "{{ range(0, -1000000000000, -1) }}", true},
	{"range without step", "{{ range(0, 10, 0).x.y() }}", true},
	{"replace", "{% set x = range(9999) | join %}{{ x | replace('1', x) | length }}", true},
	{"join", "{% set x = range(9999) | join %}{{ range(9999) | join(x) | length }}", true},
	{"tojson indent", "{{ messages | tojson(indent=1000000000) }}", true},
	{"tojson separators", "{% set x = range(999) | join %}{{ messages | tojson(separators=(x, x)) }}", true},
	{"call of a string", "{{ messages[0].content() }}", true},
	{"strftime", "{{ strftime_now('%Q') }}", true},
}

// doublers: each macro hands its argument twice to the one before.
func doublers() string {
	s := "{% macro m0(x) %}{{ x }}{% endmacro %}"
	for i := range 40 {
		s += "{% macro m" + num(i+1) + "(x) %}{{ m" + num(i) + "([x, x]) }}{% endmacro %}"
	}
	return s
}

// callers: each macro calls the one before twice.
func callers() string {
	s := ""
	for i := range 60 {
		s += "{% macro m" + num(i+1) + "() %}{{ m" + num(i) + "() }}{{ m" + num(i) + "() }}{% endmacro %}"
	}
	return s
}

func num(i int) string { return string(rune('0'+i/10)) + string(rune('0'+i%10)) }

func TestHostileTemplates(t *testing.T) {
	for _, c := range hostileTemplates {
		tmpl, err := newTemplate(c.source, nil)
		if !c.runs {
			if !errors.Is(err, ErrTemplate) && !errors.Is(err, ErrLimit) {
				t.Errorf("%s: %v, want ErrTemplate", c.name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s does not compile: %v", c.name, err)
			continue
		}
		text, err := tmpl.Render([]Message{{"user", "secret"}}, true)
		if !errors.Is(err, ErrRender) && !errors.Is(err, ErrRenderLimit) {
			t.Errorf("%s: rendered %d bytes, %v", c.name, len(text), err)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: error repeats the prompt: %v", c.name, err)
		}
	}
}

// TestRenderClock: when time is up the next step ends the rendering, whether it went in
// many steps or in few; one long gap is a process that was stopped, and costs a second.
func TestRenderClock(t *testing.T) {
	tmpl, err := newTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", nil)
	if err != nil {
		t.Fatal(err)
	}
	chat := slices.Repeat([]Message{{"user", "x"}}, 20)
	for _, c := range []struct {
		name string
		gaps func(call int) time.Duration // before each reading of the clock
		want error
	}{
		{"no time", func(int) time.Duration { return 0 }, nil},
		{"400 ms each", func(int) time.Duration { return 400 * time.Millisecond }, nil},
		{"600 ms each", func(int) time.Duration { return 600 * time.Millisecond }, ErrRenderLimit},
		{"5 s each", func(int) time.Duration { return 5 * time.Second }, ErrRenderLimit},
		{"stopped once", func(call int) time.Duration {
			if call == 7 {
				return 30 * time.Second
			}
			return 10 * time.Millisecond
		}, nil},
	} {
		at, calls := time.Unix(0, 0), 0
		tmpl.clock = func() time.Time {
			at = at.Add(c.gaps(calls))
			calls++
			return at
		}
		if _, err := tmpl.Render(chat, true); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
		if c.want == nil && calls < len(chat) {
			t.Errorf("%s: the clock was read %d times for %d turns", c.name, calls, len(chat))
		}
	}
}

// TestLongChat: a real template on a conversation of many megabytes stays in its limits.
func TestLongChat(t *testing.T) {
	tmpl, err := newTemplate(goldenTemplate(t, "qwen3.jinja"), nil)
	if err != nil {
		t.Fatal(err)
	}
	var chat []Message
	for i := range 2000 {
		chat = append(chat, Message{[]string{"user", "assistant"}[i%2], strings.Repeat("word <b> ", 200)})
	}
	text, err := tmpl.Render(chat, true)
	if err != nil || len(text) < 2000*200*9 {
		t.Fatalf("%d bytes, %v", len(text), err)
	}
}

func TestStrftime(t *testing.T) {
	at := time.Date(2026, 7, 4, 9, 5, 7, 0, time.UTC)
	for format, want := range map[string]string{
		"%d %b %Y": "04 Jul 2026", "%A, %B %d": "Saturday, July 04", "%H:%M:%S %p %I": "09:05:07 AM 09", "%%d %j %y": "%d 185 26", "Jan 2 2006": "Jan 2 2006", "%-d": "4",
	} {
		if got, err := strftime(at, format); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", format, got, err, want)
		}
	}
	for _, format := range []string{"%", "%Q", "%-", "%-Y"} {
		if got, err := strftime(at, format); err == nil {
			t.Errorf("%q: %q, want an error", format, got)
		}
	}
}

// FuzzTemplate: any source compiles to something that ends, or is refused.
func FuzzTemplate(f *testing.F) {
	for _, name := range []string{"smollm2", "qwen3", "llama3-style", "chatml-blocks", "macros", "alternating"} {
		f.Add(goldenTemplate(f, name+".jinja"))
	}
	negative.Seeds(f, "testdata/negative", func(what string, data []byte) {
		if what == "template" {
			f.Add(string(data))
		}
	})
	f.Fuzz(func(t *testing.T, source string) {
		tmpl, err := newTemplate(source, map[string]string{"bos_token": "<s>"})
		if err != nil {
			return
		}
		text, err := tmpl.Render([]Message{{"user", "u"}, {"assistant", "a"}}, true)
		if err == nil && len(text) > baseBytes+perInputByte*2 {
			t.Fatalf("%d bytes", len(text))
		}
	})
}
