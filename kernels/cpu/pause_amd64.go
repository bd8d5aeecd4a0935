package cpu

// pause waits n PAUSE instructions, n > 0.
//
//go:noescape
func pause(n uint32)
