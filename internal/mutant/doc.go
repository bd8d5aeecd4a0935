// Package mutant lets a test build switch off one security check at a time, so
// that a leak test can be shown to see a leak.
//
// In a release there is no switch: without the build tag "mutants" [Off] is the
// constant false, the compiler drops the branch and the name with it, and a
// test looks for the names in the binary. [All] lists the checks; docs/mutants.md
// says what goes wrong without each of them.
//
//	if len(prompt) != claims.PromptLen && !mutant.Off(mutant.ClaimPromptLen) {
//		return reject(...)
//	}
//
// A few checks are the sum of others (page-owner, page-filled, prefix-tenant,
// decode-count, attempt-binding): they are how the incident of 2026 is rebuilt.
package mutant

import "strings"

// Check names one check of the protocol.
type Check string

// Name is the check's name in tables.
func (c Check) Name() string { return strings.TrimPrefix(string(c), "mutant:") }
