package metrics

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// Lint returns what Prometheus' linter has to say about the names and help
// texts of r's metrics. Each role's tests ask for it.
func (r *Registry) Lint() ([]string, error) {
	families, err := r.reg.Gather()
	if err != nil {
		return nil, fmt.Errorf("metrics: gather: %w", err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	out := make([]string, len(problems))
	for i, p := range problems {
		out[i] = p.Metric + ": " + p.Text
	}
	return out, err
}
