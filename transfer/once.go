package transfer

import (
	"crypto/sha256"
	"errors"
	"sync"
	"time"
)

// spentMax bounds the tokens that a node remembers: at 120 s a token, more
// than 500 attempts a second for one node.
const spentMax = 1 << 16

// Errors of [Once.Use].
var (
	ErrSpent     = errors.New("transfer: token was used before")
	ErrSpentFull = errors.New("transfer: too many tokens in their lifetime")
)

// Once remembers which tenant tokens a node has taken, until they expire: a
// recorded job that is sent again is refused, in this boot by memory and in
// the next by the boot key.
type Once struct {
	mu    sync.Mutex
	spent map[Hash]time.Time // guarded by mu: token hash to expiry
}

// Use takes a token, or returns ErrSpent. When 65,536 tokens are in their
// lifetime it returns ErrSpentFull rather than forget one.
func (o *Once) Use(token Hash, expires, now time.Time) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.spent == nil {
		o.spent = map[Hash]time.Time{}
	}
	if _, ok := o.spent[token]; ok {
		return ErrSpent
	}
	if len(o.spent) >= spentMax {
		for h, t := range o.spent {
			if now.After(t) {
				delete(o.spent, h)
			}
		}
		if len(o.spent) >= spentMax {
			return ErrSpentFull
		}
	}
	// Verification tolerates some skew of clocks, so memory outlasts expiry.
	o.spent[token] = expires.Add(10 * time.Second)
	return nil
}

// Has reports whether a token is remembered.
func (o *Once) Has(token Hash) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.spent[token]
	return ok
}

// Prune forgets what has expired.
func (o *Once) Prune(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for h, t := range o.spent {
		if now.After(t) {
			delete(o.spent, h)
		}
	}
}

// CancelledBy is under which a node remembers, in a [Once] of its own, a
// cancellation that came before its job: by the sender as well as by the token, so
// that a router which has seen the hash of another's job cannot end it beforehand.
func CancelledBy(token Hash, router string) Hash {
	return sha256.Sum256(append(token[:], router...))
}
