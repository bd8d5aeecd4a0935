package model

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/gguf"
	"bulkhead/kernels/cpu"
)

// file is a model of one layer that tests spoil.
type file struct {
	keys    map[string]any
	tensors map[string][]int
	data    map[string][]float32 // of tensors that are not all ones
}

// goodFile is a valid file: hidden 8, 2 heads of 4, 1 KV head, FFN 12, vocabulary 10.
func goodFile(arch string) file {
	f := file{
		keys: map[string]any{
			"general.architecture": arch, "general.name": "Test",
			arch + ".block_count": uint32(1), arch + ".embedding_length": uint32(8), arch + ".feed_forward_length": uint32(12),
			arch + ".context_length": uint32(32), arch + ".attention.head_count": uint32(2), arch + ".attention.head_count_kv": uint32(1),
			arch + ".attention.layer_norm_rms_epsilon": float32(1e-5), arch + ".vocab_size": uint32(10),
		},
		tensors: map[string][]int{
			"token_embd.weight": {8, 10}, "output_norm.weight": {8},
			"blk.0.attn_norm.weight": {8}, "blk.0.attn_q.weight": {8, 8}, "blk.0.attn_k.weight": {8, 4}, "blk.0.attn_v.weight": {8, 4},
			"blk.0.attn_output.weight": {8, 8}, "blk.0.ffn_norm.weight": {8},
			"blk.0.ffn_gate.weight": {8, 12}, "blk.0.ffn_up.weight": {8, 12}, "blk.0.ffn_down.weight": {12, 8},
		},
		data: map[string][]float32{},
	}
	switch arch {
	case "qwen2":
		f.tensors["blk.0.attn_q.bias"], f.tensors["blk.0.attn_k.bias"], f.tensors["blk.0.attn_v.bias"] = []int{8}, []int{4}, []int{4}
	case "qwen3":
		f.tensors["blk.0.attn_q_norm.weight"], f.tensors["blk.0.attn_k_norm.weight"] = []int{4}, []int{4}
	}
	return f
}

// bytes is the file as it would lie on disk.
func (f file) bytes(t testing.TB) []byte {
	t.Helper()
	w := gguf.NewWriter()
	for _, k := range slices.Sorted(maps.Keys(f.keys)) {
		switch v := f.keys[k].(type) {
		case string:
			w.Str(k, v)
		case uint32:
			w.Uint32(k, v)
		case uint64:
			w.Uint64(k, v)
		case int32:
			w.Int32(k, v)
		case float32:
			w.Float32(k, v)
		case bool:
			w.Bool(k, v)
		default:
			t.Fatalf("key %s of type %T", k, v)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.tensors)) {
		n := 1
		for _, d := range f.tensors[name] {
			n *= d
		}
		x := f.data[name]
		if x == nil {
			x = slices.Repeat([]float32{1}, n)
		}
		w.Tensor(name, gguf.TypeF32, f.tensors[name], gguf.EncodeF32(x))
	}
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// load loads the spoilt file; the backend is closed in any case.
func (f file) load(t *testing.T) (*Model, error) {
	t.Helper()
	b, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	g, err := gguf.Parse(f.bytes(t))
	if err != nil {
		t.Fatal(err)
	}
	return Load(g, b)
}

func TestGoodFiles(t *testing.T) {
	for _, arch := range architectures() {
		m, err := goodFile(arch).load(t)
		if err != nil {
			t.Fatal(err)
		}
		s := m.Spec()
		if s.HeadDim != 4 || s.RopeDims != 4 || s.RopeTheta != 10000 || s.RopeLinear != 1 || s.Vocab != 10 || m.Facts().Window != 32 || m.Facts().Name != "Test" {
			t.Errorf("%s: %+v", arch, s)
		}
	}
	// What may be absent or neutral.
	f := goodFile("llama")
	delete(f.keys, "llama.vocab_size")
	delete(f.keys, "general.name")
	f.keys["llama.rope.scaling.type"], f.keys["llama.expert_count"] = "none", uint32(0)
	f.keys["llama.attention.causal"], f.keys["llama.rope.scaling.attn_factor"] = true, float32(1)
	f.tensors["output.weight"], f.tensors["rope_freqs.weight"], f.tensors["blk.0.attn_q.bias"] = []int{8, 10}, []int{2}, []int{8}
	if _, err := f.load(t); err != nil {
		t.Error(err)
	}
}

// Each metadata key, spoilt: the error names the key, and the limit and value where there are any.
func TestSpecRefuses(t *testing.T) {
	const absent = "absent"
	for _, c := range []struct {
		key   string
		value any
		want  error
	}{
		{"general.architecture", "mamba", ErrUnsupported},
		{"general.architecture", absent, ErrMissing},
		{"general.architecture", uint32(1), gguf.ErrType},
		{"general.architecture", strings.Repeat("x", 5000), ErrUnsupported},
		{"llama.block_count", absent, ErrMissing},
		{"llama.block_count", uint32(0), ErrLimit},
		{"llama.block_count", uint32(1 << 20), ErrLimit},
		{"llama.block_count", uint64(math.MaxUint64), ErrLimit},
		{"llama.block_count", int32(-1), gguf.ErrValue},
		{"llama.block_count", "one", gguf.ErrType},
		{"llama.embedding_length", absent, ErrMissing},
		{"llama.embedding_length", uint64(1 << 40), ErrLimit},
		{"llama.feed_forward_length", absent, ErrMissing},
		{"llama.feed_forward_length", uint32(0), ErrLimit},
		{"llama.context_length", absent, ErrMissing},
		{"llama.context_length", uint64(1 << 62), ErrLimit},
		{"llama.attention.head_count", absent, ErrMissing},
		{"llama.attention.head_count", uint32(0), ErrLimit},
		{"llama.attention.head_count", uint32(1 << 14), ErrLimit}, // head dimension of 0
		{"llama.attention.head_count_kv", uint32(0), ErrLimit},
		{"llama.attention.head_count_kv", uint32(3), ErrLimit},
		{"llama.attention.layer_norm_rms_epsilon", absent, ErrMissing},
		{"llama.attention.layer_norm_rms_epsilon", float32(0), ErrLimit},
		{"llama.attention.layer_norm_rms_epsilon", float32(math.NaN()), ErrLimit},
		{"llama.attention.key_length", uint32(3), ErrUnsupported}, // not the value length
		{"llama.attention.key_length", uint32(1 << 30), ErrLimit},
		{"llama.attention.value_length", uint32(8), ErrUnsupported},
		{"llama.rope.dimension_count", uint32(6), ErrLimit},
		{"llama.rope.dimension_count", uint32(3), ErrLimit},
		{"llama.rope.freq_base", float32(0), ErrLimit},
		{"llama.rope.freq_base", float32(math.Inf(1)), ErrLimit},
		{"llama.rope.scale_linear", float32(-1), ErrLimit},
		{"llama.rope.scaling.type", "yarn", ErrUnsupported},
		{"llama.rope.scaling.factor", absent, ErrMissing}, // with type linear, below
		{"llama.vocab_size", uint32(11), ErrLimit},
		{"llama.expert_count", uint32(8), ErrUnsupported},
		{"llama.attention.sliding_window", uint32(4096), ErrUnsupported},
		{"llama.attn_logit_softcapping", float32(30), ErrUnsupported},
		{"llama.logit_scale", float32(0.5), ErrUnsupported},
		{"llama.rope.scaling.attn_factor", float32(1.2), ErrUnsupported},
		{"llama.attention.causal", false, ErrUnsupported},
		{"llama.attention.causal", uint32(1), gguf.ErrType},
	} {
		f := goodFile("llama")
		if c.value == absent {
			delete(f.keys, c.key)
		} else {
			f.keys[c.key] = c.value
		}
		if c.key == "llama.rope.scaling.factor" {
			f.keys["llama.rope.scaling.type"] = "linear"
		}
		want := c.key
		if c.key == "llama.attention.key_length" && c.want == ErrUnsupported {
			want = "llama.attention.value_length" // where the two disagree
		}
		if c.key == "llama.attention.head_count" && c.value == uint32(1<<14) {
			want = "llama.attention.key_length" // which follows from it
		}
		_, err := f.load(t)
		var se *SpecError
		if !errors.As(err, &se) || !errors.Is(err, c.want) || se.Key != want {
			t.Errorf("%s = %.20v: %v", c.key, c.value, err)
			continue
		}
		if c.want == ErrLimit && (se.Limit == "" || se.Value == "") || len(err.Error()) > 500 {
			t.Errorf("%s = %.20v: message %.600q", c.key, c.value, err)
		}
	}
}

// Each tensor missing, of another shape, and unknown ones: the error names the
// tensor, and the shapes.
func TestTensorsRefused(t *testing.T) {
	refused := func(what string, f file, name string, want error) {
		t.Helper()
		_, err := f.load(t)
		var te *TensorError
		if !errors.As(err, &te) || !errors.Is(err, want) || te.Name != name || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, arch := range architectures() {
		for name, dims := range goodFile(arch).tensors {
			f := goodFile(arch)
			delete(f.tensors, name)
			refused(arch+" without "+name, f, name, ErrMissing)

			f = goodFile(arch)
			f.tensors[name] = slices.Clone(dims)
			f.tensors[name][0]++
			refused(arch+" with another "+name, f, name, ErrShape)
			f.tensors[name] = append(slices.Clone(dims), 2)
			refused(arch+" with a dimension more in "+name, f, name, shapeError(name))
			if len(dims) == 2 {
				f.tensors[name] = []int{dims[1], dims[0]}
				if dims[0] != dims[1] && name != "token_embd.weight" {
					refused(arch+" with "+name+" turned round", f, name, ErrShape)
				}
			}
		}
		for _, name := range []string{"blk.1.attn_q.weight", "blk.0.ffn_gate_exps.weight", "blk.0.attn_sinks.weight", "extra", "blk.00.attn_q.weight"} {
			f := goodFile(arch)
			f.tensors[name] = []int{8, 8}
			refused(arch+" with "+name, f, name, ErrUnknown)
		}
	}
	for _, x := range []float32{0, -1, float32(math.NaN()), float32(math.Inf(1))} {
		f := goodFile("llama")
		f.tensors["rope_freqs.weight"], f.data["rope_freqs.weight"] = []int{2}, []float32{1, x}
		refused(fmt.Sprint("frequency factor ", x), f, "rope_freqs.weight", ErrLimit)
	}
	f := goodFile("qwen3")
	f.tensors["rope_freqs.weight"] = []int{2}
	refused("factors where the family has none", f, "rope_freqs.weight", ErrUnknown)
}

// shapeError: an embedding that is no matrix gives no vocabulary to compare with.
func shapeError(name string) error {
	if name == "token_embd.weight" {
		return ErrLimit
	}
	return ErrShape
}

func TestCleanName(t *testing.T) {
	for in, want := range map[string]string{
		"SmolLM2 135M": "SmolLM2 135M", "a\x00b\nc\x1b[31m": "abc[31m", "\xff\xfeü": "ü", strings.Repeat("x", 1000): strings.Repeat("x", 128),
	} {
		if got := cleanName(in); got != want {
			t.Errorf("%.20q gave %.20q, want %.20q", in, got, want)
		}
	}
}
