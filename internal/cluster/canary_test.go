package cluster_test

import (
	"testing"

	"bulkhead/internal/canary"
)

// canarySite has the incident's shape in small: the window is larger than what prefill holds.
func canarySite(t *testing.T) *site {
	return newSite(t, siteConfig{prefillCapacity: 1024, decodeCapacity: 2304, window: 2048})
}

// canary points the operators' canary at the site.
func (s *site) canary(n int) *canary.Report {
	s.t.Helper()
	rep, err := canary.Run(s.t.Context(), canary.Config{
		URL: s.url, Tenants: []canary.Tenant{{Name: "acme", Key: acmeKey}, {Name: "umbrella", Key: umbrellaKey}},
		N: n, Concurrency: 4, Long: 600, Prefix: 300, Seed: 1, ExpectReceipts: true,
	})
	must(s.t, err)
	return rep
}

// goal: the canary finds nothing here. What it would find: TestWallsCanary.
func TestCanary(t *testing.T) {
	s := canarySite(t)
	rep := s.canary(150)
	if !rep.Clean() {
		t.Errorf("%+v", rep.Findings)
	}
	if rep.Window != 1024 || rep.Failed != 0 || rep.OK < 80 || rep.Compared < 50 || rep.Over < 8 || rep.Rejected < rep.Over || rep.Prefix.OwnHits == 0 || rep.Canceled == 0 {
		t.Errorf("the run shows too little: %+v", rep)
	}
	s.baseline()
}
