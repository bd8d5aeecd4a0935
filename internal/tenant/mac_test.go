package tenant

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"testing"
)

// MAC is HMAC-SHA-256, whatever the length of the message and however it is cut.
func TestMAC(t *testing.T) {
	key := sha256.Sum256([]byte("a key"))
	message := make([]byte, 2000)
	for i := range message {
		message[i] = byte(i * 7)
	}
	for n := range len(message) {
		h := hmac.New(sha256.New, key[:])
		h.Write(message[:n])
		want := h.Sum(nil)
		if got := MAC(&key, message[:n]); !bytes.Equal(got[:], want) {
			t.Fatalf("of %d bytes: %x, want %x", n, got, want)
		}
		if got := MAC(&key, message[:n/3], nil, message[n/3:n]); !bytes.Equal(got[:], want) {
			t.Fatalf("of %d bytes in parts: %x, want %x", n, got, want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { MAC(&key, message[:200], message[:200]) }); n != 0 {
		t.Errorf("%v allocations for a short message", n)
	}
}
