package cluster_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"bulkhead/internal/tenant"
	"bulkhead/transfer"
)

// as makes the grant that of another's request, child or attempt.
func as(request [16]byte, child, attempt uint16) func(*tenant.Claims, *transfer.Job) {
	return func(c *tenant.Claims, _ *transfer.Job) { c.Request, c.Child, c.Attempt = request, child, attempt }
}

// onSubject moves messages to the subject of another attempt.
func onSubject(to []message, m ...message) []message {
	out := slices.Clone(m)
	for i := range out {
		out[i].subject = to[0].subject
	}
	return out
}

// goal: blocks of one request, attempt or child are of no use to another.
// method: two live attempts with the same prompt, and single messages swapped
// between them, under the subject of the victim.
func TestSwapped(t *testing.T) {
	a := newArena(t)
	request := [16]byte{5}
	for _, tt := range []struct {
		name string
		x, y func(*tenant.Claims, *transfer.Job)
	}{
		{"two requests of a tenant", as([16]byte{1}, 0, 1), as([16]byte{2}, 0, 1)},
		{"two children of a request", as(request, 0, 1), as(request, 1, 1)},
		{"two tenants", as([16]byte{3}, 0, 1), func(c *tenant.Claims, _ *transfer.Job) { c.Request[0], c.Tenant = 4, "umbrella" }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, which := range []int{0, 1, 3, 4} {
				t.Run([]string{"opening", "first frame", "", "last frame", "manifest"}[which], func(t *testing.T) {
					x, y := a.try(arenaPrompt, tt.x), a.try(arenaPrompt, tt.y)
					mx, my := a.craft(x, recipe{}), a.craft(y, recipe{})
					a.send(a.p1, mx[:which])
					a.send(a.p1, onSubject(mx, my[which]))
					if err := a.refused(x, transfer.ReasonProtocol); err != nil {
						t.Error(err)
					}
					a.send(a.p1, my) // the other one is none the worse
					if err := a.right(y); err != nil {
						t.Error(err)
					}
					if err := a.baseline(); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
}

// goal: an earlier attempt's blocks never enter a later one. method: attempt 1
// is recorded whole and superseded by attempt 2 of the same sequence, whose
// prompt and nodes are the same.
func TestReplayOfAnEarlierAttempt(t *testing.T) {
	a := newArena(t)
	request := [16]byte{9}
	for number, c := range []struct {
		name   string
		replay func(old, current []message) (before, after []message)
		want   transfer.Reason // "": the right answer
	}{
		{"under its own subject", func(old, current []message) (_, _ []message) { return old, old }, ""},
		{"one frame under the new subject", func(old, current []message) (_, _ []message) {
			return onSubject(current, current[0], old[1]), nil
		}, transfer.ReasonProtocol},
		{"all under the new subject", func(old, current []message) (_, _ []message) {
			return onSubject(current, old...), nil
		}, transfer.ReasonProtocol},
		{"its manifest under the new subject", func(old, current []message) (_, _ []message) {
			return onSubject(current, append(current[:4:4], old[4])...), nil
		}, transfer.ReasonProtocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			request[1] = byte(number)
			x := a.try(arenaPrompt, as(request, 0, 1))
			old := a.craft(x, recipe{})
			a.send(a.p1, old[:2]) // and then it is given up
			y := a.try(arenaPrompt, as(request, 0, 2))
			if err := a.refused(x, transfer.ReasonCancelled); err != nil {
				t.Error(err)
			}
			current := a.craft(y, recipe{})
			before, after := c.replay(old, current)
			a.send(a.p1, before)
			if c.want != "" {
				if err := a.refused(y, c.want); err != nil {
					t.Error(err)
				}
			} else {
				a.send(a.p1, current[:3])
				a.send(a.p1, after)
				a.send(a.p1, current[3:])
				if err := a.right(y); err != nil {
					t.Error(err)
				}
			}
			if err := a.baseline(); err != nil {
				t.Error(err)
			}
		})
	}
	// Nor does an old attempt come back while a later one is in work.
	request[1] = 99
	y := a.try(arenaPrompt, as(request, 0, 3))
	x := a.grant(transfer.Announce{Node: "p1"}, a.q, arenaPrompt, arenaParams, as(request, 0, 2))
	wantRejected(t, a.driver, a.q, x.job, transfer.ReasonDuplicate)
	a.send(a.p1, a.craft(y, recipe{}))
	must(t, a.right(y))
	must(t, a.baseline())
}

// goal: a whole recorded attempt is worth nothing when it is over, nor after
// the decode node came back. method: all its messages and its job again, to the same boot, and
// to the next boot under the same name.
func TestReplayOfAWholeAttempt(t *testing.T) {
	a := newArena(t)
	x := a.try(arenaPrompt)
	recorded := a.craft(x, recipe{})
	a.send(a.p1, recorded)
	must(t, a.right(x))

	a.send(a.p1, recorded)
	wantRejected(t, a.driver, a.q, x.job, transfer.ReasonDuplicate)
	must(t, a.honest()) // and the node has gone past the replay by now
	must(t, a.baseline())

	y := a.try(arenaPrompt) // in work when the node dies
	live := a.craft(y, recipe{})
	a.send(a.p1, live[:3])
	old := a.q
	a.boot()
	if a.q.Epoch == old.Epoch || string(a.q.HPKE) == string(old.HPKE) {
		t.Fatal("a new boot has the epoch or the key of the old one")
	}
	a.send(a.p1, live[3:])
	a.send(a.p1, recorded)
	for _, z := range []*try{x, y} {
		wantRejected(t, a.driver, a.q, z.job, transfer.ReasonToken) // granted to an epoch that is over
	}
	// The old blocks under a new grant of the same sequence.
	claims := a.claims(y)
	z := a.try(arenaPrompt, as(claims.Request, claims.Child, claims.Attempt+1))
	current := a.craft(z, recipe{})
	a.send(a.p1, onSubject(current, current[0], live[1]))
	must(t, a.refused(z, transfer.ReasonProtocol))
	must(t, a.honest())
	must(t, a.baseline())

	// A finished one says nothing more.
	select {
	case h := <-x.out:
		t.Errorf("a finished attempt was heard of again: %+v", h)
	default:
	}
}

// wantRejected submits a job that must be refused with a typed no.
func wantRejected(t *testing.T, d *driver, to transfer.Announce, job transfer.Job, want transfer.Reason) {
	t.Helper()
	if err := rejected(t, d, to, job, want); err != nil {
		t.Error(err)
	}
}

func rejected(t *testing.T, d *driver, to transfer.Announce, job transfer.Job, want transfer.Reason) error {
	t.Helper()
	_, err := d.SubmitJob(within(t), to, job)
	var no *transfer.Rejected
	switch {
	case err == nil:
		return fmt.Errorf("LEAK: %s accepted the job, want %q", to.Node, want)
	case !errors.As(err, &no):
		return fmt.Errorf("%s: %w, want a refusal", to.Node, err)
	case no.Reason != want:
		return fmt.Errorf("%s refused with %q (%s), want %q", to.Node, no.Reason, no.Detail, want)
	}
	return nil
}
