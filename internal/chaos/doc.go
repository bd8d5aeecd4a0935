// Package chaos puts a faulty network between nodes and a nats-server: a TCP
// proxy that understands the NATS line protocol and, by seed, drops, duplicates,
// reorders, delays and replays messages, flips bits of payloads, and cuts
// connections.
//
// The main type is [Proxy]; [New] makes one in front of a server, and each node
// is given a proxy of its own, so that a cut is that node's alone:
//
//	p, err := chaos.New(chaos.Config{Upstream: "127.0.0.1:4222", Seed: 1})
//	node --nats nats://p.Addr()
//	p.Set(chaos.Faults{chaos.Flip: 0.05}) // until p.Set(nil)
//	p.Hold(true)                          // the cable is out; false: it is back
//
// What happens to a message is decided by [Decide], a pure function of the seed,
// the connection, the direction and the message's number, so that a finding says
// with its seed what was done. When it happens is up to the machine: real
// processes are not repeatable to the byte.
//
// Only messages (PUB, HPUB, MSG, HMSG) are touched: what the server and its
// clients say between themselves (INFO, CONNECT, SUB, PING and so on) passes, and a
// flipped bit is always one of a payload. The server's INFO loses the other addresses that it
// knows, or a client would reconnect past the proxy.
//
// It is a test tool: nothing of it is linked into the program. The tests with the
// tag chaos are what it is for: see docs/chaos.md.
package chaos
