package openai

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
)

// goal: with Resend a server that ends a used connection just as the next request goes out costs no answer;
// one that ends a new connection is an error, not a loop. Without it every such end is an error. method: a server that answers so many requests on each
// connection and then closes it with the next request unanswered.
func TestClosedConnection(t *testing.T) {
	for _, tt := range []struct {
		resend        bool
		answers, want int
	}{{true, 0, 0}, {true, 1, 6}, {true, 2, 6}, {false, 1, 3}} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var conns, keys atomic.Int32
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				conns.Add(1)
				wg.Go(func() {
					defer c.Close()
					in := bufio.NewReader(c)
					for i := 0; ; i++ {
						r, err := http.ReadRequest(in)
						if err != nil {
							return
						}
						_, _ = io.Copy(io.Discard, r.Body)
						if _, ok := r.Header["Idempotency-Key"]; ok {
							keys.Add(1)
						}
						if i == tt.answers {
							return
						}
						_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
					}
				})
			}
		})
		c, err := New("http://"+ln.Addr().String(), 1)
		if err != nil {
			t.Fatal(err)
		}
		c.Resend = tt.resend
		good := 0
		for range 6 {
			if a, err := c.Do(context.Background(), "k", Request{Text: "x", MaxTokens: 1}); err == nil && a.Status == 200 {
				good++
			}
		}
		c.Close()
		ln.Close()
		wg.Wait()
		if good != tt.want || conns.Load() > 7 || keys.Load() != 0 {
			t.Errorf("resend %v, %d answers a connection: %d of 6 good, want %d; %d connections, %d keys", tt.resend, tt.answers, good, tt.want, conns.Load(), keys.Load())
		}
	}
}
