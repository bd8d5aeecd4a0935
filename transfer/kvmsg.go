package transfer

import (
	"fmt"

	"bulkhead/internal/identity"
	"bulkhead/internal/mutant"
	"bulkhead/transfer/seal"
)

// KVKind is what a message of a KV stream is.
type KVKind uint8

// The kinds.
const (
	KVFrame    KVKind = iota + 1 // header and ciphertext, as package seal made them
	KVOpen                       // an Open, signed by prefill: the first of its attempt
	KVManifest                   // a seal.Manifest, signed by prefill: the last of a complete attempt
	KVReject                     // a Reject, signed by prefill: the last of any other
)

func (k KVKind) String() string {
	switch k {
	case KVFrame:
		return "frame"
	case KVOpen:
		return "open"
	case KVManifest:
		return "manifest"
	case KVReject:
		return "reject"
	}
	return fmt.Sprintf("KVKind(%d)", uint8(k))
}

var kvKinds = map[kind]KVKind{kindOpen: KVOpen, kindManifest: KVManifest, kindRefusal: KVReject}

// KVMessage is a message of a KV stream taken apart, and not yet believed: size
// and grammar are right, no signature was checked, nothing was opened. The
// token fingerprint in Subject says whether it is worth going on.
type KVMessage struct {
	Subject KVSubject
	Kind    KVKind
	Frame   []byte // of a KVFrame: all its bytes

	subject  string
	envelope envelope
}

// ParseKVMessage takes a message apart. A frame is told from an envelope by its
// first bytes: a frame's magic is no msgpack map.
func (p *Peer) ParseKVMessage(m KVMsg) (KVMessage, error) {
	s, err := ParseKV(m.Subject)
	if err != nil {
		p.counters.add(CountBadSubject)
		return KVMessage{}, err
	}
	out := KVMessage{Subject: s, subject: m.Subject}
	if len(m.Data) >= 4 && string(m.Data[:4]) == "BKHF" {
		if len(m.Data) > seal.MaxFrame {
			p.counters.add(CountBadMessage)
			return KVMessage{}, fmt.Errorf("%w: frame of %d bytes, limit %d", ErrMessage, len(m.Data), seal.MaxFrame)
		}
		out.Kind, out.Frame = KVFrame, m.Data
		return out, nil
	}
	if len(m.Data) > controlMax {
		p.counters.add(CountBadMessage)
		return KVMessage{}, fmt.Errorf("%w: signed KV message of %d bytes, limit %d", ErrMessage, len(m.Data), controlMax)
	}
	if out.envelope, err = envelopes.decode(m.Data); err == nil {
		if out.Kind = kvKinds[out.envelope.Kind]; out.Kind == 0 {
			err = fmt.Errorf("%w: %q on a KV stream", ErrMessage, out.envelope.Kind)
		}
	}
	if err != nil {
		p.counters.add(CountBadMessage)
		return KVMessage{}, err
	}
	return out, nil
}

// VerifyOpen verifies a KVOpen: signed for this subject by the prefill node it
// names, its token the one of the subject.
func (p *Peer) VerifyOpen(m KVMessage) (Open, identity.Peer, error) {
	from, err := p.verifyKV(m, kindOpen)
	if err != nil {
		return Open{}, identity.Peer{}, err
	}
	o, err := opens.decode(m.envelope.Body)
	switch {
	case err != nil:
	case o.Prefill != from.Name && !mutant.Off(mutant.OpenName):
		err = fmt.Errorf("%w: %s opened a stream as %s", ErrMessage, from.Name, o.Prefill)
	case Fingerprint(p.TokenHash(o.Token)) != m.Subject.Token && !mutant.Off(mutant.OpenToken):
		err = fmt.Errorf("%w: the opening's token is not its subject's", ErrMessage)
	}
	if err != nil {
		p.counters.add(CountBadMessage)
		return Open{}, identity.Peer{}, err
	}
	return o, from, nil
}

// VerifyManifest verifies the signature of a KVManifest and returns the signed
// bytes, which package seal reads.
func (p *Peer) VerifyManifest(m KVMessage) (statement []byte, from identity.Peer, err error) {
	if from, err = p.verifyKV(m, kindManifest); err != nil {
		return nil, identity.Peer{}, err
	}
	return m.envelope.Body, from, nil
}

// VerifyReject verifies a KVReject.
func (p *Peer) VerifyReject(m KVMessage) (Reject, identity.Peer, error) {
	from, err := p.verifyKV(m, kindRefusal)
	if err != nil {
		return Reject{}, identity.Peer{}, err
	}
	r, err := rejects.decode(m.envelope.Body)
	if err == nil && Fingerprint(r.TokenHash) != m.Subject.Token && !mutant.Off(mutant.RejectToken) {
		err = fmt.Errorf("%w: the reject's token is not its subject's", ErrMessage)
	}
	if err != nil {
		p.counters.add(CountBadMessage)
		return Reject{}, identity.Peer{}, err
	}
	return r, from, nil
}

func (p *Peer) verifyKV(m KVMessage, k kind) (identity.Peer, error) {
	return p.verifyEnvelope(m.envelope, m.subject, k)
}

// ConsumeKV hears this node's KV stream; see [Bus.ConsumeKV].
func (p *Peer) ConsumeKV(handler func(KVMsg), ready func(bool)) (stop func(), err error) {
	return p.kv.ConsumeKV(p.node.Name, handler, ready)
}
