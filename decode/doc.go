// Package decode accepts shipped KV blocks and generates tokens for many
// sequences at once by continuous batching.
//
// The main type is [Node]. One request passes through it like this:
//
//	router's job  -> receiver.reserve  verify the grant, hold pages for prompt + max_new
//	KV stream     -> receiver.take     open message, frames, manifest; each judged by inbound
//	                                   (pure), opened into staging, copied into its page
//	manifest      -> receiver.commit   n of n frames and the chain: pages ready, receipt signed
//	engine step   -> worker.step       schedule (pure), forward, sample, emit, reap
//	end           -> pages zeroed, generation raised, the stream's leftovers terminated
//
// The KV stream is where Config.Peer hears it (transfer.Peer.WithKV): at the cluster's broker, or on a server in this
// process, which Config.KVURL announces. Nothing in this package depends on which: a frame is judged by
// what it is, not by the way that it came.
//
// Promises: what this node expects of an attempt comes from the router's job
// and its own engine, never from the sender. Nothing is allocated for
// strangers. A frame is opened into staging, never into a page. A sequence
// joins the running batch only after its receipt. A refusal is a typed Reject
// that the router hears; there is no value that also means "go on".
package decode
