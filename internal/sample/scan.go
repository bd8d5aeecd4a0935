package sample

// scan is the passes over a vocabulary, for one set of instructions. All of them
// give the same bits. Every pass takes a multiple of scanLanes tokens; [blocks]
// gives them so and hands the rest of a vocabulary to plain Go.
type scan struct {
	name      string
	supported func() bool

	// most is the largest logit, and whether all are below +Inf and none is NaN;
	// where they are not, the largest means nothing.
	most func(logits []float32) (most float32, ok bool)
	// weigh writes the weight of each token and returns their sum.
	weigh func(weights []uint64, logits []float32, p *weighing) (sum uint64)
	// above: sums[j] is the weight of the tokens with a logit of at least cuts[j];
	// cuts descend.
	above func(logits []float32, weights []uint64, cuts *[scanCuts]float32, sums *[scanCuts]uint64)
	// count: as above, with a weight of 1 for each token.
	count func(logits []float32, cuts *[scanCuts]float32, sums *[scanCuts]uint64)
	// mask sets the bits of the tokens with lo <= logit < hi, 16 in a word, the
	// first one lowest.
	mask func(bits []uint16, logits []float32, lo, hi float32)
}

const (
	scanLanes = 16
	scanCuts  = 8
	// scanBlock is the tokens whose sum is kept: finding a token in a block is plain
	// Go, and finding the block is as long for 2^20 tokens as that.
	scanBlock = 1024
)

// bestScan chooses by the processor alone: as all sets have the same bits, nothing
// needs to know which it was.
func bestScan() *scan {
	for _, s := range archScans() {
		if s.supported() {
			return s
		}
	}
	return &genericScan
}

// block is tokens [lo, hi) of n, the i-th scanBlock of them; even of them are a
// multiple of scanLanes.
func block(i, n int) (lo, even, hi int) {
	lo = i * scanBlock
	hi = min(lo+scanBlock, n)
	return lo, lo + (hi-lo)&^(scanLanes-1), hi
}

func blockCount(n int) int { return (n + scanBlock - 1) / scanBlock }

// best gives the place of the largest logit, the lowest among equals, and -1 if a
// logit is NaN or +Inf, or all are -Inf. It leaves the largest of each block in most.
func (k *scan) best(most []float32, logits []float32) int {
	at := 0
	for i := range most {
		lo, even, hi := block(i, len(logits))
		var ok bool
		if most[i], ok = k.mostOf(logits[lo:hi], even-lo); !ok {
			return -1
		}
		if most[i] > most[at] {
			at = i
		}
	}
	lo, _, hi := block(at, len(logits))
	for i, l := range logits[lo:hi] {
		if l == most[at] && l >= lowest32 {
			return lo + i
		}
	}
	return -1
}

func (k *scan) mostOf(logits []float32, even int) (most float32, ok bool) {
	most, ok = genericMost(logits[even:])
	if even > 0 {
		m, all := k.most(logits[:even])
		most, ok = max(most, m), ok && all
	}
	return most, ok
}

// weighAll weighs the vocabulary and leaves the sum of each block in sums.
func (k *scan) weighAll(sums, weights []uint64, logits []float32, p *weighing) (total uint64) {
	for i := range sums {
		lo, even, hi := block(i, len(logits))
		sums[i] = genericWeigh(weights[even:hi], logits[even:hi], p)
		if even > lo {
			sums[i] += k.weigh(weights[lo:even], logits[lo:even], p)
		}
		total += sums[i]
	}
	return total
}

// aboveAll leaves the sums of each block in sums, and returns those of all.
func (k *scan) aboveAll(sums [][scanCuts]uint64, logits []float32, weights []uint64, cuts *[scanCuts]float32) (total [scanCuts]uint64) {
	for i := range sums {
		lo, _, hi := block(i, len(logits))
		sums[i] = k.aboveOf(logits[lo:hi], weights[lo:hi], cuts)
		for j, v := range sums[i] {
			total[j] += v
		}
	}
	return total
}

// aboveOf is above for any number of tokens.
func (k *scan) aboveOf(logits []float32, weights []uint64, cuts *[scanCuts]float32) (sums [scanCuts]uint64) {
	even := len(logits) &^ (scanLanes - 1)
	if even > 0 {
		k.above(logits[:even], weights[:even], cuts, &sums)
	}
	if even < len(logits) {
		var rest [scanCuts]uint64
		genericAbove(logits[even:], weights[even:], cuts, &rest)
		for j, v := range rest {
			sums[j] += v
		}
	}
	return sums
}

func (k *scan) countAll(logits []float32, cuts *[scanCuts]float32) (total [scanCuts]uint64) {
	for i := range blockCount(len(logits)) {
		lo, even, hi := block(i, len(logits))
		var rest, s [scanCuts]uint64
		genericCount(logits[even:hi], cuts, &rest)
		if even > lo {
			k.count(logits[lo:even], cuts, &s)
		}
		for j := range total {
			total[j] += s[j] + rest[j]
		}
	}
	return total
}

// maskAll wants a word for every 16 tokens begun.
func (k *scan) maskAll(bits []uint16, logits []float32, lo, hi float32) {
	even := len(logits) &^ (scanLanes - 1)
	for at := 0; at < even; at += scanBlock { // no call is long
		end := min(at+scanBlock, even)
		k.mask(bits[at/16:end/16], logits[at:end], lo, hi)
	}
	if even < len(logits) {
		genericMask(bits[even/16:], logits[even:], lo, hi)
	}
}
