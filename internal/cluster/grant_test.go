package cluster_test

import (
	"crypto/ed25519"
	"testing"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
	"bulkhead/transfer"
)

// goal: nothing is reserved or computed for a job whose grant does not hold.
// method: a router that signs, alters or forges one thing; both roles answer
// with a typed refusal of exactly this reason, and a good job works afterwards.
func TestGrantsThatDoNotHold(t *testing.T) {
	w := newWorld(t)
	prefill := w.prefill("p1", 4096)
	decode := w.decode("d1", 4096)
	d := w.driver("r1")
	p, q := d.pair("p1", "d1")
	other := w.node(identity.Router, "r2")
	theirs, err := identity.NewMemory("test")
	must(t, err)
	foreign, err := theirs.Authority()
	must(t, err)
	prompt := tokens(100)
	vocab := engine().Facts().Vocab

	claim := func(f func(*tenant.Claims)) func(*try) {
		return func(x *try) {
			c := d.claims(x)
			f(&c)
			d.retoken(x, c, d.id.Private(), w.auth.ClusterID())
		}
	}
	job := func(f func(*transfer.Job)) func(*try) { return func(x *try) { f(&x.job) } }
	both := func(r transfer.Reason) [2]transfer.Reason { return [2]transfer.Reason{r, r} }
	for _, tt := range []struct {
		name   string
		change func(*try)
		want   [2]transfer.Reason // of decode, of prefill; "": not refused by that one
	}{
		{"expired", claim(func(c *tenant.Claims) {
			c.IssuedAt = c.IssuedAt.Add(-100 * time.Second)
			c.NotBefore, c.Expires = c.IssuedAt, c.IssuedAt.Add(60*time.Second)
		}), both(transfer.ReasonToken)},
		{"not yet", claim(func(c *tenant.Claims) {
			c.NotBefore = c.IssuedAt.Add(40 * time.Second)
			c.Expires = c.IssuedAt.Add(80 * time.Second)
		}), both(transfer.ReasonToken)},
		{"issued in the future", claim(func(c *tenant.Claims) {
			c.IssuedAt = c.IssuedAt.Add(30 * time.Second)
			c.NotBefore, c.Expires = c.IssuedAt, c.IssuedAt.Add(60*time.Second)
		}), both(transfer.ReasonToken)},
		{"signed by a stranger", func(x *try) {
			_, key, _ := ed25519.GenerateKey(nil)
			d.retoken(x, d.claims(x), key, w.auth.ClusterID())
		}, both(transfer.ReasonToken)},
		{"signed by another router in this one's name", func(x *try) {
			d.retoken(x, d.claims(x), other.id.Private(), w.auth.ClusterID())
		}, both(transfer.ReasonToken)},
		{"another router's own", func(x *try) {
			c := d.claims(x)
			c.Router = "r2"
			d.retoken(x, c, other.id.Private(), w.auth.ClusterID())
		}, both(transfer.ReasonToken)},
		{"of another cluster", func(x *try) {
			d.retoken(x, d.claims(x), d.id.Private(), foreign.ClusterID())
		}, both(transfer.ReasonToken)},
		{"altered", func(x *try) {
			b := []byte(x.job.Token)
			b[40] ^= 1
			x.job.Token = string(b)
			d.rename(x, requestOf(t, x.job.Reply))
		}, both(transfer.ReasonToken)},
		{"cut", func(x *try) {
			x.job.Token = x.job.Token[:len(x.job.Token)/2]
			d.rename(x, requestOf(t, x.job.Reply))
		}, both(transfer.ReasonToken)},
		{"for another decode node", claim(func(c *tenant.Claims) { c.Decode = "d2" }), [2]transfer.Reason{transfer.ReasonToken, transfer.ReasonPeer}},
		{"for another prefill node", claim(func(c *tenant.Claims) { c.Prefill = "p2" }), [2]transfer.Reason{"", transfer.ReasonToken}},
		{"for an earlier boot of decode", claim(func(c *tenant.Claims) { c.DecodeEpoch++ }), [2]transfer.Reason{transfer.ReasonToken, transfer.ReasonPeer}},
		{"for another model", claim(func(c *tenant.Claims) { c.Model[0] ^= 1 }), both(transfer.ReasonModel)},
		{"for another request's answer", claim(func(c *tenant.Claims) { c.ReplyBinding[0] ^= 1 }), both(transfer.ReasonToken)},
		{"for another prompt", claim(func(c *tenant.Claims) { c.PromptDigest[0] ^= 1 }), both(transfer.ReasonPrompt)},
		{"for a longer prompt", claim(func(c *tenant.Claims) { c.PromptLen++ }), both(transfer.ReasonPrompt)},
		{"for more tokens", claim(func(c *tenant.Claims) { c.MaxNew++ }), both(transfer.ReasonToken)},
		{"a token of the prompt changed", job(func(j *transfer.Job) { j.Prompt[50]++ }), both(transfer.ReasonPrompt)},
		{"the prompt cut to a placeholder", job(func(j *transfer.Job) { j.Prompt = j.Prompt[:1] }), both(transfer.ReasonPrompt)},
		{"the prompt longer", job(func(j *transfer.Job) { j.Prompt = append(j.Prompt, 1) }), both(transfer.ReasonPrompt)},
		{"two tokens of the prompt swapped", job(func(j *transfer.Job) { j.Prompt[0], j.Prompt[1] = j.Prompt[1], j.Prompt[0] }), both(transfer.ReasonPrompt)},
		{"the salt changed", job(func(j *transfer.Job) { j.Salt[0] ^= 1 }), both(transfer.ReasonPrompt)},
		{"the reply key changed", job(func(j *transfer.Job) { j.ReplyKey[0] ^= 1 }), both(transfer.ReasonToken)},
		{"more tokens asked for", job(func(j *transfer.Job) { j.Params.MaxNew += 100 }), both(transfer.ReasonToken)},
		{"impossible parameters", job(func(j *transfer.Job) { j.Params.Temperature = -1 }), both(transfer.ReasonProtocol)},
		{"its time is over", job(func(j *transfer.Job) { j.Deadline = time.Now().Add(-time.Second) }), both(transfer.ReasonTimeout)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := d.grant(p, q, append([]int32(nil), prompt...), sample.Params{MaxNew: 3})
			tt.change(x)
			for i, to := range []transfer.Announce{q, p} {
				if tt.want[i] == "" {
					continue
				}
				wantRejected(t, d, to, x.job, tt.want[i])
			}
			if s := decode.Stats(); s.Free != s.Pages || s.Tables != 0 {
				t.Errorf("decode reserved pages: %+v", s)
			}
			if s := prefill.Stats(); s.Tables != 0 || s.Held != 0 {
				t.Errorf("prefill reserved pages: %+v", s)
			}
		})
	}
	t.Run("a token id outside the vocabulary", func(t *testing.T) {
		x := d.grant(p, q, []int32{1, int32(vocab)}, sample.Params{MaxNew: 3})
		wantRejected(t, d, q, x.job, transfer.ReasonPrompt)
		wantRejected(t, d, p, x.job, transfer.ReasonPrompt)
	})
	t.Run("used twice", func(t *testing.T) {
		x := d.grant(p, q, prompt, sample.Params{MaxNew: 3})
		must(t, d.submit(x))
		wantRejected(t, d, q, x.job, transfer.ReasonDuplicate)
		wantRejected(t, d, p, x.job, transfer.ReasonDuplicate)
		got, err := d.wait(x)
		must(t, err)
		if got.fail != nil || len(got.tokens) != 3 {
			t.Errorf("the first use was disturbed: %+v", got)
		}
		wantRejected(t, d, q, x.job, transfer.ReasonDuplicate)
		wantRejected(t, d, p, x.job, transfer.ReasonDuplicate)
	})
	t.Run("sent to the wrong node", func(t *testing.T) {
		w.decode("d2", 4096)
		_, q2 := d.pair("p1", "d2")
		x := d.grant(p, q, prompt, sample.Params{MaxNew: 3})
		wantRejected(t, d, q2, x.job, transfer.ReasonToken)
	})
}

// claims reads the token of a try back.
func (d *driver) claims(x *try) tenant.Claims {
	d.t.Helper()
	c, err := tenant.Verify(x.job.Token, func(string) (ed25519.PublicKey, error) { return d.id.Public(), nil }, d.w.auth.ClusterID(), time.Now())
	must(d.t, err)
	return c
}

func requestOf(t *testing.T, reply string) transfer.ID {
	t.Helper()
	out, err := transfer.ParseOut(reply)
	must(t, err)
	return out.Request
}
