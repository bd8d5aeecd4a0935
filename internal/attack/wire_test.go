package attack

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"bulkhead/internal/identity"
)

// An attacker's own msgpack: it must be able to write what no honest node writes.

// members is a map in the order in which it is written: key, value, key, value.
type members []any

func pack(v any) []byte { return appendPacked(nil, v) }

func appendPacked(b []byte, v any) []byte {
	be := binary.BigEndian
	switch v := v.(type) {
	case nil:
		return append(b, 0xc0)
	case bool:
		if v {
			return append(b, 0xc3)
		}
		return append(b, 0xc2)
	case int:
		return be.AppendUint64(append(b, 0xd3), uint64(int64(v)))
	case uint64:
		return be.AppendUint64(append(b, 0xcf), v)
	case string:
		b = be.AppendUint16(append(b, 0xda), uint16(len(v)))
		return append(b, v...)
	case []byte:
		b = be.AppendUint32(append(b, 0xc6), uint32(len(v)))
		return append(b, v...)
	case [32]byte:
		return appendPacked(b, v[:])
	case []any:
		b = be.AppendUint16(append(b, 0xdc), uint16(len(v)))
		for _, x := range v {
			b = appendPacked(b, x)
		}
		return b
	case members:
		b = be.AppendUint16(append(b, 0xde), uint16(len(v)/2))
		for _, x := range v {
			b = appendPacked(b, x)
		}
		return b
	}
	panic(rigError(fmt.Sprintf("cannot pack a %T", v)))
}

// envelope is a signed message as transfer's package comment describes it.
type envelope struct {
	kind, from string
	body, sig  []byte
}

func (e envelope) bytes() []byte {
	return pack(members{"kind", e.kind, "from", e.from, "body", e.body, "sig", e.sig})
}

// signed makes one in the name of a node, which need not send such a message.
func signed(n *identity.Node, kind, dest string, body []byte) []byte {
	jwt, err := n.JWT()
	must(err)
	return envelope{kind, jwt, body, n.Sign(kind, destination(dest), body)}.bytes()
}

func answerTo(request []byte) string {
	h := sha256.Sum256(request)
	return "answer#" + hex.EncodeToString(h[:])
}

// parts reads an envelope that an honest node sent: four members, in any order.
func parts(data []byte) (e envelope) {
	str := func(b []byte) (string, []byte) {
		switch c := b[0]; {
		case c&0xe0 == 0xa0:
			n := int(c & 0x1f)
			return string(b[1 : 1+n]), b[1+n:]
		case c == 0xd9 || c == 0xc4:
			n := int(b[1])
			return string(b[2 : 2+n]), b[2+n:]
		case c == 0xda || c == 0xc5:
			n := int(binary.BigEndian.Uint16(b[1:]))
			return string(b[3 : 3+n]), b[3+n:]
		case c == 0xc6:
			n := int(binary.BigEndian.Uint32(b[1:]))
			return string(b[5 : 5+n]), b[5+n:]
		}
		panic(rigError("not an envelope"))
	}
	b := data[1:]
	for range 4 {
		var k, v string
		k, b = str(b)
		v, b = str(b)
		switch k {
		case "kind":
			e.kind = v
		case "from":
			e.from = v
		case "body":
			e.body = []byte(v)
		case "sig":
			e.sig = []byte(v)
		}
	}
	return e
}

// token is PASETO v4.public by hand, of any claims: a router that does not follow
// the protocol. claims is the JSON object.
func token(n *identity.Node, router, cluster string, claims []byte) string {
	const header = "v4.public."
	pae := binary.LittleEndian.AppendUint64(nil, 4)
	for _, p := range [][]byte{[]byte(header), claims, []byte(router), []byte("kvgrant/1|" + cluster)} {
		pae = binary.LittleEndian.AppendUint64(pae, uint64(len(p)))
		pae = append(pae, p...)
	}
	b64 := base64.RawURLEncoding
	return header + b64.EncodeToString(append(claims[:len(claims):len(claims)], sign(n, pae)...)) + "." + b64.EncodeToString([]byte(router))
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	must(err)
	return b
}
