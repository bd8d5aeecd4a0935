package cpu

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"bulkhead/kernels"
)

// step is the Ops of one Step. It belongs to the goroutine that runs the step;
// the workers see only what a parallel region hands them.
type step struct {
	b      *backend
	open   bool
	faults []kernels.Fault // the first of each refused span
	ropes  []*ropeTable
}

func (b *backend) Step(f func(kernels.Ops) error) error {
	if b.closed.Load() {
		return ErrClosed
	}
	s := &step{b: b, open: true}
	defer func() { s.open = false }()
	err := f(s)
	if len(s.faults) == 0 {
		return err
	}
	slices.SortFunc(s.faults, func(a, b kernels.Fault) int { return cmp.Compare(a.Span, b.Span) })
	return errors.Join(&kernels.FaultError{Faults: s.faults}, err)
}

func (s *step) buffer(b kernels.Buffer) *buffer {
	if !s.open {
		panic("cpu: operation outside its step")
	}
	return b.(*buffer)
}

func (s *step) checkRows(op string, b *buffer, rows int) {
	if rows < 0 || rows > b.rows {
		panic(fmt.Sprintf("cpu: %s: %d rows of a buffer of %d", op, rows, b.rows))
	}
}

// rowElements is about how many elements make a chunk worth handing out.
const rowElements = 8 << 10

// forRows calls fn for each row, in parallel if there is enough to do.
func (s *step) forRows(rows, cols int, fn func(r int)) {
	if rows == 0 {
		return
	}
	chunk := max(1, rowElements/cols)
	s.b.pool.run((rows+chunk-1)/chunk, func(c int) {
		for r := c * chunk; r < min((c+1)*chunk, rows); r++ {
			fn(r)
		}
	})
}

func (s *step) Embed(dst kernels.Buffer, table kernels.Matrix, tokens []int32) {
	d, m := s.buffer(dst), table.(*matrix)
	s.checkRows("Embed", d, len(tokens))
	if d.cols != m.cols {
		panic(fmt.Sprintf("cpu: Embed: %d columns from a table of %d", d.cols, m.cols))
	}
	for _, id := range tokens {
		if id < 0 || int(id) >= m.rows {
			panic(fmt.Sprintf("cpu: Embed: row %d of a table of %d", id, m.rows))
		}
	}
	s.forRows(len(tokens), d.cols, func(r int) { m.row(d.row(r), int(tokens[r])) })
}

func (s *step) RMSNorm(dst, src kernels.Buffer, rows, heads int, w kernels.Vector, eps float32) {
	d, x, weight := s.buffer(dst), s.buffer(src), w.(vector)
	s.checkRows("RMSNorm", d, rows)
	s.checkRows("RMSNorm", x, rows)
	if heads < 1 || d.cols != x.cols || len(weight)*heads != x.cols {
		panic(fmt.Sprintf("cpu: RMSNorm: %d columns to %d, %d heads, weight of %d", x.cols, d.cols, heads, len(weight)))
	}
	n := len(weight)
	s.forRows(rows, x.cols, func(r int) {
		out, in := d.row(r), x.row(r)
		for h := range heads {
			s.b.tier.norm(out[h*n:(h+1)*n], in[h*n:(h+1)*n], weight, eps)
		}
	})
}

func (s *step) SiLUMul(dst, gate, up kernels.Buffer, rows int) {
	d, g, u := s.buffer(dst), s.buffer(gate), s.buffer(up)
	for _, b := range []*buffer{d, g, u} {
		s.checkRows("SiLUMul", b, rows)
		if b.cols != d.cols {
			panic(fmt.Sprintf("cpu: SiLUMul: %d, %d and %d columns", d.cols, g.cols, u.cols))
		}
	}
	s.forRows(rows, d.cols, func(r int) { s.b.tier.siluMul(d.row(r), g.row(r), u.row(r)) })
}

func (s *step) Add(dst, src kernels.Buffer, rows int) {
	d, x := s.buffer(dst), s.buffer(src)
	s.checkRows("Add", d, rows)
	s.checkRows("Add", x, rows)
	if d.cols != x.cols {
		panic(fmt.Sprintf("cpu: Add: %d columns to %d", x.cols, d.cols))
	}
	s.forRows(rows, d.cols, func(r int) { s.b.tier.add(d.row(r), x.row(r)) })
}

// refused reports whether a span had its fault: it is passed by from then on,
// so that it never has a second one.
func (s *step) refused(span int) bool {
	return slices.ContainsFunc(s.faults, func(f kernels.Fault) bool { return f.Span == span })
}
