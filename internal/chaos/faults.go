package chaos

import (
	"math/rand/v2"
	"time"
)

// Kind is one thing that can happen to a message.
type Kind string

// The kinds.
const (
	Drop      Kind = "drop"      // it never comes
	Duplicate Kind = "duplicate" // it comes twice, or three times
	Reorder   Kind = "reorder"   // up to 8 later ones come first
	Delay     Kind = "delay"     // it comes up to 3 s late, when its pages may have another owner
	Flip      Kind = "flip"      // 1 to 3 bits of the payload
	Cut       Kind = "cut"       // the connection ends in the middle of it
	Replay    Kind = "replay"    // an earlier message of the same node comes again behind it, of an earlier boot perhaps
)

// Kinds are all of them.
var Kinds = []Kind{Drop, Duplicate, Reorder, Delay, Flip, Cut, Replay}

// Faults are the probabilities, by kind, that one message is met.
type Faults map[Kind]float64

// Bounds of what a fault does.
const (
	overtakenMax = 8
	delayMin     = 10 * time.Millisecond
	delayMax     = 3 * time.Second
	heldMax      = 500 * time.Millisecond // a message held back for others that do not come
)

// Place names one message of a proxy.
type Place struct {
	Seed   uint64
	Stream uint64 // connection and direction
	Number uint64 // of the message in its stream
}

// Verdict is what happens to one message. The zero value lets it pass.
type Verdict struct {
	Drop      bool
	Copies    int           // beside the message itself
	Overtaken int           // later messages that go first
	Delay     time.Duration // before it is written
	Flips     []int         // bits of the payload
	Cut       int           // so many bytes pass, less one, and the connection ends; 0: it does not
	Replay    int           // the message so many back comes again; 0: none
}

// Decide says what happens to a message of so many bytes of payload and in all, when
// past messages before it are remembered. It is a pure function.
func Decide(f Faults, at Place, payload, bytes, past int) (v Verdict) {
	if len(f) == 0 {
		return v
	}
	r := rand.New(rand.NewPCG(at.Seed^at.Stream*0x9e3779b97f4a7c15, at.Number))
	for _, k := range Kinds { // in a fixed order, each with its own draw
		if r.Float64() >= f[k] {
			continue
		}
		switch k {
		case Drop:
			v.Drop = true
		case Duplicate:
			v.Copies = 1 + r.IntN(2)
		case Reorder:
			v.Overtaken = 1 + r.IntN(overtakenMax)
		case Delay:
			v.Delay = delayMin + time.Duration(r.Int64N(int64(delayMax-delayMin)))
		case Flip:
			for range min(payload, 1+r.IntN(3)) {
				v.Flips = append(v.Flips, r.IntN(8*payload))
			}
		case Cut:
			v.Cut = 1 + r.IntN(bytes)
		case Replay:
			if past > 0 {
				v.Replay = 1 + r.IntN(past)
			}
		}
	}
	return v
}

// Has lists the kinds that a verdict does.
func (v Verdict) Has() (all []Kind) {
	for _, k := range []struct {
		kind Kind
		does bool
	}{
		{Drop, v.Drop}, {Duplicate, v.Copies > 0}, {Reorder, v.Overtaken > 0}, {Delay, v.Delay > 0},
		{Flip, len(v.Flips) > 0}, {Cut, v.Cut > 0}, {Replay, v.Replay > 0},
	} {
		if k.does {
			all = append(all, k.kind)
		}
	}
	return all
}
