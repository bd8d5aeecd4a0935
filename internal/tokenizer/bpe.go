package tokenizer

// Byte-pair merging (Sennrich, Haddow, Birch 2016, section 3.2): of all neighbouring pairs
// in a word that have a rule, the one of lowest rank is merged, leftmost first, until no
// pair has a rule.

// pair is two neighbouring tokens.
type pair struct{ left, right int32 }

// rule: the token that a pair becomes; a lower rank goes first. Ranks are unique.
type rule struct{ rank, id int32 }

// bpe is the scratch space of one call. steps counts units of work (symbols looked at,
// queue operations): the tests of linearity read it instead of a clock.
type bpe struct {
	steps int

	id         []int32
	prev, next []int32 // neighbours in a list through id; -1 at the ends
	queue      rankQueue

	// recent holds rules looked up before, at a place that the pair decides: a word of one
	// letter asks for the same few again and again.
	recent [recentRules]struct {
		pair pair
		rule rule
		set  bool
	}
}

const recentRules = 256 // a power of two

const noRank = int32(1<<31 - 1)

// short merges a word of at most maxCachedWord bytes by looking for the lowest rank in
// each round: quadratic, in a handful of symbols, without a queue.
func (b *bpe) short(t *Tokenizer, w string, out []int32) []int32 {
	var ids [maxCachedWord]int32
	var rules [maxCachedWord]rule // rules[i] is that of ids[i], ids[i+1]
	n := 0
	for i := range len(w) {
		if id := t.byteID[w[i]]; id >= 0 {
			ids[n] = id
			n++
		}
	}
	for i := 0; i+1 < n; i++ {
		rules[i] = b.rule(t, ids[i], ids[i+1])
	}
	for n > 1 {
		b.steps += n
		best := 0
		for i := 1; i < n-1; i++ {
			if rules[i].rank < rules[best].rank {
				best = i
			}
		}
		if rules[best].rank == noRank {
			break
		}
		ids[best] = rules[best].id
		copy(ids[best+1:n-1], ids[best+2:n])
		n--
		if best+1 < n {
			copy(rules[best+1:n-1], rules[best+2:n])
			rules[best] = b.rule(t, ids[best], ids[best+1])
		}
		if best > 0 {
			rules[best-1] = b.rule(t, ids[best-1], ids[best])
		}
	}
	return append(out, ids[:n]...)
}

// rule returns the rule of two neighbours; its rank is noRank if they have none.
func (b *bpe) rule(t *Tokenizer, left, right int32) rule {
	p := pair{left, right}
	k := &b.recent[(uint32(left)*0x9E3779B1^uint32(right)*0x85EBCA77)>>24%recentRules]
	if !k.set || k.pair != p {
		r, ok := t.merges[p]
		if !ok {
			r.rank = noRank
		}
		k.pair, k.rule, k.set = p, r, true
	}
	return k.rule
}

// long merges a word of any length with a queue of pairs by (rank, position). A pair in
// the queue may be stale when it comes out: then its left symbol is gone or has grown,
// and the pair that stands there now is another one and is ignored. Each merge adds at
// most two pairs, so the queue sees fewer than 3n of them.
func (b *bpe) long(t *Tokenizer, w string, out []int32) []int32 {
	b.load(t, w)
	n := len(b.id)
	for i := 0; i+1 < n; i++ {
		b.push(t, int32(i))
	}
	for {
		pos, rank, ok := b.queue.pop()
		if !ok {
			break
		}
		b.steps++
		right := b.next[pos]
		if b.id[pos] < 0 || right < 0 {
			continue
		}
		r := b.rule(t, b.id[pos], b.id[right])
		if r.rank != rank {
			continue
		}
		b.id[pos], b.id[right] = r.id, -1
		b.next[pos] = b.next[right]
		if b.next[pos] >= 0 {
			b.prev[b.next[pos]] = pos
			b.push(t, pos)
		}
		if b.prev[pos] >= 0 {
			b.push(t, b.prev[pos])
		}
	}
	if n > 0 {
		for i := int32(0); i >= 0; i = b.next[i] {
			out = append(out, b.id[i])
		}
	}
	return out
}

func (b *bpe) load(t *Tokenizer, w string) {
	if cap(b.id) < len(w) {
		b.id, b.prev, b.next = make([]int32, len(w)), make([]int32, len(w)), make([]int32, len(w))
	}
	b.id, b.prev, b.next = b.id[:0], b.prev[:0], b.next[:0]
	for i := range len(w) {
		if id := t.byteID[w[i]]; id >= 0 {
			n := int32(len(b.id))
			b.id = append(b.id, id)
			b.prev = append(b.prev, n-1)
			b.next = append(b.next, n+1)
		}
	}
	if n := len(b.id); n > 0 {
		b.next[n-1] = -1
	}
	b.queue.reset()
}

// push queues the pair that begins at pos if it has a rule. pos has a right neighbour.
func (b *bpe) push(t *Tokenizer, pos int32) {
	if r := b.rule(t, b.id[pos], b.id[b.next[pos]]); r.rank != noRank {
		b.steps += 1 + b.queue.push(r.rank, pos)
	}
}
