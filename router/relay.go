package router

import (
	"encoding/hex"
	"errors"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// choice is one answer of a request as it grows.
type choice struct {
	text     *assembler
	receipt  *receiptFacts // nil before the sequence's status is committed
	attempts int
	opened   bool   // its first chunk is written
	content  piece  // everything so far; only kept when not streaming
	finish   string // "" while it goes on
}

// stream relays what the sequences give out until all are finished or one fails. The HTTP
// status is held until every choice has its receipt.
func (x *exchange) stream() error {
	x.sse = newSSE(x.w, x.r.cfg.WriteTimeout)
	beat := newHeartbeat(x.gen.stream, x.r.cfg.SSEHeartbeatAfter)
	defer beat.stop()
	for written := 0; x.open() > 0; {
		select {
		case <-x.ctx.Done():
			if x.whyEnded() == evShutdown {
				return fail(kindDraining, "", "the server is shutting down")
			}
			return fail(kindClientGone, "", "the client is gone")
		case <-beat.due():
			if err := x.heartbeat(); err != nil {
				return x.writeError(err)
			}
		case <-x.out.ready:
			for _, o := range x.out.take() {
				if err := x.take(o); err != nil {
					return err
				}
			}
			if err := x.flushPending(); err != nil {
				return x.writeError(err)
			}
		}
		if x.sse.writes != written { // only what the client sees counts
			written = x.sse.writes
			beat.reset()
		}
	}
	return x.conclude()
}

// open is the number of choices that go on.
func (x *exchange) open() int {
	n := 0
	for _, c := range x.choices {
		if c.finish == "" {
			n++
		}
	}
	return n
}

// take turns one output into text and events. It writes nothing.
func (x *exchange) take(o output) error {
	c := x.choices[o.choice]
	c.attempts = max(c.attempts, o.attempt)
	switch {
	case o.err != nil:
		if c.finish != "" {
			return nil // its text was complete before
		}
		return o.err
	case o.receipt != nil:
		c.receipt = o.receipt
	case o.finish != "":
		if c.finish == "" {
			x.give(o.choice, c.text.finish())
			x.end(o.choice, o.finish)
		}
	case c.finish == "":
		out, stopped := c.text.push(o.tokens)
		x.give(o.choice, out)
		if stopped {
			x.end(o.choice, "stop")
			x.sequences[o.choice].stop()
		}
	}
	return nil
}

// give adds a piece to a choice.
func (x *exchange) give(i int, p piece) {
	c := x.choices[i]
	if p.text != "" {
		x.measure()
	}
	if !x.gen.stream {
		c.content.text += p.text
		c.content.logprobs = append(c.content.logprobs, p.logprobs...)
		return
	}
	x.openChoice(i)
	if !p.empty() {
		x.pending = append(x.pending, x.shape.delta(x, i, p))
	}
}

func (x *exchange) openChoice(i int) {
	if c := x.choices[i]; !c.opened {
		c.opened = true
		if first := x.shape.opening(x, i); first != nil {
			x.pending = append(x.pending, first)
		}
	}
}

func (x *exchange) end(i int, finish string) {
	x.choices[i].finish = finish
	if x.gen.stream {
		x.openChoice(i)
		x.pending = append(x.pending, x.shape.ending(x, i, finish))
	}
}

// measure keeps the time to the first text and between texts.
func (x *exchange) measure() {
	now := time.Now()
	if x.first.IsZero() {
		x.first = now
		x.r.metrics.ttft.Seconds(now.Sub(x.start))
	} else {
		x.r.metrics.itl.Seconds(now.Sub(x.last))
	}
	x.last = now
}

// flushPending writes the events there are, once every choice has its receipt.
func (x *exchange) flushPending() error {
	if !x.gen.stream {
		return nil
	}
	for _, c := range x.choices {
		if c.receipt == nil {
			return nil
		}
	}
	if !x.sse.begun {
		x.headers()
		if err := x.begin(); err != nil {
			return err
		}
	}
	if x.late {
		x.late = false
		if err := x.sse.comment("bulkhead-receipt " + x.receipts()); err != nil {
			return err
		}
	}
	events := x.pending
	x.pending = nil
	for _, e := range events {
		if err := x.sse.event(e); err != nil {
			return err
		}
	}
	return nil
}

func (x *exchange) begin() error {
	x.begun = true
	return x.sse.begin()
}

// heartbeat keeps a waiting stream alive in the eyes of proxies. The first one commits the 200; the
// receipt can then only be told in a comment.
func (x *exchange) heartbeat() error {
	if !x.begun {
		x.late = true
		x.r.desk.rateHeaders(x.tenant, x.w.Header())
		if err := x.begin(); err != nil {
			return err
		}
	}
	return x.sse.comment("keepalive")
}

// headers sets what is known once every choice has its receipt.
func (x *exchange) headers() {
	h := x.w.Header()
	h.Set("x-bulkhead-receipt", x.receipts())
	h.Set("x-bulkhead-attempts", strconv.Itoa(x.attempts()))
	h.Set("openai-processing-ms", strconv.FormatInt(time.Since(x.start).Milliseconds(), 10))
	x.r.desk.rateHeaders(x.tenant, h)
}

// receipts are the hashes of the choices' receipts, in their order.
func (x *exchange) receipts() string {
	var all []string
	for _, c := range x.choices {
		all = append(all, hex.EncodeToString(c.receipt.hash[:]))
	}
	return strings.Join(all, ",")
}

// attempts is the largest number of attempts that a choice took.
func (x *exchange) attempts() int {
	n := 0
	for _, c := range x.choices {
		n = max(n, c.attempts)
	}
	return n
}

// conclude writes what comes after the last choice's end.
func (x *exchange) conclude() error {
	if x.gen.stream {
		if x.gen.includeUsage {
			if err := x.sse.event(x.shape.usage(x)); err != nil {
				return x.writeError(err)
			}
		}
		if err := x.sse.done(); err != nil {
			return x.writeError(err)
		}
		return nil
	}
	body, err := marshal(x.shape.whole(x))
	if err != nil {
		return err
	}
	x.headers()
	x.w.Header().Set("Content-Type", "application/json")
	x.begun = true
	if err := x.sse.deadline(); err != nil {
		return x.writeError(err)
	}
	x.w.WriteHeader(http.StatusOK)
	if _, err := x.w.Write(append(body, '\n')); err != nil {
		return x.writeError(err)
	}
	return nil
}

// writeError tells a client that went from one that does not read.
func (x *exchange) writeError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		x.cancel(errWriteStuck)
		return fail(kindSlowReader, "", "the client reads too slowly")
	}
	return fail(kindClientGone, "", "the client is gone")
}

// heartbeat is a timer that is due when nothing was written for a while; never, if off.
type heartbeat struct {
	after time.Duration
	timer *time.Timer
}

func newHeartbeat(on bool, after time.Duration) *heartbeat {
	h := &heartbeat{after: after}
	if on && after > 0 {
		h.timer = time.NewTimer(after)
	}
	return h
}

func (h *heartbeat) due() <-chan time.Time {
	if h.timer == nil {
		return nil
	}
	return h.timer.C
}

func (h *heartbeat) reset() {
	if h.timer != nil {
		h.timer.Reset(h.after)
	}
}

func (h *heartbeat) stop() {
	if h.timer != nil {
		h.timer.Stop()
	}
}
