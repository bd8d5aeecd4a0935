package attack

import (
	"bytes"
	"errors"

	"bulkhead/internal/identity"
	"bulkhead/internal/mutant"
	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// reply is the output of an attempt as r1 hears it.
type reply struct {
	x      *rig
	job    transfer.Job
	hash   transfer.Hash
	from   []transfer.Role
	bodies []transfer.OutputBody
	broken error
}

func (x *rig) reply() *reply {
	r := &reply{x: x, job: x.draft(100).seal(x.cluster)}
	r.hash = tenant.HashToken(r.job.Token)
	_, err := x.peer(x.r1).ReceiveOutput(r.job.Reply, r.job.ReplyKey, r.hash,
		func(from transfer.Role, b transfer.OutputBody) {
			r.from, r.bodies = append(r.from, from), append(r.bodies, b)
		},
		func(err error) { r.broken = err })
	must(err)
	return r
}

// as is a job with the reply key that a node of that role gets.
func as(role identity.Role, j transfer.Job) transfer.Job {
	j.ReplyKey = tenant.ReplyKey(j.ReplyKey, string(role))
	return j
}

func (r *reply) sender(n *identity.Node) *transfer.OutputSender {
	return r.x.peer(n).NewOutput(as(n.Role, r.job), r.hash)
}

// heard is nil if n bodies were taken.
func (r *reply) heard(n int) error {
	if len(r.bodies) == n {
		return nil
	}
	if r.broken == nil {
		return errors.New("not heard")
	}
	return r.broken
}

var someTokens = transfer.OutputBody{Tokens: []sample.Token{{ID: 260}}}

// output is a message by hand.
func output(hash transfer.Hash, from string, seq int, payload []byte) []byte {
	return pack(members{"token_hash", hash, "from", from, "seq", seq, "payload", payload})
}

// plainBody is what an output's payload opens to.
func (r *reply) plainBody(b transfer.OutputBody) []byte {
	r.x.net.deaf = true
	must(r.sender(r.x.d1).Send(b))
	r.x.net.deaf = false
	return r.open("decode", r.x.net.last("out").data)
}

func (r *reply) open(from string, data []byte) []byte {
	p, err := seal.NewStream(tenant.ReplyKey(r.job.ReplyKey, from), from, r.hash).Open(0, payloadOf(data))
	must(err)
	return p
}

// payloadOf finds the sealed payload at the end of an output message.
func payloadOf(data []byte) []byte {
	at := bytes.Index(data, []byte("\xa7payload"))
	b := data[at+8:]
	switch b[0] {
	case 0xc4:
		return b[2 : 2+int(b[1])]
	case 0xc5:
		return b[3 : 3+int(b[1])<<8+int(b[2])]
	}
	panic(rigError("no payload in the output"))
}

func receiptRow(what, want string, w []mutant.Check, by func(x *rig) *identity.Node, change func(x *rig, r *seal.Receipt)) row {
	return row{"a receipt " + what, "decode", want, w, func(x *rig) error {
		token, to := transfer.Hash{4}, transfer.OutSubject{Router: "r1"}.String()
		r := seal.Receipt{TokenHash: token, Pages: 2, Decode: "d1", Epoch: x.d1.Epoch}
		change(x, &r)
		b, err := r.Append(nil)
		must(err)
		s, err := x.peer(by(x)).SignReceipt(b, to, 0)
		must(err)
		_, _, err = x.peer(x.r1).VerifyReceipt(s, to, token, "d1", x.d1.Epoch, 2)
		return err
	}}
}

func outputRows() []row {
	d1 := func(x *rig) *identity.Node { return x.d1 }
	return []row{
		{"an output message that names another token", "decode", "another token", walls(mutant.OutputToken), func(x *rig) error {
			r := x.reply()
			x.net.change = func(_ string, data []byte) []byte {
				return bytes.Replace(data, r.hash[:], bytes.Repeat([]byte{1}, 32), 1)
			}
			must(r.sender(x.d1).Send(someTokens))
			return r.heard(1)
		}},
		{"an output message that comes again", "bus", "replayed", walls(mutant.OutputRepeat), func(x *rig) error {
			r := x.reply()
			must(r.sender(x.d1).Send(someTokens))
			m := x.net.last("out")
			x.net.deliver(m.subject, m.data, nil)
			return r.heard(2)
		}},
		{"an output message that is left out", "bus", "gap", walls(mutant.OutputGap), func(x *rig) error {
			r := x.reply()
			out := r.sender(x.d1)
			x.net.deaf = true
			must(out.Send(someTokens))
			x.net.deaf = false
			must(out.Send(someTokens))
			return r.heard(1)
		}},
		{"an output message that was not sealed", "bus", "does not open", walls(mutant.OutputSeal), func(x *rig) error {
			r := x.reply()
			x.net.deliver(r.job.Reply, output(r.hash, "decode", 0, r.plainBody(someTokens)), nil)
			return r.heard(1)
		}},
		{"tokens from a prefill node", "prefill", "can only be a failure", walls(mutant.OutputRole), func(x *rig) error {
			r := x.reply()
			payload, err := seal.NewStream(tenant.ReplyKey(r.job.ReplyKey, "prefill"), "prefill", r.hash).Seal(0, r.plainBody(someTokens))
			must(err)
			x.net.deliver(r.job.Reply, output(r.hash, "prefill", 0, payload), nil)
			return r.heard(1)
		}},
		{"a prefill node's message as a decode node's", "bus", "does not open", walls(mutant.OutputBinding, mutant.OutputKey, mutant.ReplyRole), func(x *rig) error {
			r := x.reply()
			x.net.deaf = true
			must(r.sender(x.p1).Send(transfer.OutputBody{Fail: &transfer.Reject{TokenHash: r.hash, Reason: transfer.ReasonBusy}}))
			x.net.deaf = false
			x.net.deliver(r.job.Reply, output(r.hash, "decode", 0, payloadOf(x.net.last("out").data)), nil)
			return r.heard(1)
		}},
		{"tokens that a prefill node seals as the decode node's", "prefill", "does not open", walls(mutant.ReplyRole), func(x *rig) error {
			r := x.reply()
			payload, err := seal.NewStream(as("prefill", r.job).ReplyKey, "decode", r.hash).Seal(0, r.plainBody(someTokens))
			must(err)
			x.net.deliver(r.job.Reply, output(r.hash, "decode", 0, payload), nil)
			return r.heard(1)
		}},
		receiptRow("of another decode node", "expected \"d1\"", walls(mutant.ReceiptNode), func(x *rig) *identity.Node { return x.d2 }, func(_ *rig, r *seal.Receipt) { r.Decode = "d2" }),
		receiptRow("of another boot", "of boot", walls(mutant.ReceiptEpoch), d1, func(_ *rig, r *seal.Receipt) { r.Epoch++ }),
		receiptRow("of another attempt", "of another token", walls(mutant.ReceiptToken), d1, func(_ *rig, r *seal.Receipt) { r.TokenHash[0]++ }),
		receiptRow("for fewer pages than the prompt has", "1 pages, expected 2", walls(mutant.ReceiptPages), d1, func(_ *rig, r *seal.Receipt) { r.Pages = 1 }),
	}
}
