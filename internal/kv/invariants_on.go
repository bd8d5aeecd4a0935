//go:build invariants || race

package kv

// invariants: check the books after every change, and mangle freed pages.
const invariants = true
