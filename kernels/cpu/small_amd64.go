package cpu

// pause waits n PAUSE instructions, n > 0.
//
//go:noescape
func pause(n uint32)

// hasF16C asks the processor for VCVTPH2PS, which golang.org/x/sys/cpu does not
// report.
func hasF16C() bool
