package model

import (
	"fmt"
	"math"
	"sync/atomic"

	"bulkhead/internal/gguf"
	"bulkhead/kernels"
)

// Model is a loaded model: an Engine.
type Model struct {
	spec    Spec
	facts   Facts
	backend kernels.Backend
	closed  atomic.Bool

	embed   kernels.Matrix
	layers  []layer
	outNorm kernels.Vector
	head    kernels.Matrix // the embedding itself where tied
	rope    kernels.RoPE
	scale   float32 // of attention scores: 1/sqrt(HeadDim)
}

// layer is the weights of one layer, grouped as MatMul takes them.
type layer struct {
	attnNorm     kernels.Vector
	qkv          []kernels.Matrix
	qkvBias      []kernels.Vector // elements nil without bias
	qNorm, kNorm kernels.Vector   // nil without
	attnOut      []kernels.Matrix
	ffnNorm      kernels.Vector
	gateUp       []kernels.Matrix
	down         []kernels.Matrix
}

var _ Engine = (*Model)(nil)

// Open loads the model at path. From success on the Model owns backend and closes it.
// Errors are gguf.Open's and Load's.
func Open(path string, backend kernels.Backend) (*Model, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Load(f, backend)
}

// Load makes a Model of f, whose weights the backend copies: f may be closed
// afterwards, and its pages are dropped from resident memory. From success on the
// Model owns backend and closes it. The error is a *SpecError or a *TensorError.
func Load(f *gguf.File, backend kernels.Backend) (*Model, error) {
	return load(f, backend, true)
}

// load is Load where precise is true (precision.go).
func load(f *gguf.File, backend kernels.Backend, precise bool) (*Model, error) {
	spec, err := ReadSpec(f)
	if err != nil {
		return nil, err
	}
	if err := checkTensors(f, spec); err != nil {
		return nil, err
	}
	digest := make(chan [digestBytes]byte, 1)
	data := f.Data() // until Close; the receive below comes first on every path
	go func() { digest <- fileDigest(data) }()

	m := &Model{spec: spec, backend: backend, scale: float32(1 / math.Sqrt(float64(spec.HeadDim)))}
	err = m.loadWeights(&loader{f: f, b: backend, precise: precise})
	file := <-digest
	print := fingerprint(file, spec.Layout(), backend.Info())
	if err != nil {
		return nil, err
	}
	m.facts = Facts{Name: spec.Name, Arch: spec.Arch, Fingerprint: print, File: file, Metadata: f.HeaderDigest(), Layout: spec.Layout(), Vocab: spec.Vocab, Window: spec.Window}
	if err := f.DropPages(); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *Model) loadWeights(l *loader) error {
	m.embed = l.matrix(noLayer, nameEmbed)
	m.head = m.embed
	if l.has(nameOutput) {
		m.head = l.matrix(noLayer, nameOutput)
	}
	m.outNorm = l.vector(nameOutNorm)
	factors := l.factors(nameRopeFreqs)
	if l.err != nil {
		return l.err
	}
	m.rope = kernels.RoPE{HeadDim: m.spec.HeadDim, Dims: m.spec.RopeDims, NeoX: m.spec.family.neox, InvFreq: m.spec.invFreq(factors), Scale: 1}
	for i := range m.spec.Layers {
		m.layers = append(m.layers, layer{
			attnNorm: l.vector(inLayer(i, nameAttnNorm)),
			qkv:      []kernels.Matrix{l.matrix(i, nameQ), l.matrix(i, nameK), l.matrix(i, nameV)},
			qkvBias:  []kernels.Vector{l.vector(inLayer(i, nameQBias)), l.vector(inLayer(i, nameKBias)), l.vector(inLayer(i, nameVBias))},
			qNorm:    l.vector(inLayer(i, nameQNorm)),
			kNorm:    l.vector(inLayer(i, nameKNorm)),
			attnOut:  []kernels.Matrix{l.matrix(i, nameAttnOutput)},
			ffnNorm:  l.vector(inLayer(i, nameFFNNorm)),
			gateUp:   []kernels.Matrix{l.matrix(i, nameGate), l.matrix(i, nameUp)},
			down:     []kernels.Matrix{l.matrix(i, nameDown)},
		})
		if l.err != nil {
			return l.err
		}
	}
	return nil
}

// loader hands tensors to the backend and remembers the first error. Shapes and
// presence have been checked.
type loader struct {
	f   *gguf.File
	b   kernels.Backend
	err error

	precise bool // whether matrices get precise inputs
}

func (l *loader) has(name string) bool {
	_, ok := l.f.Tensor(name)
	return ok
}

func (l *loader) fail(name string, err error) {
	if l.err == nil {
		l.err = &TensorError{Name: name, Err: err}
	}
}

// noLayer is the layer of a matrix that belongs to none.
const noLayer = -1

func (l *loader) matrix(layer int, name string) kernels.Matrix {
	full := name
	if layer != noLayer {
		full = inLayer(layer, name)
	}
	t, ok := l.f.Tensor(full)
	if !ok || l.err != nil {
		return nil
	}
	load := l.b.LoadMatrix
	if l.precise {
		load = l.b.LoadPrecise
	}
	w, err := load(t.Type, t.Dims[1], t.Dims[0], t.Data)
	if err != nil {
		l.fail(full, err)
	}
	return w
}

// vector returns nil, untyped, for a tensor that is not there.
func (l *loader) vector(name string) kernels.Vector {
	x := l.floats(name)
	if x == nil {
		return nil
	}
	v, err := l.b.LoadVector(x)
	if err != nil {
		l.fail(name, err)
	}
	return v
}

func (l *loader) floats(name string) []float32 {
	t, ok := l.f.Tensor(name)
	if !ok || l.err != nil {
		return nil
	}
	x := make([]float32, t.Elems())
	if err := gguf.Dequantize(x, t.Type, t.Data); err != nil {
		l.fail(name, err)
		return nil
	}
	return x
}

// factors reads RoPE frequency factors, which divide and so must be positive.
func (l *loader) factors(name string) []float32 {
	x := l.floats(name)
	for i, f := range x {
		if !(f > 0 && f <= math.MaxFloat32) {
			l.fail(name, fmt.Errorf("%w: element %d is %v, want a positive number", ErrLimit, i, f))
		}
	}
	return x
}

// Spec returns the model's shape.
func (m *Model) Spec() Spec { return m.spec }

// Facts returns what a node announces.
func (m *Model) Facts() Facts { return m.facts }

// NewPages makes a KV pool of count pages in this model's layout.
func (m *Model) NewPages(count int) (kernels.Pages, error) {
	if m.closed.Load() {
		return nil, ErrClosed
	}
	return m.backend.NewPages(m.spec.Layout(), count)
}

// Close closes the backend. No Forward may be running, and pages die with it.
func (m *Model) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	return m.backend.Close()
}
