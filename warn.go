//go:build mutants || noisolation

package main

// warn makes a build say what it is: its name in the version, which logs, announcements,
// /version and the command show, and the text in a line of the log at each start.
func warn(name, text string) {
	version += "+" + name
	warnings = append(warnings, text)
}
