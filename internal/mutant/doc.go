// Package mutant lets a test build switch off one security check at a time, so
// that a leak test can be shown to see a leak.
//
// In a release there is no switch: without the build tag "mutants" [Off] is the
// constant false, the compiler drops the branch and the name with it, and a
// test looks for the names in the binary.
//
//	if len(prompt) != claims.PromptLen && !mutant.Off(mutant.PrefillLength) {
//		return reject(...)
//	}
package mutant

// Check names one check of the protocol.
type Check string

// The checks that a test build can remove.
const (
	AdmissionLength Check = "mutant:admission-length" // router: prompt + max_new against the pair's limit
	PrefillCapacity Check = "mutant:prefill-capacity" // prefill: prompt + max_new against its own limit; truncates to what fits
	DecodeCapacity  Check = "mutant:decode-capacity"  // decode: prompt + max_new against its own limit
	DecodeCount     Check = "mutant:decode-count"     // decode: blocks and tokens from its own job, not the sender's manifest
	PageOwner       Check = "mutant:page-owner"       // kernels: owner and generation at every read
	PageFilled      Check = "mutant:page-filled"      // kernels: slots beyond what was filled
	PageZero        Check = "mutant:page-zero"        // kernels: zeroing before free
	FrameAEAD       Check = "mutant:frame-aead"       // seal: the frame's tag
	ManifestChain   Check = "mutant:manifest-chain"   // decode: the manifest's chain over all frames
	PageWriter      Check = "mutant:page-writer"      // kv: a released page waits for its writer
	TokenOnce       Check = "mutant:token-once"       // both nodes: a tenant token is taken once
	AttemptBinding  Check = "mutant:attempt-binding"  // decode: subject and header of a frame name this very attempt
	PrefixTenant    Check = "mutant:prefix-tenant"    // kv: the tenant in the root of the prefix chain
)
