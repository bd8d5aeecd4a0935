package transfer

import (
	"fmt"
	"sync"

	"bulkhead/internal/mutant"
	"bulkhead/internal/tenant"
	"bulkhead/transfer/seal"
)

// OutputSender sends one attempt's output to its router. A node makes one per job.
type OutputSender struct {
	p       *Peer
	subject string
	hash    Hash
	stream  *seal.Stream

	mu   sync.Mutex
	next uint64
}

// NewOutput makes the sender of a job's output, in the role of this node. The
// job is as the node got it.
func (p *Peer) NewOutput(job Job, tokenHash Hash) *OutputSender {
	return &OutputSender{p: p, subject: job.Reply, hash: tokenHash, stream: seal.NewStream(job.ReplyKey, string(p.Role()), tokenHash)}
}

// Send seals and publishes one body. Bodies reach the router in the order of
// the calls, or the router sees the gap. After an error the stream is broken: the attempt is to be ended.
func (s *OutputSender) Send(b OutputBody) error {
	plain, err := bodies.encode(&b)
	if err == nil {
		err = b.sentBy(s.p.Role())
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	payload, err := s.stream.Seal(s.next, plain)
	if err != nil {
		return fmt.Errorf("transfer: seal output: %w", err)
	}
	data, err := outputs.encode(&Output{TokenHash: s.hash, From: s.p.Role(), Seq: s.next, Payload: payload})
	if err != nil {
		return err
	}
	s.next++
	return s.p.bus.Publish(s.subject, data)
}

// ReceiveOutput hears one attempt's output on its reply subject, under the
// attempt's own reply key. handler gets each body, in order. The first message that is not the next of its
// sender's stream (a gap, a repeat, another token, bytes that do not open) is given
// to broken as ErrOutput, and nothing is heard after it: the attempt is to be ended.
// Whoever can publish here can end the attempt in this way, but not put a word into it.
func (p *Peer) ReceiveOutput(subject string, key [32]byte, tokenHash Hash, handler func(from Role, b OutputBody), broken func(error)) (stop func(), err error) {
	out, err := ParseOut(subject)
	if err != nil {
		return nil, err
	}
	if out.Router != p.node.Name || out.Token != Fingerprint(tokenHash) {
		return nil, fmt.Errorf("%w: %q is not the reply subject of this router and token", ErrSubject, subject)
	}
	r := &outputReceiver{hash: tokenHash, streams: map[Role]*outputStream{
		RolePrefill: {stream: seal.NewStream(tenant.ReplyKey(key, string(RolePrefill)), string(RolePrefill), tokenHash)},
		RoleDecode:  {stream: seal.NewStream(tenant.ReplyKey(key, string(RoleDecode)), string(RoleDecode), tokenHash)},
	}}
	return p.bus.Subscribe(subject, func(m Msg) {
		if r.broken {
			return
		}
		from, b, err := r.open(m.Data)
		if err != nil {
			r.broken = true
			p.counters.add(CountBadOutput)
			p.refuse(m.Subject, err)
			broken(err)
			return
		}
		handler(from, b)
	})
}

// outputReceiver is the order of one attempt's output. Only the subscription's
// goroutine touches it.
type outputReceiver struct {
	hash    Hash
	streams map[Role]*outputStream
	broken  bool
}

type outputStream struct {
	stream *seal.Stream
	next   uint64
}

func (r *outputReceiver) open(data []byte) (Role, OutputBody, error) {
	o, err := outputs.decode(data)
	if err != nil {
		return "", OutputBody{}, fmt.Errorf("%w: %w", ErrOutput, err)
	}
	s := r.streams[o.From]
	switch {
	case o.TokenHash != r.hash && !mutant.Off(mutant.OutputToken):
		return "", OutputBody{}, fmt.Errorf("%w: a message of another token", ErrOutput)
	case s == nil:
		return "", OutputBody{}, fmt.Errorf("%w: a message from a %.16q", ErrOutput, o.From)
	case o.Seq < s.next && !mutant.Off(mutant.OutputRepeat):
		return "", OutputBody{}, fmt.Errorf("%w: %w: %s message %d, expected %d", ErrOutput, ErrReplay, o.From, o.Seq, s.next)
	case o.Seq > s.next && !mutant.Off(mutant.OutputGap):
		return "", OutputBody{}, fmt.Errorf("%w: gap: %s message %d, expected %d", ErrOutput, o.From, o.Seq, s.next)
	}
	plain, err := s.stream.Open(o.Seq, o.Payload)
	if err != nil && mutant.Off(mutant.OutputSeal) {
		plain, err = o.Payload, nil // unopened bytes, believed
	}
	if err != nil {
		return "", OutputBody{}, fmt.Errorf("%w: %w: %s message %d", ErrOutput, ErrSeal, o.From, o.Seq)
	}
	b, err := bodies.decode(plain)
	if err == nil {
		err = b.sentBy(o.From)
	}
	if err != nil {
		return "", OutputBody{}, fmt.Errorf("%w: %w", ErrOutput, err)
	}
	s.next++
	return o.From, b, nil
}
