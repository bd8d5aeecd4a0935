package main_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// goal: the pages that newcomers read first do not rot. method: every relative
// link must lead to a file, and where its text is a function, the file must declare it.

var link = regexp.MustCompile(`\[([^\]]+)\]\(([^)\s]+)\)`)

func TestArchitecture(t *testing.T) {
	functions := 0
	for _, page := range []string{"ARCHITECTURE.md", "README.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			label, target := m[1], m[2]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "#") {
				continue
			}
			target, _, _ = strings.Cut(target, "#")
			if _, err := os.Stat(filepath.FromSlash(target)); err != nil {
				t.Errorf("%s links to %s, which is not there", page, target)
				continue
			}
			name, ok := strings.CutPrefix(label, "`")
			if !ok || !strings.HasSuffix(target, ".go") {
				continue
			}
			functions++
			if name = strings.TrimSuffix(name, "`"); !declares(t, target, name) {
				t.Errorf("%s links to %s in %s, which does not declare it", page, name, target)
			}
		}
	}
	if functions < 20 {
		t.Errorf("only %d functions were found in the pages: does the pattern still match?", functions)
	}
}

// declares says whether a file has the function "Name" or the method "Type.Name".
func declares(t *testing.T, file, name string) bool {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		full := fn.Name.Name
		if fn.Recv != nil {
			recv := fn.Recv.List[0].Type
			if star, ok := recv.(*ast.StarExpr); ok {
				recv = star.X
			}
			if id, ok := recv.(*ast.Ident); ok {
				full = id.Name + "." + full
			}
		}
		if full == name {
			return true
		}
	}
	return false
}
