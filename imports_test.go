package main_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// goal: a reader may trust the import table of ARCHITECTURE.md. method: ask
// the go command for every package with its tests, and compare with the doors.

// door is a module or package that only the named packages may import.
type door struct {
	path string // import path prefix
	only []string
	why  string
	test []string // may import it in their tests as well
}

var doors = []door{
	{"github.com/nats-io/nats.go", []string{"bulkhead/transfer"}, "the wire can be replaced, and everything else is tested without sockets", []string{"bulkhead/internal/cluster"}},
	{"github.com/vmihailenco/msgpack", nil, "one strict codec, transfer's own, decides what bytes from the bus may become: this one is what it is compared with", []string{"bulkhead/transfer"}},
	{"github.com/nats-io/nats-server", []string{"bulkhead/internal/cluster"}, "only the all-in-one process, the nats role and tests carry a server", nil},
	{"github.com/nats-io/jwt", []string{"bulkhead/internal/identity"}, "one place mints and checks identities", []string{"bulkhead/internal/cluster"}},
	{"github.com/nats-io/nkeys", []string{"bulkhead/internal/identity"}, "one place mints and checks identities", []string{"bulkhead/internal/cluster"}},
	{"aidanwoods.dev/go-paseto", []string{"bulkhead/internal/tenant"}, "one place signs and checks the tenant token", nil},
	{"gorgonia.org/cu", []string{"bulkhead/kernels/cuda"}, "it links a driver: a machine without one must still start", nil},
	{"github.com/ardanlabs/jinja", []string{"bulkhead/internal/tokenizer"}, "templates come from files and are bounded in one place", nil},
	{"github.com/prometheus/client_golang", []string{"bulkhead/internal/metrics"}, "each metric is defined once", nil},
	{"github.com/alecthomas/kong", []string{"bulkhead"}, "only main reads arguments and environment", nil},
}

// ban is an import that one package must not have, at any depth.
type ban struct {
	pkg  string
	not  []string
	why  string
	only bool // not lists all that is allowed inside the module
}

var bans = []ban{
	{pkg: "bulkhead/router", not: []string{"bulkhead/kernels", "bulkhead/internal/model", "bulkhead/internal/kv", "bulkhead/prefill", "bulkhead/decode", "bulkhead/internal/cluster"}, why: "the edge holds no weights and no KV, and roles meet only in messages"},
	{pkg: "bulkhead/prefill", not: []string{"bulkhead/decode", "bulkhead/router", "bulkhead/internal/cluster", "bulkhead/kernels/cpu", "bulkhead/internal/tokenizer"}, why: "roles meet only in messages, and receive their backend from main"},
	{pkg: "bulkhead/decode", not: []string{"bulkhead/prefill", "bulkhead/router", "bulkhead/internal/cluster", "bulkhead/kernels/cpu", "bulkhead/internal/tokenizer"}, why: "roles meet only in messages, and receive their backend from main"},
	{pkg: "bulkhead/internal/model", not: []string{"bulkhead/kernels/cpu", "bulkhead/transfer"}, why: "CPU and CUDA share everything above the Backend"},
	{pkg: "bulkhead/transfer/seal", not: []string{"bulkhead/internal/tenant"}, only: true, why: "reviewable in a sitting: the standard library's crypto and the tenant token"},
	{pkg: "bulkhead/internal/loadgen", not: []string{"bulkhead/router", "bulkhead/prefill", "bulkhead/decode", "bulkhead/transfer", "bulkhead/kernels/cpu"}, why: "it measures from outside: over HTTP, or an engine that main gives it"},
	{pkg: "bulkhead/internal/openai", not: nil, only: true, why: "it is any server's client and knows nothing of this one"},
	{pkg: "bulkhead/internal/canary", not: []string{"bulkhead/internal/openai"}, only: true, why: "it looks from outside, with nothing but keys, so that it may be pointed at any server"},
	{pkg: "bulkhead", not: []string{"bulkhead/internal/chaos", "bulkhead/internal/rogue"}, why: "the faulty network and the misbehaving peers are test tools: a release does not have them"},
	{pkg: "bulkhead/internal/gguf", not: nil, only: true, why: "reads files, trusts nothing, knows nothing"},
	{pkg: "bulkhead/internal/sample", not: nil, only: true, why: "a pure function of request and logits"},
	{pkg: "bulkhead/internal/tenant", not: nil, only: true, why: "identity depends on nothing of ours"},
	{pkg: "bulkhead/internal/identity", not: []string{"bulkhead/internal/tenant"}, only: true, why: "identity depends on nothing of ours but the grammar of names"},
	{pkg: "bulkhead/internal/metrics", not: nil, only: true, why: "each metric is defined once, below everything"},
	{pkg: "bulkhead/kernels", not: []string{"bulkhead/internal/gguf"}, only: true, why: "the contract of every backend knows only tensor types"},
	{pkg: "bulkhead/internal/kv", not: []string{"bulkhead/kernels", "bulkhead/internal/gguf", "bulkhead/internal/tenant"}, only: true, why: "the books know pages and owners, nothing of models or wires"},
}

type pkg struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
	Deps                               []string
}

func list(t *testing.T, tags string) map[string]pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports,Deps", "-tags", tags, "./...")
	out, err := cmd.Output()
	if err != nil {
		var ee *exec.ExitError
		if errors.As(err, &ee) {
			t.Fatalf("go list: %s", ee.Stderr)
		}
		t.Fatal(err)
	}
	all := map[string]pkg{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all[p.ImportPath] = p
	}
	return all
}

func under(path, prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }

func TestImports(t *testing.T) {
	all := list(t, "")
	for _, p := range all {
		for _, d := range doors {
			allowed := slices.ContainsFunc(d.only, func(o string) bool {
				return p.ImportPath == o || (o != "bulkhead" && strings.HasPrefix(p.ImportPath, o+"/"))
			})
			if allowed {
				continue
			}
			imports := p.Imports
			if !slices.Contains(d.test, p.ImportPath) {
				imports = slices.Concat(p.Imports, p.TestImports, p.XTestImports)
			}
			for _, imp := range imports {
				if under(imp, d.path) {
					t.Errorf("%s imports %s, which enters only through %v: %s", p.ImportPath, imp, d.only, d.why)
				}
			}
		}
	}
	for _, b := range bans {
		p, ok := all[b.pkg]
		if !ok {
			t.Errorf("%s is listed here but does not exist", b.pkg)
			continue
		}
		for _, dep := range p.Deps {
			if !under(dep, "bulkhead") || dep == "bulkhead/internal/mutant" { // a leaf: constants in a release
				continue
			}
			hit := slices.ContainsFunc(b.not, func(n string) bool { return dep == n || (!b.only && under(dep, n)) })
			if b.only == hit {
				continue
			}
			t.Errorf("%s depends on %s: %s", b.pkg, dep, b.why)
		}
	}
}
