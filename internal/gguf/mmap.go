//go:build unix

package gguf

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// mapFile maps the regular file at path read-only, whole.
func mapFile(path string) ([]byte, error) {
	// O_NONBLOCK has no effect on a regular file, and keeps a FIFO with no writer
	// from blocking Open for ever before its type can be looked at.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close() // the mapping outlives the descriptor
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "map", Path: path, Err: errors.New("not a regular file")}
	}
	size := info.Size()
	if size < headerBytes {
		// mmap refuses an empty file with a bare EINVAL; say what is wrong instead.
		return nil, &Error{Field: "header", Err: ErrTruncated,
			Msg: fmt.Sprintf("needs %d bytes, the file has %d", headerBytes, size)}
	}
	if size > math.MaxInt {
		return nil, &fs.PathError{Op: "map", Path: path, Err: unix.EFBIG}
	}
	data, err := unix.Mmap(int(file.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, &fs.PathError{Op: "map", Path: path, Err: err}
	}
	return data, nil
}

func unmap(data []byte) error { return unix.Munmap(data) }

func dropPages(data []byte) error { return unix.Madvise(data, unix.MADV_DONTNEED) }
