package identity

import (
	"time"

	"github.com/nats-io/jwt/v2"
)

// Role is what a node is for. The values are also subject tokens and file names.
type Role = string

// The roles.
const (
	Router  Role = "router"
	Prefill Role = "prefill"
	Decode  Role = "decode"
)

// Roles returns every role.
func Roles() []Role { return []Role{Router, Prefill, Decode} }

// Scope is what the broker lets a role do: allow-lists only, since deny rules
// have been bypassed before. "{{name()}}" stands for the node's own name.
type Scope struct {
	Publish, Subscribe []string
	Replies            int           // answers to one request it received, 0 = none
	ReplyWithin        time.Duration // after the request
}

// Scopes returns the template of each role.
//
// A wildcard covers whole tokens of a subject, so rights over the streams
// KV_<decode> can only be written as rights over all streams of the account;
// only the router has them, and the account is Bulkhead's own.
//
// The two forms of acknowledgement are told apart by their count of tokens
// (seven and nine or more after $JS.ACK). Written with a trailing ">" instead, a
// node whose name is a number could have acknowledged another's messages.
func Scopes() map[Role]Scope {
	const me = "{{name()}}"
	const mine = "KV_" + me + "." + me // stream and durable of a decode node
	return map[Role]Scope{
		Router: {
			Publish: []string{
				"job.>", "cancel.>", "ping.>",
				"announce.router." + me,
				"$JS.API.INFO",
				"$JS.API.STREAM.CREATE.*",
				"$JS.API.STREAM.UPDATE.*",
				"$JS.API.STREAM.INFO.*",
				"$JS.API.STREAM.DELETE.*",
				"$JS.API.STREAM.PURGE.*",
				"$JS.API.CONSUMER.CREATE.*.>",
				"$JS.API.CONSUMER.INFO.*.*",
				"$JS.API.CONSUMER.DELETE.*.*",
			},
			Subscribe: []string{"announce.>", "out." + me + ".>", "_INBOX." + me + ".>"},
		},
		Prefill: {
			Publish: []string{"kv.>", "out.>", "announce.prefill." + me},
			Subscribe: []string{
				"job.prefill." + me, "cancel." + me, "ping." + me,
				"credit." + me + ".>",
				"announce.decode.*", "announce.router.*",
				"_INBOX." + me + ".>",
			},
			Replies: 1, ReplyWithin: time.Minute,
		},
		Decode: {
			Publish: []string{
				"$JS.API.CONSUMER.MSG.NEXT." + mine,
				"$JS.API.CONSUMER.INFO." + mine,
				"$JS.ACK." + mine + ".*.*.*.*.*",
				"$JS.ACK.*.*." + mine + ".*.*.*.*.>",
				"out.>", "credit.*." + me,
				"announce.decode." + me,
			},
			Subscribe: []string{
				"job.decode." + me, "cancel." + me, "ping." + me,
				"announce.prefill.*", "announce.router.*",
				"_INBOX." + me + ".>",
			},
			Replies: 1, ReplyWithin: time.Minute,
		},
	}
}

// template writes a scope in the account's words.
func (s Scope) template(role Role, signingKey string) *jwt.UserScope {
	us := jwt.NewUserScope()
	us.Key, us.Role = signingKey, role
	us.Description = "what a Bulkhead " + role + " node may do"
	us.Template.Pub.Allow.Add(s.Publish...)
	us.Template.Sub.Allow.Add(s.Subscribe...)
	if s.Replies > 0 {
		us.Template.Resp = &jwt.ResponsePermission{MaxMsgs: s.Replies, Expires: s.ReplyWithin}
	}
	us.Template.AllowedConnectionTypes.Add(jwt.ConnectionTypeStandard, jwt.ConnectionTypeInProcess)
	return us
}
