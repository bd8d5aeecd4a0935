package tokenizer

// matcher finds added tokens in text: a trie over bytes. At one position the longest
// token wins, and the leftmost position first, as in Hugging Face tokenizers.
type matcher struct {
	first [256]bool // bytes that begin a token: most text is skipped by this alone
	next  map[edge]int32
	id    []int32 // per node: token that ends there, or -1; node 0 is the root
}

type edge struct {
	node int32
	b    byte
}

func (m *matcher) insert(text string, id int32) {
	if m.next == nil {
		m.next = map[edge]int32{}
		m.id = []int32{-1}
	}
	m.first[text[0]] = true
	node := int32(0)
	for i := range len(text) {
		e := edge{node, text[i]}
		to, ok := m.next[e]
		if !ok {
			to = int32(len(m.id))
			m.id = append(m.id, -1)
			m.next[e] = to
		}
		node = to
	}
	m.id[node] = id
}

// longest returns the longest token that begins at s[i] and its length; 0 if none does.
// It looks at no more than maxAddedBytes bytes.
func (m *matcher) longest(s string, i int) (id int32, n int) {
	node := int32(0)
	for j := i; j < len(s); j++ {
		to, ok := m.next[edge{node, s[j]}]
		if !ok {
			break
		}
		if node = to; m.id[node] >= 0 {
			id, n = m.id[node], j+1-i
		}
	}
	return id, n
}

// exact returns the token whose whole text is s.
func (m *matcher) exact(s string) (int32, bool) {
	if s == "" || !m.first[s[0]] {
		return 0, false
	}
	id, n := m.longest(s, 0)
	return id, n == len(s)
}
