//go:build mutants

package main

import (
	"os"
	"strings"

	"bulkhead/internal/mutant"
)

// A test build takes the checks out that its environment names: so a test can run
// the positive control of a leak test on real processes. A release has neither this
// file nor the names.
func init() {
	gone := "none"
	if names := os.Getenv("BULKHEAD_MUTANTS"); names != "" {
		for _, name := range strings.Split(names, ",") {
			mutant.Remove(mutant.Check(name))
		}
		gone = names
	}
	warn("mutants", "mutants: this build can be told to leave checks out: for tests only, never for anybody's prompts; left out: "+gone)
}
