package cpu

import "golang.org/x/sys/unix"

// adviseHuge asks for 2 MiB pages: weights are read once per step, and the walk
// of 4 KiB page tables costs 10 to 25 % of a decode step. A refusal only costs
// that, so the error is not one.
func adviseHuge(b []byte) { _ = unix.Madvise(b, unix.MADV_HUGEPAGE) }
