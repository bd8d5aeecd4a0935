package tenant

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// A tenants file is JSON:
//
//	{"tenants": [{
//	  "name": "acme",
//	  "id": "opaque, travels in tokens",
//	  "keys": ["SHA-256 of a tenant key, 64 hex digits"],
//	  "scope": "secret of the tenant's prefix cache, 64 hex digits",
//	  "limits": {"max_concurrent": 8, "requests_per_minute": 600,
//	             "tokens_per_minute": 100000, "max_new_tokens": 2048}
//	}]}
//
// Every member but limits and its members is needed; unknown and repeated ones
// are refused. It holds no key but it holds the scope secrets: mode 0600.
const maxFile = 16 << 20

// ErrFile is returned for a tenants file that does not parse.
var ErrFile = errors.New("tenant: bad tenants file")

type fileForm struct {
	Tenants []tenantForm `json:"tenants"`
}

type tenantForm struct {
	Name   string     `json:"name"`
	ID     string     `json:"id"`
	Keys   []string   `json:"keys"`
	Scope  string     `json:"scope"`
	Limits limitsForm `json:"limits"`
}

type limitsForm struct {
	MaxConcurrent     int `json:"max_concurrent,omitempty"`
	RequestsPerMinute int `json:"requests_per_minute,omitempty"`
	TokensPerMinute   int `json:"tokens_per_minute,omitempty"`
	MaxNewTokens      int `json:"max_new_tokens,omitempty"`
}

// Load reads a tenants file.
func Load(path string) (*Registry, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	r, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// Parse reads a tenants file from memory. Errors never hold its bytes.
func Parse(data []byte) (*Registry, error) {
	if len(data) > maxFile {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrFile, len(data), maxFile)
	}
	if err := checkMembers(data); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}
	var form fileForm
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&form); err != nil {
		return nil, fmt.Errorf("%w: at byte %d", ErrFile, d.InputOffset())
	}
	r := NewRegistry()
	for i, tf := range form.Tenants {
		t, err := tf.tenant()
		if err == nil {
			err = r.put(t)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: entry %d: %w", ErrFile, i, err)
		}
	}
	return r, nil
}

func (f tenantForm) tenant() (*Tenant, error) {
	if len(f.Keys) == 0 || len(f.Keys) > MaxKeysPerTenant {
		return nil, fmt.Errorf("keys: 1 to %d hashes, got %d", MaxKeysPerTenant, len(f.Keys))
	}
	t := &Tenant{Name: f.Name, ID: f.ID, Limits: Limits(f.Limits), scope: new(Secret)}
	for i, k := range f.Keys {
		var h keyHash
		if err := parseHex(h[:], k); err != nil {
			return nil, fmt.Errorf("keys[%d]: %w", i, err)
		}
		t.keys = append(t.keys, h)
	}
	if err := parseHex(t.scope[:], f.Scope); err != nil {
		return nil, fmt.Errorf("scope: %w", err)
	}
	if *t.scope == (Secret{}) {
		return nil, errors.New("scope: must not be zero")
	}
	return t, nil
}

func parseHex(dst []byte, s string) error {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(dst) {
		return fmt.Errorf("%d hex digits needed, got %d characters", 2*len(dst), len(s))
	}
	copy(dst, b)
	return nil
}

// checkMembers refuses what encoding/json lets pass: members given twice, names
// that differ from ours only in case, and anything after the value.
func checkMembers(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	type object struct {
		isArray bool
		seen    map[string]bool
	}
	var stack []object
	atName := false // the next token is a member's name
	for {
		t, err := d.Token()
		if err == io.EOF && len(stack) == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("not JSON at byte %d", d.InputOffset())
		}
		switch v := t.(type) {
		case json.Delim:
			switch v {
			case '{', '[':
				if len(stack) == 4 { // file, tenants, tenant, keys or limits
					return fmt.Errorf("nested too deep at byte %d", d.InputOffset())
				}
				stack = append(stack, object{isArray: v == '[', seen: map[string]bool{}})
			default:
				stack = stack[:len(stack)-1]
			}
		case string:
			if atName {
				top := stack[len(stack)-1]
				if top.seen[v] {
					return fmt.Errorf("member given twice at byte %d", d.InputOffset())
				}
				if !fileMember[v] {
					return fmt.Errorf("unknown member at byte %d", d.InputOffset())
				}
				top.seen[v] = true
				atName = false
				continue
			}
		}
		if len(stack) == 0 {
			if _, err := d.Token(); err != io.EOF {
				return fmt.Errorf("data after the value at byte %d", d.InputOffset())
			}
			return nil
		}
		atName = !stack[len(stack)-1].isArray
	}
}

var fileMember = map[string]bool{
	"tenants": true, "name": true, "id": true, "keys": true, "scope": true, "limits": true,
	"max_concurrent": true, "requests_per_minute": true, "tokens_per_minute": true, "max_new_tokens": true,
}

// Save writes the registry to path, mode 0600, so that a reader sees the old
// file or the new one and never half of either.
func (r *Registry) Save(path string) (err error) {
	form := fileForm{Tenants: []tenantForm{}}
	for _, t := range r.Tenants() {
		tf := tenantForm{Name: t.Name, ID: t.ID, Scope: hex.EncodeToString(t.scope[:]), Limits: limitsForm(t.Limits)}
		for _, k := range t.keys {
			tf.Keys = append(tf.Keys, hex.EncodeToString(k[:]))
		}
		form.Tenants = append(form.Tenants, tf)
	}
	data, err := json.MarshalIndent(form, "", "  ")
	if err != nil {
		return fmt.Errorf("tenant: encode: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".tenants-*") // 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(tmp.Name())
		}
	}()
	if _, err = tmp.Write(append(data, '\n')); err == nil {
		err = tmp.Sync()
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// LoadOrNew is Load, or an empty registry where there is no file yet.
func LoadOrNew(path string) (*Registry, error) {
	r, err := Load(path)
	if errors.Is(err, fs.ErrNotExist) {
		return NewRegistry(), nil
	}
	return r, err
}
