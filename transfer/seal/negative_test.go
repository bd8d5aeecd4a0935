package seal

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"bulkhead/internal/negative"
)

// change is one lie told of an honest sample.
type change struct {
	name   string
	expect string // class; the structure's name is put before it
	b      []byte
}

// TestNegativeVectors: whatever is wrong with a frame, manifest or receipt is
// named by its field. Method: one honest sample of each, changed in one place.
func TestNegativeVectors(t *testing.T) {
	header, err := sample().Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	frame := append(bytes.Clone(header), make([]byte, 100+TagSize)...)
	m := Manifest{TokenHash: hash32(1), Blocks: 2, Tokens: 100, Frames: 6, Cached: 64, Chain: hash32(2), First: bytes.Repeat([]byte{9}, 40)}
	manifest, err := m.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	receipt, err := Receipt{TokenHash: hash32(1), ManifestHash: hash32(2), Pages: 3, Decode: "d0", Epoch: 77}.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := negative.Set{
		Dir: "testdata/negative",
		Decoders: map[string]negative.Decoder{
			"header":   {Honest: header, Decode: func(b []byte) error { _, err := ParseHeader(b); return err }},
			"frame":    {Honest: frame, Decode: func(b []byte) error { _, err := ParseFrame(b); return err }},
			"manifest": {Honest: manifest, Decode: func(b []byte) error { _, err := ParseManifest(b); return err }},
			"receipt":  {Honest: receipt, Decode: func(b []byte) error { _, err := ParseReceipt(b); return err }},
		},
		Classes: []string{
			"header size", "header magic", "header version", "header reserved", "header dtype", "header attempt", "header sequence",
			"header prefill name length", "header decode name length", "header block count", "header block index", "header token start",
			"header token end", "header token end of a full block", "header layer start", "header layer end", "header payload length", "header frame size",
			"manifest size", "manifest magic", "manifest version", "manifest status", "manifest reserved", "manifest blocks", "manifest tokens",
			"manifest frames", "manifest cached tokens", "manifest first token size",
			"receipt size", "receipt magic", "receipt version", "receipt reserved", "receipt decode name length", "receipt pages",
		},
		Classify: func(err error) string {
			var f *FormatError
			if !errors.As(err, &f) || !errors.Is(err, ErrFormat) {
				return ""
			}
			return f.What + " " + f.Field
		},
	}
	add := func(what, structure string, changes []change) {
		for _, c := range changes {
			s.Made = append(s.Made, negative.Vector{
				Name: what + "-" + strings.ReplaceAll(c.name, " ", "-"), What: what, Expect: structure + " " + c.expect, Comment: c.name, Data: c.b,
			})
		}
	}
	add("header", "header", headerLies(header))
	add("frame", "header", append([]change{
		{"with a byte after its tag", "frame size", append(bytes.Clone(frame), 0)},
		{"with a byte missing", "frame size", frame[:len(frame)-1]},
		{"without its tag", "frame size", frame[:len(frame)-TagSize]},
		{"of a header alone", "frame size", header},
		{"that says one byte more", "frame size", patch(frame, 196, 4, 101)},
		{"that says one byte less", "frame size", patch(frame, 196, 4, 99)},
		{"that says the most bytes", "frame size", patch(frame, 196, 4, MaxPayload)},
		{"of zeros", "magic", make([]byte, len(frame))},
		{"of ones", "magic", bytes.Repeat([]byte{0xff}, len(frame))},
		{"that is a manifest", "size", manifest},
		{"shifted by one byte", "magic", append([]byte{0}, frame...)},
	}, cuts(frame, "size", 0, 1, 4, 8, 40, HeaderSize-1)...))
	add("manifest", "manifest", append(manifestLies(manifest, header), cuts(manifest, "size", 0, 1, 4, 8, 40, 88, manifestFixed-1)...))
	add("receipt", "receipt", append(receiptLies(receipt, manifest), cuts(receipt, "size", 0, 1, 4, 8, 72, 104, ReceiptSize-1)...))
	negative.Run(t, s, 100)
}

// cuts are the first bytes of b, each length a vector of its own.
func cuts(b []byte, expect string, lengths ...int) (out []change) {
	for _, n := range lengths {
		out = append(out, change{fmt.Sprintf("cut to %d bytes", n), expect, b[:n]})
	}
	return out
}

// withName puts a name where one belongs.
func withName(b []byte, off int, name string) []byte {
	out := bytes.Clone(b)
	clear(out[off : off+32])
	copy(out[off:off+32], name)
	return out
}

func headerLies(b []byte) []change {
	out := []change{
		{"magic of a manifest", "magic", patch(b, 0, 4, 0x424b484d)},
		{"magic of a receipt", "magic", patch(b, 0, 4, 0x424b4852)},
		{"magic in lower case", "magic", patch(b, 0, 4, 0x626b6866)},
		{"magic backwards", "magic", patch(b, 0, 4, 0x46484b42)},
		{"version 0", "version", patch(b, 4, 1, 0)},
		{"version 2", "version", patch(b, 4, 1, 2)},
		{"version 255", "version", patch(b, 4, 1, 255)},
		{"dtype 0", "dtype", patch(b, 5, 1, 0)},
		{"dtype 2", "dtype", patch(b, 5, 1, 2)},
		{"first reserved byte", "reserved", patch(b, 6, 1, 1)},
		{"second reserved byte", "reserved", patch(b, 7, 1, 0x80)},
		{"attempt 0", "attempt", patch(b, 58, 2, 0)},
		{"sequence at its bound", "sequence", patch(b, 60, 4, MaxFrames)},
		{"sequence of all ones", "sequence", patch(b, 60, 4, 1<<32-1)},
		{"block index at the count", "block index", patch(b, 176, 4, 2)},
		{"block index of all ones", "block index", patch(b, 176, 4, 1<<32-1)},
		{"block count 0", "block count", patch(b, 180, 4, 0)},
		{"block count over the bound", "block count", patch(b, 180, 4, MaxBlocks+1)},
		{"block count of all ones", "block count", patch(b, 180, 4, 1<<32-1)},
		{"token start in the middle of a block", "token start", patch(b, 184, 4, 1)},
		{"token start of the next block", "token start", patch(b, 184, 4, 64)},
		{"token start of another block than the index", "token start", patch(b, 176, 4, 1)},
		{"token range of no token", "token end", patch(b, 188, 4, 0)},
		{"token end one over a block", "token end", patch(b, 188, 4, 65)},
		{"token end of all ones", "token end", patch(b, 188, 4, 1<<32-1)},
		{"one token placeholder for a full block", "token end of a full block", patch(b, 188, 4, 1)},
		{"full block one token short", "token end of a full block", patch(b, 188, 4, 63)},
		{"layer range of no layer", "layer start", patch(b, 192, 2, 20)},
		{"layer range backwards", "layer start", patch(b, 194, 2, 5)},
		{"layer end over the bound", "layer end", patch(b, 194, 2, MaxLayers+1)},
		{"payload of no bytes", "payload length", patch(b, 196, 4, 0)},
		{"payload one byte over the bound", "payload length", patch(b, 196, 4, MaxPayload+1)},
		{"payload of all ones", "payload length", patch(b, 196, 4, 1<<32-1)},
	}
	for _, n := range []struct {
		what string
		off  int
	}{{"prefill", 80}, {"decode", 112}} {
		for _, c := range [][2]string{{"empty", ""}, {"with a dot", "a.b"}, {"wildcard", "*"}, {"full wildcard", ">"}, {"with a space", "a b"},
			{"with a zero inside", "a\x00b"}, {"with a line break", "a\nb"}, {"not in ascii", "ä"}, {"after a zero", "\x00d0"}} {
			out = append(out, change{n.what + " name " + c[0], n.what + " name length", withName(b, n.off, c[1])})
		}
	}
	return append(out, cuts(b, "size", 0, 1, 3, 4, 5, 8, 80, 176, HeaderSize-1)...)
}

func manifestLies(b, header []byte) []change {
	return []change{
		{"over its bound", "size", append(bytes.Clone(b), make([]byte, MaxManifest)...)},
		{"magic of a frame", "magic", patch(b, 0, 4, 0x424b4846)},
		{"that is a header", "magic", header},
		{"version 0", "version", patch(b, 4, 1, 0)},
		{"version 2", "version", patch(b, 4, 1, 2)},
		{"status 0", "status", patch(b, 5, 1, 0)},
		{"status 2", "status", patch(b, 5, 1, 2)},
		{"status 255", "status", patch(b, 5, 1, 255)},
		{"first reserved byte", "reserved", patch(b, 6, 1, 1)},
		{"second reserved byte", "reserved", patch(b, 7, 1, 1)},
		{"no blocks", "blocks", patch(b, 40, 4, 0)},
		{"blocks over the bound", "blocks", patch(b, 40, 4, MaxBlocks+1)},
		{"blocks of all ones", "blocks", patch(b, 40, 4, 1<<32-1)},
		{"no tokens", "tokens", patch(b, 44, 4, 0)},
		{"tokens over the bound", "tokens", patch(b, 44, 4, MaxTokens+1)},
		{"tokens of all ones", "tokens", patch(b, 44, 4, 1<<32-1)},
		{"no frames", "frames", patch(b, 48, 4, 0)},
		{"frames over the bound", "frames", patch(b, 48, 4, MaxFrames+1)},
		{"frames of all ones", "frames", patch(b, 48, 4, 1<<32-1)},
		{"more cached than tokens", "cached tokens", patch(b, 52, 4, 101)},
		{"cached of all ones", "cached tokens", patch(b, 52, 4, 1<<32-1)},
		{"first token longer than it is", "first token size", patch(b, 88, 4, 41)},
		{"first token shorter than it is", "first token size", patch(b, 88, 4, 39)},
		{"first token of all ones", "first token size", patch(b, 88, 4, 1<<32-1)},
		{"first token cut", "first token size", b[:len(b)-1]},
		{"a byte after its end", "first token size", append(bytes.Clone(b), 0)},
		{"first token shorter than a tag", "first token size", patch(b[:manifestFixed+TagSize-1], 88, 4, TagSize-1)},
		{"no first token", "first token size", patch(b[:manifestFixed], 88, 4, 0)},
	}
}

func receiptLies(b, manifest []byte) []change {
	out := []change{
		{"a byte after its end", "size", append(bytes.Clone(b), 0)},
		{"twice", "size", append(bytes.Clone(b), b...)},
		{"that is a manifest", "magic", append(bytes.Clone(manifest), make([]byte, ReceiptSize)...)[:ReceiptSize]},
		{"of zeros", "magic", make([]byte, ReceiptSize)},
		{"magic of a frame", "magic", patch(b, 0, 4, 0x424b4846)},
		{"version 0", "version", patch(b, 4, 1, 0)},
		{"version 2", "version", patch(b, 4, 1, 2)},
		{"first reserved byte", "reserved", patch(b, 5, 1, 1)},
		{"second reserved byte", "reserved", patch(b, 6, 1, 1)},
		{"third reserved byte", "reserved", patch(b, 7, 1, 1)},
		{"no pages", "pages", patch(b, 112, 4, 0)},
		{"pages over the bound", "pages", patch(b, 112, 4, MaxBlocks+1)},
		{"pages of all ones", "pages", patch(b, 112, 4, 1<<32-1)},
	}
	for _, c := range [][2]string{{"empty", ""}, {"with a dot", "a.b"}, {"wildcard", "*"}, {"with a zero inside", "a\x00b"}, {"not in ascii", "ä"}} {
		out = append(out, change{"decode name " + c[0], "decode name length", withName(b, 72, c[1])})
	}
	return out
}
