package tenant

import (
	"bytes"
	"flag"
	"os"
	"testing"
)

// -rewrite makes the golden files anew. A change of them is a change of the
// protocol and needs a new version.
var rewrite = flag.Bool("rewrite", false, "write testdata anew")

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs:\ngot\n%s\nwant\n%s", path, got, want)
	}
}
