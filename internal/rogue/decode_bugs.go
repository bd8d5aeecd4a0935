package rogue

import (
	"crypto/rand"
	"errors"

	"bulkhead/internal/provenance"
	"bulkhead/internal/sample"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// receipts is a bug in the receipt.
func receipts(change func(*answer, *seal.Receipt)) func(*answer) error {
	return func(a *answer) error {
		return errors.Join(a.receipt(func(r *seal.Receipt) { change(a, r) }), a.say(a.tokens...), a.finish(nil))
	}
}

// finishes is a bug in the last message.
func finishes(change func(*transfer.Finish)) func(*answer) error {
	return func(a *answer) error {
		return errors.Join(a.receipt(nil), a.say(a.tokens...), a.finish(change))
	}
}

// tokens is a bug in a token.
func tokens(change func(*sample.Token)) func(*answer) error {
	return func(a *answer) error {
		change(&a.tokens[1])
		return a.whole()
	}
}

// tampered is a bug in the message that is published third.
func tampered(tamper func(a *answer, data []byte, send func([]byte) error) error) func(*answer) error {
	return func(a *answer) error {
		count := 0
		a.n.bus.on(a.g.Job.Reply, func(data []byte, send func([]byte) error) error {
			if count++; count == 3 {
				return tamper(a, data, send)
			}
			return send(data)
		})
		defer a.n.bus.on(a.g.Job.Reply, nil)
		return a.whole()
	}
}

var decodeSwitches = []Switch{
	{Name: "tokens-before-the-receipt", Does: "sends the first token, then the receipt", Want: Refused, Counted: atRouter("tokens"),
		decode: func(a *answer) error {
			return errors.Join(a.say(a.tokens[0]), a.receipt(nil), a.say(a.tokens[1:]...), a.finish(nil))
		}},
	{Name: "no-receipt", Does: "ends the answer without a receipt", Want: Refused, Counted: atRouter("finish"),
		decode: func(a *answer) error { return a.finish(nil) }},
	{Name: "forged-receipt", Does: "the receipt is signed by another decode node", Want: Refused, Counted: atRouter("violation"),
		decode: func(a *answer) error {
			signed, err := a.signed(a.n.second, nil)
			return errors.Join(err, a.send(transfer.OutputBody{Receipt: signed}), a.say(a.tokens...), a.finish(nil))
		}},
	{Name: "receipt-of-another-request", Does: "the receipt is an earlier request's", Want: Refused, Counted: atRouter("violation"),
		decode: func(a *answer) error {
			old, err := a.before()
			if err != nil {
				return err
			}
			signed, err := old.signed(a.n.Peer, nil)
			return errors.Join(err, a.send(transfer.OutputBody{Receipt: signed}), a.say(a.tokens...), a.finish(nil))
		}},
	{Name: "receipt-for-another-token", Does: "the receipt is signed for this request and names another token", Want: Refused, Counted: atRouter("violation"),
		decode: receipts(func(_ *answer, r *seal.Receipt) { r.TokenHash[0] ^= 1 })},
	{Name: "receipt-with-other-pages", Does: "the receipt counts one page more", Want: Refused, Counted: atRouter("violation"),
		decode: receipts(func(_ *answer, r *seal.Receipt) { r.Pages++ })},
	{Name: "receipt-of-another-boot", Does: "the receipt is of an earlier boot", Want: Refused, Counted: atRouter("violation"),
		decode: receipts(func(_ *answer, r *seal.Receipt) { r.Epoch-- })},
	{Name: "receipt-of-another-node", Does: "the receipt names another decode node", Want: Refused, Counted: atRouter("violation"),
		decode: receipts(func(_ *answer, r *seal.Receipt) { r.Decode = "d1" })},
	{Name: "two-receipts", Does: "sends the receipt twice", Want: Refused, Counted: atRouter("receipt"),
		decode: func(a *answer) error {
			return errors.Join(a.receipt(nil), a.receipt(nil), a.say(a.tokens...), a.finish(nil))
		}},
	{Name: "more-cached-than-prompt", Does: "more prompt tokens came from a cache than the prompt has", Want: Refused, Counted: atRouter("violation"),
		decode: func(a *answer) error {
			signed, err := a.signed(a.n.Peer, nil)
			if err != nil {
				return err
			}
			signed.Cached = len(a.g.Job.Prompt) + 1
			return errors.Join(a.send(transfer.OutputBody{Receipt: signed}), a.say(a.tokens...), a.finish(nil))
		}},
	{Name: "two-ends", Does: "ends the answer twice", Want: Right,
		decode: func(a *answer) error { return errors.Join(a.whole(), a.finish(nil)) }},
	{Name: "tokens-after-the-end", Does: "sends more tokens after the end", Want: Right,
		decode: func(a *answer) error { return errors.Join(a.whole(), a.say(a.tokens...)) }},
	{Name: "fails-after-the-end", Does: "ends well, then says that it failed", Want: Right,
		decode: func(a *answer) error {
			return errors.Join(a.whole(), a.send(transfer.OutputBody{Fail: &transfer.Reject{TokenHash: a.g.Hash, Reason: transfer.ReasonInternal}}))
		}},
	{Name: "gap", Does: "leaves a message out", Want: Refused, Counted: onBus("bad_output"),
		decode: tampered(func(*answer, []byte, func([]byte) error) error { return nil })},
	{Name: "repeat", Does: "sends a message twice", Want: Refused, Counted: onBus("bad_output"),
		decode: tampered(func(_ *answer, data []byte, send func([]byte) error) error {
			return errors.Join(send(data), send(data))
		})},
	{Name: "noise", Does: "sends random bytes among its messages", Want: Refused, Counted: onBus("bad_output"),
		decode: tampered(func(_ *answer, data []byte, send func([]byte) error) error {
			rand.Read(data)
			return send(data)
		})},
	{Name: "flipped-bit", Does: "flips a bit of a sealed message", Want: Refused, Counted: onBus("bad_output"),
		decode: tampered(func(_ *answer, data []byte, send func([]byte) error) error {
			data[len(data)-1] ^= 1
			return send(data)
		})},
	{Name: "output-of-another-request", Does: "sends a message that was sealed for an earlier request", Want: Refused, Counted: onBus("bad_output"),
		decode: func(a *answer) error {
			old, err := a.before()
			if err != nil {
				return err
			}
			// The earlier request's job under this one's reply subject.
			swapped := old.g.Job
			swapped.Reply = a.g.Job.Reply
			out := a.n.Peer.NewOutput(swapped, old.g.Hash)
			return errors.Join(a.receipt(nil), out.Send(transfer.OutputBody{Tokens: old.tokens[:1]}), a.say(a.tokens...), a.finish(nil))
		}},
	{Name: "reused-reply-subject", Does: "begins the answer anew, with numbers and key as before", Want: Refused, Counted: onBus("bad_output"),
		decode: func(a *answer) error {
			if err := errors.Join(a.receipt(nil), a.say(a.tokens[0])); err != nil {
				return err
			}
			a.out = a.n.Peer.NewOutput(a.g.Job, a.g.Hash)
			return a.whole()
		}},
	{Name: "never-ends", Does: "goes on behind max_tokens", Want: Refused, Counted: atRouter("tokens"),
		decode: func(a *answer) error {
			if err := a.receipt(nil); err != nil {
				return err
			}
			// What is within max_tokens is right: a stream may have sent it on before the first too many.
			if err := a.say(a.tokens...); err != nil {
				return err
			}
			for range 100 {
				if err := a.say(sample.Token{ID: a.tokens[0].ID}); err != nil {
					return err
				}
			}
			return nil
		}},
	{Name: "ends-at-once", Does: "ends without a token", Want: Refused, Counted: atRouter("finish"),
		decode: func(a *answer) error {
			return errors.Join(a.receipt(nil), a.finish(func(f *transfer.Finish) { f.Generated, f.Reason = 0, "stop" }))
		}},
	{Name: "ends-early", Does: "says that the length is reached one token before it is", Want: Refused, Counted: atRouter("finish"),
		decode: func(a *answer) error {
			n := len(a.tokens) - 1
			return errors.Join(a.receipt(nil), a.say(a.tokens[:n]...), a.finish(func(f *transfer.Finish) { f.Generated, f.Reason = n, "length" }))
		}},
	{Name: "stops-without-an-end-token", Does: "says that the model ended where it did not", Want: Refused, Counted: atRouter("finish"),
		decode: func(a *answer) error {
			n := len(a.tokens) - 1
			return errors.Join(a.receipt(nil), a.say(a.tokens[:n]...), a.finish(func(f *transfer.Finish) { f.Generated, f.Reason = n, "stop" }))
		}},
	{Name: "goes-on-after-the-end-token", Does: "sends tokens after one that ends the generation", Want: Refused, Counted: atRouter("tokens"),
		decode: func(a *answer) error {
			a.tokens[0] = sample.Token{ID: provenance.EOG, EOG: true}
			return a.whole()
		}},
	{Name: "wrong-usage", Does: "counts another prompt length than the router's", Want: Refused, Counted: atRouter("finish"),
		decode: finishes(func(f *transfer.Finish) { f.Prompt = 1 })},
	{Name: "wrong-count", Does: "counts more tokens than it sent", Want: Refused, Counted: atRouter("finish"),
		decode: finishes(func(f *transfer.Finish) { f.Generated++ })},
	{Name: "nan-logits", Does: "sends a token whose probability is no number", Want: Refused, Counted: onBus("bad_output"),
		decode: func(a *answer) error {
			a.tokens[1].ID, a.tokens[1].Logprob = 0, marker
			return tampered(func(a *answer, data []byte, send func([]byte) error) error {
				return send(a.resealed(data, 2, notANumber))
			})(a)
		}},
	{Name: "token-outside-the-vocabulary", Does: "sends a token that does not exist", Want: Refused, Counted: atRouter("violation"),
		decode: tokens(func(t *sample.Token) { t.ID = 1 << 20 })},
	{Name: "negative-token", Does: "sends token -1", Want: Refused, Counted: atRouter("violation"),
		decode: tokens(func(t *sample.Token) { t.ID = -1 })},
	{Name: bugFew, Does: "accepts a job with fewer pages than it needs", Want: Refused, Counted: atRouter("violation")},
	{Name: "silent", Does: "accepts, and is not heard of again", Want: Refused, Slow: true, Counted: failed("timeout"),
		decode: func(*answer) error { return nil }},
	{Name: "stalls", Does: "sends two tokens, answers pings, and nothing else", Want: Refused, Slow: true, Counted: failed("timeout"),
		decode: func(a *answer) error { return errors.Join(a.receipt(nil), a.say(a.tokens[:2]...)) }},
	{Name: bugDead, Does: "sends two tokens and answers no ping after", Want: Refused, Slow: true, Counted: failed("worker_lost"),
		decode: func(a *answer) error { return errors.Join(a.receipt(nil), a.say(a.tokens[:2]...)) }},
	{Name: "dies-before-the-first-token", Does: "sends the receipt and answers no ping after", Want: Right, Slow: true, Counted: retried("node_lost"),
		decode: func(a *answer) error { return a.receipt(nil) }},
	{Name: bugDeaf, Does: "does not answer the job", Want: Right, Slow: true, Counted: retried("node_lost"),
		decode: func(*answer) error { return nil }},
	{Name: bugStale, Does: "answers a job with its answer to the one before", Want: Right, Counted: onBus("bad_envelope"),
		decode: func(*answer) error { return nil }},
	{Name: bugBoast, Does: "announces more capacity than it has, and says no when it is asked", Want: Either, Counted: append(retried("not_now"), failed("overloaded")...)},
	{Name: bugWeights, Does: "announces the model's header with another file behind it", Want: Right, Shunned: true, Counted: []string{"refused_nodes"}},
	{Name: bugCredit, Does: "lets prefill send more with a code that is not the attempt's", Want: Right, Counted: atPrefill("bad_credit")},
	{Name: "words-of-its-own", Does: "answers something else than the pages say", Want: Blind,
		decode: tokens(func(t *sample.Token) { t.ID = provenance.FirstDigit + (t.ID-provenance.FirstDigit+1)%16 })},
}
