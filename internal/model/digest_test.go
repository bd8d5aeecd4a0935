package model

import (
	"testing"

	"lukechampine.com/blake3"
)

// Goal: the digest is what its comment says, for files around the border of a
// piece. Method: the same by hand.
func TestFileDigest(t *testing.T) {
	data := make([]byte, 2*pieceBytes+5)
	for i := range data {
		data[i] = byte(i ^ i>>8 ^ i>>16)
	}
	for _, n := range []int{0, 1, pieceBytes - 1, pieceBytes, pieceBytes + 1, 2 * pieceBytes, len(data)} {
		var sums []byte
		for at := 0; at < n || at == 0; at += pieceBytes {
			sum := blake3.Sum256(data[at:min(at+pieceBytes, n)])
			sums = append(sums, sum[:]...)
		}
		if fileDigest(data[:n]) != blake3.Sum256(sums) {
			t.Errorf("%d bytes: wrong digest", n)
		}
	}
	a, b := fileDigest(data), fileDigest(append(data[pieceBytes:2*pieceBytes:2*pieceBytes], data[:pieceBytes]...))
	if a == b {
		t.Error("the order of the pieces does not count")
	}
}
