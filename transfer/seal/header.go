package seal

import (
	"encoding/binary"

	"bulkhead/internal/mutant"
	"bulkhead/internal/tenant"
)

// Sizes of a frame, in bytes.
const (
	HeaderSize = 264
	TagSize    = 16
	// MaxPayload is the most KV bytes in one frame. A frame with its header
	// and tag passes NATS's default max_payload of 1 MiB only below it, so the
	// broker must be set higher for models whose layers are this wide.
	MaxPayload = 1 << 20
	MaxFrame   = HeaderSize + MaxPayload + TagSize
)

// Bounds of a header's numbers.
const (
	MaxTokens = tenant.MaxTokens
	MaxLayers = 1024
	MaxBlocks = MaxTokens / tenant.BlockTokens
	MaxFrames = 1 << 20
)

// Version is the version of every structure of this package.
const Version = 1

// DType says what a payload's numbers are.
type DType uint8

// The data types.
const (
	F16 DType = 1 // IEEE 754 half, little endian
)

// Header is the readable part of a frame and the associated data of its
// encryption. See the package comment for its bytes.
type Header struct {
	TokenHash [32]byte
	Request   [16]byte
	Child     uint16
	Attempt   uint16
	Seq       uint32 // of the frame in its attempt, from 0: the nonce

	Prefill      string // node names
	PrefillEpoch uint64
	Decode       string
	DecodeEpoch  uint64

	Model [32]byte // fingerprint

	Block, Blocks              uint32 // index and count
	TokenStart, TokenEnd       uint32 // of the prompt, half open
	LayerStart, LayerEnd       uint16 // half open
	DType                      DType
	PayloadLen                 uint32 // bytes of plaintext
	PromptDigest, PrefixDigest [32]byte
}

var (
	frameMagic    = [4]byte{'B', 'K', 'H', 'F'}
	manifestMagic = [4]byte{'B', 'K', 'H', 'M'}
	receiptMagic  = [4]byte{'B', 'K', 'H', 'R'}
)

// Append appends the HeaderSize bytes of h to dst. It returns a *FormatError
// for a header that ParseHeader would refuse.
func (h Header) Append(dst []byte) ([]byte, error) {
	if err := h.check(); err != nil {
		return dst, err
	}
	be := binary.BigEndian
	n := len(dst)
	dst = append(dst, frameMagic[:]...)
	dst = append(dst, Version, byte(h.DType), 0, 0)
	dst = append(dst, h.TokenHash[:]...)
	dst = append(dst, h.Request[:]...)
	dst = be.AppendUint16(dst, h.Child)
	dst = be.AppendUint16(dst, h.Attempt)
	dst = be.AppendUint32(dst, h.Seq)
	dst = be.AppendUint64(dst, h.PrefillEpoch)
	dst = be.AppendUint64(dst, h.DecodeEpoch)
	dst = appendName(dst, h.Prefill)
	dst = appendName(dst, h.Decode)
	dst = append(dst, h.Model[:]...)
	dst = be.AppendUint32(dst, h.Block)
	dst = be.AppendUint32(dst, h.Blocks)
	dst = be.AppendUint32(dst, h.TokenStart)
	dst = be.AppendUint32(dst, h.TokenEnd)
	dst = be.AppendUint16(dst, h.LayerStart)
	dst = be.AppendUint16(dst, h.LayerEnd)
	dst = be.AppendUint32(dst, h.PayloadLen)
	dst = append(dst, h.PromptDigest[:]...)
	dst = append(dst, h.PrefixDigest[:]...)
	if len(dst)-n != HeaderSize {
		panic("seal: internal error: header size")
	}
	return dst, nil
}

// ParseHeader reads the header at the start of b, which may go on with a
// payload. It is strict: reserved bytes are zero, names follow their grammar,
// ranges are within bounds and agree with each other, so that Append gives the
// same bytes back. It believes nothing: see Receiver.OpenFrame.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, formatErr("header", "size", uint64(len(b)), HeaderSize)
	}
	b = b[:HeaderSize]
	switch {
	case [4]byte(b) != frameMagic:
		return Header{}, formatErr("header", "magic", uint64(binary.BigEndian.Uint32(b)), uint64(binary.BigEndian.Uint32(frameMagic[:])))
	case b[4] != Version:
		return Header{}, formatErr("header", "version", uint64(b[4]), Version)
	case b[6] != 0 || b[7] != 0:
		return Header{}, formatErr("header", "reserved", uint64(b[6])<<8|uint64(b[7]), 0)
	}
	be := binary.BigEndian
	h := Header{
		DType:        DType(b[5]),
		TokenHash:    [32]byte(b[8:]),
		Request:      [16]byte(b[40:]),
		Child:        be.Uint16(b[56:]),
		Attempt:      be.Uint16(b[58:]),
		Seq:          be.Uint32(b[60:]),
		PrefillEpoch: be.Uint64(b[64:]),
		DecodeEpoch:  be.Uint64(b[72:]),
		Model:        [32]byte(b[144:]),
		Block:        be.Uint32(b[176:]),
		Blocks:       be.Uint32(b[180:]),
		TokenStart:   be.Uint32(b[184:]),
		TokenEnd:     be.Uint32(b[188:]),
		LayerStart:   be.Uint16(b[192:]),
		LayerEnd:     be.Uint16(b[194:]),
		PayloadLen:   be.Uint32(b[196:]),
		PromptDigest: [32]byte(b[200:]),
		PrefixDigest: [32]byte(b[232:]),
	}
	var err error
	if h.Prefill, err = parseName("header", "prefill", b[80:112]); err != nil {
		return Header{}, err
	}
	if h.Decode, err = parseName("header", "decode", b[112:144]); err != nil {
		return Header{}, err
	}
	if err := h.check(); err != nil && !mutant.Off(mutant.FrameShape) {
		return Header{}, err
	}
	return h, nil
}

// check is the same for what is sent and for what was received.
func (h *Header) check() error {
	bad := func(field string, value, limit uint64) error { return formatErr("header", field, value, limit) }
	start := uint64(h.Block) * tenant.BlockTokens
	last := h.Block == h.Blocks-1
	switch {
	case h.DType != F16:
		return bad("dtype", uint64(h.DType), uint64(F16))
	case h.Attempt == 0:
		return bad("attempt", 0, 1)
	case h.Seq >= MaxFrames:
		return bad("sequence", uint64(h.Seq), MaxFrames-1)
	case tenant.CheckNode(h.Prefill) != nil:
		return bad("prefill name length", uint64(len(h.Prefill)), tenant.MaxNodeName)
	case tenant.CheckNode(h.Decode) != nil:
		return bad("decode name length", uint64(len(h.Decode)), tenant.MaxNodeName)
	case h.Blocks == 0 || h.Blocks > MaxBlocks:
		return bad("block count", uint64(h.Blocks), MaxBlocks)
	case h.Block >= h.Blocks:
		return bad("block index", uint64(h.Block), uint64(h.Blocks)-1)
	case uint64(h.TokenStart) != start:
		return bad("token start", uint64(h.TokenStart), start)
	case h.TokenEnd <= h.TokenStart || h.TokenEnd-h.TokenStart > tenant.BlockTokens:
		return bad("token end", uint64(h.TokenEnd), start+tenant.BlockTokens)
	case !last && h.TokenEnd-h.TokenStart != tenant.BlockTokens:
		return bad("token end of a full block", uint64(h.TokenEnd), start+tenant.BlockTokens)
	case h.LayerStart >= h.LayerEnd:
		return bad("layer start", uint64(h.LayerStart), uint64(h.LayerEnd))
	case h.LayerEnd > MaxLayers:
		return bad("layer end", uint64(h.LayerEnd), MaxLayers)
	case h.PayloadLen == 0 || h.PayloadLen > MaxPayload:
		return bad("payload length", uint64(h.PayloadLen), MaxPayload)
	}
	return nil
}

// appendName writes a checked node name, padded with zeros to 32 bytes.
func appendName(dst []byte, name string) []byte {
	var pad [tenant.MaxNodeName]byte
	copy(pad[:], name)
	return append(dst, pad[:]...)
}

// parseName reads a padded node name; the padding is all zeros.
func parseName(what, field string, b []byte) (string, error) {
	n := len(b)
	for n > 0 && b[n-1] == 0 {
		n--
	}
	name := string(b[:n])
	if tenant.CheckNode(name) != nil { // a zero inside is outside the grammar
		return "", formatErr(what, field+" name length", uint64(n), tenant.MaxNodeName)
	}
	return name, nil
}
