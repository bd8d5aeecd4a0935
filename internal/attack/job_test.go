package attack

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/internal/mutant"
	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
	"bulkhead/transfer"
)

// draft is a job before it is sent, and the grant in its token: right but for
// what a row changes.
type draft struct {
	job    transfer.Job
	claims map[string]any // JSON members of the token
	raw    func([]byte) []byte

	request      [16]byte
	from         *identity.Node // who sends the job
	signer       *identity.Node // who signs the token
	router       string         // in the token
	replyRouter  string
	replyRequest [16]byte
	prompt       []int32
	digestOf     []int32
	maxNew       int
}

// draft makes a job of r1 for p1 and d1.
func (x *rig) draft(tokens int) *draft {
	x.serial++
	d := &draft{from: x.r1, signer: x.r1, router: "r1", replyRouter: "r1", prompt: make([]int32, tokens), maxNew: 4}
	d.request[0], d.request[15] = 7, x.serial
	d.replyRequest = d.request
	for i := range d.prompt {
		d.prompt[i] = int32(i % 250)
	}
	d.digestOf = d.prompt
	d.job = transfer.Job{Params: sample.Params{MaxNew: d.maxNew}, Deadline: x.now.Add(20 * time.Second)}
	d.job.Salt[3], d.job.ReplyKey[3] = x.serial, x.serial+1
	facts := x.engine.Facts()
	at := func(after time.Duration) string { return x.now.Add(after).UTC().Format("2006-01-02T15:04:05Z") }
	d.claims = map[string]any{
		"v": 1, "ten": "tenant-a", "chd": 0, "att": 1, "mdl": hex.EncodeToString(facts.Fingerprint[:]),
		"len": tokens, "btk": tenant.BlockTokens, "blk": tenant.Blocks(tokens), "max": d.maxNew,
		"pre": "p1", "dec": "d1", "dep": fmt.Sprintf("%016x", x.d1.Epoch),
		"pfx": hex.EncodeToString(make([]byte, 32)),
		"iat": at(0), "nbf": at(0), "exp": at(time.Minute),
	}
	return d
}

func (d *draft) at(member string, t time.Time) {
	d.claims[member] = t.UTC().Format("2006-01-02T15:04:05Z")
}

// seal finishes the job: what a row has not set itself follows from the rest.
func (d *draft) seal(cluster string) transfer.Job {
	j := d.job
	j.Prompt = d.prompt
	reply := transfer.OutSubject{Router: d.replyRouter, Request: transfer.ID(d.replyRequest)}
	given := func(name string, b []byte) {
		if _, ok := d.claims[name]; !ok {
			d.claims[name] = hex.EncodeToString(b)
		}
	}
	digest := tenant.PromptDigest(j.Salt, d.digestOf)
	binding := tenant.ReplyBinding(reply.Scope(), j.ReplyKey)
	given("rid", d.request[:])
	given("dig", digest[:])
	given("rep", binding[:])
	body := marshal(d.claims)
	if d.raw != nil {
		body = d.raw(body)
	}
	if j.Token == "" {
		j.Token = token(d.signer, d.router, cluster, body)
	}
	reply.Token = transfer.Fingerprint(sha256.Sum256([]byte(j.Token)))
	if j.Reply == "" {
		j.Reply = reply.String()
	}
	return j
}

// node is how a router finds a node: what it announced of its boot.
func (x *rig) node(role transfer.Role) transfer.Announce {
	if role == transfer.RoleDecode {
		return transfer.Announce{Node: "d1", Role: role, Epoch: x.d1.Epoch, HPKE: x.decodeKey.Public()}
	}
	return transfer.Announce{Node: "p1", Role: role, Epoch: x.p1.Epoch, HPKE: x.prefillKey.Public()}
}

// submit sends the job to a node and returns its no.
func (x *rig) submit(role transfer.Role, d *draft) (transfer.Job, error) {
	j := d.seal(x.cluster)
	_, err := x.peer(d.from).SubmitJob(context.Background(), x.node(role), j)
	if err == errNoAnswer {
		err = x.why()
	}
	return j, err
}

// toDecode is a row about one job at the decode node.
func toDecode(name, who, want string, w []mutant.Check, change func(x *rig, d *draft)) row {
	return row{name, who, want, w, func(x *rig) error {
		x.decode(window, window)
		d := x.draft(100)
		change(x, d)
		_, err := x.submit(transfer.RoleDecode, d)
		return err
	}}
}

func jobRows() []row {
	return []row{
		toDecode("a token that another router signed", "router", "not signed by that router", walls(mutant.TokenSignature), func(x *rig, d *draft) { d.signer = x.r2 }),
		toDecode("a token with an unknown claim", "router", "unknown claim", walls(mutant.ClaimUnknown), func(x *rig, d *draft) { d.claims["zzz"] = 1 }),
		toDecode("a token with a claim twice", "router", "claim given twice: max", walls(mutant.ClaimDuplicate), func(x *rig, d *draft) {
			d.raw = func(b []byte) []byte { return append(b[:len(b)-1:len(b)-1], `,"max":4}`...) }
		}),
		toDecode("a token without its prefix scope", "router", "claim missing: pfx", walls(mutant.ClaimMissing), func(x *rig, d *draft) { delete(d.claims, "pfx") }),
		toDecode("a token for a block more than the prompt has", "router", "blk is 3", walls(mutant.ClaimBounds), func(x *rig, d *draft) { d.claims["blk"] = 3 }),
		toDecode("a token with blocks of another size", "router", "btk is 32", walls(mutant.ClaimBounds), func(x *rig, d *draft) { d.claims["btk"] = 32 }),
		toDecode("a token that is valid before it was issued", "router", "times must be in order", walls(mutant.ClaimTimes), func(x *rig, d *draft) { d.at("nbf", x.now.Add(-5*time.Second)) }),
		toDecode("a token for ten minutes", "router", "lives too long", walls(mutant.ClaimLifetime), func(x *rig, d *draft) { d.at("exp", x.now.Add(10*time.Minute)) }),
		toDecode("a token issued in the future, valid from now", "router", "times must be in order", walls(mutant.ClaimTimes, mutant.TokenIssued), func(x *rig, d *draft) {
			d.at("iat", x.now.Add(30*time.Second))
		}),
		toDecode("a token issued in the future, valid from then", "router", "issued in the future", walls(mutant.TokenIssued, mutant.TokenNotBefore), func(x *rig, d *draft) {
			d.at("iat", x.now.Add(30*time.Second))
			d.at("nbf", x.now.Add(30*time.Second))
		}),
		toDecode("a token before its time", "router", "not valid yet", walls(mutant.TokenNotBefore), func(x *rig, d *draft) { d.at("nbf", x.now.Add(30*time.Second)) }),
		toDecode("a token after its time", "router", "has expired", walls(mutant.TokenExpiry), func(x *rig, d *draft) {
			for _, m := range []string{"iat", "nbf"} {
				d.at(m, x.now.Add(-60*time.Second))
			}
			d.at("exp", x.now.Add(-20*time.Second))
		}),
		toDecode("a token for another decode node", "router", "for another node", walls(mutant.ClaimAudience), func(x *rig, d *draft) { d.claims["dec"] = "d2" }),
		toDecode("a token for another boot of the decode node", "router", "another boot", walls(mutant.ClaimEpoch), func(x *rig, d *draft) { d.claims["dep"] = "00000000000000aa" }),
		toDecode("a token for another model", "router", "another model", walls(mutant.ClaimModel), func(x *rig, d *draft) {
			d.claims["mdl"] = hex.EncodeToString(bytes.Repeat([]byte{9}, 32))
		}),
		toDecode("a token for a shorter prompt", "router", "has not the length", walls(mutant.ClaimPromptLen), func(x *rig, d *draft) { d.claims["len"] = 99 }),
		toDecode("another prompt under a token", "router", "prompt is not the one", walls(mutant.ClaimPromptDigest), func(x *rig, d *draft) {
			d.prompt = append([]int32{1, 2, 3}, d.prompt[3:]...)
			d.digestOf = append([]int32{3, 2, 1}, d.prompt[3:]...)
		}),
		toDecode("a job for more new tokens than granted", "router", "another count of new tokens", walls(mutant.ClaimMaxNew), func(x *rig, d *draft) { d.job.Params.MaxNew = 50 }),
		toDecode("a job with another reply key than granted", "router", "bound to another reply", walls(mutant.ClaimReply), func(x *rig, d *draft) {
			d.claims["rep"] = hex.EncodeToString(make([]byte, 32))
		}),
		toDecode("a job whose output goes to another router", "router", "wants its output sent to", walls(mutant.JobReply, mutant.GrantReply), func(x *rig, d *draft) { d.replyRouter = "r2" }),
		toDecode("a job whose output goes to another request", "router", "reply subject is not this attempt's", walls(mutant.GrantReply), func(x *rig, d *draft) { d.replyRequest[4] ^= 1 }),
		toDecode("a job with a token in another router's name", "router", "token names a router", walls(mutant.TokenRouter), func(x *rig, d *draft) {
			d.from, d.signer, d.replyRouter = x.r2, x.r2, "r2"
		}),
		toDecode("a job of a prefill node", "prefill", "a prefill node sent job", walls(mutant.EnvelopeRole, mutant.JobRouter), func(x *rig, d *draft) {
			d.from, d.signer, d.router, d.replyRouter = x.p2, x.p2, "p2", "p2"
		}),
		toDecode("sampling parameters out of bounds", "router", "temperature", walls(mutant.JobParameters), func(x *rig, d *draft) { d.job.Params.Temperature = -1 }),
		toDecode("a token id outside the vocabulary", "router", "outside the vocabulary", walls(mutant.JobVocabulary), func(x *rig, d *draft) { d.prompt[70] = provenanceVocab }),
		toDecode("a job after its deadline", "router", "deadline has passed", walls(mutant.JobDeadline), func(x *rig, d *draft) { d.job.Deadline = x.now.Add(-time.Second) }),
		{"a job over decode's window", "router", "over this node's limit", walls(mutant.DecodeCapacity), func(x *rig) error {
			x.decode(128, window)
			_, err := x.submit(transfer.RoleDecode, x.draft(125))
			return err
		}},
		{"a job that is sent again when its attempt has ended", "bus", "used before", walls(mutant.DecodeOnce), func(x *rig) error {
			x.decode(window, window)
			j, err := x.submit(transfer.RoleDecode, x.draft(100))
			must(err)
			again := x.net.last("job")
			x.cancelAt("d1", x.r1, j)
			return x.jobAgain(again)
		}},
		{"an earlier attempt in the place of a later one", "bus", "while attempt 2 is in work", walls(mutant.AttemptOrder), func(x *rig) error {
			x.decode(window, window)
			first := x.draft(100)
			second := x.draft(100)
			second.request, second.replyRequest = first.request, first.request
			second.claims["att"] = 2
			_, err := x.submit(transfer.RoleDecode, second)
			must(err)
			_, err = x.submit(transfer.RoleDecode, first)
			return err
		}},
		{"a cancel by another router, at decode", "router", "still in work", walls(mutant.DecodeCancel), func(x *rig) error {
			x.decode(window, window)
			j, err := x.submit(transfer.RoleDecode, x.draft(100))
			must(err)
			x.cancelAt("d1", x.r2, j)
			if x.dn.Idle() {
				return nil
			}
			return fmt.Errorf("the attempt is still in work")
		}},
		{"a sealed job that another router signs over", "router", "does not open", walls(mutant.JobBinding, mutant.JobReply, mutant.TokenSignature, mutant.GrantReply), func(x *rig) error {
			x.decode(window, window)
			x.net.deaf = true
			_, _ = x.submit(transfer.RoleDecode, x.draft(100))
			x.net.deaf = false
			m := x.net.last("job")
			data := signed(x.r2, "job", m.subject+"#"+fmt.Sprintf("%x", x.d1.Epoch), parts(m.data).body)
			return x.jobAgain(message{m.subject, data})
		}},
	}
}

// provenanceVocab is the first id outside the engine's vocabulary.
const provenanceVocab = 273

// jobAgain delivers a job's bytes and says whether it was accepted.
func (x *rig) jobAgain(m message) error {
	before := len(x.log.said)
	reply := x.net.ask(m.subject, m.data)
	switch {
	case reply == nil:
		return x.why()
	case parts(reply).kind == "accept":
		return nil
	case len(x.log.said) > before:
		return x.why()
	}
	return fmt.Errorf("refused: %s", parts(reply).body)
}

// cancelAt sends a cancel of a job's attempt.
func (x *rig) cancelAt(node string, by *identity.Node, j transfer.Job) {
	c := transfer.Cancel{TokenHash: sha256.Sum256([]byte(j.Token)), Reason: transfer.ReasonCancelled}
	_ = x.peer(by).SendCancel(context.Background(), node, c) // unconfirmed while the attempt goes on
}
