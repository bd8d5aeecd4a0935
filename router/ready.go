package router

import "errors"

// Why a router takes no requests.
var (
	ErrDraining = errors.New("router: shutting down")
	ErrNoPair   = errors.New("router: no prefill and decode node of the model is ready")
)

// Ready says whether a generation would be taken; it returns ErrDraining or
// ErrNoPair.
func (r *Router) Ready() error {
	if r.draining.Load() {
		return ErrDraining
	}
	if _, ok := r.desk.best(); !ok {
		return ErrNoPair
	}
	return nil
}

// Idle says that no request is in work.
func (r *Router) Idle() bool { return r.exchanges.count() == 0 }
