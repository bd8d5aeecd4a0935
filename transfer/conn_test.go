package transfer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
)

func TestServerVersion(t *testing.T) {
	for v, want := range map[string]bool{
		"2.15.0": true, "2.15.3": true, "2.16.0-beta.1": true, "3.0.0": true, "v2.15.1": true,
		"2.14.9": false, "2.9.20": false, "1.99.0": false, "": false, "2.15": false, "x.y.z": false, "2.-1.0": false,
	} {
		if got := atLeast(v, ServerVersion); got != want {
			t.Errorf("%q: %t", v, got)
		}
	}
}

// What a stream answers, and what a sender makes of it.
func TestPubAck(t *testing.T) {
	for _, c := range []struct {
		status, data string
		want         error // nil: any error, unless ok
		ok           bool
	}{
		{"", `{"stream":"KV_d0","seq":7}`, nil, true},
		{"503", ``, ErrNoStream, false},
		{"", `{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"},"stream":"KV_d0","seq":0}`, ErrStreamFull, false},
		{"", `{"error":{"code":429,"err_code":10167,"description":"too many requests"}}`, ErrOverflow, false},
		{"", `{"error":{"code":429}}`, ErrOverflow, false},
		{"", `{"error":{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"}}`, nil, false},
		{"", `{"stream":"OTHER","seq":1}`, ErrAckTimeout, false},
		{"", `{"strebm":"KV_d0","seq":7}`, ErrAckTimeout, false},
		{"", `{}`, ErrAckTimeout, false},
		{"", ``, ErrAckTimeout, false}, // it may be stored: see ErrAckTimeout
		// De-duplication is stream-wide: a message id that another identity used first would swallow ours.
		{"", `{"stream":"KV_d0","seq":7,"duplicate":true}`, nil, false},
	} {
		err := pubAckError(c.status, []byte(c.data))
		if (err == nil) != c.ok || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s %s: %v", c.status, c.data, err)
		}
		if c.want == nil && Retryable(err) {
			t.Errorf("%s %s may be tried again: %v", c.status, c.data, err)
		}
	}
}

// Goal: another node's consumer, made to deliver into this one's inbox (the
// server does not check reply subjects of pulls), delivers nothing.
func TestForeignKV(t *testing.T) {
	var got []string
	p := &puller{
		c:    &Conn{bulk: newBulk(), cfg: Config{Counters: new(Counters)}, log: slog.New(slog.DiscardHandler)},
		node: "d0", handler: func(m KVMsg) { got = append(got, m.Subject) }, ready: func(bool) {},
	}
	mine := KVSubject{Decode: "d0", Attempt: 1}.String()
	for _, s := range []string{KVSubject{Decode: "d1", Attempt: 1}.String(), "kv.d0.x", "out.r0.x.y", "_INBOX.d0.x", mine} {
		p.take(&nats.Msg{Subject: s, Reply: "$JS.ACK.KV_d1.d1.1.1.1.1.1", Data: []byte("x")})
	}
	if len(got) != 1 || got[0] != mine {
		t.Errorf("handed on: %v", got)
	}
	if n := p.c.cfg.Counters.Get(CountForeignKV); n != 4 {
		t.Errorf("%d counted, want 4", n)
	}
}

// The pull's book-keeping: what each status means for what is on its way.
func TestPull(t *testing.T) {
	var told []bool
	p := &puller{
		c:    &Conn{log: slog.New(slog.DiscardHandler)},
		node: "d0", handler: func(KVMsg) {}, ready: func(up bool) { told = append(told, up) },
	}
	status := func(code, left string) {
		m := &nats.Msg{Header: nats.Header{"Status": {code}}}
		if left != "" {
			m.Header.Set("Nats-Pending-Messages", left)
		}
		p.take(m)
	}
	want := func(what string, pulling bool, outstanding int) {
		t.Helper()
		if p.pulling != pulling || p.outstanding != outstanding {
			t.Errorf("%s: pulling %t, %d on their way", what, p.pulling, p.outstanding)
		}
	}
	msg := func() { p.take(&nats.Msg{Subject: KVSubject{Decode: "d0", Attempt: 1}.String(), Data: []byte("x")}) }
	status("503", "")
	want("no consumer", false, 0)
	status("404", "")
	want("consumer found, nothing there", true, kvPullBatch)
	for range kvPullBatch/2 - 1 {
		msg()
	}
	want("just before the refill", true, kvPullBatch/2+1)
	msg()
	want("refilled", true, kvPullBatch)
	status("100", "")
	want("heartbeat", true, kvPullBatch)
	status("408", "10")
	want("a pull ran out", true, kvPullBatch-10)
	status("408", "20")
	want("another ran out", true, kvPullBatch)
	status("408", "rubbish")
	want("rubbish counts as all", true, kvPullBatch)
	status("409", "")
	want("deleted", false, 0)
	msg()
	want("a message is life", true, kvPullBatch)
	if len(told) != 3 || !told[0] || told[1] || !told[2] {
		t.Errorf("told %v", told)
	}
}

// An acknowledgement that cannot be read says nothing about the message: the same bytes are sent again.
func TestUnreadableAck(t *testing.T) {
	for _, data := range []string{"", "{", `{#stream":"KV_d1","seq":1}`, "\x00"} {
		if err := pubAckError("", []byte(data)); !Retryable(err) {
			t.Errorf("%q: %v", data, err)
		}
	}
	if err := pubAckError("", []byte(`{"stream":"KV_d1","seq":1}`)); err != nil {
		t.Errorf("a good one: %v", err)
	}
}

// goal: a bus that is lost is told apart from a fault of ours, also where the client hands the connection's own
// error on. method: every such error, and others, through what every operation wraps its errors with.
func TestBusLost(t *testing.T) {
	c := &Conn{nc: &nats.Conn{}}
	for _, err := range []error{
		&net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}, io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed,
		nats.ErrStaleConnection, nats.ErrConnectionClosed, nats.ErrReconnectBufExceeded, nats.ErrNoServers, nats.ErrNoResponders,
	} {
		got := c.wrap("publish", "kv.d.r.1.t", err)
		if !BusLost(got) || BusReason(got) != ReasonNodeLost {
			t.Errorf("%v becomes %v, reason %s", err, got, BusReason(got))
		}
	}
	for _, err := range []error{nats.ErrMaxPayload, nats.ErrBadSubject, context.Canceled, ErrPermission} {
		got := c.wrap("publish", "kv.d.r.1.t", err)
		if BusLost(got) || BusReason(got) != ReasonInternal {
			t.Errorf("%v becomes %v, reason %s", err, got, BusReason(got))
		}
	}
}
