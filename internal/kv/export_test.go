package kv

// Invariants says to tests from outside which kind of build this is.
const Invariants = invariants
