package model

import (
	"crypto/sha256"
	"encoding/binary"

	"bulkhead/kernels"
)

// forwardVersion is raised whenever forward.go, rope.go or the rule of precision.go change the bits of a logit.
const forwardVersion = 3

// fingerprint is the SHA-256 of everything that decides a logit. The encoding is
// a list of fields; each is the length of its name, the name, the length of its value, the
// value, with lengths as u32 and numbers as u64, little endian:
//
//	bulkhead  "model fingerprint 2"
//	file      fileDigest of the whole GGUF file: weights, tokenizer, template, RoPE, shape
//	kv        "f16"
//	block     tokens in a block
//	layout    layers, KV heads, head dimension of a block
//	forward   forwardVersion
//	backend   Info.Name
//	tier      Info.Tier
//	version   Info.Version
//
// Info.Threads is not among them: it decides no bit.
func fingerprint(file [digestBytes]byte, l kernels.PageLayout, info kernels.Info) [32]byte {
	var b []byte
	bytes := func(s string) { b = append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...) }
	field := func(name, value string) { bytes(name); bytes(value) }
	numbers := func(name string, values ...int) {
		var v []byte
		for _, n := range values {
			v = binary.LittleEndian.AppendUint64(v, uint64(n))
		}
		field(name, string(v))
	}
	field("bulkhead", "model fingerprint 2")
	field("file", string(file[:]))
	field("kv", "f16")
	numbers("block", kernels.BlockTokens)
	numbers("layout", l.Layers, l.KVHeads, l.HeadDim)
	numbers("forward", forwardVersion)
	field("backend", info.Name)
	field("tier", info.Tier)
	numbers("version", info.Version)
	return sha256.Sum256(b)
}
