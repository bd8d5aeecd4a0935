package transfer

import (
	"context"
	"time"
)

// Heartbeat announces what state returns, now, every AnnounceEvery, and at
// each wake, until ctx ends. A failed announcement is logged; the next one is
// its repeat.
func (p *Peer) Heartbeat(ctx context.Context, wake <-chan struct{}, state func() Announce) {
	t := time.NewTicker(AnnounceEvery)
	defer t.Stop()
	for {
		if err := p.Announce(state()); err != nil {
			p.log.Warn("announcement not sent", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-wake:
		}
	}
}
