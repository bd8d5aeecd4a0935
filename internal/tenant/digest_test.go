package tenant

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestBlocks(t *testing.T) {
	for n, want := range map[int]int{0: 0, 1: 1, 63: 1, 64: 1, 65: 2, 128: 2, 129: 3, MaxTokens: MaxTokens / 64, 1<<63 - 1: 1 << 57} {
		if got := Blocks(n); got != want {
			t.Errorf("Blocks(%d) = %d, want %d", n, got, want)
		}
	}
}

// TestDigests computes each digest a second time, from its description.
func TestDigests(t *testing.T) {
	salt, key := h32(7), h32(8)
	mac := func(key [32]byte, parts ...[]byte) (out [32]byte) {
		m := hmac.New(sha256.New, key[:])
		m.Write(slices.Concat(parts...))
		m.Sum(out[:0])
		return out
	}
	ids := make([]int32, 1000)
	var raw []byte
	for i := range ids {
		ids[i] = int32(i * 7919)
		raw = binary.LittleEndian.AppendUint32(raw, uint32(ids[i]))
	}
	for _, n := range []int{0, 1, 64, 255, 256, 257, 1000} {
		count := binary.LittleEndian.AppendUint32(nil, uint32(n))
		if got, want := PromptDigest(salt, ids[:n]), mac(salt, []byte("bulkhead prompt/1"), count, raw[:4*n]); got != want {
			t.Errorf("PromptDigest of %d ids differs", n)
		}
	}
	var prev [32]byte
	all := PrefixDigests(salt, ids)
	if len(all) != Blocks(len(ids)) {
		t.Fatalf("%d prefix digests", len(all))
	}
	for i, got := range all {
		prev = mac(salt, []byte("bulkhead prefix block/1"), prev[:], raw[4*64*i:min(4*64*(i+1), len(raw))])
		if got != prev {
			t.Errorf("prefix digest %d differs", i)
		}
	}
	// A prefix has the same digests; one token earlier changes all after it.
	if cut := PrefixDigests(salt, ids[:640]); !slices.Equal(cut, all[:10]) {
		t.Error("digests of a prefix are not a prefix of the digests")
	}
	ids[70]++
	for i, d := range PrefixDigests(salt, ids) {
		if (d == all[i]) != (i == 0) {
			t.Errorf("token 70 changed: digest %d equal is %v", i, d == all[i])
		}
	}
	if PrefixDigests(salt, nil) == nil || len(PrefixDigests(salt, nil)) != 0 {
		t.Error("digests of nothing")
	}

	ofPrefill, ofDecode := mac(key, []byte("bulkhead reply key/1|prefill")), mac(key, []byte("bulkhead reply key/1|decode"))
	if ReplyKey(key, "prefill") != ofPrefill || ReplyKey(key, "decode") != ofDecode {
		t.Error("ReplyKey differs")
	}
	digest := func(k [32]byte) []byte {
		d := sha256.Sum256(append([]byte("bulkhead reply other/1"), k[:]...))
		return d[:]
	}
	want32 := sha256.Sum256(slices.Concat([]byte("bulkhead reply/2"), digest(ofPrefill), digest(ofDecode), []byte("out.r0.x")))
	if ReplyBinding("out.r0.x", key) != want32 {
		t.Error("ReplyBinding differs")
	}
	if ReplyBindingOf("out.r0.x", "prefill", ofPrefill, ReplyDigest(ofDecode)) != want32 || ReplyBindingOf("out.r0.x", "decode", ofDecode, ReplyDigest(ofPrefill)) != want32 {
		t.Error("ReplyBindingOf differs from ReplyBinding")
	}
	if ReplyBindingOf("out.r0.x", "decode", ofPrefill, ReplyDigest(ofDecode)) == want32 {
		t.Error("prefill's key is taken for decode's")
	}
	hash := HashToken("token")
	if hash != sha256.Sum256([]byte("token")) {
		t.Error("HashToken is not SHA-256")
	}
	want := strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(hash[:16]))
	if got := Fingerprint(hash); got != want || len(got) != 26 {
		t.Errorf("Fingerprint %q, want %q", got, want)
	}

	out := fmt.Sprintf("prompt %x\nprefix %x\nreply %x\nfingerprint %s\n",
		PromptDigest(salt, []int32{1, 2, 3}), PrefixDigests(salt, []int32{1, 2, 3}), ReplyBinding("out.r0.x", key), Fingerprint(hash))
	golden(t, "testdata/digests.txt", []byte(out))
}

func TestNames(t *testing.T) {
	for _, ok := range []string{"a", "Z9_-", strings.Repeat("x", 32)} {
		if err := CheckNode(ok); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", strings.Repeat("x", 33), "a.b", "*", ">", "a b", "ä", "a\n", "\x00", "$JS", "{{name()}}"} {
		err := CheckNode(bad)
		if err == nil {
			t.Errorf("%q passes", bad)
		} else if bad != "" && strings.Contains(err.Error(), bad) && len(bad) > 1 {
			t.Errorf("the error repeats %q", bad)
		}
	}
	if CheckTenant(strings.Repeat("x", 64)) != nil || CheckTenant(strings.Repeat("x", 65)) == nil {
		t.Error("tenant names have 1 to 64 characters")
	}
}
