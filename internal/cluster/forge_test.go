package cluster_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"bulkhead/internal/identity"
)

// forger has all keys of a cluster, as somebody who stole their files, and makes
// identities that no honest program makes.
type forger struct {
	t       *testing.T
	keys    map[string]nkeys.KeyPair // by file: operator, account and the roles
	account string
}

func newForger(t *testing.T, k *identity.Keys) *forger {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "keys")
	must(t, k.Write(dir))
	f := &forger{t: t, keys: map[string]nkeys.KeyPair{}, account: k.ServerAuth().Account}
	for _, name := range append(identity.Roles(), "account") {
		seed, err := os.ReadFile(filepath.Join(dir, name+".nk"))
		must(t, err)
		f.keys[name], err = nkeys.FromSeed([]byte(strings.TrimSpace(string(seed))))
		must(t, err)
	}
	return f
}

// forged is a user JWT with the key that it names.
type forged struct {
	jwt string
	key nkeys.KeyPair
}

// user makes a JWT like a node's, changed, and signed by the named key.
func (f *forger) user(signer, name string, change func(*jwt.UserClaims)) forged {
	f.t.Helper()
	key, err := nkeys.CreateUser()
	must(f.t, err)
	public, err := key.PublicKey()
	must(f.t, err)
	uc := jwt.NewUserClaims(public)
	uc.Name, uc.IssuerAccount = name, f.account
	uc.SetScoped(true)
	uc.Expires = time.Now().Add(time.Hour).Unix()
	if change != nil {
		change(uc)
	}
	token, err := uc.Encode(f.keys[signer])
	must(f.t, err)
	return forged{token, key}
}

func (u forged) connect(url string, opts ...nats.Option) (*nats.Conn, error) {
	return nats.Connect(url, append([]nats.Option{
		nats.UserJWT(func() (string, error) { return u.jwt, nil }, u.key.Sign),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), nats.NoReconnect(),
	}, opts...)...)
}

// everything connects with an identity of the account's own key, which has no scope
// and so every right: a compromised bus.
func (f *forger) everything(url string) *nats.Conn {
	f.t.Helper()
	c, err := f.user("account", "god", func(uc *jwt.UserClaims) {
		uc.IssuerAccount = ""
		uc.UserPermissionLimits = jwt.NewUserClaims(uc.Subject).UserPermissionLimits
	}).connect(url)
	must(f.t, err)
	f.t.Cleanup(c.Close)
	return c
}

// TestForgedIdentities: goal: neither the server nor a node takes an identity that
// has run out, has not begun, is of another account, or brings rights of its own. Method:
// JWTs that differ from a good one in one thing, which stands beside them as the control.
func TestForgedIdentities(t *testing.T) {
	w := newWorld(t)
	foreign, err := identity.NewMemory("test")
	must(t, err)
	ours, theirs := newForger(t, w.keys), newForger(t, foreign)
	minute := time.Minute
	for _, tc := range []struct {
		name   string
		user   forged
		server bool  // lets it in
		node   error // of Authority.Verify
	}{
		{"good", ours.user("decode", "d0", nil), true, nil},
		{"expired", ours.user("decode", "d0", func(u *jwt.UserClaims) { u.Expires = time.Now().Add(-minute).Unix() }), false, identity.ErrLifetime},
		{"not yet valid", ours.user("decode", "d0", func(u *jwt.UserClaims) { u.NotBefore = time.Now().Add(minute).Unix() }), false, identity.ErrFuture},
		{"without an end", ours.user("decode", "d0", func(u *jwt.UserClaims) { u.Expires = 0 }), true, identity.ErrLifetime},
		{"of another account", theirs.user("decode", "d0", nil), false, identity.ErrIssuer},
		{"of another account's role for ours", theirs.user("decode", "d0", func(u *jwt.UserClaims) { u.IssuerAccount = ours.account }), false, identity.ErrIssuer},
		{"of ours for another account", ours.user("decode", "d0", func(u *jwt.UserClaims) { u.IssuerAccount = theirs.account }), false, identity.ErrIssuer},
		{"with rights of its own", ours.user("decode", "d0", func(u *jwt.UserClaims) { u.Pub.Allow.Add(">") }), false, identity.ErrRights},
		{"a bearer's", ours.user("decode", "d0", func(u *jwt.UserClaims) { u.BearerToken = true }), false, identity.ErrRights},
		{"of the account itself", ours.user("account", "d0", func(u *jwt.UserClaims) {
			u.IssuerAccount = ""
			u.UserPermissionLimits = jwt.NewUserClaims(u.Subject).UserPermissionLimits
		}), true, identity.ErrIssuer},
	} {
		c, err := tc.user.connect(w.nats.ClientURL())
		if err == nil {
			c.Close()
		}
		if in := err == nil; in != tc.server || !in && !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("%s: the server says %v", tc.name, err)
		}
		if _, err := w.auth.Verify(tc.user.jwt, time.Now()); !errors.Is(err, tc.node) {
			t.Errorf("%s: a node says %v, want %v", tc.name, err, tc.node)
		}
	}
	// A JWT without its key is only a text: the login challenge needs the key.
	good, other := ours.user("decode", "d0", nil), ours.user("decode", "d0", nil)
	if c, err := (forged{good.jwt, other.key}).connect(w.nats.ClientURL()); err == nil {
		c.Close()
		t.Error("a JWT was let in without its key")
	}
	// A connection ends with its JWT.
	closed := make(chan struct{})
	short := ours.user("decode", "d0", func(u *jwt.UserClaims) { u.Expires = time.Now().Add(2 * time.Second).Unix() })
	c, err := short.connect(w.nats.ClientURL(), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	must(t, err)
	defer c.Close()
	recv(t, closed)
}
