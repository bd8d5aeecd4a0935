package transfer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// script is a connection that gives its bytes in pieces of random size.
type script struct {
	net.Conn // unused
	in       []byte
	rng      *rand.Rand
	wrote    []byte
}

func (s *script) Read(p []byte) (int, error) {
	if len(s.in) == 0 {
		return 0, io.EOF
	}
	n := min(len(p), len(s.in), 1+s.rng.IntN(1<<s.rng.IntN(18)))
	copy(p, s.in[:n])
	s.in = s.in[n:]
	return n, nil
}

func (s *script) Write(p []byte) (int, error) { s.wrote = append(s.wrote, p...); return len(p), nil }

// readAll reads with buffers of random size until an error.
func readAll(c net.Conn, rng *rand.Rand) ([]byte, error) {
	var out []byte
	for {
		p := make([]byte, 1+rng.IntN(1<<rng.IntN(16)))
		n, err := c.Read(p)
		out = append(out, p[:n]...)
		if err != nil {
			return out, err
		}
	}
}

// undo puts payloads back where their notes are: what the client would have
// read without the exchange.
func undo(b *bulk, seen []byte) (original []byte, notes int) {
	for {
		at := bytes.Index(seen, b.secret[:])
		if at < 0 {
			return append(original, seen...), notes
		}
		head := seen[:at]
		size := fmt.Sprintf(" %d\r\n", bulkNote)
		if !bytes.HasSuffix(head, []byte(size)) {
			panic("a note that is no payload")
		}
		data, _ := b.take(seen[at : at+bulkNote])
		original = append(original, head[:len(head)-len(size)]...)
		original = append(original, fmt.Sprintf(" %d\r\n", len(data))...)
		original = append(original, data...)
		seen = seen[at+bulkNote:]
		notes++
	}
}

func payloadOf(rng *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(rng.Uint32())
	}
	copy(p, "MSG kv.d0.x 1 99999\r\n") // a payload is not read as protocol
	return p
}

// goal: the client reads exactly what the server wrote, but for the payloads of
// large KV messages, which lie under their notes in order. method: 40 random
// conversations, cut and read in random pieces.
func TestBulkConversation(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var server []byte
		want := 0
		for range 12 {
			reply := []string{"", "$JS.ACK.KV_d0.d0.1.2.3.4.5 "}[rng.IntN(2)]
			size := []int{0, 1, 100, bulkMin - 1, bulkMin, bulkMin + 7, 300 << 10, kvMessageMax, kvMessageMax + 1}[rng.IntN(9)]
			switch rng.IntN(6) {
			case 0:
				server = append(server, "PING\r\nPONG\r\n+OK\r\n-ERR 'x'\r\n"...)
			case 1:
				server = append(server, "INFO {\"nonce\":\""+strings.Repeat("n", rng.IntN(3*bulkLine))+"\"}\r\n"...)
			case 2: // not a KV subject, however large
				server = append(server, fmt.Sprintf("MSG job.decode.d0 7 _INBOX.r.1 %d\r\n%s\r\n", size, payloadOf(rng, size))...)
			case 3: // headers
				server = append(server, fmt.Sprintf("HMSG kv.d0.x.1.y 7 %s12 %d\r\nNATS/1.0\r\n\r\n%s\r\n", reply, size+12, payloadOf(rng, size))...)
			default:
				server = append(server, fmt.Sprintf("MSG kv.d0.x.1.y 7 %s%d\r\n%s\r\n", reply, size, payloadOf(rng, size))...)
				if size >= bulkMin && size <= kvMessageMax {
					want++
				}
			}
		}
		b := newBulk()
		c := newBulkConn(&script{in: bytes.Clone(server), rng: rng}, b)
		if _, err := c.Write([]byte("CONNECT {}\r\n")); err != nil {
			t.Fatal(err)
		}
		seen, err := readAll(c, rng)
		if err != io.EOF {
			t.Fatalf("seed %d: %v", seed, err)
		}
		got, notes := undo(b, seen)
		if !bytes.Equal(got, server) || notes != want {
			t.Fatalf("seed %d: %d notes, want %d; bytes equal: %t", seed, notes, want, bytes.Equal(got, server))
		}
	}
}

// goal: over TLS or a websocket nothing is looked at. method: ciphertext that
// looks like a large KV message.
func TestBulkOpaque(t *testing.T) {
	server := []byte(fmt.Sprintf("INFO {}\r\nMSG kv.d0.x 1 %d\r\n%s\r\n", bulkMin, make([]byte, bulkMin)))
	for _, first := range []string{"\x16\x03\x01", "GET / HTTP/1.1\r\n"} {
		rng := rand.New(rand.NewPCG(1, 1))
		b := newBulk()
		c := newBulkConn(&script{in: bytes.Clone(server), rng: rng}, b)
		p := make([]byte, len("INFO {}\r\n"))
		if _, err := io.ReadFull(c, p); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte(first)); err != nil {
			t.Fatal(err)
		}
		rest, err := readAll(c, rng)
		if got := append(p, rest...); err != io.EOF || !bytes.Equal(got, server) {
			t.Errorf("%q: changed, err %v", first, err)
		}
	}
}

// goal: a connection that ends within a payload gives the client an error and
// no note; a head without an end does not grow.
func TestBulkBroken(t *testing.T) {
	for _, c := range []struct {
		server string
		want   error
	}{
		{fmt.Sprintf("MSG kv.d0.x 1 %d\r\nshort", bulkMin), io.ErrUnexpectedEOF},
		{"MSG kv." + strings.Repeat("x", 10*bulkLine), errBulkLine},
		{"HMSG " + strings.Repeat("x", 10*bulkLine), errBulkLine},
		{fmt.Sprintf("MSG kv.d0.x 1 %d", bulkMin), io.EOF},
	} {
		rng := rand.New(rand.NewPCG(2, 1))
		b := newBulk()
		seen, err := readAll(newBulkConn(&script{in: []byte(c.server), rng: rng}, b), rng)
		if !errors.Is(err, c.want) || bytes.Contains(seen, b.secret[:]) || len(b.notes) != 0 {
			t.Errorf("%.20q: %v, %d notes", c.server, err, len(b.notes))
		}
	}
}

// goal: notes are bounded; a note whose payload gave way, or that was passed
// over, has no payload and no bytes of another's; a guess is no note.
func TestBulkNotes(t *testing.T) {
	b := newBulk()
	var notes [][]byte
	for i := range bulkNotes + 10 {
		notes = append(notes, b.put([]byte{byte(i)}))
	}
	if len(b.notes) != bulkNotes {
		t.Fatalf("%d notes held, limit %d", len(b.notes), bulkNotes)
	}
	if data, isNote := b.take(notes[9]); !isNote || data != nil {
		t.Errorf("a note that gave way: %v %t", data, isNote)
	}
	if data, _ := b.take(notes[50]); len(data) != 1 || data[0] != 50 {
		t.Errorf("note 50: %v", data)
	}
	for _, i := range []int{50, 49, 10} {
		if data, isNote := b.take(notes[i]); !isNote || data != nil {
			t.Errorf("note %d: %v %t", i, data, isNote)
		}
	}
	if len(b.notes) != bulkNotes+10-51 {
		t.Errorf("%d notes held", len(b.notes))
	}
	forged := bytes.Clone(notes[60])
	forged[3] ^= 1
	if _, isNote := b.take(forged); isNote {
		t.Error("a forged note was taken")
	}
}

// goal: a buffer is used again only when its message was ended, and once;
// spare memory is bounded. method: the puller itself.
func TestBulkRecycle(t *testing.T) {
	c := &Conn{bulk: newBulk(), cfg: Config{Counters: new(Counters)}, log: slog.New(slog.DiscardHandler), nc: &nats.Conn{}}
	var got []KVMsg
	p := &puller{c: c, node: "d0", handler: func(m KVMsg) { got = append(got, m) }, ready: func(bool) {}, pulling: true, outstanding: 32}
	deliver := func(subject string) []byte {
		data := c.bulk.buffer(100)
		p.take(&nats.Msg{Subject: subject, Data: c.bulk.put(data)})
		return data
	}
	mine := KVSubject{Decode: "d0", Attempt: 1}.String()
	first := deliver(mine)
	if len(got) != 1 || &got[0].Data[0] != &first[0] || len(c.bulk.spare) != 0 {
		t.Fatalf("%d messages, %d spare", len(got), len(c.bulk.spare))
	}
	got[0].Ack()
	got[0].Ack()
	got[0].Term()
	if len(c.bulk.spare) != 1 {
		t.Fatalf("%d spare after one message", len(c.bulk.spare))
	}
	if next := deliver(mine); &next[0] != &first[0] {
		t.Error("the warm buffer was not used")
	}
	if deliver(KVSubject{Decode: "d1", Attempt: 1}.String()); len(got) != 2 || len(c.bulk.spare) != 1 {
		t.Errorf("a foreign message: %d messages, %d spare", len(got), len(c.bulk.spare))
	}
	for range 2 * bulkSpare / bulkRound {
		c.bulk.recycle(make([]byte, bulkRound))
	}
	if c.bulk.bytes > bulkSpare {
		t.Errorf("%d bytes spare, limit %d", c.bulk.bytes, bulkSpare)
	}
}

// FuzzBulk: whatever a server writes, the client reads it or an error.
func FuzzBulk(f *testing.F) {
	f.Add([]byte("INFO {}\r\nMSG kv.d0.x 1 40000\r\n"), uint64(1))
	f.Add([]byte("MSG kv.d0.x 1 -5\r\nHMSG a 1 2 99999999999999999999\r\nMSG \r\nMSG\r\n\n"), uint64(2))
	f.Fuzz(func(t *testing.T, server []byte, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 1))
		b := newBulk()
		seen, err := readAll(newBulkConn(&script{in: bytes.Clone(server), rng: rng}, b), rng)
		got, _ := undo(b, seen)
		if err == io.EOF && !bytes.Equal(got, server) || !bytes.HasPrefix(server, got) {
			t.Fatalf("read %.60q of %.60q: %v", got, server, err)
		}
	})
}
