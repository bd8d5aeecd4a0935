package router

import "net/http"

// healthObject is what the unauthenticated endpoints say: no node names, no tenants.
type healthObject struct {
	Status string `json:"status"`
	Reason string `json:"reason,omitempty"`
	Window int    `json:"max_model_len,omitempty"`
}

// handleLive says that the process answers.
func (r *Router) handleLive(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, healthObject{Status: "ok"})
}

// handleReady says whether a generation would be taken: not draining, and a prefill and a decode node for
// the model have announced themselves in the last seconds, which they can only over the bus.
func (r *Router) handleReady(w http.ResponseWriter, _ *http.Request) {
	best, ok := r.desk.best()
	switch {
	case r.draining.Load():
		writeJSON(w, http.StatusServiceUnavailable, healthObject{Status: "draining", Reason: "the router is shutting down"})
	case !ok:
		writeJSON(w, http.StatusServiceUnavailable, healthObject{Status: "not ready", Reason: "no prefill and decode node of the model is ready"})
	default:
		writeJSON(w, http.StatusOK, healthObject{Status: "ok", Window: best.limit()})
	}
}

// handleVersion says what is running.
func (r *Router) handleVersion(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, struct {
		Version string `json:"version"`
	}{r.cfg.Version})
}
