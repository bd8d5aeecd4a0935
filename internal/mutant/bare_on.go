//go:build noisolation

package mutant

// Bare is whether this is the bench build without isolation (tag noisolation): nothing
// is sealed, hashed or signed on the way, no page has an owner, none is cleared. It
// exists to measure what all that costs, and talks only to its like.
const Bare = true
