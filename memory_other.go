//go:build !linux

package main

import "golang.org/x/sys/unix"

// freeMemory is an estimate where the system does not say what is free: half
// of what is installed.
func freeMemory() uint64 {
	if n, err := unix.SysctlUint64("hw.memsize"); err == nil {
		return n / 2
	}
	return 1 << 30
}
