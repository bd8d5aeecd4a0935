package identity

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// goal: a role's folder is enough for the role and holds no other role's key.
func TestWriteTree(t *testing.T) {
	k, err := NewMemory("test")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := k.WriteTree(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadServerAuth(filepath.Join(dir, PublicDir)); err != nil {
		t.Errorf("the broker's folder: %v", err)
	}
	for _, role := range Roles() {
		m, err := LoadMinter(filepath.Join(dir, role), role)
		if err != nil {
			t.Fatalf("%s: %v", role, err)
		}
		if _, err := m.NewNode("n1"); err != nil {
			t.Errorf("%s: %v", role, err)
		}
		seeds, err := filepath.Glob(filepath.Join(dir, role, "*.nk"))
		if err != nil || len(seeds) != 1 || filepath.Base(seeds[0]) != role+".nk" {
			t.Errorf("%s: its folder holds the keys %v (%v)", role, seeds, err)
		}
		if info, err := os.Stat(seeds[0]); err != nil || info.Mode().Perm() != 0o400 {
			t.Errorf("%s: mode %v (%v)", role, info.Mode(), err)
		}
	}
	if err := k.WriteTree(dir); !errors.Is(err, ErrExists) {
		t.Errorf("a second time: %v, want ErrExists", err)
	}
}
