package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"bulkhead/transfer"
)

// kind is one row of the error table: what a client is told and what the
// metrics call it. Every failure of a request ends as exactly one kind.
type kind string

// The kinds. The value is the metric label.
const (
	kindMalformed     kind = "malformed"
	kindUnsupported   kind = "unsupported_parameter"
	kindContentType   kind = "content_type"
	kindContextLength kind = "context_length_exceeded"
	kindNoKey         kind = "invalid_api_key"
	kindModelNotFound kind = "model_not_found"
	kindNoRoute       kind = "unknown_url"
	kindMethod        kind = "method_not_allowed"
	kindTooLarge      kind = "request_too_large"
	kindSlowBody      kind = "request_timeout"
	kindRateLimit     kind = "rate_limit_exceeded"
	kindQuota         kind = "insufficient_quota"
	kindOverloaded    kind = "overloaded"
	kindQueueTimeout  kind = "queue_timeout"
	kindDraining      kind = "draining"
	kindWorkerLost    kind = "worker_lost"
	kindTimeout       kind = "timeout"
	kindIntegrity     kind = "integrity_error"
	kindRefused       kind = "refused"
	kindInternal      kind = "internal_error"
	kindSlowReader    kind = "slow_reader"
	kindClientGone    kind = "client_gone"
)

// errorRow is what HTTP says of a kind.
type errorRow struct {
	status  int
	typ     string // OpenAI's error.type
	code    string // OpenAI's error.code; "" is null
	noRetry bool   // x-should-retry: false, for SDKs that would retry the status in vain
	retry   time.Duration
}

// statusClientGone is nginx's word for a request nobody waits for; it is only logged.
const statusClientGone = 499

const (
	typeRequest = "invalid_request_error"
	typeRate    = "rate_limit_error"
	typeServer  = "server_error"
)

// errorTable is the one place where a kind becomes a status, a type, a code and headers.
var errorTable = map[kind]errorRow{
	kindMalformed:     {status: 400, typ: typeRequest},
	kindUnsupported:   {status: 400, typ: typeRequest, code: "unsupported_parameter"},
	kindContentType:   {status: 400, typ: typeRequest, code: "unsupported_content_type"},
	kindContextLength: {status: 400, typ: typeRequest, code: "context_length_exceeded"},
	kindNoKey:         {status: 401, typ: typeRequest, code: "invalid_api_key"},
	kindModelNotFound: {status: 404, typ: typeRequest, code: "model_not_found"},
	kindNoRoute:       {status: 404, typ: typeRequest, code: "unknown_url"},
	kindMethod:        {status: 405, typ: typeRequest, code: "method_not_allowed"},
	kindTooLarge:      {status: 413, typ: typeRequest, code: "request_too_large"},
	kindSlowBody:      {status: 408, typ: typeRequest, code: "request_timeout"}, // nothing was started; the router itself may have stood still
	kindRateLimit:     {status: 429, typ: typeRate, code: "rate_limit_exceeded", retry: time.Second},
	kindQuota:         {status: 429, typ: "insufficient_quota", code: "insufficient_quota", noRetry: true},
	kindOverloaded:    {status: 503, typ: typeServer, code: "overloaded", retry: time.Second},
	kindQueueTimeout:  {status: 503, typ: typeServer, code: "queue_timeout", retry: 2 * time.Second},
	kindDraining:      {status: 503, typ: typeServer, code: "draining", retry: time.Second},
	kindWorkerLost:    {status: 502, typ: typeServer, code: "worker_lost"},
	kindTimeout:       {status: 504, typ: typeServer, code: "timeout"},
	// A page, frame or signature that did not verify: somebody should look
	// before the same request goes round again.
	kindIntegrity: {status: 502, typ: typeServer, code: "integrity_error", noRetry: true},
	// A node's no that repeats for the same request: wrong model, bad token, NaN logits.
	kindRefused:    {status: 500, typ: typeServer, code: "refused", noRetry: true},
	kindInternal:   {status: 500, typ: typeServer, code: "internal_error"},
	kindSlowReader: {status: 408, typ: typeRequest, code: "slow_reader", noRetry: true},
	kindClientGone: {status: statusClientGone, typ: typeRequest, code: "client_gone"},
}

// apiError is a failure of a request, fit to be shown to its client: it never
// holds a prompt, a key or a node's name.
type apiError struct {
	kind   kind
	msg    string
	param  string        // the request's field at fault; "" is null
	retry  time.Duration // overrides the table's Retry-After where > 0
	allow  string        // the Allow header of a 405
	reason transfer.Reason
}

// Error implements error.
func (e *apiError) Error() string { return "router: " + e.msg }

// row returns the table's row of e.
func (e *apiError) row() errorRow {
	row, ok := errorTable[e.kind]
	if !ok {
		panic("router: internal error: no row for error kind " + string(e.kind))
	}
	if e.retry > 0 {
		row.retry = e.retry
	}
	return row
}

func fail(k kind, param, format string, args ...any) *apiError {
	return &apiError{kind: k, param: param, msg: fmt.Sprintf(format, args...)}
}

// asAPIError finds the apiError in err. Anything else is a bug of ours, whose
// text is for the log and not for the client.
func asAPIError(err error) *apiError {
	var e *apiError
	if errors.As(err, &e) {
		return e
	}
	return fail(kindInternal, "", "internal error")
}

// errorBody is OpenAI's error envelope: all four members are always there, and
// code is a string or null, or SDKs lose the message.
type errorBody struct {
	Error errorObject `json:"error"`
}

type errorObject struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// body returns the envelope of e as JSON.
func (e *apiError) body() []byte {
	row := e.row()
	b, err := json.Marshal(errorBody{errorObject{Message: e.msg, Type: row.typ, Param: nullable(e.param), Code: nullable(row.code)}})
	if err != nil {
		panic("router: internal error: " + err.Error()) // strings always marshal
	}
	return b
}

func nullable(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// writeError answers with e: status, headers, envelope. Nothing may have been
// written before.
func writeError(w http.ResponseWriter, e *apiError) {
	row, h := e.row(), w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	if row.retry > 0 {
		h.Set("Retry-After", strconv.Itoa(int((row.retry+time.Second-1)/time.Second)))
	}
	if row.noRetry {
		h.Set("x-should-retry", "false")
	}
	switch e.kind {
	case kindNoKey:
		h.Set("WWW-Authenticate", "Bearer")
	case kindMethod:
		h.Set("Allow", e.allow)
	case kindDraining, kindTooLarge, kindSlowBody:
		h.Set("Connection", "close")
	}
	w.WriteHeader(row.status)
	_, _ = w.Write(append(e.body(), '\n')) // the client may be gone; nothing is left to do for it
}

// refusal turns a node's no into what the client is told when there is no
// further attempt. limitParam names the field that set the prompt.
func refusal(r transfer.Reject, limitParam string) *apiError {
	var e *apiError
	switch r.Reason {
	case transfer.ReasonContextLength:
		e = contextError(int(r.Limit), int(r.Value), limitParam)
	case transfer.ReasonNoPages, transfer.ReasonBusy, transfer.ReasonDraining:
		e = fail(kindOverloaded, "", "the cluster has no free capacity at the moment; retry later")
	case transfer.ReasonNodeLost, transfer.ReasonCancelled, transfer.ReasonPeer, transfer.ReasonKVServer:
		e = fail(kindWorkerLost, "", "a node was lost while it worked on the request")
	case transfer.ReasonTimeout:
		e = fail(kindTimeout, "", "the request was not answered within its deadline")
	case transfer.ReasonProtocol, transfer.ReasonIntegrity, transfer.ReasonPrompt:
		e = fail(kindIntegrity, "", "the request failed an integrity check; no output was produced from it")
	case transfer.ReasonToken, transfer.ReasonModel, transfer.ReasonDuplicate, transfer.ReasonLogits:
		e = fail(kindRefused, "", "a node refused the request (%s)", r.Reason)
	default:
		e = fail(kindInternal, "", "internal error")
	}
	e.reason = r.Reason
	return e
}

// contextError is the answer to a prompt that alone is over the limit.
func contextError(limit, prompt int, param string) *apiError {
	what := "messages"
	if param == "prompt" {
		what = "prompt"
	}
	return fail(kindContextLength, param,
		"This model's maximum context length is %d tokens. However, your %s resulted in %d tokens. Please reduce the length of the %s.",
		limit, what, prompt, what)
}

// contextSumError is the answer to a prompt that is over the limit together
// with the tokens asked for.
func contextSumError(limit, prompt, maxNew int, param string) *apiError {
	what := "messages"
	if param == "prompt" {
		what = "prompt"
	}
	return fail(kindContextLength, param,
		"This model's maximum context length is %d tokens. However, you requested %d tokens (%d in the %s, %d in the completion). Please reduce the length of the %s or completion.",
		limit, prompt+maxNew, prompt, what, maxNew, what)
}
