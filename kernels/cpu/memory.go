package cpu

import (
	"fmt"
	"sync"
	"unsafe"
)

// arena hands out zeroed memory for weights and KV pages, outside the garbage
// collector's heap: it lives as long as the backend, and counting gigabytes of
// weights as live heap would only stretch the collector's pace.
type arena struct {
	mu    sync.Mutex
	slabs [][]byte // guarded by mu; what close unmaps
	free  []byte   // guarded by mu; rest of the newest slab
}

const (
	slabBytes  = 32 << 20 // small weights share slabs, so that huge pages fit
	lineBytes  = 64       // alignment of every allocation: one vector register
	allocMax   = 1 << 42
	hugeBytes  = 2 << 20
	hugeBorder = hugeBytes - 1
)

func (a *arena) alloc(n int) ([]byte, error) {
	if n < 0 || n > allocMax {
		return nil, fmt.Errorf("cpu: allocation of %d bytes: at most %d", n, allocMax)
	}
	n = (n + lineBytes - 1) &^ (lineBytes - 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	if n > len(a.free) {
		slab, err := mapMemory(max((n+hugeBorder)&^hugeBorder, slabBytes))
		if err != nil {
			return nil, fmt.Errorf("cpu: %d bytes of memory: %w", n, err)
		}
		a.slabs = append(a.slabs, slab)
		if n > slabBytes/2 {
			return slab[:n:n], nil // keep the rest of the shared slab
		}
		a.free = slab
	}
	b := a.free[:n:n]
	a.free = a.free[n:]
	return b, nil
}

func (a *arena) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var first error
	for _, s := range a.slabs {
		if err := unmapMemory(s); err != nil && first == nil {
			first = err
		}
	}
	a.slabs, a.free = nil, nil
	return first
}

// as views bytes from the arena as values of another plain type.
func as[T any](b []byte) []T {
	var t T
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(t)))
}
