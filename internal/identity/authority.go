package identity

import (
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"bulkhead/internal/mutant"
	"bulkhead/internal/tenant"
)

// Limits of Verify.
const (
	MaxUserJWT = 4096            // bytes; ours have about 600
	MaxSkew    = 5 * time.Second // between two nodes' clocks
	maxPeers   = 4096            // verified JWTs remembered
)

// Errors of Verify and VerifySig.
var (
	ErrAccount   = errors.New("identity: account is not this operator's, or has no scoped keys")
	ErrJWT       = errors.New("identity: not a user JWT")
	ErrIssuer    = errors.New("identity: JWT was not signed by a role's key of this account")
	ErrRights    = errors.New("identity: JWT brings permissions of its own")
	ErrName      = errors.New("identity: JWT has a name outside the grammar")
	ErrExpired   = errors.New("identity: JWT has expired")
	ErrFuture    = errors.New("identity: JWT was issued in the future")
	ErrLifetime  = errors.New("identity: JWT lives too long")
	ErrRevoked   = errors.New("identity: JWT was revoked")
	ErrSignature = errors.New("identity: bad signature")
)

// Authority verifies the JWTs of a cluster's nodes without asking anyone. It is
// safe for concurrent use.
type Authority struct {
	account string // public key
	cluster string // name
	claims  *jwt.AccountClaims
	roles   map[string]Role // by public signing key

	mu    sync.Mutex
	peers map[[sha256.Size]byte]verified // at most maxPeers
}

// verified is a JWT whose every check but the clock's was done.
type verified struct {
	peer   Peer
	issued time.Time
}

// NewAuthority returns the verifier of the account's nodes. accountJWT must be
// signed by the operator of operatorJWT, which must be signed by itself: it is
// the root, and comes from a file.
func NewAuthority(accountJWT, operatorJWT string) (*Authority, error) {
	oc, err := jwt.DecodeOperatorClaims(operatorJWT)
	if err != nil {
		return nil, fmt.Errorf("identity: operator JWT: %w", err)
	}
	ac, err := jwt.DecodeAccountClaims(accountJWT)
	if err != nil {
		return nil, fmt.Errorf("identity: account JWT: %w", err)
	}
	if !oc.IsSelfSigned() || !oc.DidSign(ac) {
		return nil, ErrAccount
	}
	if err := tenant.CheckNode(ac.Name); err != nil {
		return nil, fmt.Errorf("identity: cluster name: %w", err)
	}
	a := &Authority{
		account: ac.Subject, cluster: ac.Name, claims: ac,
		roles: make(map[string]Role), peers: make(map[[sha256.Size]byte]verified),
	}
	for key, scope := range ac.SigningKeys {
		us, ok := scope.(*jwt.UserScope)
		if !ok { // a signing key without scope gives any rights: not one of ours
			continue
		}
		if _, ok := Scopes()[us.Role]; ok {
			a.roles[key] = us.Role
		}
	}
	if len(a.roles) == 0 {
		return nil, ErrAccount
	}
	return a, nil
}

// ClusterID names the cluster beyond confusion: its name and the public key of
// its account. Tenant tokens are bound to it.
func (a *Authority) ClusterID() string { return a.cluster + "/" + a.account }

// Cluster returns the name alone.
func (a *Authority) Cluster() string { return a.cluster }

// Peer is a node whose JWT was verified.
type Peer struct {
	Name    string
	Role    Role
	Public  ed25519.PublicKey
	Expires time.Time
}

// Verify returns the node that userJWT belongs to. It costs one Ed25519
// verification the first time and a hash after that. The JWT alone proves
// nothing about who sent it: check a signature with Peer.VerifySig.
func (a *Authority) Verify(userJWT string, now time.Time) (Peer, error) {
	if len(userJWT) > MaxUserJWT {
		return Peer{}, fmt.Errorf("%w: %d bytes, at most %d", ErrJWT, len(userJWT), MaxUserJWT)
	}
	key := sha256.Sum256([]byte(userJWT))
	a.mu.Lock()
	v, ok := a.peers[key]
	a.mu.Unlock()
	if !ok {
		var err error
		if v, err = a.verify(userJWT); err != nil {
			return Peer{}, err
		}
	}
	if err := v.checkTime(now); err != nil {
		return Peer{}, err
	}
	if !ok {
		a.remember(key, v)
	}
	return v.peer, nil
}

// verify does everything but look at the clock.
func (a *Authority) verify(userJWT string) (verified, error) {
	uc, err := jwt.DecodeUserClaims(userJWT) // checks the signature of the issuer it names
	if err != nil {
		return verified{}, ErrJWT // the library's words may repeat the input
	}
	role, ok := a.roles[uc.Issuer]
	if (!ok || uc.IssuerAccount != a.account) && !mutant.Off(mutant.IdentityIssuer) {
		return verified{}, ErrIssuer
	}
	if uc.Version != 2 || !uc.HasEmptyPermissions() {
		return verified{}, ErrRights
	}
	if tenant.CheckNode(uc.Name) != nil {
		return verified{}, ErrName
	}
	public, err := nkeys.Decode(nkeys.PrefixByteUser, []byte(uc.Subject))
	if err != nil || len(public) != ed25519.PublicKeySize {
		return verified{}, ErrJWT
	}
	if a.claims.IsClaimRevoked(uc) {
		return verified{}, ErrRevoked
	}
	v := verified{
		peer:   Peer{Name: uc.Name, Role: role, Public: public, Expires: time.Unix(uc.Expires, 0)},
		issued: time.Unix(max(uc.IssuedAt, uc.NotBefore), 0),
	}
	// A JWT without exp would live for ever: exp = 0 is before any iat.
	if life := v.peer.Expires.Sub(time.Unix(uc.IssuedAt, 0)); uc.Expires <= 0 || life <= 0 || life > MaxUserLifetime {
		return verified{}, fmt.Errorf("%w: from %s to %s, at most %s", ErrLifetime,
			stamp(time.Unix(uc.IssuedAt, 0)), stamp(v.peer.Expires), MaxUserLifetime)
	}
	return v, nil
}

func (v verified) checkTime(now time.Time) error {
	if v.issued.After(now.Add(MaxSkew)) && !mutant.Off(mutant.IdentityIssued) {
		return fmt.Errorf("%w: valid from %s, this node's clock says %s", ErrFuture, stamp(v.issued), stamp(now))
	}
	if !v.peer.Expires.After(now.Add(-MaxSkew)) && !mutant.Off(mutant.IdentityExpiry) {
		return fmt.Errorf("%w: at %s, this node's clock says %s", ErrExpired, stamp(v.peer.Expires), stamp(now))
	}
	return nil
}

// remember forgets arbitrary entries to stay within its bound: forgetting only
// costs a verification.
func (a *Authority) remember(key [sha256.Size]byte, v verified) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.peers[key]; ok {
		return
	}
	for k := range a.peers {
		if len(a.peers) < maxPeers {
			break
		}
		delete(a.peers, k)
	}
	a.peers[key] = v
}

// VerifySig returns ErrSignature unless sig is the peer's over these three
// parts: see Node.Sign.
func (p Peer) VerifySig(kind, dest string, body, sig []byte) error {
	if len(p.Public) != ed25519.PublicKeySize || !ed25519.Verify(p.Public, statement(kind, dest, body), sig) {
		return ErrSignature
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
