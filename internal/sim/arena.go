package sim

// arena lends the bytes of messages for one schedule. What lies on the bus, and what the
// stand-ins seal and open, is needed until its end at most: the next schedule writes over it, and
// finds the memory warm.
type arena struct {
	free  []byte
	whole []byte
	want  int // of this schedule so far
}

// arenaMax bounds what is kept between schedules.
const arenaMax = 1 << 20

// make is make([]byte, n, room): zero, and never given twice in a schedule.
func (a *arena) make(n, room int) []byte {
	a.want += room
	if len(a.free) < room {
		return make([]byte, n, room)
	}
	b := a.free[:n:room]
	a.free = a.free[room:]
	clear(b)
	return b
}

// clone is slices.Clone.
func (a *arena) clone(b []byte) []byte {
	c := a.make(len(b), len(b))
	copy(c, b)
	return c
}

// reset takes all of it back.
func (a *arena) reset() {
	if a.want > len(a.whole) && a.want <= arenaMax {
		a.whole = make([]byte, a.want)
	}
	a.free, a.want = a.whole, 0
}
