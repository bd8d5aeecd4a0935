//go:build !amd64

package cpu

func archTiers() []*tier { return nil }
