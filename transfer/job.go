package transfer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"bulkhead/internal/identity"
	"bulkhead/internal/mutant"
)

// jobInfo and jobAAD bind a sealed job to this use, to the node and boot that
// may open it, and to the router that sealed it: it cannot be signed over by another.
const jobInfo = "job"

func (p *Peer) jobAAD(subject string, epoch uint64, router string) []byte {
	if mutant.Off(mutant.JobBinding) {
		return nil
	}
	return []byte(p.cluster + "|" + jobDest(subject, epoch) + "|" + router)
}

// SubmitJob seals a job to the boot key of the node that made the announcement
// and waits for its answer: an Accept, or as error *[Rejected] (the node's
// signed no), [ErrNodeLost] at once when it is gone, or ctx's error.
func (p *Peer) SubmitJob(ctx context.Context, to Announce, job Job) (Accept, error) {
	q, err := p.NewJobQuestion(to, job)
	if err != nil {
		return Accept{}, err
	}
	reply, err := p.bus.Request(ctx, q.Subject, q.Data)
	if errors.Is(err, ErrNoResponders) {
		return Accept{}, fmt.Errorf("%w: nobody listens on %s", ErrNodeLost, q.Subject)
	}
	if err != nil {
		return Accept{}, err
	}
	return q.Answer(reply)
}

// JobQuestion is a job on its way to a node: SubmitJob for a caller that waits
// for the answer itself.
type JobQuestion struct {
	*Question
	to   Announce
	want Hash
}

// NewJobQuestion seals and signs a job. Its reply key is the attempt's; what
// travels is the node's own (Job.ReplyKey).
func (p *Peer) NewJobQuestion(to Announce, job Job) (*JobQuestion, error) {
	subject := JobSubject(to.Role, to.Node)
	sent := job.forRole(to.Role)
	var body []byte
	err := withBody(p, &jobs, &sent, func(plain []byte) (err error) {
		if body, err = p.suite.SealTo(to.HPKE, jobInfo, p.jobAAD(subject, to.Epoch, p.node.Name), plain); err != nil {
			return fmt.Errorf("transfer: seal job to %s: %w", to.Node, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	q, err := p.question(subject, to.Node, kindJob, jobDest(subject, to.Epoch), body, kindAccept, kindReject)
	if err != nil {
		return nil, err
	}
	return &JobQuestion{Question: q, to: to, want: p.TokenHash(job.Token)}, nil
}

// Answer reads a node's answer: its Accept, or *Rejected, or why it is none.
func (q *JobQuestion) Answer(reply []byte) (Accept, error) {
	p, to, want := q.p, q.to, q.want
	e, from, err := q.read(reply)
	if err != nil {
		return Accept{}, err
	}
	if Role(from.Role) != to.Role && !mutant.Off(mutant.AnswerRole) {
		p.counters.add(CountBadEnvelope)
		return Accept{}, fmt.Errorf("%w: %s %s answered for a %s", ErrEnvelope, from.Role, from.Name, to.Role)
	}
	if e.Kind == kindReject {
		r, err := rejects.decode(e.Body)
		switch {
		case err != nil:
			return Accept{}, err
		case r.TokenHash != want && !mutant.Off(mutant.AnswerToken):
			return Accept{}, fmt.Errorf("%w: reject of another attempt", ErrEnvelope)
		}
		return Accept{}, &Rejected{Node: to.Node, Role: to.Role, Reject: r}
	}
	a, err := accepts.decode(e.Body)
	switch {
	case err != nil:
		return Accept{}, err
	case a.TokenHash != want && !mutant.Off(mutant.AnswerToken):
		return Accept{}, fmt.Errorf("%w: accept of another attempt", ErrEnvelope)
	}
	return a, nil
}

// JobHandler takes one job. It calls answer once, from any goroutine, with
// exactly one of its arguments set; TokenHash is filled in for it. ctx ends when the serving is stopped.
type JobHandler func(ctx context.Context, job Job, from identity.Peer, answer func(*Accept, *Reject))

// ServeJobs hears jobs for this node. key is the boot key whose public half is
// announced. What reaches handler was sent by a router, for this boot, and its
// reply subject belongs to that router and that token. Whether the token
// itself holds is the handler's to check.
func (p *Peer) ServeJobs(key BootKey, handler JobHandler) (stop func(), err error) {
	subject := JobSubject(p.Role(), p.node.Name)
	ctx, cancel := context.WithCancel(context.Background())
	unsubscribe, err := p.bus.Subscribe(subject, func(m Msg) {
		job, from, err := p.openJob(key, subject, m.Data)
		if err != nil {
			p.refuse(m.Subject, err)
			return
		}
		hash := p.TokenHash(job.Token)
		var once sync.Once
		handler(ctx, job, from, func(a *Accept, r *Reject) {
			if (a == nil) == (r == nil) {
				panic("transfer: internal error: a job is answered with an Accept or a Reject")
			}
			once.Do(func() { p.answerJob(m, hash, a, r) })
		})
	})
	if err != nil {
		cancel()
		return nil, err
	}
	return func() { unsubscribe(); cancel() }, nil
}

func (p *Peer) openJob(key BootKey, subject string, data []byte) (Job, identity.Peer, error) {
	e, from, err := p.verify(data, jobDest(subject, p.node.Epoch), kindJob)
	if err != nil {
		return Job{}, identity.Peer{}, err
	}
	plain, err := key.OpenFrom(jobInfo, p.jobAAD(subject, p.node.Epoch, from.Name), e.Body)
	if err != nil {
		p.counters.add(CountBadSeal)
		return Job{}, identity.Peer{}, fmt.Errorf("%w: job from %s", ErrSeal, from.Name)
	}
	job, err := jobs.decode(plain)
	if err == nil && !mutant.Off(mutant.JobReply) {
		err = checkReply(job, p.TokenHash(job.Token), from.Name)
	}
	if err != nil {
		p.counters.add(CountBadMessage)
		return Job{}, identity.Peer{}, err
	}
	return job, from, nil
}

// checkReply makes sure that a job's output goes to the router that sent it,
// under the name of the job's own token.
func checkReply(job Job, hash Hash, router string) error {
	out, err := ParseOut(job.Reply)
	switch {
	case err != nil:
		return err
	case out.Router != router:
		return fmt.Errorf("%w: job of %s wants its output sent to %s", ErrMessage, router, out.Router)
	case out.Token != Fingerprint(hash):
		return errors.Join(ErrMessage, errors.New("transfer: job's reply subject names another token"))
	}
	return nil
}

func (p *Peer) answerJob(m Msg, hash Hash, a *Accept, r *Reject) {
	if r != nil {
		out := *r
		out.TokenHash = hash
		out.Detail = clip(out.Detail, limits["reject.detail"])
		body, err := rejects.encode(&out)
		if err != nil {
			p.refuse(m.Subject, err)
			return
		}
		p.answer(m, kindReject, body)
		return
	}
	out := *a
	out.TokenHash = hash
	body, err := accepts.encode(&out)
	if err != nil {
		p.refuse(m.Subject, err)
		return
	}
	p.answer(m, kindAccept, body)
}

// clip shortens a text that only people read.
func clip(s string, n int) string {
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "")
	}
	return s
}
