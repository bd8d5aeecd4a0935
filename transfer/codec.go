package transfer

import (
	"bytes"
	"fmt"
	"reflect"

	"github.com/vmihailenco/msgpack/v5"

	"bulkhead/internal/sample"
)

// Sizes on the wire, in bytes. A message over its limit is neither sent nor read.
const (
	// FrameMax is the longest KV frame, header and tag included: 1 MiB of
	// payload and room for the header.
	FrameMax = 1<<20 + 4<<10
	// JobMax is the longest sealed job: PromptMax token ids at five bytes each,
	// the most msgpack takes for one, and room for the rest.
	JobMax = 6 << 20
	// controlMax bounds every other message.
	controlMax = 64 << 10
	// MaxPayload is what the server's max_payload must be at least: the largest
	// message and NATS headers.
	MaxPayload = JobMax + 64<<10
	// kvMessageMax is the largest message of a KV stream.
	kvMessageMax = FrameMax + 60<<10
)

// PromptMax is the most token ids a Job can name: a window of 1 Mi tokens. A
// router admits no longer prompt, whatever the nodes announce.
const PromptMax = 1 << 20

// TokensMax is the most sampled tokens in one Output.
const TokensMax = 64

const tokenMax = 4 << 10 // of a tenant token, in characters

// limits bounds every string (bytes), []byte (bytes) and list (elements) that
// travels, by its path. Everything else has its size from its type.
var limits = map[string]int{
	"envelope.kind": 16,
	"envelope.from": 4 << 10, // a user JWT
	"envelope.body": JobMax,
	"envelope.sig":  64,

	"announce.node":       NodeNameMax,
	"announce.role":       16,
	"announce.hpke":       2 << 10, // room for a hybrid post-quantum key
	"announce.model_name": 256,
	"announce.kv_url":     512,
	"announce.version":    128,

	"job.token":              tokenMax,
	"job.prompt":             PromptMax,
	"job.params.LogitBias":   sample.MaxLogitBias,
	"job.params.EOG":         sample.MaxEOG,
	"job.reply":              subjectMax,
	"reject.reason":          32,
	"reject.detail":          512,
	"open.token":             tokenMax,
	"open.prefill":           NodeNameMax,
	"open.enc":               2 << 10,
	"output.from":            16,
	"output.payload":         controlMax,
	"body.receipt.statement": 4 << 10,
	"body.tokens":            TokensMax,
	"body.tokens.Top":        sample.MaxTopLogprobs,
	"first.Top":              sample.MaxTopLogprobs,
	"body.finish.reason":     16,
	"body.fail.reason":       32,
	"body.fail.detail":       512,
	"cancel.reason":          32,
	"credit.mac":             32,
}

// A codec turns one message type into bytes and back. Reading is strict:
// every member exactly once, none unknown, every length and count within its
// limit, nothing after the end. Writing holds its own output against the same
// rules, so that what is sent can be read.
type codec[T any] struct {
	name   string
	max    int // bytes
	schema *schema
	valid  func(*T) error // of values that the type does not rule out; may be nil
}

func newCodec[T any](name string, max int, valid func(*T) error) codec[T] {
	return codec[T]{name: name, max: max, schema: compile(reflect.TypeFor[T](), name, limits), valid: valid}
}

// The codecs of all messages.
var (
	envelopes = newCodec[envelope]("envelope", JobMax+8<<10, nil)
	announces = newCodec[Announce]("announce", controlMax, (*Announce).valid)
	jobs      = newCodec[Job]("job", JobMax-4<<10, nil)
	accepts   = newCodec[Accept]("accept", controlMax, nil)
	rejects   = newCodec[Reject]("reject", controlMax, (*Reject).valid)
	opens     = newCodec[Open]("open", controlMax, nil)
	outputs   = newCodec[Output]("output", controlMax+1<<10, (*Output).valid)
	bodies    = newCodec[OutputBody]("body", controlMax-1<<10, (*OutputBody).valid)
	cancels   = newCodec[Cancel]("cancel", controlMax, (*Cancel).valid)
	credits   = newCodec[Credit]("credit", controlMax, nil)
	pings     = newCodec[ping]("ping", controlMax, nil)
	pongs     = newCodec[Pong]("pong", controlMax, nil)
)

func (c *codec[T]) encode(v *T) ([]byte, error) {
	var out bytes.Buffer
	e := msgpack.NewEncoder(&out)
	e.UseCompactInts(true)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrMessage, c.name, err)
	}
	if err := c.check(out.Bytes()); err != nil {
		return nil, err
	}
	if err := c.values(v); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// decode reads a message. It keeps no reference to b.
func (c *codec[T]) decode(b []byte) (T, error) {
	var v T
	if err := c.check(b); err != nil {
		return v, err
	}
	d := msgpack.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields(true)
	if err := d.Decode(&v); err != nil {
		var zero T
		return zero, fmt.Errorf("%w: %s: %w", ErrMessage, c.name, err)
	}
	if err := c.values(&v); err != nil {
		var zero T
		return zero, err
	}
	return v, nil
}

func (c *codec[T]) values(v *T) error {
	if c.valid == nil {
		return nil
	}
	if err := c.valid(v); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrMessage, c.name, err)
	}
	return nil
}

func (c *codec[T]) check(b []byte) error {
	if len(b) > c.max {
		return fmt.Errorf("%w: %s has %d bytes, limit %d", ErrMessage, c.name, len(b), c.max)
	}
	rest, err := c.schema.walk(b)
	if err != nil {
		return err
	}
	if len(rest) != 0 {
		return fmt.Errorf("%w: %s has %d bytes after its end", ErrMessage, c.name, len(rest))
	}
	return nil
}
