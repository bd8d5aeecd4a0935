package model

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"

	"bulkhead/internal/gguf"
	"bulkhead/kernels"
)

// Spec is the shape of a model as its metadata tells it, every field checked.
type Spec struct {
	Name     string // general.name, cleaned for logs; the architecture where absent
	Arch     string
	Layers   int
	Hidden   int // width of the residual stream
	FFN      int // width inside the feed-forward part
	Heads    int // query heads
	KVHeads  int // divides Heads
	HeadDim  int // even
	RopeDims int // rotated dimensions of a head: even, <= HeadDim
	Vocab    int // rows of token_embd.weight
	Window   int // tokens the model was trained for

	Eps        float32 // of every norm
	RopeTheta  float64
	RopeLinear float64 // positions are divided by it; 1 where unscaled

	family family
}

// Layout is the shape of this model's KV blocks.
func (s Spec) Layout() kernels.PageLayout {
	return kernels.PageLayout{Layers: s.Layers, KVHeads: s.KVHeads, HeadDim: s.HeadDim}
}

// Upper limits of the metadata. The real bound is the file: each of these extents
// is compared with the shape of a tensor whose bytes are there. They only keep
// products inside an int, and are ten times what any published model has.
const (
	layersMax = 1 << 12
	widthMax  = 1 << 20
	headsMax  = 1 << 14
	headMax   = 1 << 12
	windowMax = 1 << 28
	vocabMax  = 1 << 22 // sample's integer weights hold 2^23 tokens
)

// ReadSpec reads and checks the metadata of f. The error is a *SpecError.
func ReadSpec(f *gguf.File) (Spec, error) {
	m := &metadata{f: f}
	arch := m.str("general.architecture", "")
	fam, ok := familyOf(arch)
	if m.err == nil && !ok {
		m.refuse("general.architecture", ErrUnsupported, strconv.Quote(cut(arch)), "one of "+strings.Join(architectures(), ", "))
	}
	if m.err != nil {
		return Spec{}, m.err
	}
	m.arch = arch
	s := Spec{Arch: arch, family: fam, Name: cleanName(m.str("general.name", arch))}
	s.Layers = m.int("block_count", 1, layersMax)
	s.Hidden = m.int("embedding_length", 1, widthMax)
	s.FFN = m.int("feed_forward_length", 1, widthMax)
	s.Window = m.int("context_length", 1, windowMax)
	s.Heads = m.int("attention.head_count", 1, headsMax)
	s.KVHeads = m.intOr("attention.head_count_kv", s.Heads, 1, headsMax)
	s.Eps = float32(m.float("attention.layer_norm_rms_epsilon", math.SmallestNonzeroFloat32, 1))
	if m.err != nil {
		return Spec{}, m.err
	}
	if s.Heads%s.KVHeads != 0 {
		m.refuse(m.key("attention.head_count_kv"), ErrLimit, strconv.Itoa(s.KVHeads), fmt.Sprintf("a divisor of head_count (%d)", s.Heads))
	}
	s.readHead(m)
	s.readRope(m)
	m.refuseForeign()
	s.readVocab(m)
	return s, m.err
}

// readHead reads the width of a head, which K and V must share.
func (s *Spec) readHead(m *metadata) {
	s.HeadDim = m.intOr("attention.key_length", s.Hidden/s.Heads, 2, headMax)
	value := m.intOr("attention.value_length", s.Hidden/s.Heads, 2, headMax)
	if value != s.HeadDim {
		m.refuse(m.key("attention.value_length"), ErrUnsupported, strconv.Itoa(value), fmt.Sprintf("key_length (%d)", s.HeadDim))
	}
	if s.HeadDim%2 != 0 {
		m.refuse(m.key("attention.key_length"), ErrLimit, strconv.Itoa(s.HeadDim), "an even number")
	}
}

func (s *Spec) readRope(m *metadata) {
	s.RopeDims = m.intOr("rope.dimension_count", s.HeadDim, 2, s.HeadDim)
	if s.RopeDims%2 != 0 {
		m.refuse(m.key("rope.dimension_count"), ErrLimit, strconv.Itoa(s.RopeDims), "an even number")
	}
	s.RopeTheta = m.floatOr("rope.freq_base", 10000, 1, 1e12)
	s.RopeLinear = 1
	switch kind := m.str(m.key("rope.scaling.type"), "none"); kind {
	case "none":
		// Older files give the linear factor alone.
		s.RopeLinear = m.floatOr("rope.scale_linear", 1, 1e-6, 1e6)
	case "linear":
		s.RopeLinear = m.float("rope.scaling.factor", 1e-6, 1e6)
	default:
		m.refuse(m.key("rope.scaling.type"), ErrUnsupported, strconv.Quote(cut(kind)), "none or linear (Llama 3 scaling comes as rope_freqs.weight)")
	}
}

// readVocab takes the size from the embedding, and holds the metadata to it.
func (s *Spec) readVocab(m *metadata) {
	embd, ok := m.f.Tensor("token_embd.weight")
	if !ok || len(embd.Dims) != 2 || embd.Dims[1] > vocabMax {
		return // checkTensors says so, with shapes
	}
	s.Vocab = embd.Dims[1]
	if n := m.intOr("vocab_size", s.Vocab, 1, vocabMax); n != s.Vocab {
		m.refuse(m.key("vocab_size"), ErrLimit, strconv.Itoa(n), fmt.Sprintf("the rows of token_embd.weight (%d)", s.Vocab))
	}
}

// metadata reads keys and remembers the first error.
type metadata struct {
	f    *gguf.File
	arch string
	err  error
}

func (m *metadata) key(suffix string) string { return m.arch + "." + suffix }

func (m *metadata) refuse(key string, err error, value, limit string) {
	if m.err == nil {
		m.err = &SpecError{Key: key, Err: err, Value: value, Limit: limit}
	}
}

func (m *metadata) str(key, absent string) string {
	v, ok, err := m.f.Str(key)
	switch {
	case err != nil:
		m.refuse(key, err, "", "")
	case !ok && absent == "":
		m.refuse(key, ErrMissing, "", "")
	case ok:
		return v
	}
	return absent
}

// int reads a key of the architecture that must be there.
func (m *metadata) int(suffix string, lo, hi int) int { return m.integer(suffix, nil, lo, hi) }

// intOr reads a key that may be absent. The default is held to the limits, too.
func (m *metadata) intOr(suffix string, absent, lo, hi int) int {
	return m.integer(suffix, &absent, lo, hi)
}

func (m *metadata) integer(suffix string, absent *int, lo, hi int) int {
	key := m.key(suffix)
	v, ok, err := m.f.Uint(key)
	switch {
	case err != nil:
		m.refuse(key, err, "", "")
		return lo
	case !ok && absent == nil:
		m.refuse(key, ErrMissing, "", "")
		return lo
	case !ok:
		v = uint64(*absent) // never negative
	}
	if v < uint64(lo) || v > uint64(hi) {
		m.refuse(key, ErrLimit, strconv.FormatUint(v, 10), fmt.Sprintf("%d to %d", lo, hi))
		return lo
	}
	return int(v)
}

func (m *metadata) float(suffix string, lo, hi float64) float64 {
	if _, ok, err := m.f.Float(m.key(suffix)); !ok && err == nil {
		m.refuse(m.key(suffix), ErrMissing, "", "")
		return lo
	}
	return m.floatOr(suffix, lo, lo, hi)
}

func (m *metadata) floatOr(suffix string, absent, lo, hi float64) float64 {
	key := m.key(suffix)
	v, ok, err := m.f.Float(key)
	switch {
	case err != nil:
		m.refuse(key, err, "", "")
	case ok && !(v >= lo && v <= hi): // NaN is outside
		m.refuse(key, ErrLimit, fmt.Sprint(v), fmt.Sprintf("%g to %g", lo, hi))
	case ok:
		return v
	}
	return absent
}

// foreign are keys that change the computation in ways that no family here
// has, with the value that changes nothing. A file with another value would load
// and answer wrongly.
func foreign() map[string]float64 {
	return map[string]float64{
		"expert_count": 0, "expert_used_count": 0, "expert_shared_count": 0, "leading_dense_block_count": 0,
		"attention.sliding_window": 0, "attention.scale": 0, "attention.clamp_kqv": 0, "attention.max_alibi_bias": 0,
		"attention.q_lora_rank": 0, "attention.kv_lora_rank": 0, "attention.shared_kv_layers": 0, "attention.temperature_scale": 0,
		"attn_logit_softcapping": 0, "final_logit_softcapping": 0, "logit_scale": 0, "residual_scale": 0, "embedding_scale": 0,
		"rope.scaling.attn_factor": 1, "pooling_type": 0,
	}
}

func (m *metadata) refuseForeign() {
	for suffix, neutral := range foreign() {
		key := m.key(suffix)
		v, ok, err := m.f.Float(key)
		switch {
		case err != nil:
			m.refuse(key, err, "", "")
		case ok && v != neutral:
			m.refuse(key, ErrUnsupported, fmt.Sprint(v), fmt.Sprintf("%g or no such key", neutral))
		}
	}
	for suffix, neutral := range map[string]bool{"attention.causal": true, "use_parallel_residual": false} {
		key := m.key(suffix)
		v, ok, err := m.f.Bool(key)
		switch {
		case err != nil:
			m.refuse(key, err, "", "")
		case ok && v != neutral:
			m.refuse(key, ErrUnsupported, fmt.Sprint(v), fmt.Sprintf("%v or no such key", neutral))
		}
	}
}

// quoteMax bounds how much of a file's string an error repeats.
const quoteMax = 64

func cut(s string) string { return s[:min(len(s), quoteMax)] }

// cleanName makes a name from the file fit for logs and announcements.
func cleanName(s string) string {
	const nameMax = 128
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s[:min(len(s), nameMax)], ""))
	return s
}
