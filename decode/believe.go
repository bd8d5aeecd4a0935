package decode

import (
	"bulkhead/internal/mutant"
	"bulkhead/transfer/seal"
)

// believe takes from a frame's header what a test build does not check of it. A
// release never calls it.
func believe(expect *seal.Header, h seal.Header) {
	for _, m := range []struct {
		check mutant.Check
		take  func()
	}{
		{mutant.HeaderToken, func() { expect.TokenHash = h.TokenHash }},
		{mutant.HeaderRequest, func() { expect.Request = h.Request }},
		{mutant.HeaderChild, func() { expect.Child = h.Child }},
		{mutant.HeaderAttempt, func() { expect.Attempt = h.Attempt }},
		{mutant.HeaderPrefill, func() { expect.Prefill = h.Prefill }},
		{mutant.HeaderPrefillEpoch, func() { expect.PrefillEpoch = h.PrefillEpoch }},
		{mutant.HeaderDecode, func() { expect.Decode = h.Decode }},
		{mutant.HeaderDecodeEpoch, func() { expect.DecodeEpoch = h.DecodeEpoch }},
		{mutant.HeaderModel, func() { expect.Model = h.Model }},
		{mutant.HeaderBlock, func() { expect.Block = h.Block }},
		{mutant.HeaderBlocks, func() { expect.Blocks = h.Blocks }},
		{mutant.HeaderTokens, func() { expect.TokenStart, expect.TokenEnd = h.TokenStart, h.TokenEnd }},
		{mutant.HeaderLayers, func() { expect.LayerStart, expect.LayerEnd = h.LayerStart, h.LayerEnd }},
		{mutant.HeaderLength, func() { expect.PayloadLen = h.PayloadLen }},
		{mutant.HeaderPrompt, func() { expect.PromptDigest = h.PromptDigest }},
		{mutant.HeaderPrefix, func() { expect.PrefixDigest = h.PrefixDigest }},
	} {
		if mutant.Off(m.check) {
			m.take()
		}
	}
}
