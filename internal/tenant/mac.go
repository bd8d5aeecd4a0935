package tenant

import (
	"crypto/sha256"
	"encoding/binary"
)

// macStack is how long a message may be for MAC to need no memory.
const macStack = 768

// MAC is HMAC-SHA-256 (RFC 2104) under a key of 32 bytes. For the short messages that are
// all over an attempt, package crypto/hmac spends more on making its two hashes than on
// hashing; a test holds the two against each other.
func MAC(key *[32]byte, message ...[]byte) [32]byte {
	var inner [sha256.BlockSize + macStack]byte
	in := inner[:sha256.BlockSize]
	pad(in, key, 0x36)
	n := len(in)
	for _, m := range message {
		n += len(m)
	}
	if n > len(inner) {
		in = append(make([]byte, 0, n), in...)
		clear(inner[:sha256.BlockSize])
	}
	for _, m := range message {
		in = append(in, m...)
	}
	var outer [sha256.BlockSize + sha256.Size]byte
	pad(outer[:sha256.BlockSize], key, 0x5c)
	sum := sha256.Sum256(in)
	copy(outer[sha256.BlockSize:], sum[:])
	clear(in) // keys are no longer in memory than they must
	sum = sha256.Sum256(outer[:])
	clear(outer[:])
	return sum
}

// pad fills a block with the key and then zeros, each byte changed by x.
func pad(block []byte, key *[32]byte, x byte) {
	le, xs := binary.LittleEndian, 0x0101010101010101*uint64(x)
	for i := 0; i < sha256.BlockSize; i += 8 {
		w := xs
		if i < len(key) {
			w ^= le.Uint64(key[i:])
		}
		le.PutUint64(block[i:], w)
	}
}
