package identity

import (
	"fmt"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"bulkhead/internal/tenant"
)

// Keys is a whole cluster's identity: the root, the accounts and every role's
// signing key. Only `keys init` and the all-in-one process ever hold one.
type Keys struct {
	auth  ServerAuth
	seeds map[string]nkeys.KeyPair // operator, account, system and the roles
}

// The names under which Keys holds the pairs that are not a role's.
const (
	operatorKey = "operator"
	accountKey  = "account"
	systemKey   = "system"
)

// NewMemory makes the keys of a cluster without writing anything. The name of
// a cluster has the grammar of a node's.
func NewMemory(cluster string) (*Keys, error) {
	if err := tenant.CheckNode(cluster); err != nil {
		return nil, fmt.Errorf("identity: cluster name: %w", err)
	}
	k := &Keys{seeds: make(map[string]nkeys.KeyPair)}
	public := make(map[string]string)
	for name, create := range map[string]func() (nkeys.KeyPair, error){
		operatorKey: nkeys.CreateOperator,
		accountKey:  nkeys.CreateAccount,
		systemKey:   nkeys.CreateAccount,
		Router:      nkeys.CreateAccount,
		Prefill:     nkeys.CreateAccount,
		Decode:      nkeys.CreateAccount,
	} {
		pair, err := create()
		if err != nil {
			return nil, fmt.Errorf("identity: make %s key: %w", name, err)
		}
		if public[name], err = pair.PublicKey(); err != nil {
			return nil, fmt.Errorf("identity: make %s key: %w", name, err)
		}
		k.seeds[name] = pair
	}
	operator := k.seeds[operatorKey]

	oc := jwt.NewOperatorClaims(public[operatorKey])
	oc.Name = cluster
	oc.SystemAccount = public[systemKey]
	ac := jwt.NewAccountClaims(public[accountKey])
	ac.Name = cluster
	ac.Limits.JetStreamLimits = jwt.JetStreamLimits{
		MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit,
		MaxBytesRequired: true, // no stream without a hard bound
	}
	ac.Limits.DisallowBearer = true
	for role, scope := range Scopes() {
		ac.SigningKeys.AddScopedSigner(scope.template(role, public[role]))
	}
	sc := jwt.NewAccountClaims(public[systemKey])
	sc.Name = "SYS"

	k.auth = ServerAuth{Account: public[accountKey], System: public[systemKey]}
	for _, j := range []struct {
		dst    *string
		claims jwt.Claims
	}{{&k.auth.OperatorJWT, oc}, {&k.auth.AccountJWT, ac}, {&k.auth.SystemJWT, sc}} {
		var err error
		if *j.dst, err = encode(j.claims, operator); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// encode refuses to sign what a server would refuse to read.
func encode(c jwt.Claims, signer nkeys.KeyPair) (string, error) {
	vr := jwt.CreateValidationResults()
	c.Validate(vr)
	if errs := vr.Errors(); len(errs) > 0 {
		return "", fmt.Errorf("identity: %s claims: %w", c.ClaimType(), errs[0])
	}
	s, err := c.Encode(signer)
	if err != nil {
		return "", fmt.Errorf("identity: sign %s: %w", c.ClaimType(), err)
	}
	return s, nil
}

// ServerAuth returns what a broker of this cluster needs.
func (k *Keys) ServerAuth() ServerAuth { return k.auth }

// Authority returns the verifier of this cluster's nodes.
func (k *Keys) Authority() (*Authority, error) {
	return NewAuthority(k.auth.AccountJWT, k.auth.OperatorJWT)
}

// Minter returns the right to make nodes of one role.
func (k *Keys) Minter(role Role) (*Minter, error) {
	if _, ok := Scopes()[role]; !ok {
		return nil, errRole(role)
	}
	a, err := k.Authority()
	if err != nil {
		return nil, err
	}
	return newMinter(a, role, k.seeds[role])
}

// Format keeps seeds out of every verb of fmt.
func (k *Keys) Format(f fmt.State, _ rune) { fmt.Fprint(f, "identity.Keys"+tenant.Redacted) }

// ServerAuth is what a broker must know to let this cluster's nodes in. All of
// it is public.
type ServerAuth struct {
	OperatorJWT, AccountJWT, SystemJWT string
	Account, System                    string // public keys of the two accounts
}

// Operators returns the operator as server.Options.TrustedOperators wants it.
// Its resolver must know Account and System by their JWTs, and
// Options.SystemAccount is System.
func (s ServerAuth) Operators() ([]*jwt.OperatorClaims, error) {
	oc, err := jwt.DecodeOperatorClaims(s.OperatorJWT)
	if err != nil {
		return nil, fmt.Errorf("identity: operator JWT: %w", err)
	}
	return []*jwt.OperatorClaims{oc}, nil
}

// Config returns the same as a part of a nats-server configuration file.
func (s ServerAuth) Config() string {
	return fmt.Sprintf(`# Public. Made by "bulkhead keys init".
operator: %s
system_account: %s
resolver: MEMORY
resolver_preload: {
  %s: %s
  %s: %s
}
`, s.OperatorJWT, s.System, s.Account, s.AccountJWT, s.System, s.SystemJWT)
}
