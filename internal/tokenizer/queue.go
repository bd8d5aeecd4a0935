package tokenizer

// rankQueue hands out (rank, position) entries, lowest rank first and within a rank
// lowest position first.
//
// A binary heap over all entries would cost log n per entry: on a word of a million
// symbols several times what ordinary text costs. But a word has few ranks, and positions
// of one rank mostly arrive in order, because merging sweeps from left to right. So there
// is a heap of ranks only, and for each rank a list of positions in order, with a small
// heap for those that arrive late. Each entry costs O(1) in practice, O(log n) at worst.
type rankQueue struct {
	ranks  heap32            // ranks that have entries, each once
	bucket map[int32]*bucket // by rank; drained buckets stay, for reuse
	cur    *bucket           // bucket of the rank pushed to last
	curAt  int32
}

type bucket struct {
	inOrder []int32 // ascending; inOrder[head:] is left
	head    int
	late    heap32
	queued  bool // its rank is in ranks
}

func (q *rankQueue) reset() {
	q.ranks = q.ranks[:0]
	q.bucket = map[int32]*bucket{}
	q.cur = nil
}

func (q *rankQueue) at(rank int32) *bucket {
	if q.cur != nil && q.curAt == rank {
		return q.cur
	}
	k := q.bucket[rank]
	if k == nil {
		k = &bucket{}
		q.bucket[rank] = k
	}
	q.cur, q.curAt = k, rank
	return k
}

// push adds an entry and returns the work done in heaps.
func (q *rankQueue) push(rank, pos int32) (work int) {
	k := q.at(rank)
	if n := len(k.inOrder); n == 0 || k.inOrder[n-1] <= pos {
		k.inOrder = append(k.inOrder, pos)
	} else {
		work += k.late.push(pos)
	}
	if !k.queued {
		k.queued = true
		work += q.ranks.push(rank)
	}
	return work
}

// pop removes the first entry. A rank pushed during a sweep that is lower than the one
// being swept comes first, because the lowest rank is looked up anew each time.
func (q *rankQueue) pop() (pos, rank int32, ok bool) {
	if len(q.ranks) == 0 {
		return 0, 0, false
	}
	rank = q.ranks[0]
	k := q.at(rank)
	if len(k.late) > 0 && (k.head == len(k.inOrder) || k.late[0] < k.inOrder[k.head]) {
		pos = k.late.pop()
	} else {
		pos = k.inOrder[k.head]
		k.head++
	}
	if k.head == len(k.inOrder) {
		k.inOrder, k.head = k.inOrder[:0], 0
		if len(k.late) == 0 {
			k.queued = false
			q.ranks.pop()
		}
	}
	return pos, rank, true
}

// heap32 is a binary heap, least value first.
type heap32 []int32

// push returns the number of levels climbed.
func (h *heap32) push(v int32) (levels int) {
	s := append(*h, v)
	i := len(s) - 1
	for i > 0 {
		up := (i - 1) / 2
		if s[up] <= s[i] {
			break
		}
		s[up], s[i] = s[i], s[up]
		i = up
		levels++
	}
	*h = s
	return levels
}

func (h *heap32) pop() int32 {
	s := *h
	top := s[0]
	last := len(s) - 1
	s[0] = s[last]
	s = s[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c >= last {
			break
		}
		if c+1 < last && s[c+1] < s[c] {
			c++
		}
		if s[i] <= s[c] {
			break
		}
		s[i], s[c] = s[c], s[i]
		i = c
	}
	*h = s
	return top
}
