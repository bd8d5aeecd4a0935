package sim

import (
	"time"

	"bulkhead/prefill"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// faults are the rates of one schedule, per message or per step, in 1/1024.
type faults struct {
	drop, duplicate, reorder               int
	delay, corrupt, misroute               int
	replay, crash, cancel, partition, wipe int
	swap                                   int
	slow                                   int  // an engine's step in which much happens before its writes land
	small                                  bool // streams that are soon full
	skew                                   time.Duration
	lies                                   bool
}

// draw chooses the faults of a schedule: none in some, one kind in most, all in some.
func (w *world) draw() (f faults) {
	r := w.rng
	some := func(most int) int { return 1 + r.IntN(most) }
	often := func(most int) int { // a small schedule has few steps and messages
		if !w.big {
			most *= 2
		}
		return 1 + r.IntN(most)
	}
	all := r.IntN(4) == 0 && (w.big || r.IntN(2) == 0)
	for i := range 16 {
		lies := i == 11 && !w.big && r.IntN(3) == 0 // one node's lies are all there is to find in most of these
		if !all && !lies && r.IntN(5) != 0 {
			continue
		}
		switch i {
		case 0:
			f.drop = some(60)
		case 1:
			f.duplicate = some(250)
		case 2:
			f.delay = some(150)
		case 3:
			f.corrupt = often(40)
		case 4:
			f.misroute = often(60)
		case 5:
			f.replay = often(40)
		case 6:
			f.crash = often(6)
		case 7:
			f.cancel = some(24)
		case 8:
			f.partition = often(6)
		case 9:
			f.small = true
		case 10:
			f.skew = time.Duration(r.IntN(1+8000<<r.IntN(3))) * time.Millisecond
		case 11:
			f.lies = true
		case 12:
			f.reorder = some(300)
		case 13:
			f.wipe = often(8)
		case 14:
			f.swap = often(100)
		case 15:
			f.slow = some(200)
		}
	}
	return f
}

// drawLies chooses what a prefill node lies about: mostly nothing. With always no
// attempt of it may be believed.
func (w *world) drawLies() (l prefill.Lies, name string, always bool) {
	if !w.f.lies {
		return l, "honest", false
	}
	r := w.rng
	switch r.IntN(9) {
	case 0:
		l.Skip = func(int) bool { return r.IntN(3) == 0 }
		return l, "leaves frames out and signs that all are there", false
	case 1:
		l.Skip = func(i int) bool { return i > 0 }
		return l, "sends the first frame only", false
	case 2:
		l.Manifest = func(m *seal.Manifest) { m.Tokens++ }
		return l, "claims a token more", true
	case 3:
		l.Manifest = func(m *seal.Manifest) { m.Blocks, m.Tokens, m.Frames = 1, 1, 1 }
		l.Open = func(o *transfer.Open) { o.Frames = 1 }
		l.Skip = func(i int) bool { return i > 0 }
		return l, "sends one token for all: the placeholder of 2026", false
	case 4:
		l.Manifest = func(m *seal.Manifest) { m.Chain[3] ^= 1 }
		return l, "signs another chain", true
	case 5:
		l.Open = func(o *transfer.Open) { o.Frames++ }
		return l, "opens for a frame more", true
	case 6:
		l.Open = func(o *transfer.Open) { o.PrefillEpoch++ }
		return l, "opens in the name of another boot", true
	case 7:
		l.Manifest = func(m *seal.Manifest) { m.TokenHash[0] ^= 1 }
		return l, "signs a manifest for another attempt", true
	}
	return l, "honest", false
}
