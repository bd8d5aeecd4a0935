package identity

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

func memory(t testing.TB) *Keys {
	t.Helper()
	k, err := NewMemory("test")
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func authority(t testing.TB, k *Keys) *Authority {
	t.Helper()
	a, err := k.Authority()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func node(t testing.TB, k *Keys, role Role, name string) *Node {
	t.Helper()
	m, err := k.Minter(role)
	if err != nil {
		t.Fatal(err)
	}
	n, err := m.NewNode(name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func token(t testing.TB, n *Node) string {
	t.Helper()
	s, err := n.JWT()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestInit: the directory's files, their modes, and that a role starts with its
// own three and with nothing else.
func TestInit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	if err := Init(dir, "prod"); err != nil {
		t.Fatal(err)
	}
	want := map[string]os.FileMode{
		"operator.nk": 0o400, "account.nk": 0o400, "system.nk": 0o400, "router.nk": 0o400, "prefill.nk": 0o400, "decode.nk": 0o400,
		"operator.jwt": 0o444, "account.jwt": 0o444, "system.jwt": 0o444, "auth.conf": 0o444,
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != len(want) {
		t.Fatalf("%d files, %v", len(files), err)
	}
	before, seeds := map[string][]byte{}, map[string][]byte{}
	for _, f := range files {
		info, err := f.Info()
		if err != nil || info.Mode().Perm() != want[f.Name()] {
			t.Errorf("%s has mode %v (%v), want %v", f.Name(), info.Mode(), err, want[f.Name()])
		}
		before[f.Name()], _ = os.ReadFile(filepath.Join(dir, f.Name()))
		public := strings.HasSuffix(f.Name(), ".jwt") || f.Name() == "auth.conf"
		if !public { // in the text form that nk reads
			pair, err := nkeys.FromSeed(bytes.TrimSpace(before[f.Name()]))
			if err != nil {
				t.Fatalf("%s: %v", f.Name(), err)
			}
			seeds[f.Name()], _ = pair.Seed()
		}
	}
	for name, seed := range seeds {
		for other, data := range before {
			if other != name && bytes.Contains(data, seed) {
				t.Errorf("%s holds the seed of %s", other, name)
			}
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory has mode %v, %v", info.Mode(), err)
	}

	// A second Init refuses, and so does one that finds a single file.
	if err := Init(dir, "prod"); !errors.Is(err, ErrExists) {
		t.Errorf("Init twice: %v", err)
	}
	for name, data := range before {
		if now, _ := os.ReadFile(filepath.Join(dir, name)); !bytes.Equal(now, data) {
			t.Errorf("%s was overwritten", name)
		}
	}
	one := t.TempDir()
	if err := os.Symlink("elsewhere", filepath.Join(one, "router.nk")); err != nil {
		t.Fatal(err)
	}
	if err := Init(one, "prod"); !errors.Is(err, ErrExists) {
		t.Errorf("Init over a dangling link: %v", err)
	}
	if files, _ := os.ReadDir(one); len(files) != 1 {
		t.Error("Init wrote something before it refused")
	}
	if err := Init(t.TempDir(), "a.b"); err == nil {
		t.Error("a cluster name with a dot passes")
	}

	// What a role's container gets is enough.
	for _, role := range Roles() {
		part := t.TempDir()
		for _, name := range []string{"operator.jwt", "account.jwt", role + ".nk"} {
			if err := os.WriteFile(filepath.Join(part, name), before[name], 0o600); err != nil {
				t.Fatal(err)
			}
		}
		m, err := LoadMinter(part, role)
		if err != nil {
			t.Fatal(err)
		}
		n, err := m.NewNode("n-1")
		if err != nil {
			t.Fatal(err)
		}
		a, err := LoadAuthority(dir)
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.Verify(token(t, n), time.Now())
		if err != nil || p.Role != role || p.Name != "n-1" || !p.Public.Equal(n.Public()) || a.Cluster() != "prod" {
			t.Errorf("%s: %+v, %v", role, p, err)
		}
		// Another role's key under this role's name is refused at start.
		for _, other := range Roles() {
			if other == role {
				continue
			}
			os.WriteFile(filepath.Join(part, other+".nk"), before[role+".nk"], 0o600)
			if _, err := LoadMinter(part, other); !errors.Is(err, ErrScope) {
				t.Errorf("%s started with the key of %s: %v", other, role, err)
			}
		}
	}
	if _, err := LoadMinter(dir, "account"); !errors.Is(err, ErrRole) {
		t.Errorf("role account: %v", err)
	}
	s, err := LoadServerAuth(dir)
	if err != nil {
		t.Fatal(err)
	}
	if string(before["auth.conf"]) != s.Config() || !nkeys.IsValidPublicAccountKey(s.Account) || s.Account == s.System {
		t.Errorf("server's view: %+v", s)
	}
	if _, err := s.Operators(); err != nil {
		t.Error(err)
	}
}

// TestVerify: whose JWT is believed, and the reason for each that is not.
func TestVerify(t *testing.T) {
	k := memory(t)
	a := authority(t, k)
	now := time.Now()
	n := node(t, k, Decode, "d0")

	if p, err := a.Verify(token(t, n), now); err != nil || p.Name != "d0" || p.Role != Decode || !p.Public.Equal(n.Public()) {
		t.Fatalf("%+v, %v", p, err)
	}

	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	pub, _ := user.PublicKey()
	// mint signs any claims with any key.
	mint := func(key nkeys.KeyPair, change func(*jwt.UserClaims)) string {
		t.Helper()
		uc := jwt.NewUserClaims(pub)
		uc.Name, uc.IssuerAccount = "p0", a.account
		uc.SetScoped(true)
		uc.Expires = now.Add(time.Hour).Unix()
		if change != nil {
			change(uc)
		}
		s, err := uc.Encode(key)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	prefill := k.seeds[Prefill]
	if p, err := a.Verify(mint(prefill, nil), now); err != nil || p.Role != Prefill {
		t.Fatalf("the helper's JWT: %+v, %v", p, err)
	}
	foreign := memory(t)
	stray, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	good := mint(prefill, nil)
	for name, tt := range map[string]struct {
		token string
		want  error
	}{
		"empty":               {"", ErrJWT},
		"too long":            {strings.Repeat("a", MaxUserJWT+1), ErrJWT},
		"long and valid":      {mint(prefill, func(u *jwt.UserClaims) { u.Tags.Add(strings.Repeat("t", MaxUserJWT)) }), ErrJWT},
		"version 1":           {versionOne(t, prefill, pub, a.account, now), ErrRights},
		"cut":                 {good[:len(good)-2], ErrJWT},
		"account JWT":         {k.auth.AccountJWT[:min(len(k.auth.AccountJWT), MaxUserJWT)], ErrJWT},
		"operator JWT":        {k.auth.OperatorJWT, ErrJWT},
		"another cluster":     {token(t, node(t, foreign, Prefill, "p0")), ErrIssuer},
		"stray key":           {mint(stray, nil), ErrIssuer},
		"account key":         {mint(k.seeds[accountKey], nil), ErrIssuer},
		"system account key":  {mint(k.seeds[systemKey], nil), ErrIssuer},
		"other account named": {mint(prefill, func(u *jwt.UserClaims) { u.IssuerAccount = foreign.auth.Account }), ErrIssuer},
		"no account named":    {mint(prefill, func(u *jwt.UserClaims) { u.IssuerAccount = "" }), ErrIssuer},
		"permissions":         {mint(prefill, func(u *jwt.UserClaims) { u.Pub.Allow.Add(">") }), ErrRights},
		"limits":              {mint(prefill, func(u *jwt.UserClaims) { u.SetScoped(false) }), ErrRights},
		"bearer":              {mint(prefill, func(u *jwt.UserClaims) { u.BearerToken = true }), ErrRights},
		"no name":             {mint(prefill, func(u *jwt.UserClaims) { u.Name = "" }), ErrName},
		"wildcard name":       {mint(prefill, func(u *jwt.UserClaims) { u.Name = ">" }), ErrName},
		"two tokens in name":  {mint(prefill, func(u *jwt.UserClaims) { u.Name = "p0.x" }), ErrName},
		"long name":           {mint(prefill, func(u *jwt.UserClaims) { u.Name = strings.Repeat("p", 33) }), ErrName},
		"never expires":       {mint(prefill, func(u *jwt.UserClaims) { u.Expires = 0 }), ErrLifetime},
		"lives for a week":    {mint(prefill, func(u *jwt.UserClaims) { u.Expires = now.Add(7 * 24 * time.Hour).Unix() }), ErrLifetime},
		"expired at birth":    {mint(prefill, func(u *jwt.UserClaims) { u.Expires = now.Add(-time.Minute).Unix() }), ErrLifetime},
		"not yet":             {mint(prefill, func(u *jwt.UserClaims) { u.NotBefore = now.Add(time.Minute).Unix() }), ErrFuture},
	} {
		p, err := a.Verify(tt.token, now)
		if !errors.Is(err, tt.want) || p.Name != "" {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}

	// Time, from the JWT's own exp (whole seconds), before and after it is cached.
	exp := time.Unix(now.Add(time.Hour).Unix(), 0)
	fresh := authority(t, k)
	for range 2 {
		for _, tt := range []struct {
			at   time.Time
			want error
		}{
			{exp.Add(5*time.Second - 1), nil},
			{exp.Add(5 * time.Second), ErrExpired},
			{exp.Add(time.Hour), ErrExpired},
			{now.Add(-time.Hour), ErrFuture},
			{now.Add(-3 * time.Second), nil},
		} {
			_, err := fresh.Verify(good, tt.at)
			if !errors.Is(err, tt.want) {
				t.Errorf("at %v: %v, want %v", tt.at, err, tt.want)
			}
			if err != nil && !strings.Contains(err.Error(), stamp(tt.at)) {
				t.Errorf("%v does not name this node's time", err)
			}
		}
	}

	// No single changed byte is believed.
	for i := range len(good) {
		bad := []byte(good)
		bad[i] ^= 1
		if p, err := a.Verify(string(bad), now); err == nil {
			// The last character of a base64 part has spare bits: the same JWT
			// in another spelling is the same peer.
			if q, _ := a.Verify(good, now); p.Name != q.Name || !p.Public.Equal(q.Public) || p.Role != q.Role {
				t.Fatalf("byte %d changed: %+v", i, p)
			}
		}
	}
}

// versionOne returns a user JWT of NATS's first format, which the library still
// reads. Its signature leaves out the header, and it has no scopes.
func versionOne(t *testing.T, key nkeys.KeyPair, user, account string, now time.Time) string {
	t.Helper()
	issuer, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	part := base64.RawURLEncoding.EncodeToString
	claims := part(fmt.Appendf(nil, `{"iss":%q,"sub":%q,"name":"p0","iat":%d,"exp":%d,"type":"user","issuer_account":%q,"nats":{"subs":0,"data":0,"payload":0}}`,
		issuer, user, now.Unix(), now.Add(time.Hour).Unix(), account))
	sig, err := key.Sign([]byte(claims))
	if err != nil {
		t.Fatal(err)
	}
	s := part([]byte(`{"typ":"jwt","alg":"ed25519"}`)) + "." + claims + "." + part(sig)
	if _, err := jwt.DecodeUserClaims(s); err != nil {
		t.Fatalf("the library does not read it: %v", err)
	}
	return s
}

// TestRevoked: a key that the account revoked is refused.
func TestRevoked(t *testing.T) {
	k := memory(t)
	n := node(t, k, Decode, "d0")
	ac, err := jwt.DecodeAccountClaims(k.auth.AccountJWT)
	if err != nil {
		t.Fatal(err)
	}
	ac.Revoke(n.user)
	s, err := ac.Encode(k.seeds[operatorKey])
	if err != nil {
		t.Fatal(err)
	}
	a, err := NewAuthority(s, k.auth.OperatorJWT)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Verify(token(t, n), time.Now()); err != ErrRevoked {
		t.Errorf("got %v, want ErrRevoked", err)
	}
	if _, err := a.Verify(token(t, node(t, k, Decode, "d1")), time.Now()); err != nil {
		t.Errorf("another node: %v", err)
	}
}

// TestAuthorityRoot: only the operator's own account makes an Authority.
func TestAuthorityRoot(t *testing.T) {
	k, other := memory(t), memory(t)
	for name, pair := range map[string][2]string{
		"other operator":       {k.auth.AccountJWT, other.auth.OperatorJWT},
		"account as operator":  {k.auth.AccountJWT, k.auth.AccountJWT},
		"operator as account":  {k.auth.OperatorJWT, k.auth.OperatorJWT},
		"no account":           {"", k.auth.OperatorJWT},
		"no operator":          {k.auth.AccountJWT, ""},
		"system account":       {k.auth.SystemJWT, k.auth.OperatorJWT}, // no scoped keys
		"account changed":      {k.auth.AccountJWT[:len(k.auth.AccountJWT)-4] + "AAAA", k.auth.OperatorJWT},
		"operator not by self": {k.auth.AccountJWT, signedBy(t, k, other)},
	} {
		if a, err := NewAuthority(pair[0], pair[1]); err == nil || a != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A signing key without scope, or of an unknown role, makes no nodes.
	ac, err := jwt.DecodeAccountClaims(k.auth.AccountJWT)
	if err != nil {
		t.Fatal(err)
	}
	plain, _ := nkeys.CreateAccount()
	plainPub, _ := plain.PublicKey()
	odd, _ := nkeys.CreateAccount()
	oddPub, _ := odd.PublicKey()
	ac.SigningKeys.Add(plainPub)
	ac.SigningKeys.AddScopedSigner(Scope{Publish: []string{">"}}.template("admin", oddPub))
	s, err := ac.Encode(k.seeds[operatorKey])
	if err != nil {
		t.Fatal(err)
	}
	a, err := NewAuthority(s, k.auth.OperatorJWT)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]nkeys.KeyPair{"unscoped": plain, "admin": odd} {
		user, _ := nkeys.CreateUser()
		pub, _ := user.PublicKey()
		uc := jwt.NewUserClaims(pub)
		uc.Name, uc.IssuerAccount = "x", a.account
		uc.SetScoped(true)
		uc.Expires = time.Now().Add(time.Hour).Unix()
		s, err := uc.Encode(key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Verify(s, time.Now()); !errors.Is(err, ErrIssuer) {
			t.Errorf("%s key: %v, want ErrIssuer", name, err)
		}
	}
}

// signedBy returns k's operator claims signed by another operator.
func signedBy(t *testing.T, k, other *Keys) string {
	t.Helper()
	oc, err := jwt.DecodeOperatorClaims(k.auth.OperatorJWT)
	if err != nil {
		t.Fatal(err)
	}
	s, err := oc.Encode(other.seeds[operatorKey])
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestRenewal: the JWT is the same for half of its life and then another.
func TestRenewal(t *testing.T) {
	k := memory(t)
	n := node(t, k, Decode, "d0")
	first := token(t, n)
	base := n.expires.Add(-UserLifetime)
	n.now = func() time.Time { return base.Add(UserLifetime/2 - time.Second) }
	if token(t, n) != first {
		t.Error("renewed with more than half of its life left")
	}
	n.now = func() time.Time { return base.Add(UserLifetime / 2) }
	second := token(t, n)
	if second == first {
		t.Fatal("not renewed at half of its life")
	}
	if p, err := authority(t, k).Verify(second, base.Add(UserLifetime)); err != nil || !p.Public.Equal(n.Public()) {
		t.Errorf("the next JWT: %+v, %v", p, err)
	}
}

func TestNode(t *testing.T) {
	k := memory(t)
	m, err := k.Minter(Router)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "a.b", "*", strings.Repeat("x", 33), "a b"} {
		if _, err := m.NewNode(bad); err == nil {
			t.Errorf("node %q was made", bad)
		}
	}
	a, b := node(t, k, Router, "r0"), node(t, k, Router, "r0")
	if a.Epoch == b.Epoch || a.Epoch == 0 || a.Public().Equal(b.Public()) {
		t.Error("two boots share an epoch or a key")
	}
	if _, err := k.Minter("admin"); !errors.Is(err, ErrRole) {
		t.Errorf("minter of admin: %v", err)
	}
	if id := m.Authority().ClusterID(); id != "test/"+k.auth.Account || id == authority(t, memory(t)).ClusterID() {
		t.Errorf("cluster id %q", id)
	}
}

// TestSign: a signature is over kind, destination and body, each in its place,
// and is the peer's alone.
func TestSign(t *testing.T) {
	k := memory(t)
	n := node(t, k, Prefill, "p0")
	now := time.Now()
	a := authority(t, k)
	p, err := a.Verify(token(t, n), now)
	if err != nil {
		t.Fatal(err)
	}
	sig := n.Sign("manifest", "d0", []byte("body"))
	if err := p.VerifySig("manifest", "d0", []byte("body"), sig); err != nil {
		t.Fatal(err)
	}
	other, err := a.Verify(token(t, node(t, k, Prefill, "p0")), now)
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"another kind":       p.VerifySig("announce", "d0", []byte("body"), sig),
		"another dest":       p.VerifySig("manifest", "d1", []byte("body"), sig),
		"another body":       p.VerifySig("manifest", "d0", []byte("bodz"), sig),
		"border moved":       p.VerifySig("manifestd", "0", []byte("body"), sig),
		"border moved again": p.VerifySig("manifest", "d0b", []byte("ody"), sig),
		"another peer":       other.VerifySig("manifest", "d0", []byte("body"), sig),
		"nobody":             Peer{}.VerifySig("manifest", "d0", []byte("body"), sig),
		"cut":                p.VerifySig("manifest", "d0", []byte("body"), sig[:63]),
		"none":               p.VerifySig("manifest", "d0", []byte("body"), nil),
	} {
		if err != ErrSignature {
			t.Errorf("%s: %v, want ErrSignature", name, err)
		}
	}
	// The bytes are those of the package comment.
	want := []byte("bulkhead signature/1\x00")
	want = append(binary.BigEndian.AppendUint32(want, 8), "manifest"...)
	want = append(binary.BigEndian.AppendUint32(want, 2), "d0"...)
	want = append(binary.BigEndian.AppendUint64(want, 4), "body"...)
	if !ed25519.Verify(n.Public(), want, sig) {
		t.Error("the signed bytes are not as documented")
	}
}

// TestNATSSign: a hostile broker cannot have a statement or a token signed as a
// login challenge.
func TestNATSSign(t *testing.T) {
	n := node(t, memory(t), Router, "r0")
	nonce := []byte("gE3Dt-_0aBcDeFg")
	sig, err := n.NATSSign(nonce)
	if err != nil || !ed25519.Verify(n.Public(), nonce, sig) {
		t.Fatalf("a broker's nonce: %v", err)
	}
	pae := []byte("\x04\x00\x00\x00\x00\x00\x00\x00\x0a\x00\x00\x00\x00\x00\x00\x00v4.public.")
	for name, bad := range map[string][]byte{
		"statement": statement("announce", "", []byte("x")), "PASETO": pae,
		"empty": nil, "long": bytes.Repeat([]byte("a"), 65), "JWT": []byte("eyJ0.eyJq"), "space": []byte("a b"),
	} {
		if sig, err := n.NATSSign(bad); !errors.Is(err, ErrNonce) || sig != nil {
			t.Errorf("%s: %v, want ErrNonce", name, err)
		}
	}
	if _, err := n.NATSSign(statement("", "", nil)[:20]); !errors.Is(err, ErrNonce) {
		t.Error("the label of a statement is within the grammar of a challenge")
	}
}

// TestCacheIsBounded: strangers' JWTs are not kept, and friends' up to a limit.
func TestCacheIsBounded(t *testing.T) {
	k := memory(t)
	a := authority(t, k)
	now := time.Now()
	for i := range 3 {
		a.Verify(token(t, node(t, memory(t), Decode, fmt.Sprint("d", i))), now)
		a.Verify(fmt.Sprint("garbage", i), now)
	}
	if len(a.peers) != 0 {
		t.Errorf("%d strangers remembered", len(a.peers))
	}
	for i := range maxPeers + 10 {
		var key [32]byte
		binary.BigEndian.PutUint64(key[:], uint64(i))
		a.remember(key, verified{})
	}
	if len(a.peers) != maxPeers {
		t.Errorf("%d remembered, at most %d", len(a.peers), maxPeers)
	}
	// A full cache still verifies, concurrently too.
	s := token(t, node(t, k, Decode, "d0"))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				if p, err := a.Verify(s, now); err != nil || p.Name != "d0" {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if len(a.peers) != maxPeers {
		t.Errorf("%d remembered, at most %d", len(a.peers), maxPeers)
	}
}

// TestNothingPrintsKeys formats every type that holds a key.
func TestNothingPrintsKeys(t *testing.T) {
	k := memory(t)
	m, err := k.Minter(Decode)
	if err != nil {
		t.Fatal(err)
	}
	n, err := m.NewNode("d0")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "keys", k, "minter", m, "node", n)
	for _, v := range []any{k, m, n, []any{k, m, n}, struct {
		K *Keys
		M *Minter
		N *Node
	}{k, m, n}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
	}
	secrets := map[string][]byte{"node": n.Private().Seed()}
	for name, pair := range k.seeds {
		secrets[name], _ = pair.Seed()
	}
	for name, b := range secrets {
		for _, form := range []string{"%s", "%x", "%X", "%v", "%d"} {
			if text := strings.Trim(fmt.Sprintf(form, b[:8]), "[]"); strings.Contains(out.String(), text) {
				t.Errorf("the %s key is printed as %s", name, form)
			}
		}
	}
	if !strings.Contains(out.String(), "decode/d0") {
		t.Error("nothing was printed at all")
	}
}

// TestScopesAreNarrow reads the templates as data; package cluster tries them
// on a broker. No role may do everything, every right of its own is under its
// own name, and nobody but the router touches streams.
func TestScopesAreNarrow(t *testing.T) {
	for role, s := range Scopes() {
		for _, subject := range append(s.Publish, s.Subscribe...) {
			if subject == ">" || subject == "*" || strings.HasPrefix(subject, "$SYS") || subject == "$JS.API.>" || strings.HasPrefix(subject, "_INBOX.>") {
				t.Errorf("%s: %s", role, subject)
			}
			if role != Router && strings.HasPrefix(subject, "$JS.API.STREAM") {
				t.Errorf("%s: %s", role, subject)
			}
			for _, forbidden := range []string{"DIRECT.GET", "STREAM.MSG", "SNAPSHOT", "RESTORE", "PEER"} {
				if strings.Contains(subject, forbidden) {
					t.Errorf("%s: %s", role, subject)
				}
			}
		}
	}
}

func FuzzVerify(f *testing.F) {
	k := memory(f)
	a := authority(f, k)
	now := time.Now()
	good := token(f, node(f, k, Decode, "d0"))
	f.Add(good)
	f.Add(k.auth.OperatorJWT)
	f.Add("a.b.c")
	f.Add("eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5LW5rZXkifQ.e30.AAAA")
	f.Fuzz(func(t *testing.T, s string) {
		if p, err := a.Verify(s, now); err == nil && p.Name != "d0" {
			t.Fatalf("a JWT that nobody signed is believed: %+v", p)
		}
		NewAuthority(s, k.auth.OperatorJWT)
	})
}
