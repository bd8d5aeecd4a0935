package router

import (
	"cmp"
	"hash/fnv"
	"slices"
	"time"

	"bulkhead/internal/mutant"
	"bulkhead/internal/tenant"
	"bulkhead/transfer"
)

// pair is the two nodes of an attempt.
type pair struct {
	prefill, decode transfer.Announce
}

// limit is the longest prompt + max_new that both nodes of p take.
func (p *pair) limit() int { return limit(&p.prefill, &p.decode) }

func limit(p, d *transfer.Announce) int {
	return min(p.Window, d.Window, p.Capacity, d.Capacity, transfer.PromptMax)
}

// need is what one sequence asks of a pair.
type need struct {
	prompt, maxNew int      // tokens
	avoid          []string // nodes that failed earlier attempts of this sequence
	tie            uint64   // spreads equal choices; from the request's id
}

// verdict is the answer of board.choose.
type verdict int

const (
	placed    verdict = iota
	noRoomNow         // a pair could take it, but not now
	tooLong           // over every pair's limit
	noNode            // no pair is ready at all
)

// board is what the router knows of the nodes: their announcements, and what it
// has itself given them since. It is pure state: callers hand in announcements, and lock.
type board struct {
	metadata transfer.Hash // of the header of the model file this router tokenizes for
	file     transfer.Hash // of the whole file that is served; zero: none yet
	refused  []string      // nodes of the header but of another file, by name
	nodes    []transfer.Announce
	accounts map[nodeKey]*account
}

// nodeKey names a node; names are unique within a role.
type nodeKey struct {
	role transfer.Role
	name string
}

func keyOf(n *transfer.Announce) nodeKey { return nodeKey{n.Role, n.Node} }

// account is what this router has reserved at one boot of a node.
type account struct {
	epoch uint64
	stamp time.Time // the announcement's expiry, which names the announcement
	all   int       // tokens of all reservations
	fresh int       // of those since the last announcement, which cannot include them
	full  bool      // it said no since the last announcement
}

// reservation is one sequence's claim on one node, as the board counts it.
type reservation struct {
	node   nodeKey
	epoch  uint64
	stamp  time.Time
	tokens int
}

func newBoard(metadata transfer.Hash) *board {
	return &board{metadata: metadata, accounts: make(map[nodeKey]*account)}
}

// update takes the announcements that are believed now and forgets nodes that are gone. It does
// not look at Expires as a time: whose clock that is, and what to make of it, is the directory's to know.
func (b *board) update(nodes []transfer.Announce) {
	b.nodes = b.nodes[:0]
	for _, n := range nodes {
		if n.Metadata == b.metadata || mutant.Off(mutant.BoardMetadata) {
			b.nodes = append(b.nodes, n)
		}
	}
	b.pin()
	slices.SortFunc(b.nodes, func(x, y transfer.Announce) int { return cmp.Compare(x.Node, y.Node) })
	old := b.accounts
	b.accounts = make(map[nodeKey]*account, len(b.nodes))
	for i := range b.nodes {
		n := &b.nodes[i]
		a := old[keyOf(n)]
		switch {
		case a == nil || a.epoch != n.Epoch: // what was reserved at an earlier boot is gone
			a = &account{epoch: n.Epoch, stamp: n.Expires}
		case !a.stamp.Equal(n.Expires):
			a.stamp, a.fresh, a.full = n.Expires, 0, false
		}
		b.accounts[keyOf(n)] = a
	}
}

// pin leaves only nodes of one model file. Two files may have the same header and other
// weights (a fine-tune, a damaged copy), and one name must not stand for both: the first that
// can serve is kept until its last node is gone.
func (b *board) pin() {
	count := make(map[transfer.Hash]int)
	for _, n := range b.nodes {
		count[n.File]++
	}
	if count[b.file] == 0 {
		b.file = transfer.Hash{}
		for file, n := range count {
			if c := count[b.file]; n > c || n == c && slices.Compare(file[:], b.file[:]) < 0 {
				b.file = file
			}
		}
	}
	b.refused = b.refused[:0]
	b.nodes = slices.DeleteFunc(b.nodes, func(n transfer.Announce) bool {
		if n.File == b.file || mutant.Off(mutant.BoardFile) {
			return false
		}
		b.refused = append(b.refused, n.Node)
		return true
	})
	slices.Sort(b.refused)
}

// pairs calls visit with every pair that may work together and takes work.
func (b *board) pairs(visit func(p, d *transfer.Announce)) {
	for i := range b.nodes {
		p := &b.nodes[i]
		if p.Role != transfer.RolePrefill || p.Draining {
			continue
		}
		for i := range b.nodes {
			d := &b.nodes[i]
			if d.Role == transfer.RoleDecode && d.Ready && !d.Draining &&
				(d.Model == p.Model && d.Metadata == p.Metadata && d.Layout == p.Layout && d.Vocab == p.Vocab || mutant.Off(mutant.PairModel)) {
				visit(p, d)
			}
		}
	}
}

// best returns the pair with the largest limit, which is the effective window; ok is false
// if there is none.
func (b *board) best() (best pair, ok bool) {
	b.pairs(func(p, d *transfer.Announce) {
		if !ok || limit(p, d) > best.limit() {
			best, ok = pair{*p, *d}, true
		}
	})
	return best, ok
}

// demand is what a sequence of n tokens takes at a node: whole pages, but never
// more than the node has, since its last page may be cut by its capacity.
func demand(n int, at *transfer.Announce) int {
	return min(tenant.Blocks(n)*tenant.BlockTokens, at.Capacity)
}

// free is the capacity of a node that nobody has, as far as known here.
func (b *board) free(n *transfer.Announce) int {
	a := b.accounts[keyOf(n)]
	if a.full {
		return 0
	}
	return min(n.FreeTokens-a.fresh, n.Capacity-a.all)
}

// choose picks the pair with the least work before it that can hold n now.
// Avoided nodes are taken only by nobody: with no other pair the verdict is noNode.
func (b *board) choose(n need) (best pair, v verdict) {
	v = noNode
	var bestRank [4]int
	b.pairs(func(p, d *transfer.Announce) {
		switch {
		case slices.Contains(n.avoid, p.Node) || slices.Contains(n.avoid, d.Node):
			return
		case n.prompt+n.maxNew > limit(p, d) && !mutant.Off(mutant.AdmissionLength):
			if v == noNode {
				v = tooLong
			}
			return
		case b.free(p) < demand(n.prompt, p) || b.free(d) < demand(n.prompt+n.maxNew, d):
			if v != placed {
				v = noRoomNow
			}
			return
		}
		if rank := b.rank(p, d, n); v != placed || slices.Compare(rank[:], bestRank[:]) < 0 {
			best, bestRank, v = pair{*p, *d}, rank, placed
		}
	})
	return best, v
}

// rank orders pairs, least first: prompt tokens queued at prefill in steps of a
// chunk (what comes before the first token), then the part of decode's pool in
// use in steps of 1/16 (what the batch costs each token), then sequences running, then chance.
func (b *board) rank(p, d *transfer.Announce, n need) [4]int {
	const chunk = 512
	backlog := p.Waiting + b.accounts[keyOf(p)].fresh
	used := 16 * (d.Capacity - b.free(d)) / max(d.Capacity, 1)
	return [4]int{backlog / chunk, used, d.Running, int(tieBreak(n.tie, p.Node, d.Node) >> 1)}
}

func tieBreak(tie uint64, prefill, decode string) uint64 {
	h := fnv.New64a()
	var b [8]byte
	for i := range b {
		b[i] = byte(tie >> (8 * i))
	}
	_, _ = h.Write(b[:])
	_, _ = h.Write([]byte(prefill + " " + decode))
	return h.Sum64()
}

// reserve counts n against both nodes of p and returns the two claims.
func (b *board) reserve(p pair, n need) [2]reservation {
	take := func(at *transfer.Announce, tokens int) reservation {
		a := b.accounts[keyOf(at)]
		a.all += tokens
		a.fresh += tokens
		return reservation{node: keyOf(at), epoch: a.epoch, stamp: a.stamp, tokens: tokens}
	}
	return [2]reservation{
		take(&p.prefill, demand(n.prompt, &p.prefill)),
		take(&p.decode, demand(n.prompt+n.maxNew, &p.decode)),
	}
}

// release takes a claim back.
func (b *board) release(r reservation) {
	a := b.accounts[r.node]
	if a == nil || a.epoch != r.epoch {
		return // the node restarted or is gone, and the claim with it
	}
	a.all -= r.tokens
	if a.stamp.Equal(r.stamp) {
		a.fresh -= r.tokens
	}
}

// markFull notes that node said it has no room; it is believed until its next announcement.
func (b *board) markFull(node string) {
	for k, a := range b.accounts {
		if k.name == node {
			a.full = true
		}
	}
}
