package main

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"
)

// freeMemory is what this process may still take, in bytes: the machine's
// MemAvailable, or what the control group leaves, whichever is less.
func freeMemory() uint64 {
	free := uint64(1 << 30) // if the kernel says nothing, be modest
	if data, err := os.ReadFile("/proc/meminfo"); err == nil {
		for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
			if kb, ok := strings.CutPrefix(s.Text(), "MemAvailable:"); ok {
				if n, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kb), "kB")), 10, 64); err == nil {
					free = n << 10
				}
			}
		}
	}
	limit, ok1 := readUint("/sys/fs/cgroup/memory.max")
	used, ok2 := readUint("/sys/fs/cgroup/memory.current")
	if ok1 && ok2 {
		free = min(free, limit-min(used, limit))
	}
	return free
}

func readUint(path string) (uint64, bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64) // "max" is no limit
	return n, err == nil
}
