package router

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"sync"
	"time"
)

// audit is the append-only record of what was let in, committed, finished and found broken:
// one JSON object per line, with hashes and counts only. Each line holds the hash of
// the line before it, so that a line cannot be changed or taken out unseen.
type audit struct {
	log *slog.Logger

	mu   sync.Mutex
	w    io.Writer     // guarded by mu, nil: no record
	last hashOf        // of the last line
	err  bool          // a write failed; said once
	now  func() string // for tests
}

type hashOf [sha256.Size]byte

// MarshalText implements encoding.TextMarshaler.
func (h hashOf) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(h[:])), nil }

// auditRecord is one line. Every answer with a 200 joins to one admit and one commit
// by its request, child and attempt.
type auditRecord struct {
	Time    string  `json:"ts"`
	Event   string  `json:"event"` // admit, reject, commit, finish, violation
	Request string  `json:"request_id"`
	Tenant  *hashOf `json:"tenant,omitempty"` // of the tenant's opaque id
	Child   int     `json:"child"`
	Attempt int     `json:"attempt,omitempty"`
	Token   *hashOf `json:"token,omitempty"`  // of the tenant token
	Prompt  *hashOf `json:"prompt,omitempty"` // salted digest
	Receipt *hashOf `json:"receipt,omitempty"`
	Prefill string  `json:"prefill,omitempty"`
	Decode  string  `json:"decode,omitempty"`
	Tokens  int     `json:"prompt_tokens,omitempty"`
	MaxNew  int     `json:"max_new,omitempty"`
	Out     int     `json:"completion_tokens,omitempty"`
	Result  string  `json:"result,omitempty"` // finish reason or error kind
	Prev    hashOf  `json:"prev"`
}

func newAudit(w io.Writer, log *slog.Logger) *audit {
	return &audit{w: w, log: log, now: func() string { return time.Now().UTC().Format(time.RFC3339Nano) }}
}

func (a *audit) write(r auditRecord) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.w == nil {
		return
	}
	r.Time, r.Prev = a.now(), a.last
	line, err := json.Marshal(r)
	if err == nil {
		_, err = a.w.Write(append(line, '\n'))
	}
	if err != nil {
		if !a.err {
			a.log.Error("audit record not written", "err", err)
		}
		a.err = true
		return
	}
	a.err, a.last = false, sha256.Sum256(line)
}

// of fills in what every record of a sequence has.
func (s *sequence) auditRecord(event string, a *attempt) auditRecord {
	tenant := hashOf(sha256.Sum256([]byte("bulkhead audit tenant\x00" + s.x.tenant.ID)))
	r := auditRecord{Event: event, Request: s.x.idText, Tenant: &tenant, Child: s.child}
	if a != nil {
		token := hashOf(a.hash)
		r.Attempt, r.Token, r.Prefill, r.Decode = a.number, &token, a.pair.prefill.Node, a.pair.decode.Node
	}
	return r
}

func (a *audit) admit(s *sequence, t *attempt) {
	r := s.auditRecord("admit", t)
	digest := hashOf(t.digest)
	r.Prompt, r.Tokens, r.MaxNew = &digest, len(s.prompt), s.params.MaxNew
	a.write(r)
}

func (a *audit) commit(s *sequence, t *attempt, facts *receiptFacts) {
	r := s.auditRecord("commit", t)
	hash := hashOf(facts.hash)
	r.Receipt = &hash
	a.write(r)
}

func (a *audit) finish(s *sequence, t *attempt, result string) {
	r := s.auditRecord("finish", t)
	r.Out, r.Result = s.flow.generated, result
	a.write(r)
}

func (a *audit) violation(s *sequence, t *attempt, what string) {
	r := s.auditRecord("violation", t)
	r.Result = what
	a.write(r)
}

// reject is a request that was refused before any sequence of it began.
func (a *audit) reject(x *exchange, k kind) {
	r := auditRecord{Event: "reject", Request: x.idText, Result: string(k)}
	if x.tenant != nil {
		tenant := hashOf(sha256.Sum256([]byte("bulkhead audit tenant\x00" + x.tenant.ID)))
		r.Tenant = &tenant
	}
	a.write(r)
}
