package tokenizer

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io"
	"sort"
)

// sum is SHA-256 over a canonical encoding of everything that decides ids or rendering.
// Strings are their length as 8 bytes little-endian, then their bytes; numbers are 8
// bytes little-endian; lists are their count, then their items. In order:
//
//	"bulkhead tokenizer v1"  model  pre
//	tokens: text and type of each
//	merges: left, right and result id of each, by rank
//	bos (as signed), add_bos (0 or 1), end-of-generation ids ascending
//	template variables by name: name, text
//	has template (0 or 1), its source
func (t *Tokenizer) sum(template string, hasTemplate bool) [32]byte {
	h := canonical{sha256.New()}
	h.str("bulkhead tokenizer v1")
	h.str(t.model)
	h.str(t.pre)
	h.num(len(t.text))
	for i, text := range t.text {
		h.str(text)
		h.num(int(t.kind[i]))
	}
	byRank := make([]pair, 0, len(t.merges))
	for p := range t.merges {
		byRank = append(byRank, p)
	}
	sort.Slice(byRank, func(i, j int) bool { return t.merges[byRank[i]].rank < t.merges[byRank[j]].rank })
	h.num(len(byRank))
	for _, p := range byRank {
		h.num(int(p.left))
		h.num(int(p.right))
		h.num(int(t.merges[p].id))
	}
	h.num(int(t.bos))
	h.flag(t.addBOS)
	ends := make([]int, 0, len(t.eog))
	for id := range t.eog {
		ends = append(ends, int(id))
	}
	sort.Ints(ends)
	h.num(len(ends))
	for _, id := range ends {
		h.num(id)
	}
	names := make([]string, 0, len(t.special))
	for name := range t.special {
		names = append(names, name)
	}
	sort.Strings(names)
	h.num(len(names))
	for _, name := range names {
		h.str(name)
		h.str(t.special[name])
	}
	h.flag(hasTemplate)
	h.str(template)
	return [32]byte(h.Sum(nil))
}

// canonical writes the encoding described at sum. Writes to a hash never fail.
type canonical struct{ hash.Hash }

func (c canonical) num(n int) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(int64(n)))
	c.Write(b[:])
}

func (c canonical) str(s string) {
	c.num(len(s))
	io.WriteString(c, s)
}

func (c canonical) flag(on bool) {
	if on {
		c.num(1)
	} else {
		c.num(0)
	}
}
