package transfer

import (
	"fmt"

	"bulkhead/internal/mutant"
	"bulkhead/transfer/seal"
)

// SignReceipt signs the bytes of a seal.Receipt for the attempt whose output
// goes to reply. cached is the count of prompt tokens that prefill did not have
// to compute.
func (p *Peer) SignReceipt(receipt []byte, reply string, cached int) (*SignedReceipt, error) {
	statement, err := p.sign(kindReceipt, reply, receipt)
	if err != nil {
		return nil, err
	}
	return &SignedReceipt{Statement: statement, Cached: cached}, nil
}

// VerifyReceipt returns the receipt of an attempt: signed for this reply
// subject by the decode node in this boot, for this token, with this many
// pages. Any difference is ErrReceipt. hash is what the client is shown.
func (p *Peer) VerifyReceipt(s *SignedReceipt, reply string, token Hash, decode string, epoch uint64, pages int) (r seal.Receipt, hash Hash, err error) {
	e, from, err := p.verify(s.Statement, reply, kindReceipt)
	if err != nil {
		return seal.Receipt{}, Hash{}, err
	}
	if r, err = seal.ParseReceipt(e.Body); err != nil {
		return seal.Receipt{}, Hash{}, err
	}
	switch {
	case (from.Name != decode || r.Decode != decode) && !mutant.Off(mutant.ReceiptNode):
		err = fmt.Errorf("%w: of node %q signed by %q, expected %q", ErrReceipt, r.Decode, from.Name, decode)
	case r.Epoch != epoch && !mutant.Off(mutant.ReceiptEpoch):
		err = fmt.Errorf("%w: of boot %016x, expected %016x", ErrReceipt, r.Epoch, epoch)
	case r.TokenHash != token && !mutant.Off(mutant.ReceiptToken):
		err = fmt.Errorf("%w: of another token", ErrReceipt)
	case r.Pages != pages && !mutant.Off(mutant.ReceiptPages):
		err = fmt.Errorf("%w: %d pages, expected %d", ErrReceipt, r.Pages, pages)
	}
	if err != nil {
		return seal.Receipt{}, Hash{}, err
	}
	return r, seal.ReceiptHash(e.Body), nil
}
