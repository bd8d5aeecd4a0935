package model

import (
	"errors"
	"fmt"

	"bulkhead/kernels"
)

// runner is the scratch memory of one step after another. It belongs to one goroutine.
type runner struct {
	m                *Model
	maxRows, maxSeqs int
	closed           bool

	// Activations, [maxRows, ...].
	x, h          kernels.Buffer   // residual stream; what is normed from it or added to it
	q, k, v       kernels.Buffer   // k and v: [maxRows, KVHeads*HeadDim]
	attn          kernels.Buffer   // [maxRows, Heads*HeadDim]
	gate, up      kernels.Buffer   // [maxRows, FFN]
	logits        kernels.Buffer   // [maxSeqs, Vocab]
	qkv, toH, ffn []kernels.Buffer // the same, grouped as MatMul takes them

	// The step in hand.
	tokens []int32
	pos    []int32
	spans  []kernels.Span
	seqOf  []int // span -> sequence
	pick   []int // rows whose logits are wanted
	picked []int // pick -> sequence
	outs   []Out
	host   []float32 // logits as Forward returns them, [maxSeqs, Vocab]
}

// NewRunner makes the scratch memory for steps of at most maxRows rows and
// maxSeqs sequences. The error is the backend's (memory) or ErrStepSize.
func (m *Model) NewRunner(maxRows, maxSeqs int) (Runner, error) {
	if m.closed.Load() {
		return nil, ErrClosed
	}
	if maxRows < 1 || maxSeqs < 1 {
		return nil, fmt.Errorf("%w: runner of %d rows, %d sequences", ErrStepSize, maxRows, maxSeqs)
	}
	maxSeqs = min(maxSeqs, maxRows) // every sequence has a row
	r := &runner{m: m, maxRows: maxRows, maxSeqs: maxSeqs}
	s := m.spec
	for _, b := range []struct {
		buffer     *kernels.Buffer
		rows, cols int
	}{
		{&r.x, maxRows, s.Hidden}, {&r.h, maxRows, s.Hidden},
		{&r.q, maxRows, s.Heads * s.HeadDim}, {&r.k, maxRows, s.KVHeads * s.HeadDim}, {&r.v, maxRows, s.KVHeads * s.HeadDim},
		{&r.attn, maxRows, s.Heads * s.HeadDim},
		{&r.gate, maxRows, s.FFN}, {&r.up, maxRows, s.FFN},
		{&r.logits, maxSeqs, s.Vocab},
	} {
		var err error
		if *b.buffer, err = m.backend.Alloc(b.rows, b.cols); err != nil {
			return nil, err
		}
	}
	r.qkv = []kernels.Buffer{r.q, r.k, r.v}
	r.toH = []kernels.Buffer{r.h}
	r.ffn = []kernels.Buffer{r.gate, r.up}
	r.host = make([]float32, maxSeqs*s.Vocab)
	return r, nil
}

// Close lets the scratch memory go.
func (r *runner) Close() { *r = runner{closed: true} }

// Forward computes one step. See Runner. The outer error is ErrStepSize,
// ErrLayout, ErrClosed or the backend's; Out.Err is a kernels.Fault, or ErrNoTokens,
// ErrTokenID, ErrWindow or ErrTable for a sequence that could not take part.
func (r *runner) Forward(pages kernels.Pages, seqs []Seq) ([]Out, error) {
	if err := r.arrange(pages, seqs); err != nil {
		return nil, err
	}
	if len(r.spans) == 0 {
		return r.outs, nil
	}
	err := r.m.backend.Step(func(ops kernels.Ops) error {
		r.compute(ops, pages)
		return nil
	})
	var faults *kernels.FaultError
	if err != nil && !errors.As(err, &faults) {
		return nil, err
	}
	if faults != nil {
		for _, f := range faults.Faults {
			f.Span = r.seqOf[f.Span]
			r.outs[f.Span].Err = f
		}
	}
	r.deliver()
	return r.outs, nil
}

// arrange lays the sequences' tokens out as rows, and turns away what cannot be computed.
func (r *runner) arrange(pages kernels.Pages, seqs []Seq) error {
	if r.closed || r.m.closed.Load() {
		return ErrClosed
	}
	if got, want := pages.Layout(), r.m.facts.Layout; got != want {
		return fmt.Errorf("%w: %+v, want %+v", ErrLayout, got, want)
	}
	rows := 0
	for _, s := range seqs {
		rows += len(s.Tokens)
	}
	if rows > r.maxRows || len(seqs) > r.maxSeqs {
		return fmt.Errorf("%w: %d rows, %d sequences; at most %d and %d", ErrStepSize, rows, len(seqs), r.maxRows, r.maxSeqs)
	}
	r.tokens, r.pos = r.tokens[:0], r.pos[:0]
	r.spans, r.seqOf = r.spans[:0], r.seqOf[:0]
	r.pick, r.picked = r.pick[:0], r.picked[:0]
	r.outs = r.outs[:0]
	for i, s := range seqs {
		r.outs = append(r.outs, Out{Err: r.admit(s)})
		if r.outs[i].Err != nil {
			continue
		}
		row := len(r.tokens)
		r.spans = append(r.spans, kernels.Span{Row: row, Len: len(s.Tokens), Pos: s.Pos, Table: s.Table})
		r.seqOf = append(r.seqOf, i)
		for j, t := range s.Tokens {
			r.tokens = append(r.tokens, t)
			r.pos = append(r.pos, int32(s.Pos+j))
		}
		if s.Logits {
			r.pick = append(r.pick, len(r.tokens)-1)
			r.picked = append(r.picked, i)
		}
	}
	return nil
}

// admit checks one sequence's part. Token ids are the client's and positions the
// job's: neither may do more than fail this sequence.
func (r *runner) admit(s Seq) error {
	n := len(s.Tokens)
	if n == 0 {
		return ErrNoTokens
	}
	if window := r.m.spec.Window; s.Pos < 0 || n > window || s.Pos > window-n {
		return fmt.Errorf("%w: positions %d to %d, window of %d", ErrWindow, s.Pos, s.Pos+n-1, window)
	}
	if have := len(s.Table) * kernels.BlockTokens; s.Pos+n > have {
		return fmt.Errorf("%w: %d tokens, pages for %d", ErrTable, s.Pos+n, have)
	}
	for i, t := range s.Tokens {
		if t < 0 || int(t) >= r.m.spec.Vocab {
			return fmt.Errorf("%w: token %d of the step, vocabulary of %d", ErrTokenID, i, r.m.spec.Vocab)
		}
	}
	return nil
}

// compute is the model: a pre-norm transformer.
func (r *runner) compute(ops kernels.Ops, pages kernels.Pages) {
	m, s, rows := r.m, &r.m.spec, len(r.tokens)
	ops.Embed(r.x, m.embed, r.tokens)
	for l := range m.layers {
		w := &m.layers[l]

		// x += Wo · attention(norm(x))
		ops.RMSNorm(r.h, r.x, rows, 1, w.attnNorm, s.Eps)
		ops.MatMul(r.qkv, r.h, rows, w.qkv, w.qkvBias)
		if w.qNorm != nil {
			ops.RMSNorm(r.q, r.q, rows, s.Heads, w.qNorm, s.Eps)
			ops.RMSNorm(r.k, r.k, rows, s.KVHeads, w.kNorm, s.Eps)
		}
		ops.RoPE(r.q, rows, s.Heads, r.pos, m.rope)
		ops.RoPE(r.k, rows, s.KVHeads, r.pos, m.rope)
		ops.AppendKV(pages, l, r.k, r.v, r.spans)
		ops.PagedAttention(r.attn, r.q, pages, l, r.spans, s.Heads, m.scale)
		ops.MatMul(r.toH, r.attn, rows, w.attnOut, nil)
		ops.Add(r.x, r.h, rows)

		// x += Wdown · (silu(Wgate · norm(x)) * (Wup · norm(x)))
		ops.RMSNorm(r.h, r.x, rows, 1, w.ffnNorm, s.Eps)
		ops.MatMul(r.ffn, r.h, rows, w.gateUp, nil)
		ops.SiLUMul(r.gate, r.gate, r.up, rows)
		ops.MatMul(r.toH, r.gate, rows, w.down, nil)
		ops.Add(r.x, r.h, rows)
	}
	if len(r.pick) > 0 {
		ops.RMSNorm(r.h, r.x, rows, 1, m.outNorm, s.Eps)
		ops.MatMulRows(r.logits, r.h, r.pick, m.head)
	}
}

// deliver copies the logits out, except those of sequences that failed.
func (r *runner) deliver() {
	vocab := r.m.spec.Vocab
	for row, i := range r.picked {
		if r.outs[i].Err != nil {
			continue
		}
		dst := r.host[row*vocab : (row+1)*vocab : (row+1)*vocab]
		r.m.backend.Read(dst, r.logits, row, 1)
		r.outs[i].Logits = dst
	}
}
