package chaos

import (
	"bufio"
	"net"
	"sync"
	"time"
)

// pump carries one direction of one connection.
type pump struct {
	p      *Proxy
	dir    Direction
	stream uint64
	from   *bufio.Reader
	end    func() // ends both directions
	number uint64

	mu   sync.Mutex
	to   net.Conn // written under mu: late messages come from timers
	held []held   // reordered messages that others overtake; guarded by mu
}

type held struct {
	o      op
	number uint64 // of the message in its stream
	left   int    // messages that still go first
}

func newPump(p *Proxy, d Direction, stream uint64, from, to net.Conn, end func()) *pump {
	return &pump{p: p, dir: d, stream: stream, from: bufio.NewReaderSize(from, 64<<10), to: to, end: end}
}

// run carries until either end is closed.
func (u *pump) run() {
	for {
		o, err := readOp(u.from)
		if err != nil {
			return
		}
		u.p.wait()
		if !o.message() {
			if !u.write(o.bytes()) {
				return
			}
			continue
		}
		if !u.carry(o) {
			return
		}
	}
}

// carry does what is decided for one message; false ends the connection.
func (u *pump) carry(o op) bool {
	u.number++
	if f := u.p.cfg.Observe; f != nil {
		f(u.dir, o.subject, len(o.payload))
	}
	v, again := u.p.decide(u, o)
	if len(v.Flips) > 0 { // a copy: the ring has the message as it was
		o.payload = append([]byte(nil), o.payload...)
		for _, bit := range v.Flips {
			o.payload[bit/8] ^= 1 << (bit % 8)
		}
	}
	b := o.bytes()
	switch {
	case v.Cut > 0:
		u.write(b[:v.Cut-1])
		return false
	case v.Drop:
	case v.Delay > 0:
		time.AfterFunc(v.Delay, func() { u.p.wait(); u.write(b) })
	case v.Overtaken > 0:
		u.hold(o, v.Overtaken)
		return true
	default:
		if !u.write(b) {
			return false
		}
	}
	for range v.Copies {
		if !u.write(b) {
			return false
		}
	}
	if again.message() && !u.write(again.bytes()) {
		return false
	}
	return u.overtake()
}

// decide asks for a message's fate, counts it and remembers the message.
func (p *Proxy) decide(u *pump, o op) (v Verdict, again op) {
	p.mu.Lock()
	defer p.mu.Unlock()
	past := &p.past[u.dir]
	v = Decide(p.faults, Place{p.cfg.Seed, u.stream, u.number}, len(o.payload), len(o.line)+len(o.payload)+2, past.len())
	if v.Replay > 0 {
		again = past.back(v.Replay)
	}
	past.add(o)
	p.seen++
	for _, k := range v.Has() {
		p.done[k]++
	}
	return v, again
}

func (u *pump) write(b []byte) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.writeLocked(b)
}

func (u *pump) writeLocked(b []byte) bool {
	if _, err := u.to.Write(b); err != nil {
		u.end()
		return false
	}
	return true
}

// hold keeps a message until others have overtaken it.
func (u *pump) hold(o op, others int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := u.number
	u.held = append(u.held, held{o: o, number: n, left: others})
	time.AfterFunc(heldMax, func() { u.release(n) })
}

// release writes what waited long enough for others.
func (u *pump) release(number uint64) {
	u.p.wait()
	u.mu.Lock()
	defer u.mu.Unlock()
	for i, h := range u.held {
		if h.number == number {
			u.held = append(u.held[:i], u.held[i+1:]...)
			u.writeLocked(h.o.bytes())
			return
		}
	}
}

// overtake counts a message that went first and writes those that were held for it.
func (u *pump) overtake() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	var still []held
	ok := true
	for _, h := range u.held {
		if h.left--; h.left > 0 {
			still = append(still, h)
			continue
		}
		ok = ok && u.writeLocked(h.o.bytes())
	}
	u.held = still
	return ok
}
