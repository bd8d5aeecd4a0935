package transfer

// Limits of what one prefill node has on its way to one decode node.
const (
	// WindowBytes is the default of bytes published and not yet stored: enough
	// to keep the server busy (64 frames of 256 KiB), little enough that the
	// stream's pages stay warm.
	WindowBytes = 16 << 20
	// WindowFrames is the default of messages published and not yet stored.
	WindowFrames = 256
	// FirstCredit is what an attempt may publish before decode's first Credit.
	FirstCredit = 8 << 20
)

// Window bounds the bytes and messages in flight to one decode node, and what
// each attempt may publish in all. It is a plain value machine after etcd's
// raft/tracker Inflights: it does no waiting, locking or timing; events go in
// (Acquire, Release, Credit) and the answer is whether there is room.
type Window struct {
	maxBytes int64
	maxCount int
	bytes    int64 // in flight
	count    int
	attempts map[Hash]*allowance
}

// allowance is one attempt's credit, in absolute bytes.
type allowance struct {
	limit int64 // may have been published in all
	used  int64 // were published in all
}

// NewWindow makes a window; zero limits mean the defaults.
func NewWindow(maxBytes int64, maxCount int) *Window {
	if maxBytes <= 0 {
		maxBytes = WindowBytes
	}
	if maxCount <= 0 {
		maxCount = WindowFrames
	}
	return &Window{maxBytes: maxBytes, maxCount: maxCount, attempts: map[Hash]*allowance{}}
}

// Open starts an attempt with its first credit in bytes.
func (w *Window) Open(attempt Hash, credit int64) {
	if w.attempts[attempt] == nil {
		w.attempts[attempt] = &allowance{limit: credit}
	}
}

// Close ends an attempt. What it has in flight is still to be released.
func (w *Window) Close(attempt Hash) { delete(w.attempts, attempt) }

// Credit lets an attempt have published limit bytes in all. A limit below the
// present one changes nothing: credits may arrive late, twice or not in order.
// It reports whether the attempt gained.
func (w *Window) Credit(attempt Hash, limit int64) bool {
	a := w.attempts[attempt]
	if a == nil || limit <= a.limit {
		return false
	}
	a.limit = limit
	return true
}

// Acquire takes room for one message of n bytes of an open attempt, or reports that
// there is none now. A message larger than the whole window passes when nothing else is in flight.
func (w *Window) Acquire(attempt Hash, n int64) bool {
	a := w.attempts[attempt]
	if a == nil || n > a.limit-a.used {
		return false
	}
	if w.count >= w.maxCount || w.count > 0 && n > w.maxBytes-w.bytes {
		return false
	}
	a.used += n
	w.bytes += n
	w.count++
	return true
}

// Release gives back the room of one message: it is stored, or given up.
func (w *Window) Release(n int64) {
	w.bytes -= n
	w.count--
	if w.bytes < 0 || w.count < 0 {
		panic("transfer: internal error: window released more than was acquired")
	}
}

// InFlight returns what is published and not yet stored.
func (w *Window) InFlight() (bytes int64, count int) { return w.bytes, w.count }
