package rogue

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"bulkhead/internal/provenance"
	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
	"bulkhead/internal/tokenizer"
	"bulkhead/transfer"
)

// patience is how long the rogue router waits for anything. It is also the deadline it gives.
const patience = 3 * time.Second

// edge is a second implementation of a router: one pair, no queue, no retry.
type edge struct {
	*peer
	dir *transfer.Directory
	tok *tokenizer.Tokenizer
}

func serveRouter(_ context.Context, p *peer) (stop func(), err error) {
	n := &edge{peer: p}
	if n.tok, _, err = provenance.NewTokenizer(); err != nil {
		return nil, err
	}
	if n.dir, err = p.Peer.WatchPeers(transfer.RolePrefill, transfer.RoleDecode); err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", p.cfg.Listen)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: http.HandlerFunc(n.serve), ReadHeaderTimeout: patience}
	go server.Serve(ln) //nolint:errcheck // it ends with the process
	return func() { server.Close(); n.dir.Close() }, nil
}

// serve answers /v1/completions with just what a client needs.
func (n *edge) serve(w http.ResponseWriter, r *http.Request) {
	var ask struct {
		Prompt    string `json:"prompt"`
		MaxTokens int    `json:"max_tokens"`
	}
	w.Header().Set("Content-Type", "application/json")
	fail := func(status int, err error) {
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"message": err.Error(), "type": "server_error"}}) //nolint:errcheck // the client is gone
	}
	if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
		fail(http.StatusBadRequest, err)
		return
	}
	prompt := n.tok.Encode(ask.Prompt)
	text, finish, err := n.generate(r.Context(), prompt, ask.MaxTokens)
	if err != nil {
		fail(http.StatusBadGateway, err)
		return
	}
	json.NewEncoder(w).Encode(map[string]any{ //nolint:errcheck // the client is gone
		"object":  "text_completion",
		"choices": []any{map[string]any{"index": 0, "text": text, "finish_reason": finish.Reason}},
		"usage":   map[string]int{"prompt_tokens": finish.Prompt, "completion_tokens": finish.Generated, "total_tokens": finish.Prompt + finish.Generated},
	})
}

// errand is one attempt: the functions are what a bug may replace or change.
type errand struct {
	n               *edge
	claims          tenant.Claims
	job             transfer.Job
	hash            transfer.Hash
	prefill, decode transfer.Announce

	change func(*tenant.Claims)       // before they are signed
	sign   func(tenant.Claims) string // nil: as it should be
	alter  func(*transfer.Job)        // after that
	submit func(context.Context) error
}

// generate asks a pair for an answer.
func (n *edge) generate(ctx context.Context, prompt []int32, maxNew int) (text string, f transfer.Finish, err error) {
	bug := n.meet()
	e, err := n.newErrand(prompt, maxNew)
	if err != nil {
		return "", f, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if bug != nil {
		bug.router(e)
	}
	if err := e.seal(); err != nil {
		return "", f, err
	}
	type message struct {
		from transfer.Role
		body transfer.OutputBody
	}
	heard := make(chan message, maxNew+8)
	broken := make(chan error, 1)
	stop, err := n.Peer.ReceiveOutput(e.job.Reply, e.job.ReplyKey, e.hash, func(from transfer.Role, b transfer.OutputBody) {
		select {
		case heard <- message{from, b}:
		default:
		}
	}, func(err error) { broken <- err })
	if err == nil {
		defer stop()
	}
	// A reply subject of another router cannot be heard; the nodes get the job all the same.
	defer func() {
		late, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		for _, node := range []string{e.decode.Node, e.prefill.Node} {
			n.Peer.SendCancel(late, node, transfer.Cancel{TokenHash: e.hash, Reason: transfer.ReasonCancelled}) //nolint:errcheck // it may be over
		}
	}()
	if err := e.submit(ctx); err != nil {
		return "", f, err
	}
	var out strings.Builder
	for {
		select {
		case <-ctx.Done():
			return "", f, ctx.Err()
		case err := <-broken:
			return "", f, err
		case m := <-heard:
			switch b := m.body; {
			case b.Fail != nil:
				return "", f, fmt.Errorf("the %s failed: %s", m.from, b.Fail.Reason)
			case b.Receipt != nil:
				_, _, err := n.Peer.VerifyReceipt(b.Receipt, e.job.Reply, e.hash, e.decode.Node, e.decode.Epoch, tenant.Blocks(len(e.job.Prompt)))
				if err != nil {
					return "", f, err
				}
			case b.Finish != nil:
				return out.String(), *b.Finish, nil
			default:
				for _, t := range b.Tokens {
					if t.ID >= provenance.FirstDigit && t.ID < provenance.EOG {
						fmt.Fprintf(&out, "[p%x]", t.ID-provenance.FirstDigit)
					}
				}
			}
		}
	}
}

func (n *edge) newErrand(prompt []int32, maxNew int) (*errand, error) {
	e := &errand{n: n}
	// An honest pair is heard of within a second of the start.
	for end := time.Now().Add(patience); e.prefill.Node == "" || !e.decode.Ready; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return nil, errors.New("rogue: no pair")
		}
		for role, at := range map[transfer.Role]*transfer.Announce{transfer.RolePrefill: &e.prefill, transfer.RoleDecode: &e.decode} {
			for _, a := range n.dir.List(role) {
				if a.Version != rogueVersion {
					*at = a
				}
			}
		}
	}
	now := time.Now()
	e.job = transfer.Job{Prompt: prompt, Params: sample.Params{MaxNew: maxNew, EOG: []int32{provenance.EOG}}, Deadline: now.Add(patience)}
	rand.Read(e.job.Salt[:])
	rand.Read(e.job.ReplyKey[:])
	e.claims = tenant.Claims{
		Tenant: n.cfg.Tenants[0], Attempt: 1, Model: e.decode.Model, PromptLen: len(prompt),
		PromptDigest: tenant.PromptDigest(e.job.Salt, prompt), BlockTokens: tenant.BlockTokens, Blocks: tenant.Blocks(len(prompt)),
		MaxNew: maxNew, Prefill: e.prefill.Node, Decode: e.decode.Node, DecodeEpoch: e.decode.Epoch,
		IssuedAt: now, NotBefore: now, Expires: now.Add(time.Minute), Router: n.cfg.Name,
	}
	rand.Read(e.claims.Request[:])
	rand.Read(e.claims.PrefixScope[:])
	e.submit = e.both
	return e, nil
}

// seal signs the claims, with what a bug makes of them, and completes the job.
func (e *errand) seal() error {
	reply := transfer.OutSubject{Router: e.n.cfg.Name, Request: transfer.ID(e.claims.Request)}
	e.claims.ReplyBinding = tenant.ReplyBinding(reply.Scope(), e.job.ReplyKey)
	if e.change != nil {
		e.change(&e.claims)
		reply.Request = transfer.ID(e.claims.Request)
	}
	if e.sign != nil {
		e.job.Token = e.sign(e.claims)
	} else {
		var err error
		if e.job.Token, err = tenant.Sign(e.claims, e.n.node.Private(), e.n.node.Authority().ClusterID()); err != nil {
			return err
		}
	}
	e.hash = transfer.TokenHash(e.job.Token)
	reply.Token = transfer.Fingerprint(e.hash)
	e.job.Reply = reply.String()
	if e.alter != nil {
		e.alter(&e.job)
	}
	return nil
}

// both gives the job to decode, then to prefill.
func (e *errand) both(ctx context.Context) error {
	return errors.Join(e.give(ctx, e.decode), e.give(ctx, e.prefill))
}

func (e *errand) give(ctx context.Context, to transfer.Announce) error {
	_, err := e.n.Peer.SubmitJob(ctx, to, e.job)
	return err
}

// resign makes a token of any claims, written by hand: PASETO version 4 public, of
// github.com/paseto-standard/paseto-spec, docs/01-Protocol-Versions/Version4.md.
func resign(c tenant.Claims, key ed25519.PrivateKey, cluster string, change func(body []byte) []byte) string {
	b64 := base64.RawURLEncoding
	good, err := tenant.Sign(c, key, cluster)
	if err != nil {
		panic(err) // the claims were good before they are changed here
	}
	signed, _, _ := strings.Cut(strings.TrimPrefix(good, "v4.public."), ".")
	raw, err := b64.DecodeString(signed)
	if err != nil {
		panic(err)
	}
	body := raw[:len(raw)-ed25519.SignatureSize]
	if change != nil {
		body = change(body)
	}
	sig := ed25519.Sign(key, pae([]byte("v4.public."), body, []byte(c.Router), []byte("kvgrant/1|"+cluster)))
	return "v4.public." + b64.EncodeToString(append(append([]byte(nil), body...), sig...)) + "." + b64.EncodeToString([]byte(c.Router))
}

// pae is PASETO's pre-authentication encoding.
func pae(pieces ...[]byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(pieces)))
	for _, p := range pieces {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(p)))
		b = append(b, p...)
	}
	return b
}
