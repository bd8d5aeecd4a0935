package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/mutant"
)

// goal: nobody can take a build in which checks are missing, or can be, for a release. method: the
// same test in each build (make test): what the version command prints, and
// what every role writes at its start at the highest log level, also where the start
// fails right after.
func TestBuild(t *testing.T) {
	build, want := "release", ""
	switch {
	case mutant.Bare:
		build, want = "noisolation", "noisolation: this build keeps nothing apart"
	case mutant.Enabled:
		build, want = "mutants", "mutants: this build can be told to leave checks out"
	}
	judge := func(t *testing.T, text, want string) {
		t.Helper()
		switch {
		case want != "" && !strings.Contains(text, want):
			t.Errorf("%q does not say %q", text, want)
		case want == "" && (strings.Contains(text, "this build") || strings.Contains(text, "+")):
			t.Errorf("a release says %q", text)
		}
	}
	t.Run(build, func(t *testing.T) {
		judge(t, versionText(), want)
		if mark := "+" + build; want != "" && !strings.Contains(version, mark) {
			t.Errorf("version %q has no %s", version, mark)
		}
		if want != "" {
			want = `"level":"ERROR","msg":"` + want
		}
		log := logFlags{LogFormat: "json", LogLevel: "error"}
		for role, start := range map[string]func() error{
			"up":      func() error { return upCmd{logFlags: log, Window: -1}.Run(t.Context()) },
			"router":  func() error { return routerCmd{nodeFlags: nodeFlags{logFlags: log}}.Run(t.Context()) },
			"prefill": func() error { return prefillCmd{nodeFlags: nodeFlags{logFlags: log}}.Run(t.Context()) },
			"decode":  func() error { return decodeCmd{nodeFlags: nodeFlags{logFlags: log}}.Run(t.Context()) },
			"nats":    func() error { return natsCmd{logFlags: log, Keys: t.TempDir()}.Run(t.Context()) },
		} {
			t.Run(role, func(t *testing.T) {
				said := stderr(t, func() {
					if start() == nil {
						t.Error("it started")
					}
				})
				judge(t, said, want)
			})
		}
	})
}

// stderr is what f writes to standard error.
func stderr(t *testing.T, f func()) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "stderr")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	old := os.Stderr
	os.Stderr = file
	defer func() { os.Stderr = old }()
	f()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
