package loadgen

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestBenchCases(t *testing.T) {
	c := EngineConfig{Path: tinyChat, Prompt: 10, Gen: 2, NewBackend: newCPU}
	var out bytes.Buffer
	in := strings.NewReader("{\"prompt\":70,\"gen\":3,\"batch\":4}\n{}\n")
	if err := BenchCases(context.Background(), c, in, &out); err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(&out)
	var loaded Loaded
	if err := dec.Decode(&loaded); err != nil || !(loaded.LoadS > 0) || loaded.RSSBytes < 1<<20 {
		t.Errorf("first line: %+v, %v", loaded, err)
	}
	for range 2 {
		var r EngineResult
		if err := dec.Decode(&r); err != nil || !(r.PromptTokS > 0) || !(r.GenTokS > 0) || r.LoadS != loaded.LoadS {
			t.Errorf("%+v, %v", r, err)
		}
	}
	if dec.More() {
		t.Error("more lines than cases")
	}
}

func TestBenchCasesRefuses(t *testing.T) {
	c := EngineConfig{Path: tinyChat, Prompt: 10, Gen: 2, NewBackend: newCPU}
	for _, line := range []string{"x", `{"prompt":-1}`, `{"prompts":5}`, `{"batch":5000}`} {
		err := BenchCases(context.Background(), c, strings.NewReader(line+"\n"), &bytes.Buffer{})
		if !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v, want %v", line, err, ErrConfig)
		}
	}
	long := strings.Repeat(" ", 2*caseBytesMax) + "{}\n"
	if err := BenchCases(context.Background(), c, strings.NewReader(long), &bytes.Buffer{}); err == nil {
		t.Error("a line of 8 KiB was taken")
	}
}
