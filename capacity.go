package main

import (
	"fmt"

	"bulkhead/kernels"
)

// Shares of the memory that is free when the weights are loaded. The rest is
// for activations, the bus's streams and everything else on the machine.
const (
	kvShare          = 2   // KV pools take 1/kvShare of what is free
	prefillWindows   = 4   // and no more than so many full windows at prefill,
	decodeWindows    = 16  // and at decode: beyond that it is only unused
	minCapacity      = 512 // below this a pool is of no use
	prefillPoolShare = 3   // prefill gets 1/3 of a pair's memory, decode the rest
)

// capacityTokens sizes a pool that was given no size: the tokens that budget
// bytes hold, in whole blocks, at most windows full windows.
func capacityTokens(budget uint64, layout kernels.PageLayout, window, windows int) (int, error) {
	tokens := int(budget/uint64(layout.PageBytes())) * kernels.BlockTokens
	tokens = min(tokens, window*windows)
	if tokens < minCapacity {
		return 0, fmt.Errorf("free memory for KV pages is %d MiB: %d tokens, fewer than %d; give a capacity or free memory", budget>>20, tokens, minCapacity)
	}
	return tokens, nil
}
