package transfer

import (
	"errors"
	"fmt"
	"math"

	"bulkhead/internal/mutant"
	"bulkhead/internal/sample"
)

// reasons lists every Reason that a node may give, and whether another attempt
// may end better. A Reject with any other reason is refused: reasons are metric labels.
var reasons = map[Reason]bool{
	ReasonContextLength: false,
	ReasonNoPages:       true,
	ReasonBusy:          true,
	ReasonDraining:      true,
	ReasonToken:         false,
	ReasonModel:         true, // a node was restarted with another model
	ReasonPrompt:        false,
	ReasonProtocol:      true,
	ReasonIntegrity:     true,
	ReasonTimeout:       true,
	ReasonCancelled:     false,
	ReasonDuplicate:     false,
	ReasonInternal:      true,
	ReasonLogits:        false,
	ReasonPeer:          true, // announcements reach nodes at different times
	ReasonNodeLost:      true,
	ReasonKVServer:      true,
}

// Retryable reports whether a new attempt, on other nodes where there are any,
// may succeed where this one was refused.
func (r Reason) Retryable() bool { return reasons[r] }

func (r Reason) valid() error {
	if _, ok := reasons[r]; !ok {
		return fmt.Errorf("unknown reason %.32q", string(r))
	}
	return nil
}

func (a *Announce) valid() error {
	if err := CheckName(a.Node); err != nil {
		return err
	}
	if err := checkRole(a.Role); err != nil {
		return err
	}
	for _, n := range []struct {
		name  string
		value int
	}{
		{"capacity", a.Capacity}, {"window", a.Window}, {"vocab", a.Vocab},
		{"free_tokens", a.FreeTokens}, {"running", a.Running}, {"waiting", a.Waiting},
	} {
		if n.value < 0 {
			return fmt.Errorf("%s is %d", n.name, n.value)
		}
	}
	if a.KVURL != "" {
		if a.Role != RoleDecode {
			return fmt.Errorf("a KV server of a %s", a.Role)
		}
		if _, _, err := CheckKVURL(a.KVURL); err != nil {
			return err
		}
	}
	// The incident began here: a window that the pool could not hold.
	if a.Role != RoleRouter && a.Window > a.Capacity && !mutant.Off(mutant.AnnounceWindow) {
		return fmt.Errorf("window of %d tokens over a capacity of %d", a.Window, a.Capacity)
	}
	return nil
}

func (r *Reject) valid() error { return r.Reason.valid() }

func (c *Cancel) valid() error { return c.Reason.valid() }

func (o *Output) valid() error {
	if o.From != RolePrefill && o.From != RoleDecode {
		return fmt.Errorf("output from a %.16q", string(o.From))
	}
	return nil
}

// valid makes sure that exactly one member is set.
func (b *OutputBody) valid() error {
	n := 0
	for _, set := range []bool{b.Receipt != nil, len(b.Tokens) > 0, b.Finish != nil, b.Fail != nil} {
		if set {
			n++
		}
	}
	if n != 1 {
		return fmt.Errorf("%d members set, want 1", n)
	}
	for i := range b.Tokens {
		if err := validToken(&b.Tokens[i]); err != nil {
			return err
		}
	}
	if b.Fail != nil {
		return b.Fail.valid()
	}
	if f := b.Finish; f != nil {
		if f.Reason != "stop" && f.Reason != "length" {
			return fmt.Errorf("finish reason %.16q", f.Reason)
		}
		if f.Generated < 0 || f.Prompt < 0 {
			return errors.New("a negative count of tokens")
		}
	}
	if b.Receipt != nil && b.Receipt.Cached < 0 {
		return errors.New("a negative count of tokens")
	}
	return nil
}

// validToken refuses a token that was taken from logits that are no numbers: the
// sampler never does, so whoever sends one did not sample it.
func validToken(t *sample.Token) error {
	if !isProbability(t.Logprob) {
		return errors.New("a token whose log probability is no number")
	}
	for _, top := range t.Top {
		if !isProbability(top.Logprob) {
			return errors.New("an alternative whose log probability is no number")
		}
	}
	return nil
}

func isProbability(l float32) bool { return l <= math.MaxFloat32 } // false of NaN as well

// sentBy makes sure that a body is one that this role sends.
func (b *OutputBody) sentBy(from Role) error {
	if from == RolePrefill && b.Fail == nil && !mutant.Off(mutant.OutputRole) {
		return fmt.Errorf("%w: a prefill node's output can only be a failure", ErrMessage)
	}
	return nil
}
