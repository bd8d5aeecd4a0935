package canary

import (
	"math/rand/v2"
	"strings"
	"sync"
)

// A marker is 24 letters and digits without vowels, 112 bits: no model writes one by chance, and no
// language has a word like it. Leaks are often partial, so a marker counts as seen where
// 12 of its characters in a row are (56 bits).
const (
	markerAlphabet = "bcdfghjkmnpqrstvwxz2346789"
	markerLen      = 24
	gramLen        = 12
	markersMax     = 1 << 15 // remembered; older ones are forgotten, oldest first
)

// origin is whose a marker is.
type origin struct {
	tenant  int
	request int // the prompt's number
}

// book knows whose each marker is.
type book struct {
	mu    sync.Mutex // guards all below
	rng   *rand.Rand
	grams map[string]origin
	ring  []string
	next  int // place in ring of the oldest
}

func newBook(rng *rand.Rand) *book { return &book{rng: rng, grams: map[string]origin{}} }

// mark makes a new marker.
func (b *book) mark(of origin) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := make([]byte, markerLen)
	for i := range m {
		m[i] = markerAlphabet[b.rng.IntN(len(markerAlphabet))]
	}
	marker := string(m)
	if len(b.ring) < markersMax {
		b.ring = append(b.ring, marker)
	} else {
		old := b.ring[b.next]
		for i := 0; i+gramLen <= len(old); i++ {
			delete(b.grams, old[i:i+gramLen])
		}
		b.ring[b.next] = marker
		b.next = (b.next + 1) % markersMax
	}
	for i := 0; i+gramLen <= len(marker); i++ {
		b.grams[marker[i:i+gramLen]] = of
	}
	return marker
}

// find returns whose markers are in text without being in own, the request's own prompt.
// Each origin is named once.
func (b *book) find(text, own string) []origin {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []origin
	seen := map[origin]bool{}
	for i := 0; i+gramLen <= len(text); i++ {
		gram := text[i : i+gramLen]
		if of, ok := b.grams[gram]; ok && !seen[of] && !strings.Contains(own, gram) {
			seen[of] = true
			out = append(out, of)
		}
	}
	return out
}
