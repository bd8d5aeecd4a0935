package seal

import (
	"bytes"
	"crypto/cipher"
)

// plainAEAD stands where AES-GCM is, in the bench build that has no isolation: it
// copies, and its tag is zeros. See mutant.Bare.
type plainAEAD struct{}

var _ cipher.AEAD = plainAEAD{}

func (plainAEAD) NonceSize() int { return 12 }
func (plainAEAD) Overhead() int  { return TagSize }

func (plainAEAD) Seal(dst, _, plaintext, _ []byte) []byte {
	return append(append(dst, plaintext...), make([]byte, TagSize)...)
}

func (plainAEAD) Open(dst, _, ciphertext, _ []byte) ([]byte, error) {
	return append(dst, ciphertext[:len(ciphertext)-TagSize]...), nil
}

// plainExporter stands where HPKE is.
type plainExporter struct{}

func (plainExporter) Export(_ string, length int) ([]byte, error) {
	return bytes.Repeat([]byte{1}, length), nil
}
