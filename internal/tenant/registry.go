package tenant

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
)

// Limits of a registry.
const (
	MaxTenants       = 10_000
	MaxKeysPerTenant = 16
	MinKey           = 16  // characters: keys are hashed fast, so they must not be guessable
	MaxKey           = 256 // characters
)

// KeyPrefix starts every generated key, so that scanners for leaked secrets
// can know one.
const KeyPrefix = "sk-bh-"

// Errors of a registry.
var (
	ErrKey      = errors.New("tenant: bad key")
	ErrConflict = errors.New("tenant: already there")
	ErrUnknown  = errors.New("tenant: no such tenant")
)

// Limits is what a tenant may take. 0 means no limit of its own.
type Limits struct {
	MaxConcurrent     int // requests in work at once
	RequestsPerMinute int
	TokensPerMinute   int // prompt and generated together
	MaxNewTokens      int // per sequence
}

// Tenant is one customer. It is never changed once in a Registry.
type Tenant struct {
	Name   string // for people; stays in the router
	ID     string // opaque; travels in tokens
	Limits Limits

	keys  []keyHash // at most MaxKeysPerTenant
	scope *Secret   // keys the tenant's prefix chains
}

// keyHash is the SHA-256 of a tenant key. Keys have high entropy (MinKey), so
// a slow password hash would only make a cheap way to load the router.
type keyHash [sha256.Size]byte

// Format shows who a tenant is, and neither hash nor secret, under every verb.
func (t *Tenant) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "tenant %s (%s)", t.Name, t.ID) }

// LogValue does the same for slog.
func (t *Tenant) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(t)) }

// Registry holds the tenants. It is safe for concurrent use.
type Registry struct {
	blind Secret // keys the index, new in every process

	mu     sync.RWMutex
	byName map[string]*Tenant
	byID   map[string]*Tenant
	byKey  map[[sha256.Size]byte]*Tenant // HMAC(blind, key hash) -> holder
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry {
	r := &Registry{
		byName: make(map[string]*Tenant),
		byID:   make(map[string]*Tenant),
		byKey:  make(map[[sha256.Size]byte]*Tenant),
	}
	rand.Read(r.blind[:])
	return r
}

// Format shows the count of tenants under every verb.
func (r *Registry) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "tenant registry of %d", r.Len()) }

// LogValue does the same for slog.
func (r *Registry) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(r)) }

// Len returns the count of tenants.
func (r *Registry) Len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.byName)
}

// NewKey returns a fresh tenant key with 256 bits of entropy.
func NewKey() string {
	var b [32]byte
	rand.Read(b[:])
	return KeyPrefix + lowerBase32.EncodeToString(b[:])
}

// checkKey never repeats the key.
func checkKey(key string) error {
	if len(key) < MinKey || len(key) > MaxKey {
		return fmt.Errorf("%w: a key has %d to %d characters, got %d", ErrKey, MinKey, MaxKey, len(key))
	}
	for i := 0; i < len(key); i++ {
		if key[i] <= ' ' || key[i] > '~' {
			return fmt.Errorf("%w: character %d is not visible ASCII", ErrKey, i)
		}
	}
	return nil
}

// Add makes a tenant that holds key (see NewKey) and returns it.
func (r *Registry) Add(name, key string, l Limits) (*Tenant, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	var id [16]byte
	rand.Read(id[:])
	t := &Tenant{Name: name, ID: lowerBase32.EncodeToString(id[:]), Limits: l,
		keys: []keyHash{sha256.Sum256([]byte(key))}, scope: new(Secret)}
	rand.Read(t.scope[:])
	return t, r.put(t)
}

// put checks a tenant and takes it in.
func (r *Registry) put(t *Tenant) error {
	if err := CheckTenant(t.Name); err != nil {
		return err
	}
	if err := CheckTenant(t.ID); err != nil {
		return fmt.Errorf("id: %w", err)
	}
	if err := t.Limits.validate(); err != nil {
		return fmt.Errorf("tenant %s: %w", t.Name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.byName) >= MaxTenants {
		return fmt.Errorf("tenant: at most %d tenants", MaxTenants)
	}
	if r.byName[t.Name] != nil {
		return fmt.Errorf("%w: name %s", ErrConflict, t.Name)
	}
	if r.byID[t.ID] != nil {
		return fmt.Errorf("%w: id of %s", ErrConflict, t.Name)
	}
	for i, k := range t.keys {
		if r.byKey[r.index(k)] != nil || slices.Contains(t.keys[:i], k) {
			return fmt.Errorf("%w: a key of %s", ErrConflict, t.Name)
		}
	}
	r.byName[t.Name], r.byID[t.ID] = t, t
	for _, k := range t.keys {
		r.byKey[r.index(k)] = t
	}
	return nil
}

// Remove forgets a tenant and its keys.
func (r *Registry) Remove(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.byName[name]
	if t == nil {
		return ErrUnknown
	}
	delete(r.byName, t.Name)
	delete(r.byID, t.ID)
	for _, k := range t.keys {
		delete(r.byKey, r.index(k))
	}
	return nil
}

// Lookup returns the tenant that holds the key bearer. How long it takes says
// nothing about the keys: what is looked up is an HMAC under a secret of this
// process, so a caller cannot know how much of it agrees with another's.
func (r *Registry) Lookup(bearer string) (*Tenant, bool) {
	if len(bearer) > MaxKey {
		return nil, false
	}
	i := r.index(sha256.Sum256([]byte(bearer)))
	r.mu.RLock()
	defer r.mu.RUnlock()
	t, ok := r.byKey[i]
	return t, ok
}

// ByID returns the tenant that a token names.
func (r *Registry) ByID(id string) (*Tenant, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	t, ok := r.byID[id]
	return t, ok
}

// Tenants returns all tenants in order of name.
func (r *Registry) Tenants() []*Tenant {
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := make([]*Tenant, 0, len(r.byName))
	for _, t := range r.byName {
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b *Tenant) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return out
}

// PrefixRoot is the root of t's prefix chains for a model: HMAC-SHA-256 under
// the tenant's own secret over a label and the model fingerprint. All routers
// that read the same tenants file agree on it, and no other tenant can share
// a chain that grows from it.
func (r *Registry) PrefixRoot(t *Tenant, model [32]byte) [32]byte {
	m := hmac.New(sha256.New, t.scope[:])
	m.Write([]byte(labelPrefixRoot))
	m.Write(model[:])
	return sum(m)
}

func (r *Registry) index(k keyHash) [sha256.Size]byte {
	m := hmac.New(sha256.New, r.blind[:])
	m.Write(k[:])
	return sum(m)
}

func (l Limits) validate() error {
	for _, f := range []struct {
		name  string
		value int
	}{
		{"max_concurrent", l.MaxConcurrent},
		{"requests_per_minute", l.RequestsPerMinute},
		{"tokens_per_minute", l.TokensPerMinute},
		{"max_new_tokens", l.MaxNewTokens},
	} {
		if f.value < 0 || f.value > 1<<40 {
			return fmt.Errorf("limit %s is %d, must be 0 (none) to %d", f.name, f.value, 1<<40)
		}
	}
	return nil
}
