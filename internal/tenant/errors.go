package tenant

import "errors"

// Errors of a token's form. Sign refuses what Verify would refuse.
var (
	ErrTokenSize   = errors.New("tenant: token too long")
	ErrTokenFormat = errors.New("tenant: not a PASETO v4.public token with a router's name as its footer")
	ErrRouter      = errors.New("tenant: token names a router that is not known")
	ErrSignature   = errors.New("tenant: token was not signed by that router for this cluster")

	ErrClaimsJSON     = errors.New("tenant: claims are not one flat JSON object")
	ErrClaimUnknown   = errors.New("tenant: unknown claim")
	ErrClaimDuplicate = errors.New("tenant: claim given twice")
	ErrClaimMissing   = errors.New("tenant: claim missing")
	ErrClaimType      = errors.New("tenant: claim has the wrong JSON type")
	ErrClaimSize      = errors.New("tenant: claim too long")
	ErrClaimValue     = errors.New("tenant: claim out of bounds")
)

// Errors of a token's times.
var (
	ErrExpired   = errors.New("tenant: token has expired")
	ErrNotBefore = errors.New("tenant: token is not valid yet")
	ErrIssued    = errors.New("tenant: token was issued in the future")
	ErrLifetime  = errors.New("tenant: token lives too long")
)

// Errors of Claims.Check: what the token grants is not what the node knows.
var (
	ErrAudience     = errors.New("tenant: token is for another node")
	ErrEpoch        = errors.New("tenant: token is for another boot of this node")
	ErrModel        = errors.New("tenant: token is for another model")
	ErrPromptLen    = errors.New("tenant: prompt has not the length that the token says")
	ErrPromptDigest = errors.New("tenant: prompt is not the one that the token says")
	ErrMaxNew       = errors.New("tenant: token grants another count of new tokens")
	ErrReply        = errors.New("tenant: token is bound to another reply")
)
