package prefill

import (
	"bulkhead/internal/mutant"
	"bulkhead/transfer"
	"bulkhead/transfer/seal"
)

// shipment is the messages of one attempt, in order: opening, frames, manifest.
// It waits for nothing and sends nothing; whoever drives it does.
type shipment struct {
	n     *Node
	a     *attempt
	chain *seal.Chain
	at    shipKind
	index int   // of the next frame
	lies  *Lies // nil but in the simulator
}

type shipKind uint8

const (
	shipOpen shipKind = iota
	shipFrame
	shipManifest
	shipDone
)

// shipNext is the next message and whether the engine is far enough for it;
// ready is called with a.mu held.
type shipNext struct {
	kind  shipKind
	ready func() bool
}

func newShipment(n *Node, a *attempt) *shipment {
	return &shipment{n: n, a: a, chain: seal.NewChain()}
}

func (s *shipment) next() shipNext {
	switch s.at {
	case shipFrame:
		block := s.a.plan.Frame(s.index).Block
		return shipNext{s.at, func() bool { return s.a.blocks > block }}
	case shipManifest:
		return shipNext{s.at, func() bool { return s.a.first != nil }}
	}
	return shipNext{s.at, func() bool { return true }}
}

func (s *shipment) open() transfer.Open {
	o := transfer.Open{
		Token: s.a.grant.Job.Token, Prefill: s.n.self.Node, PrefillEpoch: s.n.self.Epoch,
		Enc: s.a.enc, Frames: s.a.plan.Frames(), Layout: s.n.layout,
	}
	if s.lies != nil && s.lies.Open != nil {
		s.lies.Open(&o)
	}
	return o
}

// skips reports whether the next frame is left out.
func (s *shipment) skips() bool { return s.lies != nil && s.lies.Skip != nil && s.lies.Skip(s.index) }

// frame seals the next frame, once.
func (s *shipment) frame() ([]byte, error) {
	frame, err := s.n.sealFrame(s.a, s.index, s.a.plan.Frame(s.index), s.lies)
	if err != nil {
		return nil, err
	}
	return frame, s.chain.Add(frame)
}

// manifest is to be signed when every frame is stored.
func (s *shipment) manifest() ([]byte, error) {
	a := s.a
	// A shared block may have been condemned by another request's fault since.
	if err := a.table.Sound(); err != nil && !mutant.Off(mutant.PrefillSound) {
		return nil, &refusal{transfer.ReasonIntegrity, err}
	}
	a.mu.Lock()
	first := *a.first
	a.mu.Unlock()
	plain, err := transfer.EncodeFirst(first)
	if err != nil {
		return nil, err
	}
	sealed, err := a.keys.SealFirst(plain)
	if err != nil {
		return nil, err
	}
	m := seal.Manifest{
		TokenHash: a.grant.Hash, Blocks: a.plan.Blocks(), Tokens: a.plan.PromptLen,
		Frames: a.plan.Frames(), Cached: a.cached, Chain: s.chain.Sum(), First: sealed,
	}
	if s.lies != nil && s.lies.Manifest != nil {
		s.lies.Manifest(&m)
	}
	return m.Append(nil)
}

// sent says that the message of next is on its way: the opening and the manifest
// stored, a frame taken by the window.
func (s *shipment) sent() {
	switch s.at {
	case shipOpen:
		s.at = shipFrame
	case shipFrame:
		block := s.a.plan.Frame(s.index).Block
		if _, hi := s.a.plan.BlockFrames(block); s.index == hi-1 {
			s.n.worker.shipped(s.a, block+1, false)
		}
		if s.index++; s.index == s.a.plan.Frames() {
			s.at = shipManifest
		}
	case shipManifest:
		s.at = shipDone
	}
}
