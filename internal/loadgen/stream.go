package loadgen

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// StreamConfig says how Stream reads.
type StreamConfig struct {
	Bytes   int // of all threads together: more than the caches hold
	Threads int
	Repeat  int // passes, after one that is not timed
}

// StreamResult is in GB (1e9 bytes) per second.
type StreamResult struct {
	Threads int     `json:"threads"`
	Bytes   int     `json:"bytes"`
	Median  float64 `json:"median_gb_s"`
	Best    float64 `json:"best_gb_s"`
}

const (
	streamBytesMax   = 1 << 36
	streamThreadsMax = 1024
	lineWords        = 8 // 64-byte cache lines of uint64
)

// Stream times reading memory from one end to the other, each thread its own part. That is what
// decode of one sequence does with the weights, so tokens per second times bytes of
// weights cannot be more than this, save for what stays in the caches. One word of each cache line is
// used: a line comes whole, and the additions must not be what takes the time.
func Stream(c StreamConfig) (StreamResult, error) {
	if c.Threads < 1 || c.Threads > streamThreadsMax || c.Repeat < 1 || c.Repeat > repeatMax || c.Bytes < 1<<20 || c.Bytes > streamBytesMax {
		return StreamResult{}, fmt.Errorf("%w: %d bytes, %d threads, %d passes; want 1 MiB to 64 GiB, 1 to %d and 1 to %d",
			ErrConfig, c.Bytes, c.Threads, c.Repeat, streamThreadsMax, repeatMax)
	}
	words := make([]uint64, c.Bytes/8)
	for i := range words { // pages must be real: untouched ones are all one page of zeros
		words[i] = uint64(i)
	}
	part := len(words) / c.Threads / lineWords * lineWords
	sums := make([]uint64, c.Threads*lineWords) // a cache line each
	pass := func() float64 {
		var wg sync.WaitGroup
		start := time.Now()
		for i := range c.Threads {
			wg.Go(func() { sums[i*lineWords] += sumLines(words[i*part : (i+1)*part]) })
		}
		wg.Wait()
		return float64(c.Threads*part*8) / 1e9 / time.Since(start).Seconds()
	}
	pass()
	rates := make([]float64, c.Repeat)
	for i := range rates {
		rates[i] = pass()
	}
	return StreamResult{Threads: c.Threads, Bytes: c.Threads * part * 8, Median: median(rates), Best: slices.Max(rates)}, nil
}

// sumLines adds the first word of each cache line, in four chains, so that no addition waits for another.
func sumLines(w []uint64) uint64 {
	var a, b, c, d uint64
	for len(w) >= 4*lineWords {
		a += w[0]
		b += w[lineWords]
		c += w[2*lineWords]
		d += w[3*lineWords]
		w = w[4*lineWords:]
	}
	return a + b + c + d
}
