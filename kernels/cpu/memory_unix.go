//go:build linux || darwin

package cpu

import "golang.org/x/sys/unix"

func mapMemory(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	adviseHuge(b)
	return b, nil
}

func unmapMemory(b []byte) error { return unix.Munmap(b) }
