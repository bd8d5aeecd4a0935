//go:build mutants

package mutant

import "sync"

// Enabled says whether this is a test build with switches.
const Enabled = true

var (
	mu  sync.RWMutex
	off = map[Check]bool{} // guarded by mu
)

// Off reports whether a check is switched off.
func Off(c Check) bool {
	mu.RLock()
	defer mu.RUnlock()
	return off[c]
}

// Remove switches checks off until the returned function is called.
func Remove(checks ...Check) (restore func()) {
	mu.Lock()
	defer mu.Unlock()
	for _, c := range checks {
		off[c] = true
	}
	return func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range checks {
			delete(off, c)
		}
	}
}
