package router

import "net/http"

// modelObject is OpenAI's model object with the two members that vLLM and llama-server add.
type modelObject struct {
	ID      string     `json:"id"`
	Object  string     `json:"object"`
	Created int64      `json:"created"`
	OwnedBy string     `json:"owned_by"`
	MaxLen  int        `json:"max_model_len"` // the effective window of the pools as they stand; 0: none is ready
	Meta    *modelMeta `json:"meta,omitempty"`
}

type modelMeta struct {
	Vocab int    `json:"n_vocab"`
	Name  string `json:"name,omitempty"`
}

type modelList struct {
	Object string        `json:"object"`
	Data   []modelObject `json:"data"`
}

func (r *Router) model() modelObject {
	m := modelObject{
		ID: r.cfg.ModelID, Object: "model", Created: r.started.Unix(), OwnedBy: "bulkhead",
		Meta: &modelMeta{Vocab: r.tok.VocabSize()},
	}
	if best, ok := r.desk.best(); ok {
		m.MaxLen, m.Meta.Name = best.limit(), best.decode.ModelName
	}
	return m
}

// handleModels answers GET /v1/models.
func (r *Router) handleModels(w http.ResponseWriter, req *http.Request) {
	if _, err := r.authenticate(req); err != nil {
		writeError(w, asAPIError(err))
		return
	}
	writeJSON(w, http.StatusOK, modelList{Object: "list", Data: []modelObject{r.model()}})
}

// handleModel answers GET /v1/models/{id}; ids may hold slashes.
func (r *Router) handleModel(w http.ResponseWriter, req *http.Request, id string) {
	if _, err := r.authenticate(req); err != nil {
		writeError(w, asAPIError(err))
		return
	}
	if id != r.cfg.ModelID {
		writeError(w, fail(kindModelNotFound, "model", "The model does not exist or you do not have access to it."))
		return
	}
	writeJSON(w, http.StatusOK, r.model())
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := marshal(v)
	if err != nil {
		writeError(w, asAPIError(err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // the client may be gone
}
