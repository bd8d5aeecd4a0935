package transfer

import (
	"context"
	"time"
)

// Refresh makes the connection anew whenever it is older than age and idle says
// that nothing is under way, until ctx ends. The server drops a client whose
// user JWT runs out, in the middle of whatever it carries; a reconnection with
// the next JWT at a quiet moment before that costs nobody anything.
func (c *Conn) Refresh(ctx context.Context, age time.Duration, idle func() bool) {
	made := time.Now()
	t := time.NewTicker(min(age, time.Second))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if time.Since(made) < age || !idle() {
			continue
		}
		if err := c.nc.ForceReconnect(); err != nil {
			c.log.Warn("nats: cannot renew the connection", "err", err)
		}
		made = time.Now()
	}
}
