package tenant

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"aidanwoods.dev/go-paseto"

	"bulkhead/internal/mutant"
)

// assertion is the implicit assertion's first part.
const assertion = "kvgrant/1|"

const (
	tokenPrefix   = "v4.public."
	signatureSize = ed25519.SignatureSize
	bodySize      = 800 // bytes of most claims
)

// Sign makes the token of c with the key of the router named in it. Times are
// cut to whole seconds. It refuses claims that Verify would refuse.
func Sign(c Claims, key ed25519.PrivateKey, cluster string) (string, error) {
	if mutant.Bare {
		return SignWith(c, func([]byte) []byte { return make([]byte, signatureSize) })
	}
	k, err := paseto.NewV4AsymmetricSecretKeyFromEd25519(key)
	if err != nil {
		return "", fmt.Errorf("tenant: router key: %w", err)
	}
	body, err := c.body()
	if err != nil {
		return "", err
	}
	t, err := paseto.NewTokenFromClaimsJSON(body, []byte(c.Router))
	if err != nil {
		return "", fmt.Errorf("tenant: encode claims: %w", err)
	}
	return t.V4Sign(k, []byte(assertion+cluster)), nil
}

// SignWith is Sign with another signature, of 64 bytes, for [VerifyWith].
func SignWith(c Claims, sign func(body []byte) []byte) (string, error) {
	body, err := c.body()
	if err != nil {
		return "", err
	}
	sig := sign(body)
	out := make([]byte, 0, len(tokenPrefix)+b64.EncodedLen(len(body)+len(sig))+1+b64.EncodedLen(len(c.Router)))
	out = b64.AppendEncode(append(out, tokenPrefix...), append(body, sig...))
	return string(b64.AppendEncode(append(out, '.'), []byte(c.Router))), nil
}

// body is what is signed of c.
func (c Claims) body() ([]byte, error) {
	if err := CheckNode(c.Router); err != nil {
		return nil, fmt.Errorf("%w: router: %w", ErrClaimValue, err)
	}
	c.IssuedAt, c.NotBefore, c.Expires = wholeSecond(c.IssuedAt), wholeSecond(c.NotBefore), wholeSecond(c.Expires)
	if err := c.validate(); err != nil {
		return nil, err
	}
	return appendClaims(make([]byte, 0, bodySize+signatureSize), &c), nil
}

// Verify returns the claims of a token whose signature, form, bounds and times
// are right at now. keyOf gives the key of a router by name; its error is
// wrapped in ErrRouter. Cost is one Ed25519 verification; memory is bounded by
// MaxToken.
//
// The claims are then still to be compared with what the caller knows: see
// Claims.Check.
func Verify(token string, keyOf func(router string) (ed25519.PublicKey, error), cluster string, now time.Time) (Claims, error) {
	if mutant.Bare {
		return VerifyWith(token, now, func(string, []byte, []byte) error { return nil })
	}
	return VerifyWith(token, now, func(router string, _, _ []byte) error {
		pub, err := keyOf(router)
		if err != nil {
			return fmt.Errorf("%w: %q: %w", ErrRouter, router, err)
		}
		k, err := paseto.NewV4AsymmetricPublicKeyFromEd25519(pub)
		if err != nil {
			return fmt.Errorf("%w: %q: key has %d bytes", ErrRouter, router, len(pub))
		}
		// The library verifies. It keeps a map of the members, which has forgotten
		// duplicates, so the claims are read from the verified bytes instead.
		parser := paseto.NewParserWithoutExpiryCheck()
		if _, err := parser.ParseV4Public(k, token, []byte(assertion+cluster)); err != nil {
			return ErrSignature
		}
		return nil
	})
}

// VerifyWith is Verify with another check of the signature: signed says whether
// sig is the named router's over body.
func VerifyWith(token string, now time.Time, signed func(router string, body, sig []byte) error) (Claims, error) {
	body, sig, router, err := split(token)
	if err != nil {
		return Claims{}, err
	}
	if err := signed(router, body, sig); err != nil && !mutant.Off(mutant.TokenSignature) {
		return Claims{}, err
	}
	c, err := decodeClaims(body)
	if err != nil {
		return Claims{}, err
	}
	c.Router = router
	if err := c.validate(); err != nil {
		return Claims{}, err
	}
	if err := c.checkTime(now); err != nil {
		return Claims{}, err
	}
	return c, nil
}

// split takes a token apart without believing any of it.
func split(token string) (body, sig []byte, router string, err error) {
	if len(token) > MaxToken {
		return nil, nil, "", fmt.Errorf("%w: %d bytes, at most %d", ErrTokenSize, len(token), MaxToken)
	}
	rest, ok := strings.CutPrefix(token, tokenPrefix)
	if !ok {
		return nil, nil, "", ErrTokenFormat
	}
	payload, footer, ok := strings.Cut(rest, ".")
	if !ok || strings.IndexByte(rest, '\n') >= 0 || strings.IndexByte(rest, '\r') >= 0 { // base64 would skip line breaks
		return nil, nil, "", ErrTokenFormat
	}
	signed, err := b64.DecodeString(payload)
	if err != nil || len(signed) <= signatureSize {
		return nil, nil, "", ErrTokenFormat
	}
	name, err := b64.DecodeString(footer)
	if err != nil || CheckNode(string(name)) != nil {
		return nil, nil, "", ErrTokenFormat
	}
	n := len(signed) - signatureSize
	return signed[:n], signed[n:], string(name), nil
}

var b64 = base64.RawURLEncoding.Strict()

func wholeSecond(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }
