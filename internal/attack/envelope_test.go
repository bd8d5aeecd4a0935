package attack

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/internal/mutant"
	"bulkhead/internal/sample"
	"bulkhead/transfer"
)

var firstToken = sample.Token{ID: 260}

// answered is r1 submitting a job to d1 and getting whatever forge makes of it.
func answered(forge func(x *rig, question []byte, token transfer.Hash) []byte) func(x *rig) error {
	return func(x *rig) error {
		j := x.draft(100).seal(x.cluster)
		x.net.answer = func(_ string, q []byte) []byte { return forge(x, q, sha256.Sum256([]byte(j.Token))) }
		_, err := x.peer(x.r1).SubmitJob(context.Background(), x.node(transfer.RoleDecode), j)
		return err
	}
}

func accepted(token transfer.Hash, pages int) []byte {
	return pack(members{"token_hash", token, "pages", pages})
}

// heard is r1's directory after announcements; gone through if see says so.
func heard(say func(x *rig), see func(d *transfer.Directory) bool) func(x *rig) error {
	return func(x *rig) error {
		dir, err := x.peer(x.r1).WatchPeers()
		must(err)
		say(x)
		if see(dir) {
			return nil
		}
		return x.why()
	}
}

func known(d *transfer.Directory) bool {
	_, _, ok := d.Get(transfer.RoleDecode, "d1")
	return ok
}

// later is an attacker's clock.
func (x *rig) later(d time.Duration) { x.now = x.now.Add(d) }

func envelopeRows() []row {
	return []row{
		{"a message under a JWT that has expired", "bus", "expired", walls(mutant.IdentityExpiry), func(x *rig) error {
			x.later(2 * time.Hour) // the tokens are new, the identity is not
			x.decode(window, window)
			_, err := x.submit(transfer.RoleDecode, x.draft(100))
			return err
		}},
		{"a message under a JWT of the future", "bus", "this node's clock says", walls(mutant.IdentityIssued), func(x *rig) error {
			x.later(-time.Hour)
			x.decode(window, window)
			_, err := x.submit(transfer.RoleDecode, x.draft(100))
			return err
		}},
		{"an answer of a kind that is none", "decode", `kind "pong"`, walls(mutant.EnvelopeKind), answered(func(x *rig, q []byte, token transfer.Hash) []byte {
			return signed(x.d1, "pong", answerTo(q), accepted(token, 9))
		})},
		{"the answer to another question", "bus", "signature", walls(mutant.EnvelopeDest), func(x *rig) error {
			_, err := x.peer(x.d1).ServePing(func() transfer.Pong { return transfer.Pong{Epoch: 5} })
			must(err)
			var old []byte
			x.net.answer = func(subject string, q []byte) []byte {
				if old == nil {
					old = x.net.ask(subject, q)
				}
				return old
			}
			_, err = x.peer(x.r1).Ping(context.Background(), "d1")
			must(err)
			_, err = x.peer(x.r1).Ping(context.Background(), "d1") // d1 is dead by now
			return err
		}},
		{"another node answers", "decode", "answered for d1", walls(mutant.AnswerNode), answered(func(x *rig, q []byte, token transfer.Hash) []byte {
			return signed(x.d2, "accept", answerTo(q), accepted(token, 9))
		})},
		{"a node of another role answers", "prefill", "answered for a decode", walls(mutant.AnswerRole), answered(func(x *rig, q []byte, token transfer.Hash) []byte {
			return signed(x.prefillD1, "accept", answerTo(q), accepted(token, 9))
		})},
		{"the confirmation of another cancel", "decode", "cancellation of another attempt", walls(mutant.CancelToken), func(x *rig) error {
			x.net.answer = func(_ string, q []byte) []byte {
				return signed(x.d1, "cancelled", answerTo(q), pack(members{"token_hash", transfer.Hash{1}, "reason", "cancelled"}))
			}
			return x.peer(x.r1).SendCancel(context.Background(), "d1", transfer.Cancel{TokenHash: transfer.Hash{2}, Reason: transfer.ReasonCancelled})
		}},
		{"a node announces itself by another's name", "decode", "d2 announced decode d1", walls(mutant.AnnounceName), heard(func(x *rig) {
			x.net.change = func(_ string, data []byte) []byte {
				// d2 signs what d1 says of itself, for d1's subject.
				return signed(x.d2, "announce", "announce.decode.d1", parts(data).body)
			}
			x.sayDecode(nil)
		}, known)},
		{"an announcement of the past", "bus", "announcement expired", walls(mutant.AnnounceExpired), heard(func(x *rig) {
			x.net.deaf = true
			x.sayDecode(nil)
			m := x.net.last("announce")
			x.later(time.Minute)
			x.net.deliver(m.subject, m.data, nil)
		}, known)},
		{"an announcement from far ahead", "decode", "clocks differ", walls(mutant.AnnounceAhead), heard(func(x *rig) {
			x.sayDecode(func(a *transfer.Announce) { a.Expires = x.now.Add(time.Hour) })
		}, known)},
		{"an announcement older than the one that is held", "bus", "after one of", walls(mutant.AnnounceOrder), func(x *rig) error {
			var first message
			return heard(func(x *rig) {
				x.sayDecode(func(a *transfer.Announce) { a.FreeTokens = 5 })
				first = x.net.last("announce")
				x.later(time.Second)
				x.sayDecode(func(a *transfer.Announce) { a.FreeTokens = 6 })
				x.net.deliver(first.subject, first.data, nil)
			}, func(d *transfer.Directory) bool {
				a, _, _ := d.Get(transfer.RoleDecode, "d1")
				return a.FreeTokens == 5
			})(x)
		}},
		{"a node that has fallen silent is still given work", "bus", "no longer known", walls(mutant.AnnounceCurrent), func(x *rig) error {
			dir, err := x.peer(x.r1).WatchPeers()
			must(err)
			x.sayDecode(nil)
			x.later(10 * time.Second)
			if known(dir) || len(dir.List(transfer.RoleDecode)) > 0 {
				return nil
			}
			return errors.New("no longer known")
		}},
		{"a node announces a window that its pool cannot hold", "decode", "over a capacity", walls(mutant.AnnounceWindow), heard(func(x *rig) {
			x.net.change = func(subject string, data []byte) []byte {
				body := parts(data).body
				at := bytes.Index(body, []byte("\xa6window\xcd"))
				if at < 0 {
					panic(rigError("no window in the announcement"))
				}
				binary.BigEndian.PutUint16(body[at+8:], 60_000)
				return signed(x.d1, "announce", subject, body)
			}
			x.sayDecode(func(a *transfer.Announce) { a.Window, a.Capacity = 1000, 2000 })
		}, known)},
		{"a credit by another decode node", "decode", "d2 sent a credit as d1", walls(mutant.CreditName), func(x *rig) error {
			got := false
			_, err := x.peer(x.p1).ServeCredit(func(transfer.Credit, identity.Peer) { got = true })
			must(err)
			x.net.deliver("credit.p1.d1", signed(x.d2, "credit", "credit.p1.d1", pack(members{"token_hash", transfer.Hash{1}, "limit", 1 << 30, "mac", make([]byte, 32)})), nil)
			return x.said(got)
		}},
		{"a credit without the attempt's MAC", "decode", "MAC", walls(mutant.CreditMAC), func(x *rig) error {
			s := x.scene(100)
			return s.sender.CheckCredit(1<<30, make([]byte, 32))
		}},
		{"a stream says that a frame is a duplicate", "bus", "duplicate", walls(mutant.AckDuplicate), func(*rig) error {
			return transfer.KVAckError("", []byte(`{"stream":"KV_d1","seq":7,"duplicate":true}`))
		}},
		{"a stream that holds no KV takes a frame", "bus", "stored by stream", walls(mutant.AckStream), func(*rig) error {
			return transfer.KVAckError("", []byte(`{"stream":"AUDIT","seq":7}`))
		}},
	}
}
