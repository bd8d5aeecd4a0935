//go:build !amd64

package sample

func archScans() []*scan { return nil }
