package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"bulkhead/internal/mutant"
)

// kvPublish is a message on its way into a stream.
type kvPublish struct {
	subject string
	done    func(error)
	timer   *time.Timer
}

// PublishKV implements [Bus]. It asks for the acknowledgement by hand: the
// client's own asynchronous publish holds on to the caller's buffer and sends
// again behind its back.
func (c *Conn) PublishKV(subject string, data []byte, done func(error)) error {
	p := &kvPublish{subject: subject, done: done}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return ErrClosed
	}
	c.pubSeq++
	inbox := c.prefix + ".kvack." + strconv.FormatUint(c.pubSeq, 36)
	c.pubs[inbox] = p
	p.timer = time.AfterFunc(c.cfg.AckTimeout, func() {
		if c.take(inbox) != nil {
			done(fmt.Errorf("%w: after %s", ErrAckTimeout, c.cfg.AckTimeout))
		}
	})
	c.mu.Unlock()
	if err := c.nc.PublishRequest(subject, inbox, data); err != nil {
		if c.take(inbox) == nil {
			return nil // done was told meanwhile
		}
		return c.wrap("publish", subject, err)
	}
	return nil
}

// take removes a publish from the table; nil if it is gone already.
func (c *Conn) take(inbox string) *kvPublish {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pubs[inbox]
	if p != nil {
		delete(c.pubs, inbox)
		p.timer.Stop()
	}
	return p
}

// failPublishes ends those that match (nil: all) with err.
func (c *Conn) failPublishes(err error, match func(*kvPublish) bool) {
	var failed []*kvPublish
	c.mu.Lock()
	for inbox, p := range c.pubs {
		if match == nil || match(p) {
			delete(c.pubs, inbox)
			p.timer.Stop()
			failed = append(failed, p)
		}
	}
	c.mu.Unlock()
	for _, p := range failed {
		p.done(err)
	}
}

func (c *Conn) onKVAck(m *nats.Msg) {
	p := c.take(m.Subject)
	if p == nil {
		return // late; it has been given up
	}
	p.done(pubAckError(m.Header.Get("Status"), m.Data))
}

// JetStream's error codes that mean something to a sender.
const (
	codeStreamStoreFailed = 10077 // discard new: over max_bytes
	codeTooManyRequests   = 10167 // ingest queue full
)

// pubAckError reads a stream's answer to a publish.
func pubAckError(status string, data []byte) error {
	if status == "503" {
		return ErrNoStream
	}
	var ack struct {
		Stream    string `json:"stream"`
		Duplicate bool   `json:"duplicate"`
		Error     *struct {
			Code        int    `json:"code"`
			ErrCode     int    `json:"err_code"`
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(data, &ack); err != nil {
		return fmt.Errorf("%w: what came is not JSON: %w", ErrAckTimeout, err)
	}
	switch {
	case ack.Error == nil && ack.Duplicate && !mutant.Off(mutant.AckDuplicate):
		// Nothing here sends a message id, so nothing can be a duplicate: the
		// server dropped this message in favour of somebody else's.
		return errors.New("transfer: KV stream took the message for a duplicate")
	case ack.Error == nil && (strings.HasPrefix(ack.Stream, "KV_") || mutant.Off(mutant.AckStream)):
		return nil
	case ack.Error == nil:
		// Or a bit of it fell over on the way: the message may be stored, and is sent again.
		return fmt.Errorf("%w: KV message stored by stream %.64q", ErrAckTimeout, ack.Stream)
	case ack.Error.ErrCode == codeStreamStoreFailed:
		return fmt.Errorf("%w: %s", ErrStreamFull, ack.Error.Description)
	case ack.Error.ErrCode == codeTooManyRequests, ack.Error.Code == 429:
		return fmt.Errorf("%w: %s", ErrOverflow, ack.Error.Description)
	}
	return fmt.Errorf("transfer: KV stream refused the message: %d/%d %s", ack.Error.Code, ack.Error.ErrCode, ack.Error.Description)
}

// admin runs a call on a node's stream. JetStream's own requests are watched
// like ours: a denied one ends at once.
func (c *Conn) admin(ctx context.Context, node, what string, f func(context.Context, jetstream.JetStream) error) error {
	if err := CheckName(node); err != nil {
		return err
	}
	js, err := jetstream.New(c.nc)
	if err != nil {
		return fmt.Errorf("transfer: %s KV stream of %s: %w", what, node, err)
	}
	api, stream := "$JS.API.", KVStreamName(node)
	ctx, stop := c.watch(ctx,
		api+"STREAM.INFO."+stream, api+"STREAM.CREATE."+stream, api+"STREAM.UPDATE."+stream, api+"STREAM.DELETE."+stream,
		api+"CONSUMER.CREATE."+stream+"."+node)
	defer stop()
	err = f(ctx, js)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("%w: of %s", ErrNoStream, node)
	}
	return c.wrap(what, "KV stream of "+node, causeOf(ctx, err))
}

// EnsureKV implements [Bus].
func (c *Conn) EnsureKV(ctx context.Context, node string, maxBytes int64) error {
	return c.admin(ctx, node, "make", func(ctx context.Context, js jetstream.JetStream) error {
		s, err := js.CreateOrUpdateStream(ctx, kvStream(node, maxBytes))
		if err != nil {
			return err
		}
		_, err = s.CreateOrUpdateConsumer(ctx, kvConsumer(node))
		return err
	})
}

// StoredKV implements [Bus].
func (c *Conn) StoredKV(ctx context.Context, node string) (msgs int, bytes int64, err error) {
	err = c.admin(ctx, node, "look at", func(ctx context.Context, js jetstream.JetStream) error {
		s, err := js.Stream(ctx, KVStreamName(node)) // asks the server
		if err == nil {
			state := s.CachedInfo().State
			msgs, bytes = int(state.Msgs), int64(state.Bytes)
		}
		return err
	})
	return msgs, bytes, err
}

// DropKV implements [Bus].
func (c *Conn) DropKV(ctx context.Context, node string) error {
	err := c.admin(ctx, node, "drop", func(ctx context.Context, js jetstream.JetStream) error {
		return js.DeleteStream(ctx, KVStreamName(node))
	})
	if errors.Is(err, ErrNoStream) {
		return nil
	}
	return err
}
