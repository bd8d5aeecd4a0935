package rogue

import (
	"bytes"
	"encoding/binary"
	"math"

	"bulkhead/transfer/seal"
)

// marker is a log probability that no sampler gives: notANumber finds it in a message. The
// product's own writers refuse a NaN, so it can only be put in behind their back.
const marker = float32(-12345.678)

// notANumber replaces the marker in a plaintext by NaN.
func notANumber(plain []byte) []byte {
	old := binary.BigEndian.AppendUint32(nil, math.Float32bits(marker))
	return bytes.Replace(plain, old, binary.BigEndian.AppendUint32(nil, math.Float32bits(float32(math.NaN()))), 1)
}

// resealed is an output message with another plaintext of the same length under the same
// number: what a node can do that has the key. The sealed part stands at the end.
func (a *answer) resealed(data []byte, seq uint64, change func([]byte) []byte) []byte {
	job := a.g.Job
	for at := range data {
		plain, err := seal.NewStream(job.ReplyKey, "decode", a.g.Hash).Open(seq, data[at:])
		if err != nil {
			continue
		}
		if sealed, err := seal.NewStream(job.ReplyKey, "decode", a.g.Hash).Seal(seq, change(plain)); err == nil {
			return append(append([]byte(nil), data[:at]...), sealed...)
		}
	}
	return nil
}
