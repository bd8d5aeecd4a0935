//go:build !amd64

package cpu

import "sync/atomic"

// pause waits for about n cheap operations that the compiler must not remove.
func pause(n uint32) {
	var x atomic.Uint32
	for range n {
		x.Load()
	}
}
