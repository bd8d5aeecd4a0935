package main

import "strings"

// warnings is what a build that is not a release says of itself: bare.go and mutants.go add
// to it, by warn. In a release it is empty.
var warnings []string

// versionText is what the version command prints.
func versionText() string {
	return strings.Join(append([]string{"bulkhead " + version}, warnings...), "\n")
}
