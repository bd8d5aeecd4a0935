package chaos

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// rig is a proxy with the test at both ends.
type rig struct {
	t      *testing.T
	p      *Proxy
	ln     net.Listener
	node   net.Conn
	server net.Conn
	heard  *bufio.Reader // what the server gets
}

func newRig(t *testing.T, seed uint64) *rig {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	p, err := New(Config{Upstream: ln.Addr().String(), Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	r := &rig{t: t, p: p, ln: ln}
	r.connect()
	return r
}

func (r *rig) connect() {
	r.t.Helper()
	var err error
	if r.node, err = net.Dial("tcp", r.p.Addr()); err != nil {
		r.t.Fatal(err)
	}
	if r.server, err = r.ln.Accept(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { r.node.Close(); r.server.Close() })
	r.heard = bufio.NewReader(r.server)
}

// say writes n numbered messages and a last word behind them, and returns the numbers that came before it.
func (r *rig) say(n int, last string) (came []int, err error) {
	go func() {
		for i := range n {
			text := strconv.Itoa(i)
			fmt.Fprintf(r.node, "PUB s.%d r %d\r\n%s\r\n", i, len(text), text)
		}
		io.WriteString(r.node, last+"\r\n")
	}()
	for {
		o, err := readOp(r.heard)
		if err != nil {
			return came, err
		}
		if !o.message() {
			if got := strings.TrimSpace(string(o.line)); got != last {
				r.t.Fatalf("%q passed as %q", last, got)
			}
			return came, nil
		}
		i, err := strconv.Atoi(string(o.payload))
		if err != nil || o.subject != fmt.Sprintf("s.%d", i) {
			return came, fmt.Errorf("message %q with %q", o.subject, o.payload)
		}
		came = append(came, i)
	}
}

func upTo(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// goal: without faults bytes pass as they are, both ways, and only INFO loses what
// leads past the proxy.
func TestPasses(t *testing.T) {
	r := newRig(t, 1)
	in := "CONNECT {\"jwt\":\"" + strings.Repeat("x", 9000) + "\"}\r\nPING\r\nSUB a.> 1\r\nPUB a.b 0\r\n\r\nHPUB a.b _INBOX.1 12 14\r\nNATS/1.0\r\n\r\nhi\r\nPUB a.b 4\r\n\r\n\r\n\r\n"
	go io.WriteString(r.node, in)
	got := make([]byte, len(in))
	if _, err := io.ReadFull(r.heard, got); err != nil || string(got) != in {
		t.Fatalf("to the server: %v, %q", err, got)
	}
	out := "MSG a.b 1 5\r\nhello\r\nHMSG a.b 1 _INBOX.2 12 12\r\nNATS/1.0\r\n\r\n\r\n+OK\r\n-ERR 'no'\r\n"
	go io.WriteString(r.server, "INFO {\"connect_urls\":[\"10.0.0.1:4222\"],\"max_payload\":8,\"nonce\":\"n\"}\r\n"+out)
	want := "INFO {\"max_payload\":8,\"nonce\":\"n\"}\r\n" + out
	got = make([]byte, len(want))
	if _, err := io.ReadFull(r.node, got); err != nil || string(got) != want {
		t.Fatalf("to the node: %v, %q", err, got)
	}
	if seen, done := r.p.Stats(); seen != 5 || len(done) != 0 {
		t.Errorf("%d messages seen, %v done", seen, done)
	}
}

// goal: each kind does what it says and nothing else. method: 400 numbered messages, each
// met with probability 1/4.
func TestKinds(t *testing.T) {
	const n = 400
	met := func(t *testing.T, k Kind) ([]int, *rig) {
		r := newRig(t, 7)
		r.p.Set(Faults{k: 0.25})
		came, err := r.say(n, "PING")
		if err != nil {
			t.Fatal(err)
		}
		if _, done := r.p.Stats(); done[k] < n/8 || done[k] > n/2 || len(done) != 1 {
			t.Fatalf("faults done: %v", done)
		}
		return came, r
	}
	count := func(came []int) map[int]int {
		c := map[int]int{}
		for _, i := range came {
			c[i]++
		}
		return c
	}
	t.Run("drop", func(t *testing.T) {
		came, r := met(t, Drop)
		_, done := r.p.Stats()
		if !slices.IsSorted(came) || len(came) != n-int(done[Drop]) || len(count(came)) != len(came) {
			t.Errorf("%d came, %d were dropped: %v", len(came), done[Drop], came)
		}
	})
	t.Run("duplicate", func(t *testing.T) {
		came, r := met(t, Duplicate)
		_, done := r.p.Stats()
		if c := count(came); !slices.IsSorted(came) || len(c) != n || len(came) < n+int(done[Duplicate]) {
			t.Errorf("%d came of %d, %d twice or more", len(came), len(c), done[Duplicate])
		}
	})
	t.Run("reorder", func(t *testing.T) {
		came, _ := met(t, Reorder)
		if slices.IsSorted(came) {
			t.Error("in order")
		}
		c := count(came)
		for i, at := range came {
			if at < i-2*overtakenMax || c[at] != 1 {
				t.Errorf("message %d came %d times, as number %d", at, c[at], i)
			}
		}
		if len(came) < n-2*overtakenMax { // those at the end may be held a little longer than the last word
			t.Errorf("%d came", len(came))
		}
	})
	t.Run("delay", func(t *testing.T) {
		came, r := met(t, Delay)
		_, done := r.p.Stats()
		c := count(came)
		for len(c) < n {
			more, err := r.say(0, "PING")
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range more {
				c[i]++
			}
			time.Sleep(5 * time.Millisecond)
		}
		if len(came) == n || len(came) < n-int(done[Delay]) {
			t.Errorf("%d came in time, %d were delayed", len(came), done[Delay])
		}
	})
	t.Run("replay", func(t *testing.T) {
		came, r := met(t, Replay)
		_, done := r.p.Stats()
		if c := count(came); len(c) != n || len(came) != n+int(done[Replay]) {
			t.Errorf("%d came of %d, %d were repeated", len(came), len(c), done[Replay])
		}
	})
	t.Run("cut", func(t *testing.T) {
		r := newRig(t, 7)
		r.p.Set(Faults{Cut: 0.05})
		came, err := r.say(n, "PING")
		if err == nil || len(came) == n || !slices.Equal(came, upTo(len(came))) {
			t.Errorf("%d came: %v", len(came), err)
		}
		if _, err := r.node.Read(make([]byte, 1)); err == nil {
			t.Error("the node's side goes on")
		}
	})
}

// goal: a flipped bit is one of a payload, never of a line: it cannot become another
// message's length or subject.
func TestFlip(t *testing.T) {
	r := newRig(t, 3)
	r.p.Set(Faults{Flip: 1})
	text := strings.Repeat("\x00", 64)
	go func() {
		for i := range 200 {
			fmt.Fprintf(r.node, "PUB s.%d 64\r\n%s\r\n", i, text)
		}
		io.WriteString(r.node, "PUB s 0\r\n\r\n")
	}()
	for i := range 200 {
		o, err := readOp(r.heard)
		if err != nil || o.subject != fmt.Sprintf("s.%d", i) || len(o.payload) != 64 {
			t.Fatalf("message %d: %v, %q of %d bytes", i, err, o.subject, len(o.payload))
		}
		bits := 0
		for _, b := range o.payload {
			for ; b != 0; b &= b - 1 {
				bits++
			}
		}
		if bits > 3 {
			t.Fatalf("message %d: %d bits flipped", i, bits)
		}
	}
	if o, err := readOp(r.heard); err != nil || o.subject != "s" {
		t.Errorf("an empty message: %v, %+v", err, o)
	}
	if _, done := r.p.Stats(); done[Flip] != 200 {
		t.Errorf("%v", done)
	}
}

// goal: a pulled cable lets nothing pass and loses nothing; a severed one ends connections.
func TestCable(t *testing.T) {
	r := newRig(t, 1)
	r.p.Hold(true)
	said := make(chan error, 1)
	go func() {
		came, err := r.say(50, "PING")
		if err == nil && len(came) != 50 {
			err = fmt.Errorf("%d of 50 came", len(came))
		}
		said <- err
	}()
	second, err := net.Dial("tcp", r.p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	select {
	case err := <-said:
		t.Fatalf("passed: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	r.p.Hold(false)
	if err := <-said; err != nil {
		t.Fatal(err)
	}
	late, err := r.ln.Accept() // the second connection, only now
	if err != nil {
		t.Fatal(err)
	}
	late.Close()

	r.p.Sever(true)
	if _, err := r.heard.ReadByte(); err == nil {
		t.Error("a severed connection goes on")
	}
	c, err := net.Dial("tcp", r.p.Addr())
	if err == nil {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a connection through a severed cable")
		}
		c.Close()
	}
	r.p.Sever(false)
	r.connect()
	if came, err := r.say(3, "PING"); err != nil || len(came) != 3 {
		t.Errorf("afterwards: %v, %v", came, err)
	}
}

// goal: what happens follows from the seed alone, and each kind is met about as often as said.
func TestDecide(t *testing.T) {
	all := Faults{}
	for _, k := range Kinds {
		all[k] = 0.1
	}
	const n = 20000
	met := map[Kind]int{}
	for i := range uint64(n) {
		at := Place{Seed: 5, Stream: i % 7, Number: i}
		v := Decide(all, at, 100, 130, 10)
		if w := Decide(maps.Clone(all), at, 100, 130, 10); fmt.Sprint(v) != fmt.Sprint(w) {
			t.Fatalf("two verdicts: %v, %v", v, w)
		}
		for _, k := range v.Has() {
			met[k]++
		}
		if v.Cut > 130 || v.Replay > 10 || v.Delay > delayMax || v.Overtaken > overtakenMax {
			t.Fatalf("out of bounds: %+v", v)
		}
		for _, bit := range v.Flips {
			if bit < 0 || bit >= 800 {
				t.Fatalf("bit %d of 800", bit)
			}
		}
	}
	for _, k := range Kinds {
		if met[k] < n/12 || met[k] > n/8 {
			t.Errorf("%s: %d of %d", k, met[k], n)
		}
	}
	if v := Decide(nil, Place{}, 1, 1, 1); len(v.Has()) != 0 {
		t.Errorf("without faults: %+v", v)
	}
	if v := Decide(Faults{Flip: 1, Replay: 1}, Place{}, 0, 10, 0); len(v.Has()) != 0 {
		t.Errorf("nothing to flip or replay: %+v", v)
	}
}

// goal: what is not the protocol ends the connection and takes no memory.
func TestReadOp(t *testing.T) {
	for name, in := range map[string]string{
		"no size":         "PUB a\r\n",
		"too many":        "PUB a b c 1\r\nx\r\n",
		"no number":       "PUB a x\r\n",
		"negative":        "PUB a -1\r\n",
		"huge":            "PUB a 99999999999\r\n",
		"end elsewhere":   "PUB a 1\r\nxyz\r\n",
		"INFO is no JSON": "INFO {\r\n",
		"endless line":    strings.Repeat("x", lineMax+1),
	} {
		t.Run(name, func(t *testing.T) {
			if o, err := readOp(bufio.NewReader(strings.NewReader(in))); !errors.Is(err, ErrProtocol) {
				t.Errorf("%+v, %v", o, err)
			}
		})
	}
	if _, err := readOp(bufio.NewReader(strings.NewReader("PUB a 10\r\nabc"))); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut short: %v", err)
	}
}
