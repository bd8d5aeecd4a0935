package tenant

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"hash"
)

// BlockTokens is the count of tokens in one block. Package kernels has the
// same constant for the engine; a token says it too, so that nodes which
// disagree refuse each other.
const BlockTokens = 64

// Blocks returns how many blocks hold promptLen tokens: ceil(promptLen / 64).
func Blocks(promptLen int) int {
	return promptLen/BlockTokens + (promptLen%BlockTokens+BlockTokens-1)/BlockTokens
}

// Labels keep the digests below apart: no input of one is an input of another.
const (
	labelPrompt      = "bulkhead prompt/1"
	labelPrefixBlock = "bulkhead prefix block/1"
	labelPrefixRoot  = "bulkhead prefix root/1"
	labelReply       = "bulkhead reply/1"
)

// HashToken returns the SHA-256 of a token. It names the attempt in every
// message after the one that carries the token itself.
func HashToken(token string) [32]byte { return sha256.Sum256([]byte(token)) }

// Fingerprint shortens a token hash for use in a subject: its first 16 bytes
// in base32, lower case without padding, 26 characters.
func Fingerprint(hash [32]byte) string { return lowerBase32.EncodeToString(hash[:16]) }

var lowerBase32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// PromptDigest is HMAC-SHA-256 under salt over a label, the count of ids (u32)
// and the ids (u32 each), little endian. The salt travels only sealed: a plain
// hash of a short prompt could be guessed by whoever reads the bus.
func PromptDigest(salt [32]byte, ids []int32) [32]byte {
	m := hmac.New(sha256.New, salt[:])
	m.Write([]byte(labelPrompt))
	var n [4]byte
	binary.LittleEndian.PutUint32(n[:], uint32(len(ids)))
	m.Write(n[:])
	writeIDs(m, ids)
	return sum(m)
}

// PrefixDigests returns one digest per block: of all tokens up to the block's
// end, salted like the prompt's. Digest i is HMAC-SHA-256 under salt over a
// label, digest i-1 (zeros before the first) and the ids of block i. Frames
// carry it, so a frame says which text its keys and values follow.
func PrefixDigests(salt [32]byte, ids []int32) [][32]byte {
	out := make([][32]byte, 0, Blocks(len(ids)))
	var prev [32]byte
	m := hmac.New(sha256.New, salt[:])
	for len(ids) > 0 {
		n := min(len(ids), BlockTokens)
		m.Reset()
		m.Write([]byte(labelPrefixBlock))
		m.Write(prev[:])
		writeIDs(m, ids[:n])
		prev = sum(m)
		out = append(out, prev)
		ids = ids[n:]
	}
	return out
}

// ReplyBinding ties a token to the subject and the key of its answers, so
// that a node answers only where the router that signed the token listens. It
// is HMAC-SHA-256 under the reply key over a label and the subject.
func ReplyBinding(subject string, replyKey [32]byte) [32]byte {
	m := hmac.New(sha256.New, replyKey[:])
	m.Write([]byte(labelReply))
	m.Write([]byte(subject))
	return sum(m)
}

// writeIDs hashes ids as u32, little endian, through a small fixed buffer.
func writeIDs(h hash.Hash, ids []int32) {
	var buf [4 * 256]byte
	for len(ids) > 0 {
		n := min(len(ids), len(buf)/4)
		for i, id := range ids[:n] {
			binary.LittleEndian.PutUint32(buf[4*i:], uint32(id))
		}
		h.Write(buf[:4*n])
		ids = ids[n:]
	}
}

func sum(h hash.Hash) (out [32]byte) {
	h.Sum(out[:0])
	return out
}
