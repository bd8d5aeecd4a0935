package transfer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"

	"bulkhead/internal/identity"
	"bulkhead/internal/mutant"
)

// kind is what a signed message is. It is part of what is signed, so that no
// message can be taken for another.
type kind string

const (
	kindAnnounce  kind = "announce"
	kindJob       kind = "job"
	kindAccept    kind = "accept"
	kindReject    kind = "reject"
	kindCancel    kind = "cancel"
	kindCancelled kind = "cancelled"
	kindPing      kind = "ping"
	kindPong      kind = "pong"
	kindCredit    kind = "credit"
	kindOpen      kind = "kv.open"
	kindManifest  kind = "kv.manifest"
	kindRefusal   kind = "kv.reject"
	kindReceipt   kind = "receipt"
)

// senders says which roles may sign which kind.
var senders = map[kind][]Role{
	kindAnnounce:  {RoleRouter, RolePrefill, RoleDecode},
	kindJob:       {RoleRouter},
	kindAccept:    {RolePrefill, RoleDecode},
	kindReject:    {RolePrefill, RoleDecode},
	kindCancel:    {RoleRouter},
	kindCancelled: {RolePrefill, RoleDecode},
	kindPing:      {RoleRouter},
	kindPong:      {RolePrefill, RoleDecode},
	kindCredit:    {RoleDecode},
	kindOpen:      {RolePrefill},
	kindManifest:  {RolePrefill},
	kindRefusal:   {RolePrefill},
	kindReceipt:   {RoleDecode},
}

// envelope is a control message as it travels. Sig covers kind, destination
// and body; the destination itself does not travel: the receiver knows where it
// heard the message.
type envelope struct {
	Kind kind   `msgpack:"kind"`
	From string `msgpack:"from"` // the sender's user JWT
	Body []byte `msgpack:"body"`
	Sig  []byte `msgpack:"sig"`
}

// The destinations that are signed. A subject stands for itself; a job is also
// bound to the boot it was meant for, an answer to the very bytes it answers.

func jobDest(subject string, epoch uint64) string {
	var room [160]byte
	return string(strconv.AppendUint(append(append(room[:0], subject...), '#'), epoch, 16))
}

func answerDest(request []byte) string {
	h := sha256.Sum256(request)
	var room [len("answer#") + 2*sha256.Size]byte
	return string(hex.AppendEncode(append(room[:0], "answer#"...), h[:]))
}

// sign makes the envelope of a body.
func (p *Peer) sign(k kind, dest string, body []byte) ([]byte, error) {
	if mutant.Off(mutant.EnvelopeDest) {
		dest = ""
	}
	jwt, err := p.suite.JWT()
	if err != nil {
		return nil, fmt.Errorf("transfer: sign %s: %w", k, err)
	}
	return envelopes.encode(&envelope{Kind: k, From: jwt, Body: body, Sig: p.suite.Sign(string(k), dest, body)})
}

// verify opens an envelope that should be of one of kinds and meant for dest:
// its sender is vouched for by the account, has a role that may send this kind,
// and signed these bytes.
func (p *Peer) verify(data []byte, dest string, kinds ...kind) (envelope, identity.Peer, error) {
	e, err := envelopes.decode(data)
	if err != nil {
		p.counters.add(CountBadMessage)
		return envelope{}, identity.Peer{}, err
	}
	from, err := p.verifyEnvelope(e, dest, kinds...)
	return e, from, err
}

func (p *Peer) verifyEnvelope(e envelope, dest string, kinds ...kind) (identity.Peer, error) {
	from, err := p.sender(e, dest, kinds)
	if err != nil {
		p.counters.add(CountBadEnvelope)
		return identity.Peer{}, err
	}
	return from, nil
}

func (p *Peer) sender(e envelope, dest string, kinds []kind) (identity.Peer, error) {
	if mutant.Off(mutant.EnvelopeDest) {
		dest = ""
	}
	if !slices.Contains(kinds, e.Kind) && !mutant.Off(mutant.EnvelopeKind) {
		return identity.Peer{}, fmt.Errorf("%w: kind %q where %q belongs", ErrEnvelope, e.Kind, kinds)
	}
	from, err := p.suite.Verify(e.From, p.clock())
	if err != nil {
		return identity.Peer{}, fmt.Errorf("%w: %s: %w", ErrEnvelope, e.Kind, err)
	}
	if !slices.Contains(senders[e.Kind], Role(from.Role)) && !mutant.Off(mutant.EnvelopeRole) {
		return identity.Peer{}, fmt.Errorf("%w: a %s node sent %s", ErrEnvelope, from.Role, e.Kind)
	}
	if err := p.suite.VerifySig(from, string(e.Kind), dest, e.Body, e.Sig); err != nil && !mutant.Off(mutant.EnvelopeSignature) {
		return identity.Peer{}, fmt.Errorf("%w: %s by %s %s: %w", ErrEnvelope, e.Kind, from.Role, from.Name, err)
	}
	return from, nil
}
