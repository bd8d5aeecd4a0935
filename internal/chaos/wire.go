package chaos

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// ErrProtocol is a stream that is not the NATS protocol.
var ErrProtocol = errors.New("chaos: not the NATS protocol")

// Bounds of one operation in bytes.
const (
	lineMax    = 256 << 10 // a CONNECT has a JWT in it, an INFO may have many addresses
	payloadMax = 64 << 20
)

// op is one operation of the NATS protocol: a line, and a payload if it is a message.
type op struct {
	line    []byte // with its end
	subject string // of a message; "" for every other operation
	payload []byte // headers and data, without the end
}

// message reports whether it carries one.
func (o op) message() bool { return o.subject != "" }

// bytes is the operation as it travels.
func (o op) bytes() []byte {
	if !o.message() {
		return o.line
	}
	b := make([]byte, 0, len(o.line)+len(o.payload)+2)
	return append(append(append(b, o.line...), o.payload...), '\r', '\n')
}

// readOp reads the next operation. Errors: the reader's, ErrProtocol.
func readOp(r *bufio.Reader) (o op, err error) {
	if o.line, err = readLine(r); err != nil {
		return o, err
	}
	f := bytes.Fields(o.line)
	if len(f) == 0 {
		return o, nil
	}
	// PUB subject [reply] size             HPUB subject [reply] headers size
	// MSG subject sid [reply] size         HMSG subject sid [reply] headers size
	least := 0
	switch string(bytes.ToUpper(f[0])) {
	case "PUB":
		least = 3
	case "HPUB", "MSG":
		least = 4
	case "HMSG":
		least = 5
	case "INFO":
		o.line, err = alone(o.line)
		return o, err
	default:
		return o, nil
	}
	if len(f) != least && len(f) != least+1 {
		return o, fmt.Errorf("%w: %s with %d arguments", ErrProtocol, f[0], len(f)-1)
	}
	size, err := strconv.Atoi(string(f[len(f)-1]))
	if err != nil || size < 0 || size > payloadMax {
		return o, fmt.Errorf("%w: %s of %q bytes, at most %d", ErrProtocol, f[0], f[len(f)-1], payloadMax)
	}
	o.subject = string(f[1])
	body := make([]byte, size+2)
	if _, err := io.ReadFull(r, body); err != nil {
		return o, err
	}
	if string(body[size:]) != "\r\n" {
		return o, fmt.Errorf("%w: %s of %d bytes does not end there", ErrProtocol, f[0], size)
	}
	o.payload = body[:size]
	return o, nil
}

func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > lineMax {
			return nil, fmt.Errorf("%w: a line of over %d bytes", ErrProtocol, lineMax)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// alone takes the server's other addresses out of an INFO line.
func alone(line []byte) ([]byte, error) {
	var info map[string]json.RawMessage
	if err := json.Unmarshal(line[len("INFO"):], &info); err != nil {
		return nil, fmt.Errorf("%w: INFO: %w", ErrProtocol, err)
	}
	delete(info, "connect_urls")
	delete(info, "ws_connect_urls")
	b, err := json.Marshal(info)
	if err != nil {
		return nil, err
	}
	return append(append([]byte("INFO "), b...), '\r', '\n'), nil
}
