package cluster

import (
	"bulkhead/internal/metrics"
	"bulkhead/transfer"
)

// CountBus shows what the bus refused or had to repeat.
func CountBus(r *metrics.Registry, c *transfer.Counters) {
	c.Each(func(what transfer.Count, _ uint64) {
		r.Func("bus_"+what.String()+"_count", "Messages and events on the bus: "+what.String()+" (a count since start).",
			func() float64 { return float64(c.Get(what)) })
	})
}
