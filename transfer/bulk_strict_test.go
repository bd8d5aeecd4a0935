package transfer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

// goal: a KV server of another node makes this one hold no more than a line and a small message, and never
// speak anything but the protocol in clear. method: what such a server may say, each with the error that it becomes;
// what an honest one says passes as it is. Where the server is the cluster's own, the same passes.
func TestBulkStrict(t *testing.T) {
	for name, c := range map[string]struct {
		says string
		want error
	}{
		"honest":         {"INFO {}\r\nPONG\r\nMSG _INBOX.p.kvack.1 1 30\r\n{\"stream\":\"KV_d0\",\"seq\":12345}\r\nHMSG _INBOX.p.kvack.2 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\nPING\r\n", io.EOF},
		"largest":        {fmt.Sprintf("MSG _INBOX.p.kvack.1 1 %d\r\n%s\r\n", kvLinkPayload, strings.Repeat("x", kvLinkPayload)), io.EOF},
		"message":        {fmt.Sprintf("INFO {}\r\nMSG _INBOX.p.kvack.1 1 %d\r\nx", kvLinkPayload+1), errBulkPayload},
		"huge":           {"MSG _INBOX.p.kvack.1 1 2000000000\r\nx", errBulkPayload},
		"headers":        {"HMSG _INBOX.p.kvack.1 1 12 2000000000\r\nx", errBulkPayload},
		"frame":          {"MSG kv.d0.x.1.y 1 1000000\r\nx", errBulkPayload},
		"info":           {"INFO {\"nonce\":\"" + strings.Repeat("n", bulkLine) + "\"}\r\n", errBulkLine},
		"endless line":   {strings.Repeat("x", 4*bulkLine), errBulkLine},
		"endless error":  {"INFO {}\r\n-ERR '" + strings.Repeat("x", 4*bulkLine), errBulkLine},
		"not a protocol": {"HTTP/1.1 400 Bad Request\r\n\r\n", io.EOF},
	} {
		rng := rand.New(rand.NewPCG(1, 2))
		conn := newBulkConn(&script{in: []byte(c.says), rng: rng}, newBulk())
		conn.strict = true
		if _, err := conn.Write([]byte("CONNECT {}\r\n")); err != nil {
			t.Fatal(err)
		}
		seen, err := readAll(conn, rng)
		if !errors.Is(err, c.want) || len(seen) > len(c.says) || c.want == io.EOF && !bytes.Equal(seen, []byte(c.says)) {
			t.Errorf("%s: %v after %d bytes of %d", name, err, len(seen), len(c.says))
		}
		if cap(conn.bulk.buffer(1)) > bulkRound {
			t.Errorf("%s: memory was made for a payload", name)
		}
	}
	// It cannot lead on to TLS, behind which nothing could be counted.
	for _, first := range []string{"\x16\x03\x01", "GET / HTTP/1.1\r\n"} {
		s := &script{}
		conn := newBulkConn(s, newBulk())
		conn.strict = true
		for range 2 {
			if _, err := conn.Write([]byte(first)); !errors.Is(err, errBulkClear) || len(s.wrote) != 0 {
				t.Errorf("%q: %v, %d bytes written", first, err, len(s.wrote))
			}
		}
	}
}
