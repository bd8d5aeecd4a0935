// Package seal encrypts, opens and describes what one attempt sends between
// nodes: KV frames, the manifest, the receipt, jobs and output. This comment is
// the format.
//
// The main types are [Key] (a node's HPKE key pair, new at every boot),
// [Sender] and [Receiver] (the two ends of one attempt), [Header] (the readable
// part of a frame), [Plan] (how KV is cut into frames), [Manifest], [Receipt]
// and [Stream].
//
// # Conventions
//
// Numbers are big endian and unsigned. Ranges are half open. A name is a node
// name, 1 to 32 characters of [A-Za-z0-9_-], padded with zeros to 32 bytes.
// The token hash is SHA-256 of the tenant token (package tenant). Bytes called
// zero are refused when they are not. A structure has exactly the length that
// it says; nothing may follow.
//
// # Keys of an attempt
//
// Prefill encapsulates to decode's boot key with HPKE in base mode (RFC 9180;
// X-Wing, that is MLKEM768-X25519 of draft-ietf-hpke-pq, kem 0x647a; HKDF-SHA256;
// export only):
//
//	info = "bulkhead kv/1" || token hash
//
// and sends the encapsulated key (1,120 bytes) in the attempt's opening message,
// which it signs: base mode does not say who sent. Both ends export 32 bytes
// for each of the contexts
//
//	"frame key"         AES-256-GCM of frames
//	"first token key"   AES-256-GCM of the first token
//	"credit key"        HMAC-SHA-256 of credits
//
// Encapsulation is random, so each attempt and each prefill incarnation has
// keys of its own. This is what makes a counter a safe nonce: computing the same
// attempt again, which may give other bytes, also gives another key. A frame
// that is sent again is the same ciphertext, never a new one.
//
// # Frame
//
//	header (264) || ciphertext (payload length) || tag (16)
//
// AES-256-GCM under the frame key; nonce = 4 zero bytes || sequence number as
// u64; associated data = the 264 bytes of the header:
//
//	offset size  field
//	     0    4  magic "BKHF"
//	     4    1  version, 1
//	     5    1  dtype: 1 = f16, little endian
//	     6    2  zero
//	     8   32  token hash
//	    40   16  request
//	    56    2  child
//	    58    2  attempt, from 1
//	    60    4  sequence number of the frame, from 0, below 1,048,576
//	    64    8  prefill boot epoch
//	    72    8  decode boot epoch
//	    80   32  prefill name
//	   112   32  decode name
//	   144   32  model fingerprint
//	   176    4  block index
//	   180    4  block count, 1 to 262,144
//	   184    4  token start = 64 * block index
//	   188    4  token end: start + 64, or less in the last block
//	   192    2  layer start
//	   194    2  layer end, at most 1,024
//	   196    4  payload length, 1 to 1,048,576
//	   200   32  salted prompt digest
//	   232   32  salted prefix digest: of all tokens up to token end
//
// The payload is [layer][K, V][KV head][token][dimension]. Which frames there
// are follows from [Plan].
//
// # First token, credit
//
// The first token is sealed under its key with a zero nonce, once; associated
// data = "bulkhead first/1" || token hash. At most 4,096 bytes of plaintext.
//
// A credit's MAC is HMAC-SHA-256 under the credit key of
// "bulkhead credit/1" || token hash || limit in bytes as u64.
//
// # Manifest
//
// Prefill's statement that the attempt is complete. The node's signature is
// beside it, not in it.
//
//	offset size  field
//	     0    4  magic "BKHM"
//	     4    1  version, 1
//	     5    1  status: 1 = complete; there is no other
//	     6    2  zero
//	     8   32  token hash
//	    40    4  blocks
//	    44    4  tokens
//	    48    4  frames
//	    52    4  cached tokens, at most tokens
//	    56   32  chain
//	    88    4  size of what follows, 16 to 4,112
//	    92    -  sealed first token
//
// The chain is SHA-256 of "bulkhead chain/1" and, for every frame in order of
// its number, SHA-256(header || tag).
//
// # Receipt
//
// Decode's statement that it verified and mapped every block; signed likewise.
//
//	offset size  field
//	     0    4  magic "BKHR"
//	     4    1  version, 1
//	     5    3  zero
//	     8   32  token hash
//	    40   32  SHA-256 of the manifest
//	    72   32  decode name
//	   104    8  decode boot epoch
//	   112    4  pages, 1 to 262,144
//
// # Jobs
//
// [SealTo] makes one HPKE base-mode message (the same KEM and KDF, AES-256-GCM)
// to a node's boot key: encapsulated key (1,120) || ciphertext || tag (16), with
// info = "bulkhead box/1|" || the use.
//
// # Output
//
// A [Stream] is AES-256-GCM under HKDF-SHA256(reply key, salt = token hash,
// info = "bulkhead output/1|" || role); nonce = 4 zero bytes || sequence number
// as u64; associated data = token hash || role || sequence number as u64.
//
// # Promises
//
// What opens was sealed by the other end of this attempt, with exactly this
// header. No nonce is used twice by one Sender or Stream. Hostile bytes cost an
// error and at most the memory of the output. Every failed decryption is the
// same [ErrOpen]. Keys are in no output of fmt or slog.
//
// The package does not decide whether a frame is wanted (duplicates, order,
// deadlines), who signed, or whether a token is good.
package seal
