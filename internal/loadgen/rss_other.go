//go:build !linux

package loadgen

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// residentBytes is the most resident memory this process ever had: other
// systems tell no current value without cgo. Darwin counts bytes, the BSDs KiB.
func residentBytes() (int64, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, err
	}
	if runtime.GOOS == "darwin" {
		return int64(u.Maxrss), nil
	}
	return int64(u.Maxrss) * 1024, nil
}
