package tenant

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"hash"
	"unsafe"

	"bulkhead/internal/mutant"
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
	labelReply       = "bulkhead reply/2"
	labelReplyKey    = "bulkhead reply key/1|"
	labelReplyOther  = "bulkhead reply other/1"
)

// HashToken returns the SHA-256 of a token. It names the attempt in every
// message after the one that carries the token itself.
func HashToken(token string) [32]byte {
	return sha256.Sum256(unsafe.Slice(unsafe.StringData(token), len(token))) // only read: no copy
}

// Fingerprint shortens a token hash for use in a subject: its first 16 bytes
// in base32, lower case without padding, 26 characters.
func Fingerprint(hash [32]byte) string { return lowerBase32.EncodeToString(hash[:16]) }

var lowerBase32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// PromptDigest is HMAC-SHA-256 under salt over a label, the count of ids (u32)
// and the ids (u32 each), little endian. The salt travels only sealed: a plain
// hash of a short prompt could be guessed by whoever reads the bus.
func PromptDigest(salt [32]byte, ids []int32) [32]byte {
	if mutant.Bare {
		return [32]byte{}
	}
	var room [idStack]byte
	if 4*len(ids) <= len(room) {
		n := binary.LittleEndian.AppendUint32(make([]byte, 0, 4), uint32(len(ids)))
		return MAC(&salt, []byte(labelPrompt), n, appendIDs(room[:0], ids))
	}
	m := hmac.New(sha256.New, salt[:])
	buf := append(idBuffer(len(ids)), labelPrompt...)
	m.Write(binary.LittleEndian.AppendUint32(buf, uint32(len(ids))))
	writeIDs(m, ids, buf)
	return sum(m)
}

// PrefixDigests returns one digest per block: of all tokens up to the block's
// end, salted like the prompt's. Digest i is HMAC-SHA-256 under salt over a
// label, digest i-1 (zeros before the first) and the ids of block i. Frames
// carry it, so a frame says which text its keys and values follow.
func PrefixDigests(salt [32]byte, ids []int32) [][32]byte {
	if mutant.Bare {
		return make([][32]byte, Blocks(len(ids)))
	}
	out := make([][32]byte, 0, Blocks(len(ids)))
	var prev [32]byte
	var room [4 * BlockTokens]byte
	for len(ids) > 0 {
		n := min(len(ids), BlockTokens)
		prev = MAC(&salt, []byte(labelPrefixBlock), prev[:], appendIDs(room[:0], ids[:n]))
		out = append(out, prev)
		ids = ids[n:]
	}
	return out
}

// ReplyKey is the key under which one role of an attempt, "prefill" or
// "decode", seals its output: HMAC-SHA-256 under the attempt's reply key, which only the
// router has, over a label and the role. No node can speak as the other one.
func ReplyKey(root [32]byte, role string) [32]byte {
	if mutant.Off(mutant.ReplyRole) {
		return root
	}
	return MAC(&root, []byte(labelReplyKey), []byte(role))
}

// ReplyDigest stands for a role's reply key towards the other role: SHA-256
// over a label and the key.
func ReplyDigest(key [32]byte) [32]byte {
	var room [64]byte
	return sha256.Sum256(append(append(room[:0], labelReplyOther...), key[:]...))
}

// ReplyBinding ties a token to the subject and the keys of its answers, so
// that a node answers only where the router that signed the token listens. It
// is SHA-256 over a label, the digests of prefill's and of decode's reply key, and the subject.
func ReplyBinding(subject string, root [32]byte) [32]byte {
	return bindReply(subject, ReplyDigest(ReplyKey(root, "prefill")), ReplyDigest(ReplyKey(root, "decode")))
}

// ReplyBindingOf is the same from what a node of one role has: its own key and
// the digest of the other's.
func ReplyBindingOf(subject, role string, key, other [32]byte) [32]byte {
	if role == "prefill" {
		return bindReply(subject, ReplyDigest(key), other)
	}
	return bindReply(subject, other, ReplyDigest(key))
}

func bindReply(subject string, prefill, decode [32]byte) [32]byte {
	b := make([]byte, 0, 256)
	b = append(append(append(append(b, labelReply...), prefill[:]...), decode[:]...), subject...)
	return sha256.Sum256(b)
}

// writeIDs hashes ids as u32, little endian, through the small buffer buf.
func writeIDs(h hash.Hash, ids []int32, buf []byte) {
	for len(ids) > 0 {
		n := min(len(ids), cap(buf)/4)
		buf = buf[:0]
		h.Write(appendIDs(buf, ids[:n]))
		ids = ids[n:]
	}
}

// appendIDs appends ids as u32, little endian.
func appendIDs(dst []byte, ids []int32) []byte {
	for _, id := range ids {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(id))
	}
	return dst
}

// idStack is how many bytes of ids are hashed without memory of their own.
const idStack = 1024

// idBuffer is the buffer of writeIDs for n ids, with room for labels.
func idBuffer(n int) []byte { return make([]byte, 0, max(4*min(n, 256), 64)) }

func sum(h hash.Hash) (out [32]byte) {
	h.Sum(out[:0])
	return out
}
