package tenant

import (
	"fmt"
	"time"

	"bulkhead/internal/mutant"
)

// Limits of a token. Prompt and output are bounded at 16 Mi tokens, far over
// any model's window, so that every product with a byte count fits an int64.
const (
	MaxToken    = 4096 // bytes; a token with the longest names has about 1,300
	MaxTokens   = 1 << 24
	MaxLifetime = 120 * time.Second // from iat to exp: time to start, not to finish
	MaxSkew     = 5 * time.Second   // between the clocks of two nodes
)

// Claims is what a router grants: one attempt at one sequence. See the package
// comment for members and bounds.
type Claims struct {
	Tenant  string   // opaque id from the registry
	Request [16]byte // random, made by the router
	Child   uint16   // index of the sequence within the request
	Attempt uint16   // from 1

	Model        [32]byte // model fingerprint
	PromptLen    int      // tokens
	PromptDigest [32]byte // see PromptDigest
	BlockTokens  int      // always BlockTokens
	Blocks       int      // Blocks(PromptLen)
	MaxNew       int      // tokens

	Prefill     string
	Decode      string
	DecodeEpoch uint64

	ReplyBinding [32]byte // see ReplyBinding
	PrefixScope  [32]byte // root of the prefix chain that the attempt may share

	IssuedAt, NotBefore, Expires time.Time // UTC, whole seconds

	Router string // who signed; travels in the footer
}

// validate checks every bound that needs no clock and no key.
func (c Claims) validate() error {
	for _, n := range []struct {
		member, name string
		check        func(string) error
	}{
		{"ten", c.Tenant, CheckTenant},
		{"pre", c.Prefill, CheckNode},
		{"dec", c.Decode, CheckNode},
	} {
		if err := n.check(n.name); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrClaimValue, n.member, err)
		}
	}
	for _, n := range []struct {
		member           string
		value, low, high int
	}{
		{"att", int(c.Attempt), 1, 1<<16 - 1},
		{"len", c.PromptLen, 1, MaxTokens},
		{"btk", c.BlockTokens, BlockTokens, BlockTokens},
		{"blk", c.Blocks, Blocks(c.PromptLen), Blocks(c.PromptLen)},
		{"max", c.MaxNew, 1, MaxTokens},
	} {
		if (n.value < n.low || n.value > n.high) && !mutant.Off(mutant.ClaimBounds) {
			return fmt.Errorf("%w: %s is %d, must be %d to %d", ErrClaimValue, n.member, n.value, n.low, n.high)
		}
	}
	if (c.NotBefore.Before(c.IssuedAt) || !c.NotBefore.Before(c.Expires)) && !mutant.Off(mutant.ClaimTimes) {
		return fmt.Errorf("%w: times must be in order iat <= nbf < exp, are %s, %s, %s",
			ErrClaimValue, stamp(c.IssuedAt), stamp(c.NotBefore), stamp(c.Expires))
	}
	if d := c.Expires.Sub(c.IssuedAt); d > MaxLifetime && !mutant.Off(mutant.ClaimLifetime) {
		return fmt.Errorf("%w: %s, at most %s", ErrLifetime, d, MaxLifetime)
	}
	return nil
}

// checkTime compares with the node's clock, allowing MaxSkew on either side.
// Errors name both times, since the usual cause is a clock.
func (c Claims) checkTime(now time.Time) error {
	switch {
	case c.IssuedAt.After(now.Add(MaxSkew)) && !mutant.Off(mutant.TokenIssued):
		return fmt.Errorf("%w: issued at %s, this node's clock says %s", ErrIssued, stamp(c.IssuedAt), stamp(now))
	case c.NotBefore.After(now.Add(MaxSkew)) && !mutant.Off(mutant.TokenNotBefore):
		return fmt.Errorf("%w: not before %s, this node's clock says %s", ErrNotBefore, stamp(c.NotBefore), stamp(now))
	case !c.Expires.After(now.Add(-MaxSkew)) && !mutant.Off(mutant.TokenExpiry):
		return fmt.Errorf("%w: at %s, this node's clock says %s", ErrExpired, stamp(c.Expires), stamp(now))
	}
	return nil
}

// Expect is what a node knows by itself, or was told by the router in a sealed
// job: what a token must say to be of use to it. Every field is compared.
type Expect struct {
	Role  string // "prefill" or "decode": which of the token's two nodes is Node
	Node  string
	Epoch uint64 // boot epoch; compared for decode

	Model        [32]byte
	PromptLen    int      // counted from the token ids received
	PromptDigest [32]byte // recomputed from the token ids received
	MaxNew       int
	ReplyBinding [32]byte // recomputed from the job's reply subject and key
}

// Check compares the claims with e. It returns ErrAudience, ErrEpoch, ErrModel,
// ErrPromptLen, ErrPromptDigest, ErrMaxNew or ErrReply for the first that differs.
func (c Claims) Check(e Expect) error {
	var granted string
	switch e.Role {
	case "prefill":
		granted = c.Prefill
	case "decode":
		granted = c.Decode
	default:
		return fmt.Errorf("%w: only prefill and decode nodes are granted anything", ErrAudience)
	}
	switch {
	case granted != e.Node && !mutant.Off(mutant.ClaimAudience):
		return fmt.Errorf("%w: %s node %q, this is %q", ErrAudience, e.Role, granted, e.Node)
	case e.Role == "decode" && c.DecodeEpoch != e.Epoch && !mutant.Off(mutant.ClaimEpoch):
		return fmt.Errorf("%w: epoch %016x, this is %016x", ErrEpoch, c.DecodeEpoch, e.Epoch)
	case c.Model != e.Model && !mutant.Off(mutant.ClaimModel):
		return fmt.Errorf("%w: fingerprint begins %x, this node has %x", ErrModel, c.Model[:8], e.Model[:8])
	case c.PromptLen != e.PromptLen && !mutant.Off(mutant.ClaimPromptLen):
		return fmt.Errorf("%w: token says %d, got %d", ErrPromptLen, c.PromptLen, e.PromptLen)
	case c.PromptDigest != e.PromptDigest && !mutant.Off(mutant.ClaimPromptDigest):
		return ErrPromptDigest
	case c.MaxNew != e.MaxNew && !mutant.Off(mutant.ClaimMaxNew):
		return fmt.Errorf("%w: token says %d, job says %d", ErrMaxNew, c.MaxNew, e.MaxNew)
	case c.ReplyBinding != e.ReplyBinding && !mutant.Off(mutant.ClaimReply):
		return ErrReply
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
