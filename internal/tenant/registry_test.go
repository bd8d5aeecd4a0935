package tenant

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"bulkhead/internal/negative"
)

func TestRegistry(t *testing.T) {
	r := NewRegistry()
	keyA, keyB := NewKey(), NewKey()
	if !strings.HasPrefix(keyA, KeyPrefix) || keyA == keyB || len(keyA) != len(KeyPrefix)+52 {
		t.Errorf("NewKey: %d characters", len(keyA))
	}
	a, err := r.Add("acme", keyA, Limits{MaxConcurrent: 3})
	if err != nil {
		t.Fatal(err)
	}
	b, err := r.Add("bolt", keyB, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]*Tenant{keyA: a, keyB: b} {
		if got, ok := r.Lookup(key); !ok || got != want {
			t.Errorf("Lookup: %v, %v, want %v", got, ok, want)
		}
	}
	for _, bad := range []string{"", keyA[1:], keyA + " ", " " + keyA, strings.ToUpper(keyA), "Bearer " + keyA, strings.Repeat("x", MaxKey+1), hex.EncodeToString(a.keys[0][:])} {
		if got, ok := r.Lookup(bad); ok || got != nil {
			t.Errorf("Lookup of a wrong key of %d characters gives %v", len(bad), got)
		}
	}
	if got, ok := r.ByID(a.ID); !ok || got != a {
		t.Error("ByID")
	}
	if list := r.Tenants(); len(list) != 2 || list[0] != a || list[1] != b || r.Len() != 2 {
		t.Errorf("Tenants: %v", list)
	}

	// Each conflict is refused and changes nothing.
	for name, f := range map[string]func() error{
		"name": func() error { _, err := r.Add("acme", NewKey(), Limits{}); return err },
		"key":  func() error { _, err := r.Add("core", keyA, Limits{}); return err },
	} {
		if err := f(); !errors.Is(err, ErrConflict) || r.Len() != 2 {
			t.Errorf("%s: %v, %d tenants", name, err, r.Len())
		}
	}
	for _, key := range []string{"", "short", strings.Repeat("k", MinKey-1), strings.Repeat("k", MaxKey+1), strings.Repeat("k", 20) + " ", strings.Repeat("k", 20) + "é"} {
		_, err := r.Add("core", key, Limits{})
		if !errors.Is(err, ErrKey) {
			t.Errorf("a key of %d bytes: %v", len(key), err)
		}
		if err != nil && len(key) > 4 && strings.Contains(err.Error(), key) {
			t.Error("the error repeats the key")
		}
	}
	if _, err := r.Add("a.b", NewKey(), Limits{}); !errors.Is(err, ErrName) {
		t.Errorf("bad name: %v", err)
	}
	if _, err := r.Add("core", NewKey(), Limits{TokensPerMinute: -1}); err == nil || r.Len() != 2 {
		t.Error("a negative limit passes")
	}

	if err := r.Remove("acme"); err != nil {
		t.Fatal(err)
	}
	if _, ok := r.Lookup(keyA); ok {
		t.Error("a removed tenant's key still works")
	}
	if _, ok := r.ByID(a.ID); ok {
		t.Error("a removed tenant is still found")
	}
	if err := r.Remove("acme"); err != ErrUnknown {
		t.Errorf("removed twice: %v", err)
	}
	if _, err := r.Add("acme", keyA, Limits{}); err != nil {
		t.Errorf("adding again: %v", err)
	}
}

// TestPrefixRoot: roots differ by tenant and by model, survive the file, and
// are not kept by a tenant of the same name made anew.
func TestPrefixRoot(t *testing.T) {
	r := NewRegistry()
	a, errA := r.Add("acme", NewKey(), Limits{})
	b, errB := r.Add("bolt", NewKey(), Limits{})
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	root := r.PrefixRoot(a, h32(1))
	if root == r.PrefixRoot(b, h32(1)) {
		t.Error("two tenants share a root")
	}
	if root == r.PrefixRoot(a, h32(2)) {
		t.Error("two models share a root")
	}
	path := filepath.Join(t.TempDir(), "tenants.json")
	if err := r.Save(path); err != nil {
		t.Fatal(err)
	}
	again, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	a2, _ := again.ByID(a.ID)
	if again.PrefixRoot(a2, h32(1)) != root {
		t.Error("another router has another root")
	}
	if err := r.Remove("acme"); err != nil {
		t.Fatal(err)
	}
	a3, err := r.Add("acme", NewKey(), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if r.PrefixRoot(a3, h32(1)) == root || a3.ID == a.ID {
		t.Error("a new tenant of an old name inherits")
	}
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "tenants.json")
	r, err := LoadOrNew(path)
	if err != nil || r.Len() != 0 {
		t.Fatal(err)
	}
	key := NewKey()
	limits := Limits{MaxConcurrent: 1, RequestsPerMinute: 2, TokensPerMinute: 3, MaxNewTokens: 4}
	a, err := r.Add("acme", key, limits)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second replaces the first
		if err := r.Save(path); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("%d files left", len(left))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), key) || strings.Contains(string(data), key[len(KeyPrefix):]) {
		t.Error("the file holds the key")
	}
	again, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := again.Lookup(key); !ok || got.Name != "acme" || got.ID != a.ID || got.Limits != limits {
		t.Errorf("after Load: %v, %v", got, ok)
	}
	if _, err := Load(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// TestFileRefused: every fault of a tenants file is an error, and no error
// shows a hash or a secret.
func TestFileRefused(t *testing.T) {
	h, s := strings.Repeat("ab", 32), strings.Repeat("cd", 32)
	good := `{"tenants":[{"name":"a","id":"i","keys":["` + h + `"],"scope":"` + s + `","limits":{"max_concurrent":1}}]}`
	if r, err := Parse([]byte(good)); err != nil || r.Len() != 1 {
		t.Fatal(err)
	}
	for name, v := range map[string][2]string{ // replace the first by the second
		"unknown member":      {`"name":`, `"nom":`},
		"another case":        {`"name":`, `"NAME":`},
		"member elsewhere":    {`"max_concurrent":1`, `"name":"x"`},
		"duplicate":           {`"id":"i"`, `"id":"i","id":"j"`},
		"duplicate in limits": {`"max_concurrent":1`, `"max_concurrent":1,"max_concurrent":2`},
		"no name":             {`"name":"a",`, ``},
		"bad name":            {`"a"`, `"a b"`},
		"no id":               {`"id":"i",`, ``},
		"no keys":             {`["` + h + `"]`, `[]`},
		"keys missing":        {`"keys":["` + h + `"],`, ``},
		"key twice":           {`["` + h + `"]`, `["` + h + `","` + h + `"]`},
		"17 keys":             {`["` + h + `"]`, `[` + strings.Repeat(`"`+h+`",`, 16) + `"` + h + `"]`},
		"plain key":           {h, "sk-bh-something"},
		"short hash":          {h, h[2:]},
		"scope missing":       {`"scope":"` + s + `",`, ``},
		"scope short":         {s, s[2:]},
		"scope zero":          {s, strings.Repeat("0", 64)},
		"negative limit":      {`:1`, `:-1`},
		"fraction":            {`:1`, `:1.5`},
		"string limit":        {`:1`, `:"1"`},
		"data after":          {`}]}`, `}]} {}`},
		"cut":                 {`}]}`, `}]`},
		"array":               {good, `[]`},
		"empty":               {good, ``},
		"deep":                {`["` + h + `"]`, strings.Repeat("[", 100)},
		"deep numbers":        {`"max_concurrent":1`, `"max_concurrent":{"name":[[1]]}`},
	} {
		bad := strings.Replace(good, v[0], v[1], 1)
		if bad == good {
			t.Fatalf("%s changes nothing", name)
		}
		r, err := Parse([]byte(bad))
		if !errors.Is(err, ErrFile) || r != nil {
			t.Errorf("%s: %v, want ErrFile", name, err)
			continue
		}
		if strings.Contains(err.Error(), h[:8]) || strings.Contains(err.Error(), s[:8]) {
			t.Errorf("%s: the error shows a hash or secret: %v", name, err)
		}
	}
	entry := strings.TrimSuffix(strings.TrimPrefix(good, `{"tenants":[`), `]}`)
	for name, v := range map[string][2]string{"name": {`"a"`, `"a"`}, "id": {`"i"`, `"i"`}, "key": {h, h}} {
		second := strings.NewReplacer(`"a"`, `"b"`, `"i"`, `"j"`, h, s).Replace(entry)
		switch name {
		case "name":
			second = strings.Replace(second, `"b"`, v[1], 1)
		case "id":
			second = strings.Replace(second, `"j"`, v[1], 1)
		case "key":
			second = strings.Replace(second, `["`+s, `["`+h, 1)
		}
		if _, err := Parse([]byte(`{"tenants":[` + entry + `,` + second + `]}`)); !errors.Is(err, ErrConflict) {
			t.Errorf("two tenants with the same %s: %v", name, err)
		}
	}
	// Depth is bounded before encoding/json sees the file.
	if _, err := Parse([]byte(strings.Repeat("[", 1000))); !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), "deep at byte 5") {
		t.Errorf("1,000 deep: %v", err)
	}
	if _, err := Parse(make([]byte, maxFile+1)); !errors.Is(err, ErrFile) {
		t.Errorf("too large: %v", err)
	}
}

// TestNothingPrintsSecrets formats what holds secrets in every way.
func TestNothingPrintsSecrets(t *testing.T) {
	r := NewRegistry()
	key := NewKey()
	a, err := r.Add("acme", key, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	secret := *a.scope
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "tenant", a, "registry", r, "secret", secret, "p", a.scope)
	for _, v := range []any{a, r, secret, &secret, []Secret{secret}, struct{ S Secret }{secret}, []*Tenant{a}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%X", "%d", "%q"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
	}
	j, err := json.Marshal(struct{ S Secret }{secret})
	if err != nil {
		t.Fatal(err)
	}
	out.Write(j)
	for name, b := range map[string][]byte{"scope": secret[:], "key hash": a.keys[0][:], "blind": r.blind[:], "key": []byte(key)} {
		for _, form := range []string{"%s", "%x", "%X", "%v", "%d", "%#v"} {
			if text := strings.Trim(fmt.Sprintf(form, b[:8]), `[]`); strings.Contains(out.String(), strings.TrimPrefix(text, "[]byte{")) {
				t.Errorf("%s is printed as %s", name, form)
			}
		}
	}
	if !strings.Contains(out.String(), Redacted) || !strings.Contains(out.String(), "acme") {
		t.Error("nothing was printed at all")
	}
}

// TestRegistryRace uses a registry from many goroutines (for -race).
func TestRegistryRace(t *testing.T) {
	r := NewRegistry()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := range 50 {
				name, key := fmt.Sprintf("t%d-%d", i, j), NewKey()
				if _, err := r.Add(name, key, Limits{}); err != nil {
					t.Error(err)
				}
				if got, ok := r.Lookup(key); !ok || got.Name != name {
					t.Errorf("%s not found", name)
				}
				r.Tenants()
				if err := r.Remove(name); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if r.Len() != 0 || len(r.byKey) != 0 || len(r.byID) != 0 {
		t.Error("something is left")
	}
}

func FuzzFile(f *testing.F) {
	h := strings.Repeat("ab", 32)
	f.Add([]byte(`{"tenants":[{"name":"a","id":"i","keys":["` + h + `"],"scope":"` + h + `","limits":{"max_concurrent":1}}]}`))
	f.Add([]byte(`{"tenants":[]}`))
	f.Add([]byte(`{"tenants":null}`))
	f.Add([]byte(`[[[[`))
	negative.Seeds(f, "testdata/negative", func(what string, data []byte) {
		if what == "tenants" {
			f.Add(data)
		}
	})
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Parse(data)
		if err != nil {
			return
		}
		// What is read is written, and read again as the same.
		path := filepath.Join(dir, fmt.Sprint(os.Getpid()))
		if err := r.Save(path); err != nil {
			t.Fatal(err)
		}
		again, err := Load(path)
		if err != nil || again.Len() != r.Len() {
			t.Fatalf("%v, then %v, %v", r, again, err)
		}
	})
}
