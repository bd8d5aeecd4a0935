package identity

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"bulkhead/internal/tenant"
)

// UserLifetime is how long a node's JWT lives. The broker disconnects a client
// whose JWT ran out; the client comes back with the next one.
const UserLifetime = time.Hour

// MaxUserLifetime is the longest life of a JWT that Verify believes.
const MaxUserLifetime = 24 * time.Hour

// Errors of minting and signing.
var (
	ErrRole  = errors.New("identity: no such role")
	ErrScope = errors.New("identity: signing key is not this role's in this account")
	ErrNonce = errors.New("identity: refusing to sign a login challenge outside its grammar")
)

func errRole(role string) error { return fmt.Errorf("%w: %q", ErrRole, role) }

// Minter makes nodes of one role. It holds the role's signing key.
type Minter struct {
	role      Role
	authority *Authority
	key       nkeys.KeyPair
}

func newMinter(a *Authority, role Role, key nkeys.KeyPair) (*Minter, error) {
	pub, err := key.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("identity: %s key: %w", role, err)
	}
	if a.roles[pub] != role {
		return nil, fmt.Errorf("%w: %s", ErrScope, role)
	}
	return &Minter{role: role, authority: a, key: key}, nil
}

// Role returns the role of the nodes that m makes.
func (m *Minter) Role() Role { return m.role }

// Authority returns the verifier of the cluster's nodes.
func (m *Minter) Authority() *Authority { return m.authority }

// Format keeps the signing key out of every verb of fmt.
func (m *Minter) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "identity.Minter(%s)%s", m.role, tenant.Redacted)
}

// LogValue does the same for slog.
func (m *Minter) LogValue() slog.Value { return slog.StringValue(m.role + tenant.Redacted) }

// NewNode makes a node: a fresh key, a random boot epoch and a first JWT. The
// name has the grammar of tenant.CheckNode.
func (m *Minter) NewNode(name string) (*Node, error) {
	if err := tenant.CheckNode(name); err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	pair, err := nkeys.CreateUser()
	if err != nil {
		return nil, fmt.Errorf("identity: make node key: %w", err)
	}
	user, err := pair.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("identity: make node key: %w", err)
	}
	seed, err := pair.Seed()
	if err != nil {
		return nil, fmt.Errorf("identity: make node key: %w", err)
	}
	_, raw, err := nkeys.DecodeSeed(seed)
	if err != nil {
		return nil, fmt.Errorf("identity: make node key: %w", err)
	}
	defer clear(raw)
	var epoch [8]byte
	for epoch == ([8]byte{}) { // 0 stands for "no epoch"
		rand.Read(epoch[:])
	}
	n := &Node{
		Name: name, Role: m.role, Epoch: binary.BigEndian.Uint64(epoch[:]),
		minter: m, user: user, private: ed25519.NewKeyFromSeed(raw), now: time.Now,
	}
	if _, err := n.JWT(); err != nil {
		return nil, err
	}
	return n, nil
}

// Node is a node in this boot. It is safe for concurrent use.
type Node struct {
	Name  string
	Role  Role
	Epoch uint64 // random in every boot, never 0

	minter  *Minter
	user    string // public nkey
	private ed25519.PrivateKey
	now     func() time.Time

	mu      sync.Mutex
	token   string // current user JWT
	expires time.Time
}

// Format keeps the private key out of every verb of fmt.
func (n *Node) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "%s/%s@%016x", n.Role, n.Name, n.Epoch)
}

// LogValue shows name, role and epoch.
func (n *Node) LogValue() slog.Value {
	return slog.GroupValue(slog.String("node", n.Name), slog.String("role", n.Role), slog.String("epoch", fmt.Sprintf("%016x", n.Epoch)))
}

// Public returns the node's public key.
func (n *Node) Public() ed25519.PublicKey { return n.private.Public().(ed25519.PublicKey) }

// Private returns the node's key, for the signer of tenant tokens. Its bytes
// must not be changed or shown.
func (n *Node) Private() ed25519.PrivateKey { return n.private }

// Authority returns the verifier of the cluster's nodes.
func (n *Node) Authority() *Authority { return n.minter.authority }

// JWT returns the node's user JWT, making the next one when less than half of
// its life is left. It has the signature of nats.UserJWTHandler.
func (n *Node) JWT() (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.now()
	if n.expires.Sub(now) > UserLifetime/2 {
		return n.token, nil
	}
	uc := jwt.NewUserClaims(n.user)
	uc.Name = n.Name
	uc.IssuerAccount = n.minter.authority.account
	uc.SetScoped(true)
	expires := now.Add(UserLifetime)
	uc.Expires = expires.Unix()
	token, err := encode(uc, n.minter.key)
	if err != nil {
		return "", err
	}
	n.token, n.expires = token, expires
	return token, nil
}

// NATSSign answers a broker's login challenge. It has the signature of
// nats.SignatureHandler. A broker picks the challenge, and the same key signs
// statements and tokens: so only challenges of the broker's own grammar, 1 to 64
// characters of [A-Za-z0-9_-], are signed. Statements and tokens both start with
// bytes outside it.
func (n *Node) NATSSign(nonce []byte) ([]byte, error) {
	if len(nonce) == 0 || len(nonce) > 64 {
		return nil, fmt.Errorf("%w: %d bytes", ErrNonce, len(nonce))
	}
	for _, c := range nonce {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
		default:
			return nil, fmt.Errorf("%w: byte 0x%02x", ErrNonce, c)
		}
	}
	return ed25519.Sign(n.private, nonce), nil
}

// Sign signs a statement: see the package comment for the bytes. kind and dest
// are chosen by the program, never by a peer.
func (n *Node) Sign(kind, dest string, body []byte) []byte {
	return ed25519.Sign(n.private, statement(kind, dest, body))
}

// statement is an injective encoding of its three parts.
func statement(kind, dest string, body []byte) []byte {
	const label = "bulkhead signature/1\x00"
	b := make([]byte, 0, len(label)+16+len(kind)+len(dest)+len(body))
	b = append(b, label...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(kind)))
	b = append(b, kind...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(dest)))
	b = append(b, dest...)
	b = binary.BigEndian.AppendUint64(b, uint64(len(body)))
	return append(b, body...)
}
