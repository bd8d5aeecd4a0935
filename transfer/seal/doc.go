// Package seal encrypts and opens what travels between nodes.
package seal
