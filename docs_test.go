package main_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var testName = regexp.MustCompile("`((?:Test|Fuzz)[A-Z][A-Za-z0-9]*)`")

// goal: what docs/ promises can be looked up. method: every relative link leads to a file, a
// function that is named as a link's text is declared there, and every test that
// a page names is in the tree, under whatever build tag.
func TestDocs(t *testing.T) {
	tests := declaredTests(t)
	pages, err := filepath.Glob("docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal(err, pages)
	}
	named := 0
	for _, page := range pages {
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
			target = filepath.Join("docs", filepath.FromSlash(target))
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which is not there", page, target)
			} else if name := strings.Trim(label, "`"); name != label && strings.HasSuffix(target, ".go") && !declares(t, target, name) {
				t.Errorf("%s links to %s in %s, which does not declare it", page, name, target)
			}
		}
		for _, m := range testName.FindAllStringSubmatch(string(text), -1) {
			named++
			if !tests[m[1]] {
				t.Errorf("%s names the test %s, which is not in the tree", page, m[1])
			}
		}
	}
	if named < 10 {
		t.Errorf("only %d tests were found in the pages: does the pattern still match?", named)
	}
}

// declaredTests are the names of all tests and fuzz targets of the module, whatever their tags.
func declaredTests(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
				found[fn.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
