//go:build noisolation

package main

// The bench build says on every start what it is. A test looks for this text in
// the release binary, and does not find it.
func init() {
	warn("noisolation", "noisolation: this build keeps nothing apart: for bench isolation only, never for anybody's prompts")
}
