//go:build !noisolation

package mutant

// Bare is whether this is the bench build without isolation: never, in a release.
const Bare = false
