package loadgen

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// residentBytes is this process's resident memory: the second field of
// /proc/self/statm, in pages (proc_pid_statm(5)).
func residentBytes() (int64, error) {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(data)
	if len(fields) < 2 {
		return 0, fmt.Errorf("loadgen: statm has %d fields", len(fields))
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	return pages * int64(os.Getpagesize()), err
}
