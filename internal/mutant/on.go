//go:build mutants

package mutant

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Enabled says whether this is a test build with switches.
const Enabled = true

var (
	mu  sync.Mutex              // of Remove
	off atomic.Pointer[[]Check] // never changed, only replaced; nil: none
)

// Off reports whether a check is switched off. It is asked in hot paths: with
// nothing off it costs a load.
func Off(c Check) bool {
	l := off.Load()
	return l != nil && slices.Contains(*l, c)
}

// Remove switches checks off until the returned function is called.
func Remove(checks ...Check) (restore func()) {
	mu.Lock()
	defer mu.Unlock()
	var now []Check
	if l := off.Load(); l != nil {
		now = *l
	}
	set(append(slices.Clip(now), checks...))
	return func() {
		mu.Lock()
		defer mu.Unlock()
		var left []Check
		if l := off.Load(); l != nil {
			left = slices.Clone(*l)
		}
		for _, c := range checks {
			if i := slices.Index(left, c); i >= 0 {
				left = slices.Delete(left, i, i+1)
			}
		}
		set(left)
	}
}

func set(l []Check) {
	if len(l) == 0 {
		off.Store(nil)
		return
	}
	off.Store(&l)
}
