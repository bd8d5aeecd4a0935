package tokenizer

import "time"

// maxSlice is the most that one step of a template is charged for. Values are bounded, so
// no step takes as long; a longer gap is a process that was stopped (SIGSTOP, a suspended
// machine) or starved, and the chat is not to blame for it.
const maxSlice = time.Second

// stopwatch counts the time that a rendering has taken, gap by gap.
type stopwatch struct {
	now  func() time.Time
	last time.Time
	left time.Duration
}

func newStopwatch(now func() time.Time, limit time.Duration) stopwatch {
	return stopwatch{now: now, last: now(), left: limit}
}

// expired charges the time since the last call and says whether the limit is passed.
func (w *stopwatch) expired() bool {
	now := w.now()
	w.left -= min(now.Sub(w.last), maxSlice)
	w.last = now
	return w.left < 0
}
