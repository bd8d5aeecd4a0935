package seal

import (
	"crypto/sha256"
	"encoding/binary"

	"bulkhead/internal/tenant"
)

// ReceiptSize is the size of a receipt, in bytes.
const ReceiptSize = 116

// Receipt is decode's statement that it verified and mapped every block of an
// attempt before the first token. It is signed outside, as Append gives it; its
// hash is what the client sees.
type Receipt struct {
	TokenHash    [32]byte
	ManifestHash [32]byte
	Pages        int
	Decode       string // node name
	Epoch        uint64 // of the decode node's boot
}

// Append appends the receipt's bytes to dst.
func (r Receipt) Append(dst []byte) ([]byte, error) {
	if err := r.check(); err != nil {
		return dst, err
	}
	dst = append(dst, receiptMagic[:]...)
	dst = append(dst, Version, 0, 0, 0)
	dst = append(dst, r.TokenHash[:]...)
	dst = append(dst, r.ManifestHash[:]...)
	dst = appendName(dst, r.Decode)
	dst = binary.BigEndian.AppendUint64(dst, r.Epoch)
	return binary.BigEndian.AppendUint32(dst, uint32(r.Pages)), nil
}

// ParseReceipt reads a whole receipt.
func ParseReceipt(b []byte) (Receipt, error) {
	if len(b) != ReceiptSize {
		return Receipt{}, formatErr("receipt", "size", uint64(len(b)), ReceiptSize)
	}
	be := binary.BigEndian
	switch {
	case [4]byte(b) != receiptMagic:
		return Receipt{}, formatErr("receipt", "magic", uint64(be.Uint32(b)), uint64(be.Uint32(receiptMagic[:])))
	case b[4] != Version:
		return Receipt{}, formatErr("receipt", "version", uint64(b[4]), Version)
	case b[5] != 0 || b[6] != 0 || b[7] != 0:
		return Receipt{}, formatErr("receipt", "reserved", uint64(be.Uint32(b[4:])&0xffffff), 0)
	}
	name, err := parseName("receipt", "decode", b[72:104])
	if err != nil {
		return Receipt{}, err
	}
	r := Receipt{
		TokenHash:    [32]byte(b[8:]),
		ManifestHash: [32]byte(b[40:]),
		Decode:       name,
		Epoch:        be.Uint64(b[104:]),
		Pages:        int(be.Uint32(b[112:])),
	}
	if err := r.check(); err != nil {
		return Receipt{}, err
	}
	return r, nil
}

func (r *Receipt) check() error {
	if r.Pages < 1 || r.Pages > MaxBlocks {
		return formatErr("receipt", "pages", uint64(r.Pages), MaxBlocks)
	}
	if tenant.CheckNode(r.Decode) != nil {
		return formatErr("receipt", "decode name length", uint64(len(r.Decode)), tenant.MaxNodeName)
	}
	return nil
}

// ReceiptHash is the SHA-256 of a receipt's bytes: the value of the response
// header x-bulkhead-receipt and of the audit record.
func ReceiptHash(receipt []byte) [32]byte { return sha256.Sum256(receipt) }

// Hash returns ReceiptHash of the receipt's bytes. The receipt must be valid.
func (r Receipt) Hash() [32]byte {
	b, err := r.Append(nil)
	if err != nil {
		panic("seal: internal error: " + err.Error())
	}
	return ReceiptHash(b)
}
