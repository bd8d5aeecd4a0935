// Package cluster puts roles together: it starts the embedded nats-server,
// joins nodes to a bus, and runs a whole cluster in one process for
// `bulkhead up` and for tests: the same code, protocol and checks as over
// many machines.
//
// [StartKVServer] runs a decode node's own KV server beside it, for `bulkhead decode --kv-server embedded`.
//
// It is the only package that imports nats-server.
package cluster
