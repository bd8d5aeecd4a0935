package router

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/internal/sample"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// cancelled reports whether both nodes of the first pair were told to end the same attempt.
func (w *world) cancelled() bool {
	jobs, d := w.nodes["d0"].got()
	_, p := w.nodes["p0"].got()
	return len(jobs) > 0 && len(d) > 0 && len(p) > 0 && d[0].TokenHash == jobs[0].hash && p[0].TokenHash == jobs[0].hash
}

// TestDisconnect: a client that leaves, streaming or not, in whatever stage, ends its attempt at both nodes;
// over a real connection, as it is net/http that has to notice.
func TestDisconnect(t *testing.T) {
	for _, stream := range []bool{false, true} {
		for _, stage := range []string{"reserve", "prefill", "decode"} {
			t.Run(fmt.Sprintf("stream=%v/%s", stream, stage), func(t *testing.T) {
				w := newWorld(t, nil)
				defer w.close()
				arrived := make(chan struct{})
				switch stage {
				case "reserve":
					w.nodes["d0"].onJob = func(*gotJob) { close(arrived) }
				case "prefill":
					w.nodes["p0"].onJob = func(j *gotJob) { j.accept(); close(arrived) }
				case "decode":
					w.nodes["p0"].onJob = func(j *gotJob) {
						j.accept()
						d := w.nodes["d0"].find(j.hash)
						d.receipt()
						d.tokens(text("hel")...)
						close(arrived)
					}
				}
				addr, stop := w.serve()
				defer stop()
				conn := must(net.Dial("tcp", addr))
				writeRequest(conn, chat(fmt.Sprintf(`,"stream":%v`, stream)))
				<-arrived
				if stream && stage == "decode" { // the client has seen text
					r := bufio.NewReader(conn)
					for line := ""; !strings.Contains(line, `"hel"`); line = must(r.ReadString('\n')) {
					}
				}
				conn.Close()
				w.eventually("both cancels", w.cancelled)
				w.eventually("the closing line", func() bool {
					return strings.Contains(w.log.String(), `"status":499`) || stream && strings.Contains(w.log.String(), "client_gone")
				})
				w.empty()
			})
		}
	}
}

func writeRequest(conn net.Conn, body string) {
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", chatPath, testKey, len(body), body)
}

// serve runs the router on a port of this machine.
func (w *world) serve() (addr string, stop func()) {
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.router.Run(ctx, l) }()
	return l.Addr().String(), sync.OnceFunc(func() {
		cancel()
		<-done
	})
}

// empty checks that nothing of any request is left at the router.
func (w *world) empty() {
	w.t.Helper()
	w.eventually("the router to be empty", func() bool {
		r := w.router
		r.desk.mu.Lock()
		defer r.desk.mu.Unlock()
		r.watch.mu.Lock()
		defer r.watch.mu.Unlock()
		held := 0
		for _, a := range r.desk.board.accounts {
			held += a.all
		}
		return r.exchanges.count() == 0 && held == 0 && r.desk.queue.waiting == 0 && len(r.watch.nodes) == 0 && len(r.desk.admission.tenants) == 0
	})
}

// TestCancelAgain: a cancel that reaches nobody, as when the bus is being restarted, is tried again for
// a while. A node that is back on the bus by then frees the pages at once and not at the attempt's deadline.
func TestCancelAgain(t *testing.T) {
	testKeys()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		defer w.close()
		d0 := w.nodes["d0"]
		ctx, leave := context.WithCancel(t.Context())
		heard, back := make(chan transfer.Cancel, 8), make(chan bool)
		w.nodes["p0"].onJob = func(j *gotJob) {
			j.accept()
			go func() {
				d0.deaf()
				leave()
				time.Sleep(cancelPause / 2)
				w.stops = append(w.stops, must(d0.peer.ServeCancel(func(c transfer.Cancel, _ identity.Peer, done func()) {
					heard <- c
					done()
				})))
				close(back)
			}()
		}
		w.do(ctx, chatPath, chat(""))
		<-back
		w.router.work.Wait()
		if jobs, _ := d0.got(); len(heard) != 1 || (<-heard).TokenHash != jobs[0].hash {
			t.Errorf("the node heard %d cancels after it was back, want that of its attempt", len(heard))
		}
	})
}

// TestRetry: a node that dies before the first token is replaced, once, and the client can see that
// it was; nothing of the dead attempt is used.
func TestRetry(t *testing.T) {
	testKeys()
	for _, dies := range []string{"p0", "d0"} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/stream=%v", dies, stream), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, nil)
					defer w.close()
					w.nodes["p0"].onJob = func(j *gotJob) { // the first attempt hangs after decode's yes
						if j.accept(); dies == "p0" {
							go w.nodes["p0"].deaf()
						} else {
							go w.nodes["d0"].deaf()
						}
					}
					w.add(transfer.RolePrefill, "p1").ann.Waiting = 100_000 // second choice
					w.announce(w.nodes["p1"])
					w.add(transfer.RoleDecode, "d1").ann.Running = 100
					w.announce(w.nodes["d1"])
					w.nodes["d0"].onJob = func(j *gotJob) { // hangs with p0, answers with p1
						if j.accept(); dies == "p0" {
							return
						}
					}
					w.nodes["p1"].onJob = func(j *gotJob) {
						j.accept()
						for _, name := range []string{"d0", "d1"} {
							if d := w.nodes[name].find(j.hash); d != nil {
								d.reply("again")
							}
						}
					}
					if dies == "d0" { // p0 is alive: it hangs only for d0
						w.nodes["p0"].onJob = func(j *gotJob) {
							j.accept()
							if d := w.nodes["d1"].find(j.hash); d != nil {
								d.reply("again")
							} else {
								go w.nodes["d0"].deaf()
							}
						}
					}
					a := w.post(chatPath, chat(fmt.Sprintf(`,"stream":%v`, stream)))
					if a.Code != 200 || !strings.Contains(a.Body.String(), `"content":"again"`) || a.Header().Get("x-bulkhead-attempts") != "2" {
						t.Fatalf("status %d, attempts %q: %s\n%s", a.Code, a.Header().Get("x-bulkhead-attempts"), a.Body, w.log.String())
					}
					if n := strings.Count(w.log.String(), `"msg":"another attempt"`); n != 1 || !strings.Contains(w.log.String(), `"attempt":2`) {
						t.Errorf("%d retries in the log:\n%s", n, w.log.String())
					}
					seen := map[string]bool{}
					for _, n := range w.nodes {
						jobs, _ := n.got()
						for _, j := range jobs {
							seen[j.Token] = true
						}
					}
					if len(seen) != 2 {
						t.Errorf("%d tokens for two attempts", len(seen))
					}
					w.empty()
				})
			})
		}
	}
}

// TestOneRetry: the second death is the client's, as a 502.
func TestOneRetry(t *testing.T) {
	testKeys()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		defer w.close()
		for _, name := range []string{"d1", "d2", "d3"} {
			w.add(transfer.RoleDecode, name)
		}
		for _, n := range w.nodes {
			if n.ann.Role == transfer.RoleDecode {
				n.onJob = func(j *gotJob) { j.accept(); go n.deaf() }
			}
		}
		a := w.post(chatPath, chat(``))
		if e := a.errorObject(t); a.Code != 502 || str(e.Code) != "worker_lost" {
			t.Errorf("status %d %s", a.Code, a.Body)
		}
		if n := strings.Count(w.log.String(), `"msg":"another attempt"`); n != 1 {
			t.Errorf("%d retries", n)
		}
		w.empty()
	})
}

// TestLostMidStream: after the first token there is no retry. A stream ends with an error event and
// without [DONE], an answer that does not stream is a proper 502. So it is when the nodes are well, but
// the bus was gone for a moment and with it, perhaps, the nodes' last words.
func TestLostMidStream(t *testing.T) {
	testKeys()
	for i := range 4 {
		stream, bus := i%2 == 1, i >= 2
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			defer w.close()
			w.add(transfer.RoleDecode, "d1").ann.Running = 100
			w.announce(w.nodes["d1"])
			w.nodes["p0"].onJob = func(j *gotJob) {
				j.accept()
				d := w.nodes["d0"].find(j.hash)
				d.receipt()
				d.tokens(text("he")...)
				go func() {
					if bus {
						time.Sleep(time.Second) // until the text is at the router
						w.router.BusLost()
					} else {
						w.nodes["d0"].deaf()
					}
				}()
			}
			a := w.post(chatPath, chat(fmt.Sprintf(`,"stream":%v`, stream)))
			if !stream {
				if e := a.errorObject(t); a.Code != 502 || str(e.Code) != "worker_lost" {
					t.Errorf("status %d %s", a.Code, a.Body)
				}
				return
			}
			all := events(a.Body)
			last := all[len(all)-1]
			if a.Code != 200 || !strings.Contains(all[1], `"he"`) || !strings.HasPrefix(last, `{"error":{"message":"`) || !strings.Contains(last, `"code":"worker_lost"}}`) {
				t.Errorf("status %d: %q", a.Code, all)
			}
			if jobs, _ := w.nodes["d1"].got(); len(jobs) != 0 {
				t.Error("a second decode node was asked after text had been seen")
			}
			w.empty()
		})
	}
}

// TestBadDecode: what a faulty or hostile decode node may send instead of a good answer. Each is an
// error, none is ever a 200, and both nodes are told to end it.
func TestBadDecode(t *testing.T) {
	good := func(j *gotJob) seal.Receipt {
		return seal.Receipt{TokenHash: j.hash, ManifestHash: [32]byte{9}, Pages: 1, Decode: "d0", Epoch: j.n.ann.Epoch}
	}
	withReceipt := func(change func(*seal.Receipt)) func(j *gotJob) {
		return func(j *gotJob) {
			r := good(j)
			change(&r)
			j.send(transfer.OutputBody{Receipt: j.signed(r)})
			j.tokens(text("x")...)
		}
	}
	for name, send := range map[string]func(j *gotJob){
		"tokens without a receipt": func(j *gotJob) { j.tokens(text("x")...) },
		"finish without a receipt": func(j *gotJob) { j.finish("stop", 0) },
		"receipt of another token": withReceipt(func(r *seal.Receipt) { r.TokenHash[0]++ }),
		"receipt of another node":  withReceipt(func(r *seal.Receipt) { r.Decode = "d1" }),
		"receipt of another boot":  withReceipt(func(r *seal.Receipt) { r.Epoch++ }),
		"receipt over more pages":  withReceipt(func(r *seal.Receipt) { r.Pages = 2 }),
		"receipt over fewer pages": nil, // below: needs a longer prompt
		"receipt for another reply": func(j *gotJob) {
			k := *j
			k.Reply = j.Reply + "x"
			s := k.signed(good(j))
			j.send(transfer.OutputBody{Receipt: s})
			j.tokens(text("x")...)
		},
		"receipt with a changed bit": func(j *gotJob) {
			s := j.signed(good(j))
			s.Statement[len(s.Statement)-1] ^= 1
			j.send(transfer.OutputBody{Receipt: s})
			j.tokens(text("x")...)
		},
		"receipt signed by prefill": func(j *gotJob) {
			s := must(j.n.w.nodes["p0"].peer.SignReceipt(must(good(j).Append(nil)), j.Reply, 0))
			j.send(transfer.OutputBody{Receipt: s})
			j.tokens(text("x")...)
		},
		"more cached tokens than prompt": func(j *gotJob) {
			j.send(transfer.OutputBody{Receipt: must(j.n.peer.SignReceipt(must(good(j).Append(nil)), j.Reply, len(j.Prompt)+1))})
			j.tokens(text("x")...)
		},
		"two receipts":    func(j *gotJob) { j.receipt(); j.receipt() },
		"too many tokens": func(j *gotJob) { j.receipt(); j.tokens(text("0123456789x")...) },
		"a wrong count":   func(j *gotJob) { j.receipt(); j.tokens(text("x")...); j.finish("stop", 2) },
		"another prompt": func(j *gotJob) {
			j.receipt()
			j.tokens(text("x")...)
			j.send(transfer.OutputBody{Finish: &transfer.Finish{Reason: "stop", Generated: 1, Prompt: 1}})
		},
		"an answer cut short":       func(j *gotJob) { j.receipt(); j.tokens(text("x")...); j.finish("length", 1) },
		"an end that no token says": func(j *gotJob) { j.receipt(); j.tokens(text("x")...); j.finish("stop", 1) },
		"a token after the end": func(j *gotJob) {
			j.receipt()
			j.tokens(sample.Token{ID: idEnd, EOG: true})
			j.tokens(text("x")...)
		},
		"a token outside the vocabulary": func(j *gotJob) { j.receipt(); j.tokens(sample.Token{ID: 1 << 20}) },
		"a negative token":               func(j *gotJob) { j.receipt(); j.tokens(sample.Token{ID: -1}) },
		"a gap":                          func(j *gotJob) { j.receipt(); j.tokens(text("x")...); j.skip(); j.finish("stop", 1) },
		"output of prefill": func(j *gotJob) {
			p := j.n.w.nodes["p0"].find(j.hash)
			p.send(transfer.OutputBody{Fail: &transfer.Reject{TokenHash: j.hash, Reason: transfer.ReasonIntegrity}})
		},
		"failure after tokens": func(j *gotJob) {
			j.receipt()
			j.tokens(text("x")...)
			j.send(transfer.OutputBody{Fail: &transfer.Reject{TokenHash: j.hash, Reason: transfer.ReasonIntegrity}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			defer w.close()
			body := chat(`,"max_tokens":10`)
			if send == nil {
				body = strings.Replace(body, `"hi"`, `"`+strings.Repeat("a", 60)+`"`, 1) // two pages
				send = withReceipt(func(r *seal.Receipt) { r.Pages = 1 })
			}
			w.nodes["p0"].onJob = func(j *gotJob) { j.accept(); send(w.nodes["d0"].find(j.hash)) }
			a := w.post(chatPath, body)
			if e := a.errorObject(t); a.Code != 502 || str(e.Code) != "integrity_error" {
				t.Errorf("status %d %s", a.Code, a.Body)
			}
			w.eventually("both cancels", w.cancelled)
			if !strings.Contains(w.audit.String(), `"event":"violation"`) {
				t.Errorf("no violation in the audit record: %s", w.audit.String())
			}
			w.empty()
		})
	}
}

// skip loses one message of the output.
func (j *gotJob) skip() {
	lost := make(chan struct{})
	j.n.w.lose(lost)
	j.tokens(text("y")...)
	<-lost
}

// TestBadAccept: a yes with fewer pages than the whole sequence needs is no yes.
func TestBadAccept(t *testing.T) {
	w := newWorld(t, nil)
	defer w.close()
	w.nodes["d0"].onJob = func(j *gotJob) { j.answer(&transfer.Accept{Pages: 1}, nil) }
	a := w.post(chatPath, chat(`,"max_tokens":100`)) // two pages
	if a.Code != 502 {
		t.Errorf("status %d %s", a.Code, a.Body)
	}
	if jobs, _ := w.nodes["p0"].got(); len(jobs) != 0 {
		t.Error("prefill was told")
	}
}

// TestHeartbeat: a stream that waits gets comments; the first commits the 200, and from then on a failure is an event.
func TestHeartbeat(t *testing.T) {
	testKeys()
	for _, good := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.SSEHeartbeatAfter = 15 * time.Second; c.FirstTokenTimeout = 100 * time.Second })
			defer w.close()
			w.nodes["p0"].onJob = func(j *gotJob) {
				j.accept()
				go func() {
					time.Sleep(40 * time.Second)
					if d := w.nodes["d0"].find(j.hash); good {
						d.reply("late")
					} else {
						d.send(transfer.OutputBody{Fail: &transfer.Reject{TokenHash: j.hash, Reason: transfer.ReasonLogits}})
					}
				}()
			}
			a := w.post(chatPath, chat(`,"stream":true`))
			all := events(a.Body)
			if a.Code != 200 || len(all) < 3 || all[0] != ": keepalive" || all[1] != ": keepalive" || a.Header().Get("x-bulkhead-receipt") != "" {
				t.Fatalf("status %d: %q", a.Code, all)
			}
			if good && (!strings.HasPrefix(all[2], ": bulkhead-receipt ") || all[len(all)-1] != "[DONE]") {
				t.Errorf("got %q", all)
			}
			if !good && (len(all) != 3 || !strings.HasPrefix(all[2], `{"error":`)) {
				t.Errorf("got %q", all)
			}
		})
	}
}

// TestQueue: what fits but not now waits, and goes on when room is free.
func TestQueue(t *testing.T) {
	testKeys()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		defer w.close()
		for _, n := range w.nodes {
			n.ann.Capacity, n.ann.FreeTokens = testWindow, testWindow
			w.announce(n)
		}
		release := make(chan *gotJob, 8)
		w.nodes["p0"].onJob = func(j *gotJob) { j.accept(); release <- w.nodes["d0"].find(j.hash) }
		var wg sync.WaitGroup
		codes := make([]int, 3)
		for i := range codes { // each wants the whole pool
			wg.Go(func() { codes[i] = w.post(chatPath, chat(`,"max_tokens":200`)).Code })
		}
		for range codes {
			j := <-release
			synctest.Wait()
			if n := len(release); n != 0 {
				t.Errorf("%d more jobs than the pool holds", n)
			}
			j.reply("x")
		}
		wg.Wait()
		if fmt.Sprint(codes) != "[200 200 200]" {
			t.Errorf("statuses %v\n%s", codes, w.log.String())
		}
		w.empty()
	})
}

// TestSlowReader: a client that does not read does not keep its place; both nodes are told.
func TestSlowReader(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.StreamBuffer = 100; c.WriteTimeout = time.Second })
	defer w.close()
	over := make(chan struct{})
	w.nodes["d0"].onCancel = func(transfer.Cancel) { close(over) }
	for _, n := range w.nodes {
		n.ann.Capacity, n.ann.Window, n.ann.FreeTokens = 1<<20, 1<<20, 1<<20
		w.announce(n)
	}
	w.nodes["p0"].onJob = func(j *gotJob) {
		j.accept()
		d := w.nodes["d0"].find(j.hash)
		d.receipt()
		go func() {
			for {
				select {
				case <-over:
					return
				default:
					top := make([]sample.TopToken, 20) // bulky, so that the socket's buffers fill soon
					d.tokens(sample.Token{ID: 'x', Top: top})
					time.Sleep(100 * time.Microsecond)
				}
			}
		}()
	}
	addr, stop := w.serve()
	defer stop()
	conn := must(net.Dial("tcp", addr))
	defer conn.Close()
	writeRequest(conn, chat(`,"stream":true,"max_tokens":1000000,"logprobs":true,"top_logprobs":20`))
	w.eventually("both cancels", w.cancelled)
	w.eventually("the closing line", func() bool { return strings.Contains(w.log.String(), "slow_reader") })
	w.empty()
}

// TestSlowBody: a body that does not come is not waited for.
func TestSlowBody(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.BodyTimeout = 50 * time.Millisecond })
	defer w.close()
	addr, stop := w.serve()
	defer stop()
	conn := must(net.Dial("tcp", addr))
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", chatPath, testKey)
	resp := must(http.ReadResponse(bufio.NewReader(conn), nil))
	defer resp.Body.Close()
	if body := must(io.ReadAll(resp.Body)); resp.StatusCode != 408 || !strings.Contains(string(body), "request_timeout") {
		t.Errorf("status %d %s", resp.StatusCode, body)
	}
	if again := resp.Header.Get("x-should-retry"); again != "" {
		t.Errorf("x-should-retry %q, but nothing was started", again)
	}
}

// TestLargePrompts: large prompts are tokenized one at a time, as each takes many times its own
// size in memory. While one is at it (the test holds its place), another waits, and gives up with its client;
// small ones pass.
func TestLargePrompts(t *testing.T) {
	w := newWorld(t, nil)
	defer w.close()
	gone, leave := context.WithCancel(context.Background())
	leave()
	text := strings.Repeat("a", largeText+1)
	bodies := map[string]string{
		chatPath: fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}]}`, testModel, text),
		textPath: fmt.Sprintf(`{"model":%q,"prompt":[%q]}`, testModel, text),
	}
	for path, body := range bodies {
		w.router.large <- struct{}{}
		if got := w.do(gone, path, body); got.Code != statusClientGone {
			t.Errorf("%s: a large prompt beside another, its client gone: status %d, want %d", path, got.Code, statusClientGone)
		}
		if got := w.post(chatPath, chat("")); got.Code != http.StatusOK {
			t.Errorf("a small prompt beside a large one: status %d: %s", got.Code, got.Body)
		}
		<-w.router.large
		if got := w.post(path, body); got.Code != http.StatusBadRequest || str(got.errorObject(t).Code) != "context_length_exceeded" {
			t.Errorf("%s: a large prompt alone: status %d: %.200s", path, got.Code, got.Body)
		}
	}
	if len(w.router.large) != 0 {
		t.Error("a large prompt's place is still taken")
	}
}

// TestDrain: requests in work are finished, new ones refused, and what is left at the end of the
// patience is cut off with an error, at the nodes too.
func TestDrain(t *testing.T) {
	for _, patient := range []bool{true, false} {
		w := newWorld(t, func(c *Config) {
			if !patient {
				c.DrainTimeout = time.Millisecond
			}
		})
		working := make(chan *gotJob, 1)
		w.nodes["p0"].onJob = func(j *gotJob) {
			j.accept()
			d := w.nodes["d0"].find(j.hash)
			d.receipt()
			d.tokens(text("he")...)
			working <- d
		}
		addr, stop := w.serve()
		conn := must(net.Dial("tcp", addr))
		writeRequest(conn, chat(`,"stream":true`))
		d := <-working
		r := bufio.NewReader(conn)
		for line := ""; !strings.Contains(line, `"he"`); line = must(r.ReadString('\n')) {
		}
		stopped := make(chan struct{})
		go func() { stop(); close(stopped) }()
		w.eventually("draining", func() bool { return w.router.draining.Load() })
		if a := w.post(chatPath, chat(``)); a.Code != 503 || a.Header().Get("Connection") != "close" {
			t.Errorf("a new request while draining: %d", a.Code)
		}
		if patient {
			d.tokens(sample.Token{ID: idEnd, EOG: true})
			d.finish("stop", 3)
		}
		rest := string(must(io.ReadAll(r)))
		if patient != strings.Contains(rest, "[DONE]") || patient == strings.Contains(rest, `"code":"draining"`) {
			t.Errorf("patient %v: %s", patient, rest)
		}
		<-stopped
		if !patient && !w.cancelled() {
			t.Error("the nodes were not told")
		}
		conn.Close()
		w.close()
	}
}

// TestAudit: every 200 joins to one admit and one commit with the receipt that the client got, and each
// line holds the hash of the one before.
func TestAudit(t *testing.T) {
	w := newWorld(t, nil)
	defer w.close()
	a := w.post(chatPath, chat(``))
	w.post(chatPath, chat(`,"tools":[]`))
	var seen []string
	prev := strings.Repeat("0", 64)
	for line := range strings.Lines(w.audit.String()) {
		line = strings.TrimSuffix(line, "\n")
		var r map[string]any
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r["prev"] != prev {
			t.Errorf("prev %v, want %s", r["prev"], prev)
		}
		sum := sha256.Sum256([]byte(line))
		prev = hex.EncodeToString(sum[:])
		seen = append(seen, fmt.Sprint(r["event"]))
		if r["event"] == "commit" && (r["receipt"] != a.Header().Get("x-bulkhead-receipt") || r["request_id"] != a.Header().Get("x-request-id")) {
			t.Errorf("commit %v, headers %v", r, a.Header())
		}
	}
	if got := strings.Join(seen, " "); got != "admit commit finish reject" {
		t.Errorf("events %q", got)
	}
}

// dumb is a cluster whose bus takes no subscription.
type dumb struct{ Cluster }

func (dumb) ReceiveOutput(string, [32]byte, transfer.Hash, func(transfer.Role, transfer.OutputBody), func(error)) (func(), error) {
	return nil, fmt.Errorf("%w: the server did not answer", transfer.ErrDisconnected)
}

// TestBusSilent: while the bus does not answer, no node is at fault and none of the router's code: the
// client is told to come again.
func TestBusSilent(t *testing.T) {
	testKeys()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.Cluster = dumb{c.Cluster} })
		defer w.close()
		r := w.do(t.Context(), chatPath, chat(""))
		if r.Code != 503 || !strings.Contains(r.Body.String(), `"overloaded"`) || r.Header().Get("Retry-After") == "" {
			t.Errorf("status %d, %s", r.Code, r.Body)
		}
		if jobs, _ := w.nodes["d0"].got(); len(jobs) != 0 {
			t.Errorf("%d jobs were sent", len(jobs))
		}
	})
}
