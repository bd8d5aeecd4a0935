package loadgen

import (
	"errors"
	"testing"
)

func TestStream(t *testing.T) {
	r, err := Stream(StreamConfig{Bytes: 4 << 20, Threads: 3, Repeat: 2})
	if err != nil || !(r.Median > 0) || r.Best < r.Median || r.Bytes > 4<<20 || r.Bytes < 4<<20-3*64 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, c := range []StreamConfig{{}, {Bytes: 1 << 20, Threads: 1}, {Bytes: 1 << 20, Repeat: 1}, {Bytes: 1<<36 + 1, Threads: 1, Repeat: 1}} {
		if _, err := Stream(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v, want %v", c, err, ErrConfig)
		}
	}
}

// Every line is read: a sum that skips some would be a bandwidth that is not there.
func TestSumLines(t *testing.T) {
	w := make([]uint64, 16*lineWords)
	want := uint64(0)
	for i := range 16 {
		w[i*lineWords] = 1 << i
		want |= 1 << i
	}
	if got := sumLines(w); got != want {
		t.Errorf("sum is %x, want %x", got, want)
	}
}
