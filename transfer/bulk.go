package transfer

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
)

// The NATS client reads 32 KiB at a time and copies every message into memory
// made and zeroed for it, which for KV frames costs as much as the socket. So a
// bulkConn sits between socket and client: it reads a frame's payload straight into
// a buffer that is used again, and hands the client a message with a note in its place.
// ConsumeKV exchanges the note for the buffer. Login, pings, reconnects,
// subscriptions and acknowledgements stay the library's.
const (
	bulkMin    = 32 << 10        // smaller payloads pass as they are
	bulkNote   = 24              // a secret of this process, and a number
	bulkNotes  = 4 * kvPullBatch // not yet exchanged; a puller has at most two batches on their way
	bulkSpare  = 32 << 20        // bytes kept for use again
	bulkRound  = 64 << 10        // buffers are multiples of it
	bulkLine   = 8 << 10         // the longest line that is looked at; the server's own limit is half
	kvSubjects = "kv."
)

// errBulkLine is a message's head that is longer than the server would write.
var errBulkLine = errors.New("transfer: NATS control line too long")

// Of a strict connection.
var (
	errBulkPayload = errors.New("transfer: message of a KV server too long")
	errBulkClear   = errors.New("transfer: a KV server asks for TLS")
)

// bulk holds the payloads of one Conn that lie outside the client.
type bulk struct {
	secret [16]byte

	mu    sync.Mutex
	next  uint64
	notes []bulkPayload // oldest first
	spare [][]byte
	bytes int // of spare
}

type bulkPayload struct {
	number uint64
	data   []byte
}

func newBulk() *bulk {
	b := &bulk{}
	rand.Read(b.secret[:])
	return b
}

// buffer returns a buffer of n bytes, the one used last if it is large enough:
// its memory is warm.
func (b *bulk) buffer(n int) []byte {
	b.mu.Lock()
	for i := len(b.spare) - 1; i >= 0; i-- {
		if s := b.spare[i]; cap(s) >= n {
			b.spare = append(b.spare[:i], b.spare[i+1:]...)
			b.bytes -= cap(s)
			b.mu.Unlock()
			return s[:n]
		}
	}
	b.mu.Unlock()
	return make([]byte, n, (n+bulkRound-1)/bulkRound*bulkRound)
}

// recycle takes a buffer back. Nobody may look at it any more.
func (b *bulk) recycle(s []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bytes+cap(s) <= bulkSpare {
		b.spare = append(b.spare, s)
		b.bytes += cap(s)
	}
}

// put keeps a payload and returns the note for it. A message that the client
// delivered elsewhere, or dropped, never exchanges its note: the oldest gives way.
func (b *bulk) put(data []byte) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.notes) == bulkNotes {
		b.notes = b.notes[:copy(b.notes, b.notes[1:])]
	}
	b.next++
	b.notes = append(b.notes, bulkPayload{b.next, data})
	return binary.BigEndian.AppendUint64(append(make([]byte, 0, bulkNote), b.secret[:]...), b.next)
}

// take exchanges a note. isNote is false for any other payload; data is nil for a
// note whose payload gave way. Notes are exchanged in their order, so those before it are dead.
func (b *bulk) take(note []byte) (data []byte, isNote bool) {
	if len(note) != bulkNote || [16]byte(note) != b.secret {
		return nil, false
	}
	number := binary.BigEndian.Uint64(note[16:])
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, p := range b.notes {
		if p.number == number {
			b.notes = b.notes[:copy(b.notes, b.notes[i+1:])]
			return p.data, true
		}
	}
	return nil, true
}

// bulkDialer makes the connections of a client that is not in the server's process.
type bulkDialer struct {
	net.Dialer
	bulk   *bulk
	strict bool // see bulkConn
}

// Dial implements [nats.CustomDialer].
func (d *bulkDialer) Dial(network, address string) (net.Conn, error) {
	c, err := d.Dialer.Dial(network, address)
	if err != nil {
		return nil, err
	}
	b := newBulkConn(c, d.bulk)
	b.strict = d.strict
	return b, nil
}

// bulkInProcess makes those of one that is.
type bulkInProcess struct {
	nats.InProcessConnProvider
	bulk *bulk
}

func (p bulkInProcess) InProcessConn() (net.Conn, error) {
	c, err := p.InProcessConnProvider.InProcessConn()
	if err != nil {
		return nil, err
	}
	return newBulkConn(c, p.bulk), nil
}

// bulkConn is a connection whose reader sees notes for large KV payloads. Over
// TLS it sees ciphertext and changes nothing.
type bulkConn struct {
	net.Conn
	bulk   *bulk
	strict bool // the server is not the cluster's own: only the protocol in clear, and little of it (see KVLink)

	opaque atomic.Bool // not the protocol in clear
	wrote  atomic.Bool

	// Below: owned by the reader.
	in   *bufio.Reader
	out  []byte // to hand on before anything else
	pass int    // bytes to hand on as they come
	mid  bool   // inside a line longer than in's buffer
	head []byte // of a message whose payload, of size bytes, is read next
	size int
	err  error
}

func newBulkConn(c net.Conn, b *bulk) *bulkConn {
	return &bulkConn{Conn: c, bulk: b, in: bufio.NewReaderSize(c, bulkLine)}
}

// Write looks at the first bytes that the client says: all that is not NATS in
// clear (a TLS or websocket handshake) makes the connection opaque.
func (c *bulkConn) Write(p []byte) (int, error) {
	if len(p) > 0 && c.wrote.CompareAndSwap(false, true) && !bytes.HasPrefix(p, []byte("CONNECT ")) {
		if c.strict {
			c.wrote.Store(false)
			return 0, errBulkClear
		}
		c.opaque.Store(true)
	}
	return c.Conn.Write(p)
}

// Read waits only while it has nothing to hand on.
func (c *bulkConn) Read(p []byte) (n int, err error) {
	if c.opaque.Load() {
		if len(c.out) > 0 {
			n = copy(p, c.out)
			c.out = c.out[n:]
			return n, nil
		}
		return c.in.Read(p)
	}
	for n < len(p) {
		switch {
		case len(c.out) > 0:
			k := copy(p[n:], c.out)
			c.out = c.out[k:]
			n += k
		case c.err != nil:
			if n > 0 {
				return n, nil
			}
			return 0, c.err
		case n > 0 && (c.size > 0 || c.in.Buffered() == 0 || c.pass == 0 && !c.buffered()):
			return n, nil
		case c.size > 0:
			c.payload()
		case c.pass > 0:
			k, err := c.in.Read(p[n:min(len(p), n+c.pass)])
			n, c.pass, c.err = n+k, c.pass-k, err
		default:
			c.line()
		}
	}
	return n, nil
}

// buffered reports whether a whole line can be had without waiting.
func (c *bulkConn) buffered() bool {
	have, err := c.in.Peek(c.in.Buffered())
	return err == nil && bytes.IndexByte(have, '\n') >= 0
}

// line reads one line of the protocol and decides what becomes of what follows it.
func (c *bulkConn) line() {
	line, err := c.in.ReadSlice('\n')
	c.out = line
	inside := c.mid
	c.mid = errors.Is(err, bufio.ErrBufferFull)
	if err != nil && !c.mid {
		c.err = err
		return
	}
	message := bytes.HasPrefix(line, []byte("MSG "))
	if c.mid && c.strict {
		c.out, c.err = nil, errBulkLine
		return
	}
	if inside || !message && !bytes.HasPrefix(line, []byte("HMSG ")) {
		return
	}
	if c.mid {
		c.out, c.err = nil, errBulkLine
		return
	}
	at := bytes.LastIndexByte(bytes.TrimRight(line, "\r\n"), ' ') + 1
	size, err := strconv.Atoi(string(bytes.TrimRight(line[at:], "\r\n")))
	switch {
	case err != nil || size < 0:
		return // the client's parser refuses it
	case c.strict && size > kvLinkPayload: // the client would make room for what is announced
		c.out, c.err = nil, fmt.Errorf("%w: %d bytes, limit %d", errBulkPayload, size, kvLinkPayload)
	case message && size >= bulkMin && size <= kvMessageMax && bytes.HasPrefix(line[len("MSG "):], []byte(kvSubjects)):
		c.head, c.size, c.out = append(c.head[:0], line[:at]...), size, nil
	default:
		c.pass = size + len("\r\n")
	}
}

// payload reads a payload into a buffer of its own and hands on a note for it.
func (c *bulkConn) payload() {
	data := c.bulk.buffer(c.size)
	c.size = 0
	if _, err := io.ReadFull(c.in, data); err != nil {
		c.bulk.recycle(data)
		if c.err = err; err == io.EOF {
			c.err = io.ErrUnexpectedEOF
		}
		return
	}
	c.head = append(strconv.AppendInt(c.head, bulkNote, 10), "\r\n"...)
	c.head = append(c.head, c.bulk.put(data)...)
	c.out, c.pass = c.head, len("\r\n")
}
