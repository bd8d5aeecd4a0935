package transfer

import (
	"encoding/base32"
	"fmt"
	"strconv"
	"strings"
)

// NodeNameMax is the longest node name in bytes. Names become subject tokens
// and stream names, so they are kept short and free of anything NATS gives a meaning.
const NodeNameMax = 32

// ID is a 128-bit identifier as it appears in subjects: a request's id, or a
// tenant token's [Fingerprint].
type ID [16]byte

// idText is base32 in lower case, 26 characters for 16 bytes.
var idText = base32.NewEncoding(idLetters).WithPadding(base32.NoPadding)

const idLetters = "abcdefghijklmnopqrstuvwxyz234567"

// idTextLen is the length of an ID in a subject.
const idTextLen = 26

// String returns the 26 characters of the ID.
func (id ID) String() string {
	var b [idTextLen]byte
	return string(id.append(b[:0]))
}

// append appends what String returns.
func (id ID) append(dst []byte) []byte { return idText.AppendEncode(dst, id[:]) }

// ParseID reads what [ID.String] wrote, and nothing else.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != idTextLen {
		return id, fmt.Errorf("%w: an id of %d characters, want %d", ErrSubject, len(s), idTextLen)
	}
	bits, have, at := uint32(0), 0, 0
	for i := range len(s) {
		v := idValues[s[i]]
		if v == 0 {
			return ID{}, fmt.Errorf("%w: an id that is not base32", ErrSubject)
		}
		bits, have = bits<<5|uint32(v-1), have+5
		if have >= 8 && at < len(id) {
			have -= 8
			id[at] = byte(bits >> have)
			at++
		}
	}
	if bits&(1<<have-1) != 0 { // two spare bits in the last character
		return ID{}, fmt.Errorf("%w: an id with spare bits set", ErrSubject)
	}
	return id, nil
}

// idValues is the value of each character of idText, plus 1; 0: it is none of them.
var idValues = func() (v [256]uint8) {
	for i := range len(idLetters) {
		v[idLetters[i]] = uint8(i + 1)
	}
	return v
}()

// Fingerprint is what subjects say of a token: the first half of its hash.
func Fingerprint(tokenHash Hash) ID { return ID(tokenHash[:16]) }

// CheckName returns an error unless name is [A-Za-z0-9_-]{1,32}.
func CheckName(name string) error {
	if len(name) == 0 || len(name) > NodeNameMax {
		return fmt.Errorf("%w: a node name of %d bytes, want 1 to %d", ErrSubject, len(name), NodeNameMax)
	}
	for i := range len(name) {
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return fmt.Errorf("%w: node name %q has byte %#02x, want only A-Z a-z 0-9 _ -", ErrSubject, name, c)
		}
	}
	return nil
}

// checkRole returns an error unless r is one of the three roles.
func checkRole(r Role) error {
	switch r {
	case RoleRouter, RolePrefill, RoleDecode:
		return nil
	}
	return fmt.Errorf("%w: %.16q is no role", ErrSubject, string(r))
}

// The subjects, each with who publishes and who listens. Names are checked
// where they enter a Peer; these functions only put them together.

// AnnounceSubject carries a node's announcements: the node publishes, all listen.
func AnnounceSubject(r Role, node string) string { return "announce." + string(r) + "." + node }

// JobSubject carries requests of a router to one node.
func JobSubject(r Role, node string) string { return "job." + string(r) + "." + node }

// CancelSubject carries cancellations of a router to one node.
func CancelSubject(node string) string { return "cancel." + node }

// PingSubject carries a router's question whether a node is alive.
func PingSubject(node string) string { return "ping." + node }

// CreditSubject carries credits of a decode node to a prefill node.
func CreditSubject(prefill, decode string) string { return "credit." + prefill + "." + decode }

// OutSubject is where the nodes of an attempt send its output to the router.
type OutSubject struct {
	Router  string
	Request ID
	Token   ID // the token's Fingerprint
}

// String returns the subject.
func (s OutSubject) String() string {
	var room [subjectMax]byte
	b := append(append(append(room[:0], "out."...), s.Router...), '.')
	b = append(s.Request.append(b), '.')
	return string(s.Token.append(b))
}

// Scope is the subject without the token: what a token can be bound to
// (tenant.ReplyBinding), since the subject in turn names the token.
func (s OutSubject) Scope() string {
	var room [subjectMax]byte
	b := append(append(append(room[:0], "out."...), s.Router...), '.')
	return string(s.Request.append(b))
}

// ParseOut reads an [OutSubject].
func ParseOut(subject string) (OutSubject, error) {
	t, err := split(subject, "out", 4)
	if err != nil {
		return OutSubject{}, err
	}
	s := OutSubject{Router: t[1]}
	if err := CheckName(s.Router); err != nil {
		return OutSubject{}, err
	}
	if s.Request, err = ParseID(t[2]); err != nil {
		return OutSubject{}, err
	}
	if s.Token, err = ParseID(t[3]); err != nil {
		return OutSubject{}, err
	}
	return s, nil
}

// KVSubject is the subject of every message of one attempt's KV stream.
type KVSubject struct {
	Decode  string
	Request ID
	Attempt uint16 // from 1
	Token   ID     // the token's Fingerprint
}

// String returns the subject.
func (s KVSubject) String() string {
	var room [subjectMax]byte
	b := append(append(append(room[:0], "kv."...), s.Decode...), '.')
	b = append(s.Request.append(b), '.')
	b = append(strconv.AppendUint(b, uint64(s.Attempt), 10), '.')
	return string(s.Token.append(b))
}

// ParseKV reads a [KVSubject].
func ParseKV(subject string) (KVSubject, error) {
	t, err := split(subject, "kv", 5)
	if err != nil {
		return KVSubject{}, err
	}
	s := KVSubject{Decode: t[1]}
	if err := CheckName(s.Decode); err != nil {
		return KVSubject{}, err
	}
	if s.Request, err = ParseID(t[2]); err != nil {
		return KVSubject{}, err
	}
	n, err := strconv.ParseUint(t[3], 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != t[3] { // no sign, no leading zero
		return KVSubject{}, fmt.Errorf("%w: attempt %.12q is not a plain number from 1 to 65535", ErrSubject, t[3])
	}
	s.Attempt = uint16(n)
	if s.Token, err = ParseID(t[4]); err != nil {
		return KVSubject{}, err
	}
	return s, nil
}

// ParseAnnounce reads the subject of an announcement.
func ParseAnnounce(subject string) (Role, string, error) {
	t, err := split(subject, "announce", 3)
	if err != nil {
		return "", "", err
	}
	r := Role(t[1])
	if err := checkRole(r); err != nil {
		return "", "", err
	}
	return r, t[2], CheckName(t[2])
}

// ParseCredit reads the subject of a credit.
func ParseCredit(subject string) (prefill, decode string, err error) {
	t, err := split(subject, "credit", 3)
	if err != nil {
		return "", "", err
	}
	if err := CheckName(t[1]); err != nil {
		return "", "", err
	}
	return t[1], t[2], CheckName(t[2])
}

// subjectMax bounds a subject before it is taken apart: the longest one is a KVSubject.
const subjectMax = len("kv.") + NodeNameMax + 1 + idTextLen + 1 + 5 + 1 + idTextLen

// split cuts a subject into exactly n tokens of which the first is kind.
func split(subject, kind string, n int) (t [tokensMax]string, err error) {
	if len(subject) > subjectMax {
		return t, fmt.Errorf("%w: a subject of %d bytes, want at most %d", ErrSubject, len(subject), subjectMax)
	}
	rest, more := subject, true
	fits := true
	for i := 0; i < n && fits; i++ {
		t[i], rest, more = strings.Cut(rest, ".")
		fits = more == (i < n-1)
	}
	if !fits || t[0] != kind {
		return t, fmt.Errorf("%w: %q is no %s subject of %d tokens", ErrSubject, subject, kind, n)
	}
	return t, nil
}

const tokensMax = 5 // of any subject
