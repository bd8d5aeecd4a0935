// Package prefill computes a prompt's KV blocks and first token, and ships
// them to the decode node that the router chose.
//
// The main type is [Node]. One request passes through it like this:
//
//	router's job -> intake.take     verify the grant, reserve pages, queue
//	engine step  -> worker.step     next chunks (pure scheduler), forward, first token
//	             -> shipper.run     export, seal and publish each finished block while
//	                                the next chunk computes, within window and credit
//	last frame   -> signed manifest, with the sealed first token
//	end          -> full blocks to the tenant's prefix cache, the rest zeroed
//
// Promises: keys are fresh for every attempt in every boot, so no nonce is ever
// used twice, and a frame that must be sent again is sent as the same bytes. A
// refusal is a Reject message, to the router and into the KV stream; nothing
// that could be taken for a prompt or a block stands in for one.
package prefill
