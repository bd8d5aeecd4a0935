package transfer

import (
	"fmt"
	"reflect"
	"unsafe"

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
	"announce.kv_url":     KVURLMax,
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

// A codec turns one message type into bytes and back: msgpack, of which it
// speaks only what the type needs. Reading is strict: every member exactly once,
// none unknown, every length and count within its limit, nothing after the end.
// Writing holds values against the same rules, so that what is sent can be read.
// A test holds both against another implementation of msgpack.
type codec[T any] struct {
	name   string
	max    int  // bytes
	alias  bool // byte strings that were read are parts of the message
	schema *schema
	valid  func(*T) error // of values that the type does not rule out; may be nil
}

func newCodec[T any](name string, max int, valid func(*T) error) codec[T] {
	return codec[T]{name: name, max: max, schema: compile(reflect.TypeFor[T](), name, limits), valid: valid}
}

// aliasing is for an outer layer, whose bytes are read again by another codec and then let go.
func aliasing[T any](c codec[T]) codec[T] {
	c.alias = true
	return c
}

// The codecs of all messages.
var (
	envelopes = aliasing(newCodec[envelope]("envelope", JobMax+8<<10, nil))
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
	return c.append(make([]byte, 0, c.schema.size(unsafe.Pointer(v))), v)
}

// append appends to dst, which is empty, what encode returns.
func (c *codec[T]) append(dst []byte, v *T) ([]byte, error) {
	b, err := c.schema.write(dst, unsafe.Pointer(v))
	if err != nil {
		return nil, err
	}
	if len(b) > c.max {
		return nil, c.long(len(b))
	}
	if err := c.values(v); err != nil {
		return nil, err
	}
	return b, nil
}

// decode reads a message. It keeps no reference to b, unless the codec is one that does.
func (c *codec[T]) decode(b []byte) (T, error) {
	var v, zero T
	if len(b) > c.max {
		return zero, c.long(len(b))
	}
	rest, err := c.schema.read(b, unsafe.Pointer(&v), c.alias)
	if err == nil && len(rest) != 0 {
		err = fmt.Errorf("%w: %s has %d bytes after its end", ErrMessage, c.name, len(rest))
	}
	if err == nil {
		err = c.values(&v)
	}
	if err != nil {
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

func (c *codec[T]) long(n int) error {
	return fmt.Errorf("%w: %s has %d bytes, limit %d", ErrMessage, c.name, n, c.max)
}
